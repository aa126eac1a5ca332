//! The errors that end a connection.

use kvmprof_abi::wire::WireError;

/// Why a connection must be closed: the client broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// A malformed frame.
    #[error("Malformed frame")]
    Malformed(#[from] WireError),
    /// A request before the hello.
    #[error("The first request isn't a hello")]
    NoHello,
    /// A second hello.
    #[error("A second hello")]
    SecondHello,
    /// The tag of a request that is still waiting.
    #[error("Tag {tag} is still in use")]
    TagInUse {
        /// The tag.
        tag: u32,
    },
    /// Input while the endpoint didn't accept any.
    #[error("Input while the output queue is full")]
    Overrun,
}
