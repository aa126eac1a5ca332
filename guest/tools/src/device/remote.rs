//! A device on the host's socket.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::device;

use super::{Device, DeviceError, DeviceKind};
use kvmprof_cli::command_line::SocketArgs;
use kvmprof_client::{ClientError, Connection, Readiness, RemoteDevice};

/// A device that is open on a connection.
pub struct Remote {
    kind: DeviceKind,
    device: RemoteDevice,
}

impl Remote {
    /// Opens pcs on `connection`.
    ///
    /// # Errors
    /// [`DeviceError::InUse`], [`DeviceError::NoClock`]; or the error that ended the connection.
    pub fn pcs(connection: &Connection) -> Result<Self, DeviceError> {
        let kind = DeviceKind::Pcs;
        let device = connection.open(device::PCS, 0);
        let device = device.map_err(|error| open_error(kind, error))?;
        Ok(Self { kind, device })
    }

    /// Opens prf on `connection`: `minor` is a vCPU, or 255 for all.
    ///
    /// # Errors
    /// [`DeviceError::NoMinor`]; or the error that ended the connection.
    pub fn prf(connection: &Connection, minor: u16) -> Result<Self, DeviceError> {
        let kind = DeviceKind::Prf;
        let device = connection.open(device::PRF, minor);
        let device = device.map_err(|error| match error.errno() {
            Some(Errno::ENXIO) => DeviceError::NoMinor {
                minor,
                vcpus: connection.hello().vcpus,
            },
            _ => open_error(kind, error),
        })?;
        Ok(Self { kind, device })
    }

    fn refused(&self, error: ClientError) -> DeviceError {
        let device = self.kind;
        match error.errno() {
            Some(errno) => DeviceError::Refused { device, errno },
            None => failed(device, error),
        }
    }
}

/// Connects to the socket of the command line, if it names one.
///
/// # Errors
/// The client's error, as [`DeviceError::Unreachable`].
pub fn connect(socket: &SocketArgs) -> Result<Option<Connection>, DeviceError> {
    socket.connect_by_path().map_err(DeviceError::Unreachable)
}

fn open_error(device: DeviceKind, error: ClientError) -> DeviceError {
    match error.errno() {
        Some(Errno::ENODEV) => DeviceError::NotServed { device },
        Some(errno) => DeviceError::from_open(device, errno),
        None => failed(device, error),
    }
}

fn failed(device: DeviceKind, error: ClientError) -> DeviceError {
    DeviceError::Failed {
        device,
        source: error.into(),
    }
}

impl Device for Remote {
    fn read(&self, limit: usize) -> Result<Vec<u8>, DeviceError> {
        self.device.read(limit).map_err(|error| self.refused(error))
    }

    fn write(&self, data: &[u8]) -> Result<usize, DeviceError> {
        self.device.write(data).map_err(|error| self.refused(error))
    }

    fn ioctl(
        &self,
        command: u32,
        argument: i64,
        data: &[u8],
        limit: usize,
    ) -> Result<(i64, Vec<u8>), DeviceError> {
        self.device
            .ioctl_with(command, argument, data, limit)
            .map_err(|error| self.refused(error))
    }

    fn has_ended(&self) -> bool {
        let readiness = self.device.readiness(Readiness::default());
        // Without a connection, the next request returns the error.
        readiness.map_or(true, |readiness| readiness.hang_up)
    }
}
