//! Tests of the virtio console device, with a driver that can violate the protocol.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod attacks;
mod driver;
mod ports;
mod properties;
mod registers;
