//! A character device, which exists as long as its channel is open.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use rustix::io::{Errno, retry_on_intr};

use super::protocol::{REQUEST_BUFFER, Request, initialized};

/// The node with which channels are opened.
pub const CUSE: &str = "/dev/cuse";

/// Why there is no device.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The module isn't loaded.
    #[error("Cannot open {CUSE}: load the kernel's module cuse")]
    Open(#[source] io::Error),
    /// The kernel ended the channel before the device was there.
    #[error("Kernel makes no device {name}: is another pcsd running?")]
    Refused {
        /// The device's name.
        name: String,
    },
    /// The kernel speaks another protocol.
    #[error("Kernel speaks a version of the protocol of {CUSE} that pcsd doesn't")]
    Version,
    /// The channel failed.
    #[error("Channel of {name} failed")]
    Io {
        /// The device's name.
        name: String,
        /// The system's error.
        source: io::Error,
    },
}

/// The number of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceNumber {
    /// Its major number; 0 lets the kernel choose one.
    pub major: u32,
    /// Its minor number.
    pub minor: u32,
}

/// A character device of this process. Dropping it removes the device and its node; operations on files that are still open fail from then
/// on.
#[derive(Debug)]
pub struct Channel {
    file: File,
    name: String,
    number: DeviceNumber,
}

impl Channel {
    /// Makes a device `name`. When this returns, the kernel's own `/dev` has its node.
    ///
    /// # Errors
    /// [`ChannelError`] without the module cuse, or if the name or number is taken.
    pub fn create(name: &str, wanted: DeviceNumber) -> Result<Self, ChannelError> {
        let failed = |source| ChannelError::Io {
            name: name.to_owned(),
            source,
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(CUSE)
            .map_err(ChannelError::Open)?;
        let mut buffer = vec![0; REQUEST_BUFFER];
        let length = file.read(&mut buffer).map_err(failed)?;
        let reply = buffer
            .get(..length)
            .and_then(Request::decode)
            .and_then(|request| initialized(&request, name, wanted.major, wanted.minor))
            .ok_or(ChannelError::Version)?;
        file.write_all(&reply).map_err(failed)?;
        // The device exists by now, or the channel has ended.
        match file.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            _ => {
                return Err(ChannelError::Refused {
                    name: name.to_owned(),
                });
            }
        }
        Ok(Self {
            file,
            name: name.to_owned(),
            number: wanted,
        }
        .find_number())
    }

    /// Takes over the major number that the kernel chose, if it can be found.
    fn find_number(mut self) -> Self {
        if self.number.major == 0 {
            let file = format!("/sys/class/cuse/{}/dev", self.name);
            let in_sysfs = fs::read_to_string(file)
                .ok()
                .and_then(|text| text.split(':').next()?.parse().ok());
            self.number.major = in_sysfs.or_else(|| self.major_of_node()).unwrap_or(0);
        }
        self
    }

    fn major_of_node(&self) -> Option<u32> {
        let node = fs::metadata(self.node()).ok()?;
        let is_device = node.file_type().is_char_device();
        is_device.then(|| rustix::fs::major(node.rdev()))
    }

    /// Makes the device again after the kernel has ended it.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn renew(&mut self) -> Result<(), ChannelError> {
        // The name is free again only after the old channel has been closed.
        self.file = File::open("/dev/null").map_err(|source| ChannelError::Io {
            name: self.name.clone(),
            source,
        })?;
        *self = Self::create(&self.name, self.number)?;
        Ok(())
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path of its node.
    pub fn node(&self) -> PathBuf {
        PathBuf::from("/dev").join(&self.name)
    }

    /// Its number; the major is 0 if it couldn't be found.
    pub fn number(&self) -> DeviceNumber {
        self.number
    }

    /// The bytes of the next request; `None` if none waits. `buffer` has [`REQUEST_BUFFER`] bytes.
    ///
    /// # Errors
    /// If the kernel has ended the channel (ENODEV).
    pub fn receive<'a>(&mut self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        loop {
            match self.file.read(buffer) {
                Ok(length) => return Ok(buffer.get(..length)),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return Ok(None),
                    // ENOENT: the request was cancelled while it was being read.
                    Some(libc::EINTR | libc::ENOENT) => {}
                    _ => return Err(error),
                },
            }
        }
    }

    /// Sends an answer or a notification. Returns false if nobody waits for the answer any more.
    ///
    /// # Errors
    /// If the kernel refuses it.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<bool> {
        match retry_on_intr(|| rustix::io::write(&self.file, bytes)) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
