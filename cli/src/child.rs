//! Programs that end with the one that has started them.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Has the program of `command` get SIGTERM when this process ends, however that ends. It leads a process group: Ctrl-C on a terminal is for this process only,
/// which ends its children itself.
pub fn end_with_this_process(command: &mut Command) {
    let parent = getpid();
    command.process_group(0);
    // SAFETY: between fork and exec there are only prctl(2) and getppid(2), which take no lock and no memory.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::TERM))?;
            // If the parent has ended before that, the signal never comes.
            if getppid() == Some(parent) {
                Ok(())
            } else {
                Err(io::ErrorKind::BrokenPipe.into())
            }
        });
    }
}
