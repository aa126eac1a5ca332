//! What can go wrong with an open device, or with opening one.

use std::path::PathBuf;

use kvmprof_abi::errno::Errno;

/// Why a device couldn't be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// Somebody has it open.
    #[error("pcs is in use by another client (EBUSY)")]
    InUse,
    /// There is no clock.
    #[error("The guest runs without a profiling clock (ENXIO): start it with --hz other than 0")]
    NoClock,
    /// There is no node.
    #[error(
        "No device at {}: in a guest, pcsd makes it; on the host, name kvmprof's socket with --socket",
        path.display()
    )]
    NoNode {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// kvmprof can't be reached.
    #[error(transparent)]
    Unreachable(crate::client::ClientError),
    /// The device refused an operation.
    #[error("pcs refused: {errno}")]
    Refused {
        /// Why.
        errno: Errno,
    },
    /// The device can't be reached any more.
    #[error("Lost pcs")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl DeviceError {
    /// What it means that opening pcs failed with `errno`.
    pub fn from_open(errno: Errno) -> Self {
        match errno {
            Errno::EBUSY => Self::InUse,
            Errno::ENXIO => Self::NoClock,
            errno => Self::Refused { errno },
        }
    }

    /// The errno that the device gave, if that is what happened.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::InUse => Some(Errno::EBUSY),
            Self::NoClock => Some(Errno::ENXIO),
            Self::Refused { errno } => Some(*errno),
            Self::NoNode { .. } | Self::Unreachable(_) | Self::Failed(_) => None,
        }
    }
}
