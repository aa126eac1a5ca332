//! A device node, as a guest has it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

use kvmprof_abi::errno::Errno;

use super::{Device, DeviceError, DeviceKind};

/// What a node is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads and ioctls.
    Read,
    /// Writes too.
    ReadWrite,
}

/// An open device node.
#[derive(Debug)]
pub struct Node {
    kind: DeviceKind,
    file: File,
}

impl Node {
    /// Opens the node at `path`, which is of a `kind`.
    ///
    /// # Errors
    /// [`DeviceError::NoNode`], [`DeviceError::NodePermission`], and what [`DeviceError::from_open`]
    /// makes of other errors.
    pub fn open(kind: DeviceKind, path: &Path, access: Access) -> Result<Self, DeviceError> {
        let file = OpenOptions::new()
            .read(true)
            .write(access == Access::ReadWrite)
            .open(path);
        file.map(|file| Self { kind, file }).map_err(|error| {
            let path = path.to_path_buf();
            match (error.kind(), error.raw_os_error()) {
                (io::ErrorKind::NotFound, _) => DeviceError::NoNode { path },
                (io::ErrorKind::PermissionDenied, _) => DeviceError::NodePermission { path },
                (_, Some(errno)) => DeviceError::from_open(kind, Errno(errno)),
                (_, None) => failed(kind, error),
            }
        })
    }

    fn refused(&self, error: io::Error) -> DeviceError {
        match error.raw_os_error() {
            Some(errno) => DeviceError::Refused {
                device: self.kind,
                errno: Errno(errno),
            },
            None => failed(self.kind, error),
        }
    }
}

fn failed(device: DeviceKind, error: io::Error) -> DeviceError {
    DeviceError::Failed {
        device,
        source: error.into(),
    }
}

impl Device for Node {
    fn read(&self, limit: usize) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = vec![0; limit];
        loop {
            match (&self.file).read(&mut bytes) {
                Ok(count) => {
                    bytes.truncate(count);
                    return Ok(bytes);
                }
                // Nothing was lost by it, says the device's page.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(self.refused(error)),
            }
        }
    }

    fn write(&self, data: &[u8]) -> Result<usize, DeviceError> {
        loop {
            match (&self.file).write(data) {
                Ok(count) => return Ok(count),
                // Nothing was taken.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(self.refused(error)),
            }
        }
    }

    fn ioctl(
        &self,
        command: u32,
        argument: i64,
        data: &[u8],
        limit: usize,
    ) -> Result<(i64, Vec<u8>), DeviceError> {
        let request = libc::c_ulong::from(command);
        let mut bytes = data.to_vec();
        bytes.resize(data.len().max(limit), 0);
        let value = if bytes.is_empty() {
            // SAFETY: the descriptor is open; a command without data takes its argument as an integer.
            unsafe { libc::ioctl(self.file.as_raw_fd(), request, argument) }
        } else {
            // SAFETY: the descriptor is open, and `bytes` has room for all that the caller
            // says the command reads or stores.
            unsafe { libc::ioctl(self.file.as_raw_fd(), request, bytes.as_mut_ptr()) }
        };
        if value < 0 {
            return Err(self.refused(io::Error::last_os_error()));
        }
        bytes.truncate(limit);
        Ok((value.into(), bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &str) -> Result<Node, DeviceError> {
        Node::open(DeviceKind::Pcs, Path::new(path), Access::ReadWrite)
    }

    #[test]
    fn a_missing_node_says_what_to_do() {
        let error = open("/nonexistent/pcs").unwrap_err();
        assert!(error.to_string().contains("--socket"), "{error}");
    }

    #[test]
    fn a_file_that_is_no_device_refuses_ioctls() {
        let node = open("/dev/null").unwrap();
        assert!(node.read(10).unwrap().is_empty());
        assert_eq!(node.write(b"four").unwrap(), 4);
        let error = node
            .ioctl(kvmprof_abi::pcs::PROF_ALL, 0, &[], 0)
            .unwrap_err();
        assert_eq!(error.errno(), Some(Errno(libc::ENOTTY)));
    }
}
