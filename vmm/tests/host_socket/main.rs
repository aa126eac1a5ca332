//! The host socket from end to end: event loop, real sockets, the real pcs device, and its
//! clients. No guest: the ticks are made up.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod abuse;
mod bench;
mod getpc;
mod python;
mod service;
