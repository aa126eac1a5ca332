//! The other end of a network device, as the thread that serves the device sees it.

use std::io;
use std::os::fd::BorrowedFd;

use kvmprof_devices::virtio::net::{Link, Offloads};

/// Maximum number of messages of a device about its other end. A peer that comes and goes must not fill the log.
const MESSAGES: u32 = 16;

/// A [`Link`] whose frames can be waited for, and that can be connected again.
pub trait Peer: Link + Send {
    /// The work that it can do for a guest.
    fn offloads(&self) -> Offloads;

    /// The descriptor that becomes readable when a frame comes, and writable when there is room; `None` while it is down.
    fn source(&self) -> Option<BorrowedFd<'_>>;

    /// Whether something is left to be written when there is room.
    fn has_output(&self) -> bool;

    /// Writes what is left, as far as there is room.
    fn flush(&mut self);

    /// Gives up the connection, whose other end is gone. Frames of it that haven't been read are lost.
    fn hang_up(&mut self);

    /// Tries to connect again, without waiting.
    fn reconnect(&mut self);

    /// How often something was wrong with it until now.
    fn faults(&self) -> u64;
}

/// Whether reading or writing failed only because there is nothing, or no room, at this moment.
pub fn is_later(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Writes into the log what is wrong with the other end, a bounded number of times.
#[derive(Debug)]
pub struct Complaints {
    title: String,
    left: u32,
}

impl Complaints {
    /// Complaints about the device with this title.
    pub fn new(title: String) -> Self {
        let left = MESSAGES;
        Self { title, left }
    }

    /// Writes one line into the log.
    pub fn say(&mut self, what: impl std::fmt::Display) {
        if self.left == 0 {
            return;
        }
        self.left -= 1;
        let end = if self.left == 0 {
            "; nothing more is said of it"
        } else {
            ""
        };
        log::warn!("--net {}: {what}{end}", self.title);
    }
}
