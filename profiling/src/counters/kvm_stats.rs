//! KVM's own statistics of a virtual machine or a vCPU (KVM_GET_STATS_FD, `Documentation/virt/kvm/api.rst` 4.133).

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;

use kvm_bindings::{KVM_STATS_TYPE_CUMULATIVE, KVM_STATS_TYPE_MASK};
use vmm_sys_util::syscall::SyscallReturnCode;

/// `_IO(KVMIO, 0xce)`.
const KVM_GET_STATS_FD: libc::Ioctl = 0xaece;
/// Bytes of the header, and of a descriptor without its name.
const HEADER: usize = 24;
const DESCRIPTOR: usize = 16;
/// Maximum number of statistics, and of bytes of a name: far more than KVM has.
const MAX_DESCRIPTORS: u32 = 4096;
const MAX_NAME: u32 = 1024;

/// Some of the statistics that KVM sums up over time.
#[derive(Debug)]
pub struct KvmStats {
    file: File,
    /// The offset of each value in the file, if it is there.
    offsets: Vec<Option<u64>>,
}

impl KvmStats {
    /// The statistics with these names, of the virtual machine or vCPU with this descriptor.
    ///
    /// # Errors
    /// KVM refuses it: with ENOTTY before Linux 5.14.
    pub fn open(of: &impl AsRawFd, names: &[&str]) -> io::Result<Self> {
        // SAFETY: the command has no argument, and makes a descriptor or fails.
        let descriptor = unsafe { libc::ioctl(of.as_raw_fd(), KVM_GET_STATS_FD, 0) };
        let descriptor = SyscallReturnCode(descriptor).into_result()?;
        // SAFETY: the descriptor was just made and nobody else owns it.
        let file = unsafe { File::from_raw_fd(descriptor) };
        let values = values(&file)?;
        let offset = |name: &&str| {
            let value = values.iter().find(|(known, _)| known == name);
            value.map(|(_, offset)| *offset)
        };
        let offsets = names.iter().map(offset).collect();
        Ok(Self { file, offsets })
    }

    /// The value of the statistic with the name at `index`; `None` if this KVM doesn't have it.
    pub fn value(&self, index: usize) -> Option<u64> {
        let offset = self.offsets.get(index).copied().flatten()?;
        let mut value = [0; 8];
        self.file.read_exact_at(&mut value, offset).ok()?;
        Some(u64::from_ne_bytes(value))
    }
}

/// The cumulative statistics with a single value, from the file's descriptors.
fn values(file: &File) -> io::Result<Vec<(String, u64)>> {
    let malformed = || io::Error::other("KVM describes its statistics in an unknown way");
    let mut header = [0; HEADER];
    file.read_exact_at(&mut header, 0)?;
    // struct kvm_stats_header: flags, name_size, num_desc, id_offset, desc_offset, data_offset.
    let (words, _) = header.as_chunks::<4>();
    let [_, name_size, count, _, descriptors, data] =
        [0, 1, 2, 3, 4, 5].map(|word| words.get(word).map_or(0, |word| u32::from_ne_bytes(*word)));
    if count > MAX_DESCRIPTORS || name_size > MAX_NAME {
        return Err(malformed());
    }
    let length = DESCRIPTOR + usize::try_from(name_size).map_err(|_| malformed())?;
    let mut all = vec![0; length * usize::try_from(count).map_err(|_| malformed())?];
    file.read_exact_at(&mut all, descriptors.into())?;
    let mut values = Vec::new();
    for bytes in all.chunks_exact(length) {
        // struct kvm_stats_desc: flags, exponent, size, offset, bucket_size, name.
        let (fields, name) = bytes.split_at(DESCRIPTOR);
        let (words, _) = fields.as_chunks::<4>();
        let &[flags, exponent_and_size, offset, _] = words else {
            return Err(malformed());
        };
        let [.., a, b] = exponent_and_size;
        let is_single = u16::from_ne_bytes([a, b]) == 1;
        let kind = u32::from_ne_bytes(flags) & KVM_STATS_TYPE_MASK;
        if is_single && kind == KVM_STATS_TYPE_CUMULATIVE {
            let offset = u64::from(data) + u64::from(u32::from_ne_bytes(offset));
            let name = CStr::from_bytes_until_nul(name).map_err(|_| malformed())?;
            values.push((name.to_string_lossy().into_owned(), offset));
        }
    }
    Ok(values)
}
