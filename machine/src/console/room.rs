//! Room for console input, and the event that reports room to a writer that waits for it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// The target of console input: a device that takes as much as it has room for.
pub trait InputTarget: Send + Sync {
    /// The number of bytes of input that there is room for.
    fn input_room(&self) -> usize;

    /// Gives input to the guest, and returns how many bytes it took. If some are left over, or
    /// `more` are to come, [`Self::room_event`] tells when to try again.
    fn enqueue(&self, input: &[u8], more: bool) -> usize;

    /// Becomes readable when there is room for input again.
    fn room_event(&self) -> &EventFd;
}

/// Informs the event thread that there is room for input again, if it waits for room.
#[derive(Clone)]
pub(super) struct RoomForInput(Arc<InputRoom>);

struct InputRoom {
    wanted: AtomicBool,
    event: EventFd,
}

impl RoomForInput {
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(InputRoom {
            wanted: AtomicBool::new(false),
            event: EventFd::new(EFD_NONBLOCK)?,
        })))
    }

    pub fn want(&self) {
        self.0.wanted.store(true, Ordering::Relaxed);
    }

    pub fn announce(&self) {
        if self.0.wanted.swap(false, Ordering::Relaxed)
            && let Err(error) = self.0.event.write(1)
        {
            log::warn!("Console input stops: {error}");
        }
    }

    pub fn event(&self) -> &EventFd {
        &self.0.event
    }
}
