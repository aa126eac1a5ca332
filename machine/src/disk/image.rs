//! An image's content, whatever its format.

use std::io;

use kvmprof_devices::virtio::block::Extent;

use super::file::HostFile;
use super::qcow2::Qcow2Image;

/// An open image. Several threads can use it at once.
#[derive(Debug)]
pub enum Image {
    /// A file whose bytes are those of the disk.
    Raw(HostFile),
    /// A file in QEMU's format.
    Qcow2(Qcow2Image),
}

impl Image {
    /// The disk's size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Raw(file) => file.length(),
            Self::Qcow2(image) => image.bytes(),
        }
    }

    /// Fills `bytes` from `offset` of the disk on.
    ///
    /// # Errors
    /// The host can't read the bytes, or they are missing in the image.
    pub fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.read_at(bytes, offset),
            Self::Qcow2(image) => image.read(bytes, offset),
        }
    }

    /// Writes `bytes` from `offset` of the disk on. They are on the host's disk after the next flush.
    ///
    /// # Errors
    /// The host can't write the bytes.
    pub fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.write_at(bytes, offset),
            Self::Qcow2(image) => image.write(bytes, offset),
        }
    }

    /// Writes the data of all calls of `write` that have returned to the host's disk.
    ///
    /// # Errors
    /// The host failed. It is unknown then which data is on its disk.
    pub fn flush(&self) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.sync(),
            Self::Qcow2(image) => image.flush(),
        }
    }

    /// Frees the space of `extent`, as far as the host and the format support that. The extent then reads as zeroes, or is as before.
    ///
    /// # Errors
    /// The host failed.
    pub fn discard(&self, extent: Extent) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.punch(extent.offset, extent.length).map(|_| ()),
            Self::Qcow2(image) => image.discard(extent.offset, extent.length),
        }
    }

    /// Zeroes `extent`.
    ///
    /// # Errors
    /// The host failed.
    pub fn zero(&self, extent: Extent) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.zero(extent.offset, extent.length, extent.unmap),
            Self::Qcow2(image) => image.zero(extent.offset, extent.length),
        }
    }
}
