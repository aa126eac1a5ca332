//! The errors of devices.

use std::path::PathBuf;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::prf::{ALL_VCPUS, NODE};

use super::DeviceKind;

/// Why a device couldn't be opened or used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// Another client has it open.
    #[error("{device} is in use by another client (EBUSY)")]
    InUse {
        /// The device.
        device: DeviceKind,
    },
    /// There is no clock.
    #[error("The guest runs without a profiling clock (ENXIO): start it with --hz other than 0")]
    NoClock,
    /// prf has no such minor.
    #[error(
        "prf has no minor {minor} (ENXIO): the guest has {vcpus} vCPUs, counted from 0, and {ALL_VCPUS} stands for all of them"
    )]
    NoMinor {
        /// The requested minor.
        minor: u16,
        /// The number of the guest's vCPUs.
        vcpus: u32,
    },
    /// The name isn't a minor's.
    #[error(
        "'{name}' doesn't say which prf: write {NODE} for all vCPUs, {NODE}0 for the first, or just its number"
    )]
    NoSuchName {
        /// The given name.
        name: String,
    },
    /// There is no node.
    #[error(
        "No device at {}: in a guest, pcsd makes it; on the host, name kvmprof's socket with --socket",
        path.display()
    )]
    NoNode {
        /// The path.
        path: PathBuf,
    },
    /// The node may not be opened.
    #[error(
        "No permission to open {}: that takes root (or pcsd's --mode and --group), and a --guest-access of kvmprof run that allows it",
        path.display()
    )]
    NodePermission {
        /// The node.
        path: PathBuf,
    },
    /// The server doesn't know the device.
    #[error(
        "The kvmprof at this socket has no {device} (ENODEV): use tools and kvmprof of one release"
    )]
    NotServed {
        /// The device.
        device: DeviceKind,
    },
    /// kvmprof can't be reached.
    #[error(transparent)]
    Unreachable(kvmprof_client::ClientError),
    /// The device refused an operation.
    #[error("{device} refused: {errno}")]
    Refused {
        /// The device.
        device: DeviceKind,
        /// The device's errno.
        errno: Errno,
    },
    /// The device can't be reached any more.
    #[error("Lost {device}")]
    Failed {
        /// The device.
        device: DeviceKind,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl DeviceError {
    /// The error for `errno` from opening `device`.
    pub fn from_open(device: DeviceKind, errno: Errno) -> Self {
        match (device, errno) {
            (_, Errno::EBUSY) => Self::InUse { device },
            (DeviceKind::Pcs, Errno::ENXIO) => Self::NoClock,
            (_, errno) => Self::Refused { device, errno },
        }
    }

    /// The errno of the device, if it refused an operation.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::InUse { .. } => Some(Errno::EBUSY),
            Self::NoClock | Self::NoMinor { .. } => Some(Errno::ENXIO),
            Self::NodePermission { .. } => Some(Errno::EACCES),
            Self::NotServed { .. } => Some(Errno::ENODEV),
            Self::Refused { errno, .. } => Some(*errno),
            Self::NoSuchName { .. }
            | Self::NoNode { .. }
            | Self::Unreachable(_)
            | Self::Failed { .. } => None,
        }
    }
}
