//! A device node, as a guest has it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::Path;

use kvmprof_abi::errno::Errno;

use super::{DeviceError, PcsDevice};

/// An open device node.
#[derive(Debug)]
pub struct Node(File);

impl Node {
    /// Opens the node at `path` for reading.
    ///
    /// # Errors
    /// [`DeviceError::NoNode`], and what [`DeviceError::from_open`] makes of other errors.
    pub fn open(path: &Path) -> Result<Self, DeviceError> {
        match File::open(path) {
            Ok(file) => Ok(Self(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(DeviceError::NoNode {
                path: path.to_path_buf(),
            }),
            Err(error) => Err(error.raw_os_error().map_or_else(
                || DeviceError::Failed(error.into()),
                |errno| DeviceError::from_open(Errno(errno)),
            )),
        }
    }
}

fn refused(error: io::Error) -> DeviceError {
    match error.raw_os_error() {
        Some(errno) => DeviceError::Refused {
            errno: Errno(errno),
        },
        None => DeviceError::Failed(error.into()),
    }
}

impl PcsDevice for Node {
    fn read(&self, limit: usize) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = vec![0; limit];
        loop {
            match (&self.0).read(&mut bytes) {
                Ok(count) => {
                    bytes.truncate(count);
                    return Ok(bytes);
                }
                // Nothing was lost by it, says the device's page.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(refused(error)),
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
            unsafe { libc::ioctl(self.0.as_raw_fd(), request, argument) }
        } else {
            // SAFETY: the descriptor is open, and `bytes` has room for all that the caller
            // says the command reads or stores.
            unsafe { libc::ioctl(self.0.as_raw_fd(), request, bytes.as_mut_ptr()) }
        };
        if value < 0 {
            return Err(refused(io::Error::last_os_error()));
        }
        bytes.truncate(limit);
        Ok((value.into(), bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_node_says_what_to_do() {
        let error = Node::open(Path::new("/nonexistent/pcs")).unwrap_err();
        assert!(error.to_string().contains("--socket"), "{error}");
    }

    #[test]
    fn a_file_that_is_no_device_refuses_ioctls() {
        let node = Node::open(Path::new("/dev/null")).unwrap();
        assert!(node.read(10).unwrap().is_empty());
        let error = node
            .ioctl(kvmprof_abi::pcs::PROF_ALL, 0, &[], 0)
            .unwrap_err();
        assert_eq!(error.errno(), Some(Errno(libc::ENOTTY)));
    }
}
