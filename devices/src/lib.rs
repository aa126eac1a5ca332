//! Device models as plain state machines: samples and requests in, bytes and errnos out.
//!
//! Nothing here knows KVM, threads or sockets.

pub mod endpoint;
pub mod legacy;
pub mod profiling;
pub mod virtio;
