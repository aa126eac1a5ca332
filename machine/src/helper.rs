//! A helper process, which does what kvmprof itself may not do any more once it is contained (`kvmprof_sandbox`).
//!
//! It is forked before that, knows the names on the command line, and takes short requests, which never have a path. So an attacker who has taken over
//! kvmprof can request only these few things.

use std::error::Error;
use std::ffi::CStr;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Mutex;

use rustix::io::{FdFlags, fcntl_setfd, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recv, recvmsg, send,
    sendmsg, shutdown, socketpair,
};
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::lock::lock;

/// Maximum length of a message, in bytes: a request, or an error's text.
const MESSAGE_MAX: usize = 8 << 10;
/// Maximum number of files of an answer.
const FILES_MAX: usize = 8;

/// The first byte of an answer to a successful request. After other first bytes, the error's text follows.
const DONE: u8 = 0;
const FAILED: u8 = 1;

/// The answer to a request: open files, or an error in words.
pub type Answer = Result<Vec<OwnedFd>, String>;

/// An error and its cause, as an answer has them.
pub(crate) fn described(error: &dyn Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// The connection to a helper process. Dropping it ends the process.
#[derive(Debug)]
pub struct Helper {
    /// `None` at the end.
    socket: Mutex<Option<OwnedFd>>,
    /// The process; `None` if it is another process's child.
    process: Option<Pid>,
}

impl Helper {
    /// Forks the helper. `server` runs in it: it gives up all rights that the helper doesn't need, and returns the function that answers requests. If it
    /// fails, the helper refuses all requests.
    ///
    /// # Errors
    /// The host gives no socket or process.
    ///
    /// # Safety
    /// This process has no other thread: one might hold a lock that nobody releases in the helper.
    pub unsafe fn fork<A: FnMut(&[u8]) -> Answer>(
        name: &CStr,
        server: impl FnOnce() -> io::Result<A>,
    ) -> io::Result<Self> {
        let (near, far) = pair()?;
        // SAFETY: by this function's own condition; the helper never returns from here.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(near);
                // A Ctrl-C of the terminal must only reach kvmprof. This process ends with it.
                let _ = rustix::process::setpgid(None, None);
                let _ = rustix::thread::set_name(name);
                match server() {
                    Ok(answer) => serve(&far, answer),
                    Err(error) => {
                        let why = format!("it can't give up rights: {error}");
                        serve(&far, |_| Err(why.clone()));
                    }
                }
                // SAFETY: it doesn't return. Exit handlers of the parent must not run in the helper.
                unsafe { libc::_exit(0) }
            }
            process => Ok(Self {
                socket: Mutex::new(Some(near)),
                process: Some(Pid::from_raw(process).ok_or(io::ErrorKind::Other)?),
            }),
        }
    }

    /// A helper that is a thread of this process, which isn't contained: for programs that have threads already.
    ///
    /// # Errors
    /// The host gives no socket or thread.
    pub fn on_thread(
        name: &str,
        answer: impl FnMut(&[u8]) -> Answer + Send + 'static,
    ) -> io::Result<Self> {
        let (near, far) = pair()?;
        let thread = std::thread::Builder::new().name(name.to_owned());
        thread.spawn(move || serve(&far, answer))?;
        Ok(Self::inherited(near))
    }

    /// A helper that another program has forked, which has executed this program and [handed the helper over](Self::hand_over).
    pub fn inherited(socket: OwnedFd) -> Self {
        Self {
            socket: Mutex::new(Some(socket)),
            process: None,
        }
    }

    /// Keeps the connection open in the next program that this process executes. Returns its descriptor there.
    ///
    /// # Errors
    /// [`leave`](Self::leave) was called, or the system refuses it.
    pub fn hand_over(&self) -> io::Result<i32> {
        let socket = lock(&self.socket);
        let socket = socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        fcntl_setfd(socket, FdFlags::empty())?;
        Ok(socket.as_raw_fd())
    }

    /// The process; `None` if it is another process's child.
    pub fn process(&self) -> Option<Pid> {
        self.process
    }

    /// Leaves the helper to the other owners of the connection. It ends with them.
    pub fn leave(&self) {
        drop(lock(&self.socket).take());
    }

    /// Sends a request whose answer is one file.
    ///
    /// # Errors
    /// As for [`ask`](Self::ask).
    pub fn ask_for_one(&self, message: &[u8]) -> io::Result<OwnedFd> {
        let file = self.ask(message)?.into_iter().next();
        file.ok_or_else(|| io::Error::other("the helper has sent no file"))
    }

    /// Sends a request and returns the answer's files.
    ///
    /// # Errors
    /// The helper's error, or the helper has ended.
    pub fn ask(&self, message: &[u8]) -> io::Result<Vec<OwnedFd>> {
        let socket = lock(&self.socket);
        let socket = socket.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        send(socket, message, SendFlags::NOSIGNAL)?;
        let mut answer = [0; MESSAGE_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = retry_on_intr(|| {
            let mut parts = [IoSliceMut::new(&mut answer)];
            recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
        })?
        .bytes;
        let mut files = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                files.extend(rights);
            }
        }
        match answer.get(..received) {
            Some([DONE, ..]) => Ok(files),
            Some([_, why @ ..]) => Err(io::Error::other(String::from_utf8_lossy(why).into_owned())),
            _ => Err(io::Error::other("kvmprof's helper process is gone")),
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if let Some(socket) = lock(&self.socket).take() {
            // Helpers that were forked later hold this end, too, so closing it here isn't enough.
            let _ = shutdown(&socket, Shutdown::Both);
        }
        if self.process.is_some() {
            // The helper ends when the socket is shut down. It doesn't matter if something else has waited for it.
            let _ = waitpid(self.process, WaitOptions::empty());
        }
    }
}

/// The two ends of the connection.
fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let pair = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    );
    Ok(pair?)
}

/// Answers requests until the other end is closed.
fn serve(socket: &OwnedFd, mut answer: impl FnMut(&[u8]) -> Answer) {
    let mut message = [0; MESSAGE_MAX];
    loop {
        let length = match retry_on_intr(|| recv(socket, &mut message, RecvFlags::empty())) {
            Ok((_, 0)) | Err(_) => return,
            Ok((_, length)) => length,
        };
        let answer = answer(message.get(..length).unwrap_or_default());
        if reply(socket, answer).is_err() {
            return;
        }
    }
}

fn reply(socket: &OwnedFd, answer: Answer) -> io::Result<()> {
    let (message, files) = match answer {
        Ok(files) => (vec![DONE], files),
        Err(why) => {
            let message = [FAILED].into_iter().chain(why.into_bytes());
            (message.take(MESSAGE_MAX).collect(), Vec::new())
        }
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    if !borrowed.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&borrowed));
    }
    let parts = [IoSlice::new(&message)];
    sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_may_end_in_any_order() {
        let fork = || {
            // SAFETY: the helper takes no lock and no memory: nobody asks it for anything.
            unsafe { Helper::fork(c"test-helper", || Ok(|_: &[u8]| Ok(Vec::new()))) }.unwrap()
        };
        let (first, second) = (fork(), fork());
        drop(first);
        drop(second);
    }

    #[test]
    fn a_helper_with_excess_rights_refuses_to_work() {
        let server = || -> io::Result<fn(&[u8]) -> Answer> { Err(io::ErrorKind::Other.into()) };
        // SAFETY: as above.
        let helper = unsafe { Helper::fork(c"test-helper", server) }.unwrap();
        let error = helper.ask(b"anything").unwrap_err().to_string();
        assert!(error.contains("can't give up rights"), "{error}");
    }
}
