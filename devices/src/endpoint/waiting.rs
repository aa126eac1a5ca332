//! Requests that may wait for their device.

use std::task::Poll;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::{
    HANG_UP, Kind, MAX_OUTSTANDING, NONBLOCKING, READABLE, Reply, WRITABLE, device,
};

use super::action::OpenDevice;
use super::output::Output;
use super::{Backend, Readiness};

/// What a request waits for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wait {
    /// A read of at most this many bytes.
    Read { limit: usize },
    /// A poll for these events.
    Poll { events: u32 },
}

impl Wait {
    /// The request's kind.
    pub fn kind(self) -> Kind {
        match self {
            Self::Read { .. } => Kind::Read,
            Self::Poll { .. } => Kind::Poll,
        }
    }

    /// Refuses events that don't exist: such a poll would never be answered.
    ///
    /// # Errors
    /// [`Errno::EINVAL`].
    pub fn check(self) -> Result<(), Errno> {
        match self {
            Self::Poll { events } if events & !(READABLE | WRITABLE | HANG_UP) != 0 => {
                Err(Errno::EINVAL)
            }
            _ => Ok(()),
        }
    }
}

/// A read or a poll of an open device.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingRequest {
    pub tag: u32,
    /// The connection's number for the device.
    pub name: u32,
    pub device: OpenDevice,
    pub wait: Wait,
}

impl WaitingRequest {
    /// Tries to answer the request; false while the device isn't ready.
    fn attempt(&self, output: &mut Output, backend: &mut dyn Backend) -> bool {
        match self.wait {
            // An empty read looks like the end of file, so the device isn't asked.
            Wait::Read { limit: 0 } => {
                let reply = Ok(Reply::Read { data: &[] });
                output.answer(self.tag, Kind::Read, reply);
            }
            Wait::Read { limit } => return self.attempt_read(limit, output, backend),
            Wait::Poll { events } => {
                let ready = events_of(backend.poll(self.device.handle)) & (events | HANG_UP);
                if ready == 0 && !self.device.nonblocking {
                    return false;
                }
                let reply = Ok(Reply::Poll { events: ready });
                output.answer(self.tag, Kind::Poll, reply);
            }
        }
        true
    }

    /// Tries to answer a read of at most `limit` bytes; false while the device isn't ready.
    fn attempt_read(&self, limit: usize, output: &mut Output, backend: &mut dyn Backend) -> bool {
        let device = self.device;
        let room = output.room();
        let read = if limit > room && device.reads_from_start {
            Poll::Ready(Err(Errno::ENOMEM))
        } else {
            backend.read(device.handle, limit.min(room))
        };
        let data = match read {
            Poll::Pending => return false,
            Poll::Ready(Err(Errno::EAGAIN)) if !device.nonblocking => return false,
            Poll::Ready(data) => data,
        };
        let reply = match &data {
            Err(errno) => Err(*errno),
            Ok(data) if data.len() > limit => Err(Errno::EIO),
            Ok(data) => Ok(Reply::Read { data }),
        };
        output.answer(self.tag, Kind::Read, reply);
        true
    }
}

/// The reads and polls of one connection that wait for their devices.
#[derive(Debug, Default)]
pub(super) struct WaitingRequests {
    /// In the order of arrival.
    requests: Vec<WaitingRequest>,
}

impl WaitingRequests {
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// True if a waiting request has this tag.
    pub fn has_tag(&self, tag: u32) -> bool {
        self.requests.iter().any(|request| request.tag == tag)
    }

    /// Drops all of them without replies.
    pub fn clear(&mut self) {
        self.requests.clear();
    }

    /// Answers the `chosen` requests with `errno`.
    pub fn give_up(
        &mut self,
        chosen: impl Fn(&WaitingRequest) -> bool,
        errno: Errno,
        output: &mut Output,
    ) {
        self.requests.retain(|request| {
            let gone = chosen(request);
            if gone {
                output.answer(request.tag, request.wait.kind(), Err(errno));
            }
            !gone
        });
    }

    /// Answers `request` at once if possible. Otherwise keeps it, or refuses it if it may not wait or too many wait.
    pub fn answer_or_keep(
        &mut self,
        request: WaitingRequest,
        output: &mut Output,
        backend: &mut dyn Backend,
    ) {
        let WaitingRequest { tag, name, .. } = request;
        let kind = request.wait.kind();
        // A read doesn't overtake earlier reads.
        let queued = kind == Kind::Read
            && (self.requests.iter())
                .any(|other| other.name == name && other.wait.kind() == Kind::Read);
        if !queued && request.attempt(output, backend) {
            return;
        }
        if queued && request.device.nonblocking {
            output.answer(tag, kind, Err(Errno::EAGAIN));
        } else if self.requests.len() >= MAX_OUTSTANDING {
            output.answer(tag, kind, Err(Errno::ENOBUFS));
        } else {
            self.requests.push(request);
        }
    }

    /// Retries all requests in their order while there is room for the replies.
    pub fn retry(&mut self, output: &mut Output, backend: &mut dyn Backend) {
        let requests = std::mem::take(&mut self.requests);
        let mut blocked: Vec<u32> = Vec::new();
        for request in requests {
            let read = request.wait.kind() == Kind::Read;
            let overtaking = read && blocked.contains(&request.name);
            if !overtaking && !output.is_full() && request.attempt(output, backend) {
                continue;
            }
            if read {
                blocked.push(request.name);
            }
            self.requests.push(request);
        }
    }
}

/// True if `flags` forbid the request to wait.
///
/// # Errors
/// [`Errno::EINVAL`] for unknown flags.
pub(super) fn nonblocking(flags: u32) -> Result<bool, Errno> {
    if flags & !NONBLOCKING != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(flags & NONBLOCKING != 0)
}

/// True if each read of device `number` begins at the start of its data (a table, or counts).
pub(super) fn reads_from_start(number: u16) -> bool {
    matches!(number, device::PRF | device::PROFIL)
}

/// The events by which a poll reports `readiness`.
fn events_of(readiness: Readiness) -> u32 {
    let event = |is: bool, event: u32| if is { event } else { 0 };
    event(readiness.readable, READABLE)
        | event(readiness.writable, WRITABLE)
        | event(readiness.hang_up, HANG_UP)
}
