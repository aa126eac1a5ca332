//! A device node of a guest.

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::path::Path;
use std::ptr;

use kvmprof_abi::commands::{self, Argument, INT};
use kvmprof_abi::errno::Errno;
use rustix::io::{self, retry_on_intr};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};

use super::{Device, DeviceError, DeviceKind};

/// The access to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads and ioctls.
    Read,
    /// Writes as well.
    ReadWrite,
}

/// An open device node.
#[derive(Debug)]
pub struct Node {
    kind: DeviceKind,
    file: File,
}

impl Node {
    /// Opens the node at `path` of a device of this `kind`.
    ///
    /// # Errors
    /// [`DeviceError::NoNode`], [`DeviceError::NodePermission`], and others by [`DeviceError::from_open`].
    pub fn open(kind: DeviceKind, path: &Path, access: Access) -> Result<Self, DeviceError> {
        let file = OpenOptions::new()
            .read(true)
            .write(access == Access::ReadWrite)
            .open(path);
        file.map(|file| Self { kind, file }).map_err(|error| {
            let path = path.to_path_buf();
            match (error.kind(), error.raw_os_error()) {
                (ErrorKind::NotFound, _) => DeviceError::NoNode { path },
                (ErrorKind::PermissionDenied, _) => DeviceError::NodePermission { path },
                (_, Some(errno)) => DeviceError::from_open(kind, Errno(errno)),
                (_, None) => DeviceError::Failed {
                    device: kind,
                    source: error.into(),
                },
            }
        })
    }

    fn refused(&self, errno: io::Errno) -> DeviceError {
        DeviceError::Refused {
            device: self.kind,
            errno: Errno(errno.raw_os_error()),
        }
    }
}

impl Device for Node {
    fn read(&self, limit: usize) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = vec![0; limit];
        // The device's page guarantees that an interrupted read has lost nothing.
        let count = retry_on_intr(|| io::read(&self.file, bytes.as_mut_slice()));
        bytes.truncate(count.map_err(|errno| self.refused(errno))?);
        Ok(bytes)
    }

    fn write(&self, data: &[u8]) -> Result<usize, DeviceError> {
        // An interrupted write has written nothing.
        let count = retry_on_intr(|| io::write(&self.file, data));
        count.map_err(|errno| self.refused(errno))
    }

    fn ioctl(
        &self,
        command: u32,
        argument: i64,
        data: &[u8],
        limit: usize,
    ) -> Result<(i64, Vec<u8>), DeviceError> {
        let operand = commands::argument(self.kind.number(), command);
        let Some(operand) = operand.filter(|operand| fits(*operand, data, limit)) else {
            // The device's answer to an unknown command.
            return Err(DeviceError::Refused {
                device: self.kind,
                errno: Errno::EINVAL,
            });
        };
        let mut memory = Vec::new();
        let pointer = if operand == Argument::Number {
            ptr::without_provenance_mut(usize::from_ne_bytes(argument.to_ne_bytes()))
        } else {
            memory = data.to_vec();
            memory.resize(MEMORY_SIZE, 0);
            memory.as_mut_ptr().cast()
        };
        let carried_out = Carrier { command, pointer };
        // SAFETY: the command is one of pcs or prf, which take a number, or less memory than `memory` has.
        let value = unsafe { rustix::ioctl::ioctl(&self.file, carried_out) };
        let value = value.map_err(|errno| self.refused(errno))?;
        memory.truncate(limit);
        Ok((value.into(), memory))
    }
}

/// Bytes of memory for each command: more than any command of pcs and prf needs. It is a page, because the node may be
/// another driver's: old drivers have commands with these numbers that store some hundred bytes.
const MEMORY_SIZE: usize = 4096;

/// Whether `data` and room for `limit` bytes fit a command with this third argument.
fn fits(argument: Argument, data: &[u8], limit: usize) -> bool {
    match argument {
        Argument::Number => data.is_empty() && limit == 0,
        Argument::Reads(size) => data.len() <= size && limit == 0,
        Argument::ReadsList(most) => data.len() <= INT * (1 + most) && limit == 0,
        Argument::Stores(size) => data.is_empty() && limit == size,
        Argument::Replaces(_) | Argument::Data => false,
    }
}

/// A command for [`rustix::ioctl`].
struct Carrier {
    command: u32,
    /// The number, or the address of the memory.
    pointer: *mut c_void,
}

// SAFETY: the output is the system call's value, whatever the command is; the memory is the caller's concern.
unsafe impl Ioctl for Carrier {
    type Output = i32;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.command
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.pointer
    }

    // SAFETY: the pointer isn't used.
    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut c_void) -> io::Result<i32> {
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use kvmprof_abi::{pcs, prf};

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
    fn ordinary_files_refuse_ioctls() {
        let node = open("/dev/null").unwrap();
        assert!(node.read(10).unwrap().is_empty());
        assert_eq!(node.write(b"four").unwrap(), 4);
        for (command, data, limit) in [
            (pcs::PROF_ALL, &[][..], 0),
            (pcs::PROF_LIST, &[0; 8], 0),
            (pcs::PCS_GETSTAT, &[], pcs::STATUS_SIZE),
        ] {
            let error = node.ioctl(command, 0, data, limit).unwrap_err();
            assert_eq!(error.errno(), Some(Errno(libc::ENOTTY)), "{command:#x}");
        }
    }

    #[test]
    fn foreign_commands_and_wrong_sizes_never_reach_the_kernel() {
        let node = open("/dev/null").unwrap();
        for (command, data, limit) in [
            (0x5401, &[][..], 36),
            (prf::PRF_GETMAX, &[], INT),
            (pcs::PROF_ALL, &[0; 4], 0),
            (pcs::PROF_LIST, &[0; INT * (2 + pcs::MAX_LIST)], 0),
            (pcs::PCS_GETSTAT, &[], 0),
            (pcs::PCS_GETSTAT, &[], pcs::STATUS_SIZE + 1),
            (pcs::PCS_GETHZ, &[], INT),
        ] {
            let error = node.ioctl(command, 0, data, limit).unwrap_err();
            assert_eq!(error.errno(), Some(Errno::EINVAL), "{command:#x}");
        }
    }

    #[test]
    fn a_command_takes_less_memory_than_it_gets() {
        for device in [DeviceKind::Pcs, DeviceKind::Prf] {
            for command in commands::of_device(device.number()) {
                let size = match command.argument {
                    Argument::Number => 0,
                    Argument::Reads(size) | Argument::Stores(size) => size,
                    Argument::ReadsList(most) => INT * (1 + most),
                    Argument::Replaces(_) | Argument::Data => panic!("{command:?}"),
                };
                assert!(size < MEMORY_SIZE, "{command:?}");
            }
        }
    }
}
