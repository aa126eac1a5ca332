//! The launcher: the process that has the rights to attach to guests of other VMMs, and starts a `kvmprof attach` for each (`docs/fleet.md`).
//!
//! A collector connects to its socket and is told ([`message::LauncherMessage`]) which guests there are, each with the pipe that its recording comes by. It can't say
//! anything, so that whoever has taken it over can only close pipes and connections: each makes the next attempt later.

mod guests;
mod listener;
pub mod message;
mod retry;

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use kvmprof_cli::interrupt::Interrupt;
use kvmprof_sandbox::process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, sendmsg};
use rustix::process::{Pid, WaitOptions, waitpid};

use self::guests::Guests;
pub use self::listener::Listener;
pub(crate) use self::listener::new_socket;
use self::message::LauncherMessage;
use self::retry::Retry;
use crate::config::Config;

/// The interval between looks at guests and signals.
const POLL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 250_000_000,
};
/// Maximum number of files of a message: the pipe of a guest. Tests send more.
const MAX_FILES: usize = 2;
/// Maximum number of messages that wait for a collector. One that takes none for so long is let go.
const MAX_WAITING: usize = 16 << 10;

/// Reads the launcher's rules, for each collector that connects.
pub type Rules<'a> = &'a dyn Fn() -> anyhow::Result<Config>;

/// A process that launches for its parent, and ends with it.
#[derive(Debug)]
pub struct Forked {
    /// The socket at which it listens.
    path: PathBuf,
    process: Option<Pid>,
    /// The process sees its end. `None` at the end.
    lifeline: Option<io::PipeWriter>,
}

impl Forked {
    /// Forks the process, which keeps the rights that attaching takes. The calling process can give up its own then.
    ///
    /// # Errors
    /// The host gives no folder, socket or process.
    ///
    /// # Safety
    /// This process has no other thread: one might hold a lock that nobody releases in the new process.
    pub unsafe fn start(rules: Rules<'_>) -> anyhow::Result<Self> {
        // Its mode is 0700.
        let folder = tempfile::Builder::new()
            .prefix("kvmprof-collect-")
            .tempdir();
        let folder = folder.context("Cannot make a folder for the launcher's socket")?;
        let path = folder.path().join("launcher.sock");
        let listener = Listener::bind(&path, None)?;
        let (parent, lifeline) = io::pipe().context("Cannot make a pipe")?;
        // SAFETY: by this function's own condition; the new process never returns from here.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()).context("Cannot start a process"),
            0 => {
                drop(lifeline);
                // A Ctrl-C of the terminal is for the parent, with which this process ends.
                let _ = rustix::process::setpgid(None, None);
                let _ = rustix::thread::set_name(c"kvmprof-launch");
                let launcher = Launcher {
                    listener,
                    parent: Some(parent.into()),
                    rules,
                };
                if let Err(error) = launcher.run() {
                    log::error!("{error:#}: guests of other VMMs aren't attached to");
                }
                drop(folder);
                // SAFETY: it doesn't return. Exit handlers of the parent must not run in this process.
                unsafe { libc::_exit(0) }
            }
            process => {
                // The process removes it.
                let _ = folder.keep();
                listener.leave();
                Ok(Self {
                    path,
                    process: Pid::from_raw(process),
                    lifeline: Some(lifeline),
                })
            }
        }
    }

    /// The socket at which it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The process ends all that it has started first.
impl Drop for Forked {
    fn drop(&mut self) {
        self.lifeline = None;
        // Whatever has become of it, it has ended.
        let _ = waitpid(self.process, WaitOptions::empty());
    }
}

/// Launches for collectors that connect to `attach.launcher` of the rules, until a signal ends this process.
///
/// # Errors
/// The rules can't be read or name no guests, or the socket can't be made.
pub fn serve(rules: Rules<'_>) -> anyhow::Result<()> {
    let config = rules()?;
    let attach = &config.attach;
    let Some(path) = &attach.launcher else {
        bail!("attach.launcher is missing: the path of the launcher's socket");
    };
    let launcher = Launcher {
        listener: Listener::bind(path, attach.user)?,
        parent: None,
        rules,
    };
    launcher.run()
}

struct Launcher<'a> {
    listener: Listener,
    /// Readable when the parent has ended.
    parent: Option<OwnedFd>,
    rules: Rules<'a>,
}

impl Launcher<'_> {
    fn run(&self) -> anyhow::Result<()> {
        if rustix::process::geteuid().is_root() {
            // Another user's program may have rights by its file only, which it has no more after this.
            process::keep_tracer_rights().context("Cannot give up rights")?;
        }
        let interrupt = Interrupt::on_signals()?;
        let (mut session, mut again) = (None::<Session>, Retry::now());
        while !interrupt.is_raised() && self.has_parent() {
            if let Some(open) = &mut session {
                if !open.goes_on() {
                    session = None;
                    again.end(false);
                }
            } else if again.is_due() {
                again.begin();
                session = self.listener.accept().and_then(|it| self.begin(it));
            }
            self.wait(session.as_ref(), again.is_due());
        }
        Ok(())
    }

    fn has_parent(&self) -> bool {
        let Some(parent) = &self.parent else {
            return true;
        };
        let mut ended = [PollFd::new(parent, PollFlags::IN)];
        matches!(
            poll(&mut ended, Some(&Timespec::default())),
            Ok(0) | Err(Errno::INTR)
        )
    }

    /// Waits until there is something to do.
    fn wait(&self, session: Option<&Session>, is_due: bool) {
        let mut files: Vec<BorrowedFd<'_>> = self.parent.iter().map(AsFd::as_fd).collect();
        match session {
            Some(session) => files.push(session.connection.as_fd()),
            None if is_due => files.push(self.listener.as_fd()),
            None => {}
        }
        let files = files.iter().map(|file| PollFd::new(file, PollFlags::IN));
        let mut files: Vec<PollFd<'_>> = files.collect();
        // After an error, which only a signal causes, all is looked at.
        let _ = poll(&mut files, Some(&POLL));
    }

    fn begin(&self, connection: OwnedFd) -> Option<Session> {
        let rules = (self.rules)().and_then(|rules| {
            if rules.attach.guests.is_empty() {
                bail!("attach.guests is empty, so that no guest is meant");
            }
            Ok(rules)
        });
        match rules {
            Ok(rules) => Some(Session {
                guests: Guests::new(rules),
                connection,
            }),
            Err(error) => {
                log::error!("{error:#}");
                let warning =
                    LauncherMessage::Warning(format!("The launcher's configuration: {error:#}"));
                // The collector hears of it by the end of the connection, too.
                let _ = send(&connection, &warning, None);
                None
            }
        }
    }
}

/// A collector that is connected. When this is dropped, all that was started for it ends.
struct Session {
    guests: Guests,
    connection: OwnedFd,
}

impl Session {
    /// Does what is to be done. False once the collector has closed the connection, or its direction of it.
    fn goes_on(&mut self) -> bool {
        match recv(&self.connection, &mut [0; 1], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok((_, 1..)) => {
                log::warn!("The collector was let go: it has sent something, which none does");
                return false;
            }
            Ok(_) | Err(_) => return false,
        }
        self.guests.look();
        while let Some((told, pipe)) = self.guests.next_told() {
            match send(&self.connection, &told, pipe.as_ref()) {
                Ok(()) => {}
                Err(Errno::AGAIN | Errno::INTR) => {
                    self.guests.put_back((told, pipe));
                    break;
                }
                Err(_) => return false,
            }
        }
        self.guests.waiting() <= MAX_WAITING
    }
}

/// Sends one message, without waiting for room.
fn send(connection: &OwnedFd, told: &LauncherMessage, pipe: Option<&OwnedFd>) -> Result<(), Errno> {
    let files: Vec<BorrowedFd<'_>> = pipe.into_iter().map(AsFd::as_fd).collect();
    send_bytes(connection, &told.encode(), &files)
}

pub(crate) fn send_bytes(
    connection: &OwnedFd,
    bytes: &[u8],
    files: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(files));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(connection, &[IoSlice::new(bytes)], &mut control, flags).map(drop)
}

#[cfg(test)]
mod tests;
