//! An open pcs, wherever it is: behind a node of the guest or on the host's socket.

mod error;
mod node;
mod remote;

pub use error::DeviceError;
pub use node::Node;
pub use remote::{connect, open_remote};

/// An open pcs. Several threads may use it at a time: while one is blocked in a read, another
/// may stop it with an ioctl. Dropping it closes it.
pub trait PcsDevice: Sync {
    /// Reads at most `limit` bytes, waiting until there are some; none is the end of file.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] with the device's errno, [`DeviceError::Failed`] when it can't be
    /// reached any more.
    fn read(&self, limit: usize) -> Result<Vec<u8>, DeviceError>;

    /// Carries out `command` and returns its value and what it stored.
    ///
    /// The third argument of ioctl(2) is `argument` if `data` is empty and `limit` is 0, else
    /// a pointer to `data`, where at most `limit` bytes will be stored.
    ///
    /// # Errors
    /// As [`PcsDevice::read`].
    fn ioctl(
        &self,
        command: u32,
        argument: i64,
        data: &[u8],
        limit: usize,
    ) -> Result<(i64, Vec<u8>), DeviceError>;
}
