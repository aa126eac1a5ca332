//! A process that starts virtiofsd. kvmprof itself may execute no program once it is contained (`kvmprof_sandbox`), and each reset of a
//! folder's device needs a new virtiofsd.
//!
//! The helper is forked before, knows which folders there are, and takes a few bytes: a request and a folder's number. So kvmprof can
//! have it start virtiofsd for one of those folders again, and nothing else.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Mutex;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg,
    socketpair,
};
use rustix::process::{Pid, WaitOptions, waitpid};

use super::ShareError;
use super::options::{ShareOptions, ShareSource};
use super::program::{Daemon, Program};
use crate::lock::lock;

/// Longest message: a path, or an error's text.
const MESSAGE_MAX: usize = 8 << 10;

/// Requests: the first byte of a message.
mod request {
    /// The program, which the rest says. Only once.
    pub const PROGRAM: u8 = 1;
    /// Starts it for the folder with the number that follows.
    pub const START: u8 = 2;
    /// Ends that one.
    pub const END: u8 = 3;
    /// Waits until that one has ended, or a second.
    pub const WAIT: u8 = 4;
}

/// The first byte of an answer: done; otherwise what was wrong follows.
const DONE: u8 = 0;
const FAILED: u8 = 1;

/// The connection to the helper. Dropped, the helper ends, and all that it has started.
#[derive(Debug)]
pub struct ShareHelper {
    /// `None` at the end.
    socket: Mutex<Option<OwnedFd>>,
    process: Pid,
}

impl ShareHelper {
    /// Forks the helper for these folders.
    ///
    /// # Errors
    /// The host gives no socket or process.
    ///
    /// # Safety
    /// The process has no other thread: one might hold a lock that nobody releases in the helper.
    pub unsafe fn fork(shares: &[ShareOptions]) -> io::Result<Self> {
        let (near, far) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        // SAFETY: by this function's own condition; the helper never returns from here.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(near);
                Server::new(shares).serve(&far);
                // SAFETY: what its parent has registered for its exit is not the helper's.
                unsafe { libc::_exit(0) }
            }
            process => Ok(Self {
                socket: Mutex::new(Some(near)),
                process: Pid::from_raw(process).ok_or(io::ErrorKind::Other)?,
            }),
        }
    }

    /// Tells which program it is. To be called before anything hostile can be.
    pub(super) fn use_program(&self, program: &Program) -> io::Result<()> {
        let mut message = vec![request::PROGRAM];
        message.extend(program.encode());
        self.ask(&message).map(drop)
    }

    /// Starts virtiofsd for the folder with this number. Returns the connection to it and what it says.
    pub(super) fn start(&self, folder: u8) -> io::Result<(OwnedFd, OwnedFd)> {
        let mut files = self.ask(&[request::START, folder])?.into_iter();
        files
            .next()
            .zip(files.next())
            .ok_or_else(|| io::Error::other("the helper has sent no files"))
    }

    /// Ends it.
    pub(super) fn end(&self, folder: u8) {
        // If the helper is gone, so is what it has started.
        let _ = self.ask(&[request::END, folder]);
    }

    /// Waits until it has ended, or a second.
    pub(super) fn wait(&self, folder: u8) {
        // As above.
        let _ = self.ask(&[request::WAIT, folder]);
    }

    /// Sends a request and returns the answer's files.
    fn ask(&self, message: &[u8]) -> io::Result<Vec<OwnedFd>> {
        let socket = lock(&self.socket);
        let socket = socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        send(socket, message, SendFlags::NOSIGNAL)?;
        let mut answer = [0; MESSAGE_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut parts = [IoSliceMut::new(&mut answer)];
            match recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                received => break received?.bytes,
            }
        };
        let mut files = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                files.extend(rights);
            }
        }
        match answer.get(..received) {
            Some([DONE, ..]) => Ok(files),
            Some([_, why @ ..]) => Err(io::Error::other(String::from_utf8_lossy(why).into_owned())),
            _ => Err(io::Error::other("the helper that starts virtiofsd is gone")),
        }
    }
}

impl Drop for ShareHelper {
    fn drop(&mut self) {
        drop(lock(&self.socket).take());
        // It ends by that; who else has waited for it doesn't matter.
        let _ = waitpid(Some(self.process), WaitOptions::empty());
    }
}

/// What the helper's process knows.
struct Server {
    /// By number: each folder, and whether it is only to be read.
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

    /// Answers until the other end is closed.
    fn serve(&mut self, socket: &OwnedFd) {
        // A Ctrl-C of the terminal is kvmprof's; this process ends with it.
        let _ = rustix::process::setpgid(None, None);
        let _ = rustix::thread::set_name(c"kvmprof-share");
        let mut message = [0; MESSAGE_MAX];
        loop {
            let length = match recv(socket, &mut message, RecvFlags::empty()) {
                Ok((_, 0)) => return,
                Ok((_, length)) => length,
                Err(Errno::INTR) => continue,
                Err(_) => return,
            };
            let answer = self.answer(message.get(..length).unwrap_or_default());
            if reply(socket, answer).is_err() {
                return;
            }
        }
    }

    fn answer(&mut self, message: &[u8]) -> Result<Option<(OwnedFd, OwnedFd)>, String> {
        match message {
            [request::PROGRAM, program @ ..] if self.program.is_none() => {
                self.program = Program::decode(program);
                Ok(None)
            }
            [request::START, number] => self.start(*number).map(Some),
            [request::END, number] => {
                self.running.remove(number);
                Ok(None)
            }
            [request::WAIT, number] => {
                if let Some(daemon) = self.running.get_mut(number) {
                    daemon.ends_soon();
                }
                Ok(None)
            }
            _ => Err("the helper knows no such request".to_owned()),
        }
    }

    fn start(&mut self, number: u8) -> Result<(OwnedFd, OwnedFd), String> {
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
        Ok((stream.into(), output.into()))
    }
}

/// An error and its cause.
fn described(error: &ShareError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

fn reply(socket: &OwnedFd, answer: Result<Option<(OwnedFd, OwnedFd)>, String>) -> io::Result<()> {
    let (message, files) = match answer {
        Ok(files) => (vec![DONE], files),
        Err(why) => {
            let message = [FAILED].into_iter().chain(why.into_bytes());
            (message.take(MESSAGE_MAX).collect(), None)
        }
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let borrowed = files
        .as_ref()
        .map(|(first, second)| [first.as_fd(), second.as_fd()]);
    if let Some(files) = &borrowed {
        control.push(SendAncillaryMessage::ScmRights(files));
    }
    let parts = [IoSlice::new(&message)];
    sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}
