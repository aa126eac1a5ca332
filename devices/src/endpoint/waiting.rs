//! Requests that may wait for their device.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::{HANG_UP, Kind, NONBLOCKING, READABLE, WRITABLE, device};

use super::Readiness;

/// The kind of a waiting request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wait {
    /// A read of at most so many bytes.
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

    /// Refuses events that there aren't: nobody would ever answer.
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

/// True if `flags` ask not to wait; EINVAL for unknown flags.
pub(super) fn nonblocking(flags: u32) -> Result<bool, Errno> {
    if flags & !NONBLOCKING != 0 {
        return Err(Errno::EINVAL);
    }
    Ok(flags & NONBLOCKING != 0)
}

/// Whether each read of device `number` begins at the start again: of a table, or of counts.
pub(super) fn reads_from_start(number: u16) -> bool {
    matches!(number, device::PRF | device::PROFIL)
}

/// What a poll answers for `readiness`.
pub(super) fn events_of(readiness: Readiness) -> u32 {
    let event = |is: bool, event: u32| if is { event } else { 0 };
    event(readiness.readable, READABLE)
        | event(readiness.writable, WRITABLE)
        | event(readiness.hang_up, HANG_UP)
}
