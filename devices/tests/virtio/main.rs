//! The virtio console device, driven by a driver that can do everything wrong.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod attacks;
mod driver;
mod ports;
mod properties;
mod registers;
