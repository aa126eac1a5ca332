//! Tests of the virtio devices, each with a driver that can violate the protocol.
mod attacks;
mod block;
mod console;
pub mod driver;
mod entropy;
mod fs;
mod net;
mod ports;
mod registers;
mod vsock;
mod vsock_bench;
