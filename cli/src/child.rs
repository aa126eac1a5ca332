//! Other programs: where they are, and that they end with the one that has started them.

use std::env;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// The path of the program `name` in the folder of this program. If there is none, `name` itself, which is searched for in PATH.
pub fn program(name: &str) -> PathBuf {
    let beside = env::current_exe().ok();
    let beside = beside.map(|program| program.with_file_name(name));
    let beside = beside.filter(|program| program.is_file());
    beside.unwrap_or_else(|| PathBuf::from(name))
}

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
