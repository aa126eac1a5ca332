//! The server side of the framed protocol, for any byte stream.

mod action;
mod backend;
mod client;
mod error;
mod input;
mod machine;
mod output;
#[cfg(test)]
mod tests;
mod turn;
mod waiting;

pub use backend::{Backend, Handle, IoctlReply, Readiness};
pub use client::{Client, GuestAccess, UnknownGuestAccess};
pub use error::EndpointError;
pub use machine::{Endpoint, HelloInfo};
pub use turn::{REQUESTS_PER_TURN, TURN_TIME};
