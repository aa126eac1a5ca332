//! A process that starts virtiofsd. kvmprof itself may execute no program once it is contained (`kvmprof_sandbox`), and each reset of a
//! folder's device needs a new virtiofsd.
//!
//! The helper knows which folders there are, and takes a few bytes: a request and a folder's number. So kvmprof can ask it to start
//! virtiofsd for one of those folders again, and for nothing else.
//!
//! The helper of a kvmprof in a jail is outside of the jail, where the folders and the program are.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use vmm_sys_util::syscall::SyscallReturnCode;

use super::ShareError;
use super::options::{ShareOptions, ShareSource};
use super::program::{Daemon, Program};
use crate::helper::{Answer, Helper, described};

/// The kinds of request, in a message's first byte.
mod request {
    /// Tells the helper which program to start: the rest of the message. Only the first such request has an effect.
    pub const PROGRAM: u8 = 1;
    /// Starts the program for a folder, whose number is the second byte.
    pub const START: u8 = 2;
    /// Ends the program of the folder with this number.
    pub const END: u8 = 3;
    /// Waits until the program of the folder with this number has ended, for 1 s at most.
    pub const WAIT: u8 = 4;
}

/// The connection to the helper. When this is dropped, the helper ends, and all programs that it has started.
#[derive(Debug)]
pub struct ShareHelper {
    process: Helper,
    /// Whether this process is in a jail, outside of which the helper, the folders and the program are.
    is_outside: bool,
}

impl ShareHelper {
    /// Forks the helper for these folders. `None` if virtiofsd is needed for none of them.
    ///
    /// # Errors
    /// The host can't make a socket or a process.
    ///
    /// # Safety
    /// The process has no other thread: one might hold a lock that nobody releases in the helper.
    pub unsafe fn fork(shares: &[ShareOptions]) -> io::Result<Option<Self>> {
        if !shares.iter().any(is_folder) {
            return Ok(None);
        }
        let server = || {
            let mut server = Server::new(shares);
            Ok(move |message: &[u8]| server.answer(message))
        };
        // SAFETY: by this function's own condition.
        let helper = unsafe { Helper::fork(c"kvmprof-share", server) };
        helper.map(|helper| {
            Some(Self {
                process: helper,
                is_outside: false,
            })
        })
    }

    /// Forks the helper for these folders and for a kvmprof that is to be executed in a jail, in which it can't see the folders.
    /// `virtiofsd` is the path of the program that serves them; without it, the program is searched for. `confine` runs in the helper; if
    /// it fails, the helper refuses all requests. `None` if virtiofsd is needed for none of the folders.
    ///
    /// # Errors
    /// There is no such folder or program, or the host gives no socket or process.
    ///
    /// # Safety
    /// As [`fork`](Self::fork).
    pub unsafe fn fork_outside(
        shares: &[ShareOptions],
        virtiofsd: Option<&Path>,
        confine: impl FnOnce() -> io::Result<()>,
    ) -> Result<Option<Self>, ShareError> {
        let mut server = Server::new(shares);
        let folders = server.folders.iter().flatten();
        let folders: Vec<&PathBuf> = folders.map(|(path, _)| path).collect();
        if folders.is_empty() {
            return Ok(None);
        }
        for path in folders {
            super::check_folder(path)?;
        }
        server.program = Some(Program::find(virtiofsd)?);
        let server = || {
            confine()?;
            Ok(move |message: &[u8]| server.answer(message))
        };
        // SAFETY: by this function's own condition.
        let helper = unsafe { Helper::fork(c"kvmprof-share", server) };
        let helper = helper.map_err(ShareError::host("the process that starts virtiofsd"));
        Ok(Some(Self {
            process: helper?,
            is_outside: true,
        }))
    }

    /// The helper whose connection has this descriptor, which this process has inherited.
    ///
    /// # Errors
    /// The descriptor isn't open.
    ///
    /// # Safety
    /// Nothing else in this process owns the descriptor.
    pub unsafe fn inherited(number: i32) -> io::Result<Self> {
        // SAFETY: the call takes numbers. Programs that this process executes later don't inherit the descriptor.
        let result = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
        SyscallReturnCode(result).into_empty_result()?;
        // SAFETY: it is open, and nobody else's by this function's own condition.
        let socket = unsafe { OwnedFd::from_raw_fd(number) };
        Ok(Self {
            process: Helper::inherited(socket),
            is_outside: true,
        })
    }

    /// The next program that this process executes keeps the connection. Returns its descriptor, for [`inherited`](Self::inherited).
    ///
    /// # Errors
    /// [`leave`](Self::leave) was called, or the system refuses it.
    pub fn hand_over(&self) -> io::Result<i32> {
        self.process.hand_over()
    }

    /// Leaves the helper to that program, with which it ends.
    pub fn leave(&self) {
        self.process.leave();
    }

    /// Whether folders and program are outside of the jail that this process is in.
    pub(super) fn is_outside(&self) -> bool {
        self.is_outside
    }

    /// Tells the helper which program to start. Call it before the guest runs: only the first call has an effect.
    pub(super) fn use_program(&self, program: &Program) -> io::Result<()> {
        let mut message = vec![request::PROGRAM];
        message.extend(program.encode());
        self.process.ask(&message).map(drop)
    }

    /// Starts virtiofsd for the folder with this number. Returns the connection to it and its standard error.
    pub(super) fn start(&self, folder: u8) -> io::Result<(OwnedFd, OwnedFd)> {
        let mut files = self.process.ask(&[request::START, folder])?.into_iter();
        files
            .next()
            .zip(files.next())
            .ok_or_else(|| io::Error::other("the helper has sent no files"))
    }

    /// Ends virtiofsd for the folder with this number.
    pub(super) fn end(&self, folder: u8) {
        // If the helper has ended, so have the programs that it started.
        let _ = self.process.ask(&[request::END, folder]);
    }

    /// Waits until virtiofsd for the folder with this number has ended, for 1 s at most.
    pub(super) fn wait(&self, folder: u8) {
        // As above.
        let _ = self.process.ask(&[request::WAIT, folder]);
    }
}

/// Whether virtiofsd is needed for the folder.
fn is_folder(share: &ShareOptions) -> bool {
    matches!(share.source, ShareSource::Folder { .. })
}

/// The state of the helper's process.
struct Server {
    /// By number: the path of each folder that virtiofsd is needed for, and whether it is shared read-only.
    folders: Vec<Option<(PathBuf, bool)>>,
    program: Option<Program>,
    running: BTreeMap<u8, Daemon>,
}

impl Server {
    fn new(shares: &[ShareOptions]) -> Self {
        let folder = |share: &ShareOptions| match &share.source {
            ShareSource::Folder { path, readonly } => Some((path.clone(), *readonly)),
            ShareSource::Socket(_) => None,
        };
        Self {
            folders: shares.iter().map(folder).collect(),
            program: None,
            running: BTreeMap::new(),
        }
    }

    fn answer(&mut self, message: &[u8]) -> Answer {
        match message {
            [request::PROGRAM, program @ ..] if self.program.is_none() => {
                self.program = Program::decode(program);
                Ok(Vec::new())
            }
            [request::START, number] => self.start(*number),
            [request::END, number] => {
                self.running.remove(number);
                Ok(Vec::new())
            }
            [request::WAIT, number] => {
                if let Some(daemon) = self.running.get_mut(number) {
                    daemon.ends_soon();
                }
                Ok(Vec::new())
            }
            _ => Err("the helper knows no such request".to_owned()),
        }
    }

    fn start(&mut self, number: u8) -> Answer {
        self.running.remove(&number);
        let folder = self.folders.get(usize::from(number)).cloned().flatten();
        let (Some((folder, readonly)), Some(program)) = (folder, &self.program) else {
            return Err("the helper knows no such folder".to_owned());
        };
        let started = program.start(&folder, readonly);
        let (mut daemon, stream) = started.map_err(|error| described(&error))?;
        let output = daemon.take_output();
        let output = output.ok_or_else(|| "virtiofsd has no standard error".to_owned())?;
        self.running.insert(number, daemon);
        Ok(vec![stream.into(), output.into()])
    }
}
