//! The guests of other VMMs, as the launcher tells of them. The collector asks it for nothing.

use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use kvmprof_client::stranger;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, Shutdown, SocketAddrUnix,
    connect, recvmsg, shutdown,
};

use crate::backoff::Backoff;
use crate::config::Config;
use crate::launcher::message::{BYTES, LauncherMessage, Process, UnknownMessage};
use crate::launcher::new_socket;
use crate::sockets::Message;

/// The time for which a guest that there was no room for counts as left out: the launcher attaches to it again within that.
const REFUSAL: Duration = Duration::from_secs(120);

/// The connection to the launcher, on a thread of its own. Both end when this is dropped.
#[derive(Debug)]
pub struct Attached {
    shared: Arc<Shared>,
    /// Number of guests that the launcher leaves out.
    left_out: usize,
    /// Guests that the collector had no room for, and when.
    refused: BTreeMap<Process, Instant>,
}

#[derive(Debug)]
struct Shared {
    connection: Mutex<Option<Arc<OwnedFd>>>,
    /// Readable once this is to end.
    end: OwnedFd,
}

impl Shared {
    fn connection(&self) -> MutexGuard<'_, Option<Arc<OwnedFd>>> {
        let connection = self.connection.lock();
        connection.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attached {
    /// Connects to the launcher of `config`, and passes on what it tells. `None` if `config` has none.
    ///
    /// # Errors
    /// The host gives no thread or descriptor.
    pub fn start(config: &Config, sender: SyncSender<Message>) -> io::Result<Option<Self>> {
        let Some(path) = config.attach.launcher.clone() else {
            return Ok(None);
        };
        let shared = Arc::new(Shared {
            connection: Mutex::default(),
            end: eventfd(0, EventfdFlags::CLOEXEC)?,
        });
        let follower = Follower {
            path,
            owners: config.owners.clone(),
            shared: Arc::clone(&shared),
            sender,
        };
        Builder::new()
            .name("launcher".into())
            .spawn(move || follower.run())?;
        Ok(Some(Self {
            shared,
            left_out: 0,
            refused: BTreeMap::new(),
        }))
    }

    /// Has all recordings end. What they have had until then still comes.
    pub fn stop(&self) {
        if let Some(connection) = &*self.shared.connection() {
            // The launcher may have closed it already.
            let _ = shutdown(connection, Shutdown::Write);
        }
    }

    /// Notes the number of guests that the launcher leaves out.
    pub fn note_left_out(&mut self, count: usize) {
        self.left_out = count;
    }

    /// Notes that there was no room for the guest of `process`.
    pub fn note_refused(&mut self, process: Process) {
        self.refused.insert(process, Instant::now());
    }

    /// Notes that the guest of `process` is followed.
    pub fn note_followed(&mut self, process: Process) {
        self.refused.remove(&process);
    }

    /// Number of guests that aren't followed because of a limit.
    pub fn left_out(&mut self) -> usize {
        self.refused.retain(|_, since| since.elapsed() < REFUSAL);
        self.left_out + self.refused.len()
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // The write doesn't block: the counter is 0.
        let _ = rustix::io::write(&self.shared.end, &1_u64.to_ne_bytes());
    }
}

/// Why there is no connection to the launcher.
#[derive(Debug, thiserror::Error)]
enum LauncherError {
    #[error("Cannot connect to the launcher at {}: {source}: start kvmprof-collect launcher", path.display())]
    Connect { path: PathBuf, source: io::Error },
    #[error("The launcher at {} belongs to user {user}, who isn't in owners", path.display())]
    Stranger { path: PathBuf, user: u32 },
    #[error("The launcher has ended the connection")]
    Ended,
    #[error("The launcher: {0}")]
    Message(#[from] UnknownMessage),
    #[error("The connection to the launcher has failed: {0}")]
    System(#[from] Errno),
}

/// Why the wait for the launcher is over.
enum WaitEnd {
    /// It has told something.
    Message(LauncherMessage, Option<OwnedFd>),
    /// The collector doesn't follow it any more.
    End,
}

/// The thread.
struct Follower {
    path: PathBuf,
    owners: Vec<u32>,
    shared: Arc<Shared>,
    sender: SyncSender<Message>,
}

impl Follower {
    fn run(&self) {
        let mut backoff = Backoff::LOCAL;
        loop {
            let mut has_told = false;
            let ended = match open(&self.path, &self.owners) {
                Ok(connection) => self.listen(connection, &mut has_told),
                Err(error) => Some(error),
            };
            self.shared.connection().take();
            let Some(error) = ended else {
                return;
            };
            if has_told {
                backoff.reset();
            }
            let is_gone = self
                .sender
                .send(Message::NoLauncher(error.to_string()))
                .is_err();
            if is_gone || self.ends_within(backoff.advance()) {
                return;
            }
        }
    }

    /// Passes on what the launcher tells. Returns why it tells nothing more; `None` if the collector doesn't follow it any more.
    fn listen(&self, connection: OwnedFd, has_told: &mut bool) -> Option<LauncherError> {
        let connection = Arc::new(connection);
        *self.shared.connection() = Some(Arc::clone(&connection));
        loop {
            match self.next(&connection) {
                Ok(WaitEnd::End) => return None,
                Ok(WaitEnd::Message(told, pipe)) => {
                    *has_told = true;
                    self.sender.send(Message::FromLauncher(told, pipe)).ok()?;
                }
                Err(error) => return Some(error),
            }
        }
    }

    fn next(&self, connection: &OwnedFd) -> Result<WaitEnd, LauncherError> {
        loop {
            let mut ready =
                [&self.shared.end, connection].map(|file| PollFd::new(file, PollFlags::IN));
            match poll(&mut ready, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            if !ready[0].revents().is_empty() {
                return Ok(WaitEnd::End);
            }
            match receive(connection) {
                Err(LauncherError::System(Errno::AGAIN | Errno::INTR)) => {}
                Err(error) => return Err(error),
                Ok((told, pipe)) => return Ok(WaitEnd::Message(told, pipe)),
            }
        }
    }

    /// Waits so long; whether the collector doesn't follow the launcher any more.
    fn ends_within(&self, wait: Duration) -> bool {
        let wait = Timespec {
            tv_sec: wait.as_secs().cast_signed(),
            tv_nsec: 0,
        };
        let mut end = [PollFd::new(&self.shared.end, PollFlags::IN)];
        matches!(poll(&mut end, Some(&wait)), Ok(1..))
    }
}

/// Connects to the launcher at `path`, which has to belong to root, this process's user, or one of `owners`.
fn open(path: &Path, owners: &[u32]) -> Result<OwnedFd, LauncherError> {
    let connected = || -> io::Result<OwnedFd> {
        let socket = new_socket()?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(socket)
    };
    let failed = |source| LauncherError::Connect {
        path: path.to_owned(),
        source,
    };
    let socket = connected().map_err(failed)?;
    match stranger(&socket).map_err(failed)? {
        Some(user) if !owners.contains(&user) => Err(LauncherError::Stranger {
            path: path.to_owned(),
            user,
        }),
        _ => Ok(socket),
    }
}

/// The next message, and the file that has come with it.
fn receive(connection: &OwnedFd) -> Result<(LauncherMessage, Option<OwnedFd>), LauncherError> {
    let mut bytes = [0; BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let received = recvmsg(connection, &mut parts, &mut control, flags)?;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights);
        }
    }
    if received.bytes == 0 && files.is_empty() {
        return Err(LauncherError::Ended);
    }
    // More bytes or files than there is room for.
    if received
        .flags
        .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
    {
        return Err(UnknownMessage.into());
    }
    let bytes = bytes.get(..received.bytes).unwrap_or_default();
    let told = LauncherMessage::decode(bytes, files.len())?;
    Ok((told, files.pop()))
}

#[cfg(test)]
mod tests;
