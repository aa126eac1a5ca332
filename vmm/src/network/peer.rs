//! The other end of a network device, as the thread that serves the device sees it.

use std::io;
use std::os::fd::BorrowedFd;

use kvmprof_devices::virtio::net::{Link, Offloads};

/// Messages of one device about its other end. A peer that comes and goes must not fill the log.
const MESSAGES: u32 = 16;

/// A [`Link`] that can be waited for and that comes back.
pub trait Peer: Link + Send {
    /// What it can take over of a guest.
    fn offloads(&self) -> Offloads;

    /// What becomes readable when a frame comes, and writable when there is room; `None` while it is down.
    fn source(&self) -> Option<BorrowedFd<'_>>;

    /// Whether something is left to be written when there is room.
    fn has_output(&self) -> bool;

    /// Writes what is left, as far as there is room.
    fn flush(&mut self);

    /// Gives up the connection: the other end is gone. What has come of it and wasn't read is lost.
    fn hang_up(&mut self);

    /// Tries to connect again, without waiting.
    fn reconnect(&mut self);

    /// What it has done wrong until now.
    fn faults(&self) -> u64;
}

/// Whether reading or writing failed only because there is nothing, or no room, at this moment.
pub fn is_later(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Says what is wrong with the other end, a bounded number of times.
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
