//! An open device: a node in the guest, or on the host's socket.

mod error;
mod node;
mod remote;
mod selection;

use std::fmt;

use kvmprof_abi::wire::device;

pub use error::DeviceError;
pub use node::{Access, Node};
pub use remote::{Remote, connect};
pub use selection::{DeviceName, DeviceOptions, GuestSide};

/// The devices that the tools use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// The program counter sampling device.
    Pcs,
    /// The kernel profiler.
    Prf,
}

impl DeviceKind {
    /// Its number (see [`device`]).
    pub fn number(self) -> u16 {
        match self {
            Self::Pcs => device::PCS,
            Self::Prf => device::PRF,
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Pcs => "pcs",
            Self::Prf => "prf",
        })
    }
}

/// An open device. Several threads may use it at a time: while one is blocked in a read, another can stop it with an
/// ioctl. Dropping it closes it.
pub trait Device: Sync {
    /// Reads at most `limit` bytes, and waits until there are some; empty is the end of file.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] with the device's errno, [`DeviceError::Failed`] if it can't be reached any more.
    fn read(&self, limit: usize) -> Result<Vec<u8>, DeviceError>;

    /// Writes `data` in one operation and returns how many bytes the device took.
    ///
    /// # Errors
    /// As [`Device::read`].
    fn write(&self, data: &[u8]) -> Result<usize, DeviceError>;

    /// Executes `command` and returns its value and the data that it stores.
    ///
    /// The third argument of ioctl(2) is `argument` if `data` is empty and `limit` is 0, else a pointer to `data`,
    /// where the command may store at most `limit` bytes.
    ///
    /// # Errors
    /// As [`Device::read`].
    fn ioctl(
        &self,
        command: u32,
        argument: i64,
        data: &[u8],
        limit: usize,
    ) -> Result<(i64, Vec<u8>), DeviceError>;

    /// True once the guest has ended, or can't be reached any more; false if that can't be found out.
    fn has_ended(&self) -> bool {
        false
    }
}
