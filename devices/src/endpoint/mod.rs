//! The device side of the framed protocol, whatever carries its bytes.

mod backend;
mod machine;
mod output;
#[cfg(test)]
mod tests;

pub use backend::{Backend, Handle, IoctlReply, Readiness};
pub use machine::{Endpoint, EndpointError, Facts};
