//! The interface of the other end of a network device, for the thread that serves the device.

use std::io;
use std::os::fd::BorrowedFd;

use kvmprof_devices::virtio::net::{Link, Offloads};

/// Maximum number of messages about a device's other end. A peer that connects again and again must not fill the log.
const MESSAGES: u32 = 16;

/// A [`Link`] whose frames can be waited for.
pub trait Peer: Link + Send {
    /// The offloads that it can do for a guest.
    fn offloads(&self) -> Offloads;

    /// The descriptor that becomes readable when a frame has come, and writable when there is room. `None` while the link is down.
    fn source(&self) -> Option<BorrowedFd<'_>>;

    /// Whether bytes of a frame are left that have to be written when there is room.
    fn has_output(&self) -> bool;

    /// Writes the bytes that are left, as far as there is room.
    fn flush(&mut self);

    /// Closes the connection, whose other end is gone. Frames that haven't been read are lost.
    fn hang_up(&mut self);

    /// Whether the peer can be connected again after it was lost.
    fn can_reconnect(&self) -> bool {
        false
    }

    /// Tries to connect again, without waiting.
    fn reconnect(&mut self) {}

    /// Number of errors since the start.
    fn faults(&self) -> u64;
}

/// Whether reading or writing failed only because there is no data, or no room, at this moment.
pub fn is_later(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Writes messages about the other end into the log, a bounded number of them.
#[derive(Debug)]
pub struct PeerLog {
    title: String,
    left: u32,
}

impl PeerLog {
    /// Messages about the device whose `--net` has this value.
    pub fn new(title: String) -> Self {
        let left = MESSAGES;
        Self { title, left }
    }

    /// Writes one line into the log, unless there were [`MESSAGES`] already.
    pub fn say(&mut self, what: impl std::fmt::Display) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        let end = if self.left == 0 {
            "; there will be no more messages about it"
        } else {
            ""
        };
        log::warn!("--net {}: {what}{end}", self.title);
    }
}
