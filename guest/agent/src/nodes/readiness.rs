//! The readiness of a node: converts between poll(2)'s events and the wire's.

use kvmprof_abi::wire::{HANG_UP, READABLE, WRITABLE};

const POLLIN: u32 = 0x001;
const POLLOUT: u32 = 0x004;
const POLLERR: u32 = 0x008;
const POLLHUP: u32 = 0x010;
const POLLRDNORM: u32 = 0x040;
const POLLWRNORM: u32 = 0x100;

/// The poll events of a device on which nothing blocks.
pub(super) const ALWAYS: u32 = POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM;

/// The poll events of a file that kvmprof doesn't know any more.
pub(super) const LOST: u32 = POLLERR | POLLHUP;

/// The wire's events for poll events.
pub(super) fn to_wire(events: u32) -> u32 {
    let wire = |mask: u32, event: u32| if events & mask != 0 { event } else { 0 };
    wire(POLLIN | POLLRDNORM, READABLE) | wire(POLLOUT | POLLWRNORM, WRITABLE)
}

/// The poll events for the wire's events.
pub(super) fn from_wire(events: u32) -> u32 {
    let poll = |event: u32, mask: u32| if events & event != 0 { mask } else { 0 };
    poll(READABLE, POLLIN | POLLRDNORM)
        | poll(WRITABLE, POLLOUT | POLLWRNORM)
        | poll(HANG_UP, POLLHUP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poll_events_are_converted() {
        assert_eq!(to_wire(u32::MAX), READABLE | WRITABLE);
        assert_eq!(to_wire(POLLHUP | POLLERR), 0);
        assert_eq!(to_wire(POLLRDNORM), READABLE);
        assert_eq!(from_wire(0), 0);
        assert_eq!(from_wire(WRITABLE | HANG_UP), 0x114);
        assert_eq!(from_wire(READABLE), 0x041);
    }
}
