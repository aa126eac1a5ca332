//! The device behind the host's socket.

use std::path::Path;

use kvmprof_abi::wire::device;

use super::{DeviceError, PcsDevice};
use crate::client::{ClientError, Connection, RemoteDevice};

/// Opens pcs on `connection`.
///
/// # Errors
/// [`DeviceError::InUse`], [`DeviceError::NoClock`]; or what ended the connection.
pub fn open_remote(connection: &Connection) -> Result<RemoteDevice, DeviceError> {
    connection
        .open(device::PCS, 0)
        .map_err(|error| match error.errno() {
            Some(errno) => DeviceError::from_open(errno),
            None => DeviceError::Failed(error.into()),
        })
}

/// Connects to the socket at `path`.
///
/// # Errors
/// What the client says, as [`DeviceError::Unreachable`].
pub fn connect(path: &Path) -> Result<Connection, DeviceError> {
    Connection::connect(path).map_err(DeviceError::Unreachable)
}

fn refused(error: ClientError) -> DeviceError {
    match error.errno() {
        Some(errno) => DeviceError::Refused { errno },
        None => DeviceError::Failed(error.into()),
    }
}

impl PcsDevice for RemoteDevice {
    fn read(&self, limit: usize) -> Result<Vec<u8>, DeviceError> {
        Self::read(self, limit).map_err(refused)
    }

    fn ioctl(
        &self,
        command: u32,
        argument: i64,
        data: &[u8],
        limit: usize,
    ) -> Result<(i64, Vec<u8>), DeviceError> {
        self.ioctl_with(command, argument, data, limit)
            .map_err(refused)
    }
}
