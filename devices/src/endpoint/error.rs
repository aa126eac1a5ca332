//! What ends a connection.

use kvmprof_abi::wire::WireError;

/// Why a connection has to be closed: the peer broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// A frame that can't be one.
    #[error("Malformed frame")]
    Malformed(#[from] WireError),
    /// A request before the hello.
    #[error("The first request isn't a hello")]
    NoHello,
    /// A hello on a connection that has agreed on a version.
    #[error("A second hello")]
    SecondHello,
    /// A request with the tag of one that still waits.
    #[error("Tag {tag} is still in use")]
    TagInUse {
        /// The tag.
        tag: u32,
    },
    /// Input handed over while the endpoint didn't want any.
    #[error("Input while the output queue is full")]
    Overrun,
}
