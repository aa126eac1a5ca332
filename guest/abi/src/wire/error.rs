//! The errors of frames.

use core::fmt;

/// A frame that violates the protocol, or doesn't fit into its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// No frame is of this kind in this direction.
    UnknownKind(u16),
    /// The body is shorter or longer than its kind allows.
    BodyLength {
        /// The kind in the frame.
        kind: u16,
        /// The length in the header, in bytes.
        length: usize,
        /// The shortest body allowed, in bytes.
        minimum: usize,
        /// The longest body allowed, in bytes.
        maximum: usize,
    },
    /// A reserved field isn't zero.
    Reserved {
        /// The kind in the frame.
        kind: u16,
    },
    /// A hello without the magic: the peer has another protocol.
    Magic,
    /// The buffer for the frame is too small.
    BufferTooSmall {
        /// Bytes of the frame.
        needed: usize,
    },
}

impl fmt::Display for WireError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownKind(kind) => write!(formatter, "Unknown frame kind {kind:#06x}"),
            Self::BodyLength {
                kind,
                length,
                minimum,
                maximum,
            } => write!(
                formatter,
                "A body of {length} bytes in a frame of kind {kind:#06x}, which takes {minimum} to {maximum}"
            ),
            Self::Reserved { kind } => write!(
                formatter,
                "A reserved field of a frame of kind {kind:#06x} isn't zero"
            ),
            Self::Magic => write!(formatter, "The hello doesn't start with the magic"),
            Self::BufferTooSmall { needed } => {
                write!(formatter, "The frame needs a buffer of {needed} bytes")
            }
        }
    }
}

impl core::error::Error for WireError {}
