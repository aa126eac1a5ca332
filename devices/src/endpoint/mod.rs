//! The device side of the framed protocol, whatever carries its bytes.

mod backend;

pub use backend::{Backend, Handle, IoctlReply, Readiness};
