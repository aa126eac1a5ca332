//! A connection to kvmprof: it sends requests, and hands each reply to the request with its tag.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::{HelloReply, Kind, Reply, ReplyFrame, Request, RequestFrame, VERSION};

use super::{ClientError, RemoteDevice, stranger};

/// Maximum number of bytes that are received at a time.
const CHUNK: usize = 64 << 10;
/// Capacity of the receive buffer, in bytes, that is kept when it is empty.
const KEPT: usize = 16 << 10;

/// A reply that owns its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OwnedReply {
    Hello(HelloReply),
    /// A handle, a count or events, depending on the request.
    Number(u32),
    Data(Vec<u8>),
    Ioctl {
        value: i64,
        data: Vec<u8>,
    },
    Nothing,
}

impl From<Reply<'_>> for OwnedReply {
    fn from(reply: Reply<'_>) -> Self {
        match reply {
            Reply::Hello(hello) => Self::Hello(hello),
            Reply::Open { handle: number }
            | Reply::Write { count: number }
            | Reply::Poll { events: number } => Self::Number(number),
            Reply::Read { data } => Self::Data(data.to_vec()),
            Reply::Ioctl { value, data } => Self::Ioctl {
                value,
                data: data.to_vec(),
            },
            Reply::Cancel | Reply::Close => Self::Nothing,
        }
    }
}

type Outcome = Result<OwnedReply, Errno>;

/// The receivers of replies, by tag.
struct PendingReplies {
    kind: Kind,
    sender: SyncSender<Outcome>,
}

/// What the receiving thread, the connection and its devices have in common.
pub(super) struct Shared {
    stream: UnixStream,
    /// Held while a frame is written, so that frames don't mix.
    sending: Mutex<()>,
    /// `None` when nothing can be received any more.
    expected: Mutex<Option<HashMap<u32, PendingReplies>>>,
    /// The error that ended receiving; `None` if the server closed the connection.
    failure: Mutex<Option<ClientError>>,
    last_tag: Mutex<u32>,
}

/// The data behind a mutex, also if a thread that held it has panicked: no holder leaves it half
/// changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request without a reply yet. When it is dropped, the server still carries out the request, and the reply is discarded.
pub(super) struct PendingReply {
    shared: Arc<Shared>,
    tag: u32,
    receiver: Receiver<Outcome>,
}

impl PendingReply {
    /// The request's tag, for [`Connection::cancel`].
    pub fn tag(&self) -> u32 {
        self.tag
    }

    /// Waits for the reply. The inner result is the server's.
    pub(super) fn wait(self) -> Result<Outcome, ClientError> {
        self.receiver.recv().map_err(|_| self.shared.why_closed())
    }
}

impl Shared {
    /// Sends `request` under a tag of its own.
    pub fn send(self: &Arc<Self>, request: Request<'_>) -> Result<PendingReply, ClientError> {
        let (sender, receiver) = sync_channel(1);
        let kind = request.kind();
        let tag = self.expect(PendingReplies { kind, sender })?;
        let result = self.send_frame(&RequestFrame { tag, request });
        if let Err(error) = result {
            if let Some(expected) = lock(&self.expected).as_mut() {
                expected.remove(&tag);
            }
            return Err(error);
        }
        Ok(PendingReply {
            shared: Arc::clone(self),
            tag,
            receiver,
        })
    }

    /// Sends `request` and waits for its reply.
    pub fn call(
        self: &Arc<Self>,
        operation: &'static str,
        request: Request<'_>,
    ) -> Result<OwnedReply, ClientError> {
        self.send(request)?
            .wait()?
            .map_err(|errno| ClientError::Refused { operation, errno })
    }

    fn expect(&self, expected: PendingReplies) -> Result<u32, ClientError> {
        let mut last_tag = lock(&self.last_tag);
        let mut all = lock(&self.expected);
        let Some(all) = all.as_mut() else {
            return Err(self.why_closed());
        };
        loop {
            *last_tag = last_tag.wrapping_add(1);
            if !all.contains_key(&last_tag) {
                all.insert(*last_tag, expected);
                return Ok(*last_tag);
            }
        }
    }

    fn send_frame(&self, frame: &RequestFrame<'_>) -> Result<(), ClientError> {
        let mut bytes = vec![0; frame.encoded_length()];
        frame.encode(&mut bytes).map_err(ClientError::TooLarge)?;
        let _sending = lock(&self.sending);
        (&self.stream)
            .write_all(&bytes)
            .map_err(|error| match error.kind() {
                io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => self.why_closed(),
                _ => ClientError::Io(error),
            })
    }

    fn why_closed(&self) -> ClientError {
        lock(&self.failure).take().unwrap_or(ClientError::Closed)
    }

    /// The receiving thread: hands out replies until the connection ends.
    fn receive(&self) {
        if let Err(error) = self.receive_frames() {
            *lock(&self.failure) = Some(error);
        }
        // Dropping the senders wakes all threads that wait for a reply.
        *lock(&self.expected) = None;
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn receive_frames(&self) -> Result<(), ClientError> {
        let mut buffer = Vec::new();
        let mut chunk = vec![0; CHUNK];
        loop {
            let count = match (&self.stream).read(&mut chunk) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
                Err(error) => return Err(ClientError::Io(error)),
            };
            buffer.extend_from_slice(chunk.get(..count).unwrap_or_default());
            let mut done = 0;
            while let Some((frame, length)) =
                ReplyFrame::decode(buffer.get(done..).unwrap_or_default())
                    .map_err(ClientError::Malformed)?
            {
                self.deliver(&frame)?;
                done += length;
            }
            buffer.drain(..done);
            if buffer.is_empty() {
                buffer.shrink_to(KEPT);
            }
        }
    }

    fn deliver(&self, frame: &ReplyFrame<'_>) -> Result<(), ClientError> {
        let expected = lock(&self.expected)
            .as_mut()
            .and_then(|all| all.remove(&frame.tag));
        match expected {
            Some(expected) if expected.kind == frame.kind => {
                // It fails if the PendingReply was dropped.
                let _ = expected.sender.send(frame.result.map(OwnedReply::from));
                Ok(())
            }
            _ => Err(ClientError::WrongReply),
        }
    }
}

/// A connection to kvmprof. Closed when it and all devices opened on it are dropped.
pub struct Connection {
    shared: Arc<Closing>,
    hello: HelloReply,
}

/// Ends the receiving thread when the last user of the connection goes.
pub(super) struct Closing(pub Arc<Shared>);

impl Drop for Closing {
    fn drop(&mut self) {
        let _ = self.0.stream.shutdown(Shutdown::Both);
    }
}

impl Connection {
    /// Connects to the socket `path`, if a program of root or of this program's own user made it, and agrees on a version.
    ///
    /// # Errors
    /// [`ClientError`], which says whether there is a socket, a kvmprof behind it, whose it is, the
    /// permission, a common version.
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        Self::connect_to(path, None)
    }

    /// As [`connect`](Self::connect); the program may be of the user with the number `owner`, too.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_to(path: &Path, owner: Option<u32>) -> Result<Self, ClientError> {
        Self::connect_noting(path, owner, |_| Ok(()))
    }

    /// As [`connect_to`](Self::connect_to). `note` gets the stream before the first request: a caller that keeps a copy of it can end the
    /// wait for a server that doesn't answer, by [`UnixStream::shutdown`].
    ///
    /// # Errors
    /// As [`connect`](Self::connect); [`ClientError::Io`] with the error of `note`.
    pub fn connect_noting(
        path: &Path,
        owner: Option<u32>,
        note: impl FnOnce(&UnixStream) -> io::Result<()>,
    ) -> Result<Self, ClientError> {
        let stream =
            UnixStream::connect(path).map_err(|error| ClientError::connect(path, error))?;
        check_server(&stream, path, owner)?;
        note(&stream).map_err(ClientError::Io)?;
        Self::over(stream).map_err(|error| match error {
            ClientError::Closed => ClientError::TurnedAway { path: path.into() },
            error => error,
        })
    }

    /// Agrees on a version over a stream that is connected already.
    fn over(stream: UnixStream) -> Result<Self, ClientError> {
        let shared = Arc::new(Shared {
            stream,
            sending: Mutex::default(),
            expected: Mutex::new(Some(HashMap::new())),
            failure: Mutex::default(),
            last_tag: Mutex::default(),
        });
        let receiver = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("kvmprof-receive".into())
            .spawn(move || receiver.receive())
            .map_err(ClientError::Thread)?;
        let shared = Arc::new(Closing(shared));
        let hello = Request::Hello {
            lowest: VERSION,
            highest: VERSION,
        };
        match shared.0.call("agree on a version", hello)? {
            OwnedReply::Hello(hello) if hello.version == VERSION => Ok(Self { shared, hello }),
            OwnedReply::Hello(hello) => Err(ClientError::Version {
                lowest: hello.lowest,
                highest: hello.highest,
                ours: VERSION,
            }),
            _ => Err(ClientError::WrongReply),
        }
    }

    /// The server's properties: limits, vCPUs, the clock's rate.
    pub fn hello(&self) -> &HelloReply {
        &self.hello
    }

    /// Opens minor `minor` of `device` (see [`kvmprof_abi::wire::device`]).
    ///
    /// # Errors
    /// [`ClientError::Refused`] with ENODEV, ENXIO, EBUSY, EACCES, EMFILE or ENOMEM; or what ended the
    /// connection.
    pub fn open(&self, device: u16, minor: u16) -> Result<RemoteDevice, ClientError> {
        let request = Request::Open {
            device,
            minor,
            flags: 0,
        };
        match self.shared.0.call("open the device", request)? {
            OwnedReply::Number(handle) => Ok(RemoteDevice::new(Arc::clone(&self.shared), handle)),
            _ => Err(ClientError::WrongReply),
        }
    }

    /// Reads a device that is a snapshot from beginning to end.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`RemoteDevice::read_to_end`].
    pub fn snapshot(&self, device: u16, limit: usize) -> Result<Vec<u8>, ClientError> {
        self.open(device, 0)?.read_to_end(limit)
    }

    /// Takes back the request that has `tag`; it is answered with EINTR if it was still
    /// waiting. Its reply has arrived when this returns.
    ///
    /// # Errors
    /// Only when the connection has ended.
    pub fn cancel(&self, tag: u32) -> Result<(), ClientError> {
        self.shared
            .0
            .call("cancel a request", Request::Cancel { tag })?;
        Ok(())
    }

    /// Ends the connection at once, from any thread: callers that wait for a reply get [`ClientError::Closed`], and kvmprof frees what
    /// was open.
    pub fn disconnect(&self) {
        let _ = self.shared.0.stream.shutdown(Shutdown::Both);
    }
}

/// Checks that root, this program's user or `owner` runs the program that made the socket at `path`; the server checks its clients
/// in the same way. In a folder that all can write to, any user can listen instead of kvmprof.
fn check_server(stream: &UnixStream, path: &Path, owner: Option<u32>) -> Result<(), ClientError> {
    let stranger = stranger(stream).map_err(|error| ClientError::connect(path, error))?;
    match stranger.filter(|user| owner != Some(*user)) {
        None => Ok(()),
        Some(user) => Err(ClientError::WrongServer {
            path: path.into(),
            user,
        }),
    }
}
