//! Tests of the virtio devices, each with a driver that can violate the protocol.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod attacks;
mod block;
mod console;
mod driver;
mod entropy;
mod fs;
mod net;
mod ports;
mod properties;
mod queue;
mod registers;
mod vsock;
mod vsock_bench;
