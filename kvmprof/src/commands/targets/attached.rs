//! A `kvmprof attach` that a command starts for a guest of another VMM, and ends.

use std::env;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use kvmprof_attach::Machine;
use kvmprof_cli::child::end_with_this_process;
use kvmprof_cli::command_line::Console;
use kvmprof_client::{Connection, RuntimeFolderError, named_socket};
use rustix::process::{Pid, Signal, kill_process};

use super::machines;

/// The pause between two tries to connect.
const POLL: Duration = Duration::from_millis(20);

/// The running `kvmprof attach`. It ends when this is dropped, or when this process ends.
#[derive(Debug)]
pub struct Attached {
    child: Child,
}

/// The socket at which the guest of process `pid` is served. Other commands find it there meanwhile: a guest can be attached to only once. Its name doesn't
/// end as those of guests with names do: it is none that a collector follows.
///
/// # Errors
/// This user has no folder for sockets.
pub fn socket(pid: i32) -> Result<PathBuf, RuntimeFolderError> {
    Ok(named_socket(&format!("attached-{pid}"))?.with_extension(""))
}

/// Attaches to `machine`, which can be attached to, and connects. With `by_event` the host's kernel takes the samples, which it can at exits.
///
/// # Errors
/// It can't be attached to. Why is on standard error then, or in the error.
pub fn attach(
    machine: &Machine,
    by_event: bool,
    console: &mut Console<'_>,
) -> anyhow::Result<(Connection, Attached)> {
    let socket = socket(machine.pid)?;
    console.say(format_args!(
        "attaching to the guest of process {}",
        machines::in_words(machine)
    ));
    let program = env::current_exe().context("Cannot find this program")?;
    let mut command = Command::new(program);
    command
        .arg("attach")
        .arg(format!("{}:{}", machine.pid, machine.start_time))
        .arg("--socket")
        .arg(&socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    if by_event {
        command.args(["--capture", "kernel"]);
    }
    end_with_this_process(&mut command);
    let child = command.spawn().context("Cannot start kvmprof attach")?;
    let mut attached = Attached { child };
    loop {
        if let Ok(connection) = Connection::connect(&socket) {
            return Ok((connection, attached));
        }
        if let Some(status) = attached.child.try_wait()? {
            bail!("kvmprof attach has ended ({status}): it has said why");
        }
        thread::sleep(POLL);
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let Ok(pid) = i32::try_from(self.child.id()) else {
            return;
        };
        // It has ended by itself if this fails.
        if let (Ok(None), Some(pid)) = (self.child.try_wait(), Pid::from_raw(pid)) {
            let _ = kill_process(pid, Signal::TERM);
            let _ = self.child.wait();
        }
    }
}
