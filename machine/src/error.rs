//! Errors of building a machine.

use std::io;
use std::path::PathBuf;

use kvmprof_devices::virtio::QueueError;
use thiserror::Error;

use crate::layout;

/// Why a machine couldn't be built. Each message says what to do, if something can be done.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MachineError {
    /// `/dev/kvm` doesn't exist.
    #[error(
        "This host has no /dev/kvm: load a KVM module (kvm-intel or kvm-amd), or use a machine with a KVM in emulation: cargo lab demo, cargo lab linux"
    )]
    NoKvm,
    /// `/dev/kvm` may not be opened by this user.
    #[error(
        "No permission to open /dev/kvm: run as root or join its group (usermod -aG kvm USER), or use a machine with a KVM in emulation: cargo lab demo, cargo lab linux"
    )]
    KvmPermission,
    /// `/dev/kvm` can't be opened for another reason.
    #[error(
        "Cannot open /dev/kvm; a machine with a KVM in emulation is there by: cargo lab demo, cargo lab linux"
    )]
    OpenKvm(#[source] io::Error),
    /// `/dev/kvm` has another version of the interface.
    #[error(
        "/dev/kvm has API version {0} (-1: it is no KVM), but only version 12 is known; a machine with a KVM in emulation is there by: cargo lab demo, cargo lab linux"
    )]
    KvmVersion(i32),
    /// KVM lacks a capability that the machine needs.
    #[error(
        "This host's KVM lacks {0}, which is needed; a machine with a KVM in emulation is there by: cargo lab demo, cargo lab linux"
    )]
    MissingCapability(&'static str),
    /// A KVM system call failed.
    #[error("KVM refused {operation}")]
    Kvm {
        /// The ioctl and its purpose.
        operation: &'static str,
        /// The kernel's error.
        #[source]
        source: kvm_ioctls::Error,
    },
    /// KVM doesn't know a model-specific register that guests need.
    #[error("KVM refused to set the model-specific register {0:#x}")]
    Msr(u32),
    /// Guest memory can't be made zero for a restart.
    #[error("The host refuses to empty guest memory")]
    ClearMemory(#[source] io::Error),

    /// The number of vCPUs isn't usable.
    #[error("{asked} vCPUs are not possible here: the number must be between 1 and {most}")]
    CpuCount {
        /// The requested number of vCPUs.
        asked: u16,
        /// Maximum number of vCPUs on this host.
        most: u16,
    },
    /// The size of guest memory is too small.
    #[error(
        "{} of guest memory is too little: the least is {}",
        Bytes(*asked),
        Bytes(*least)
    )]
    TooLittleMemory {
        /// The requested size in bytes.
        asked: u64,
        /// Minimum size in bytes.
        least: u64,
    },
    /// The size of guest memory is more than the host has available.
    #[error(
        "{} of guest memory is too much memory: this host has {} available",
        Bytes(*asked),
        Bytes(*available)
    )]
    TooMuchMemory {
        /// The requested size in bytes.
        asked: u64,
        /// The available size in bytes.
        available: u64,
    },
    /// The memory size isn't a whole number of pages.
    #[error("Guest memory of {0} bytes is not a multiple of 4 KiB")]
    UnalignedMemory(u64),
    /// Guest memory could not be mapped.
    #[error("Cannot map {} of guest memory", Bytes(*bytes))]
    MapMemory {
        /// The requested size in bytes.
        bytes: u64,
        /// The host's error.
        #[source]
        source: io::Error,
    },
    /// The host can't make a file in memory (memfd_create(2)).
    #[error("The host refuses memory that can be shared (memfd_create)")]
    MemoryFile(#[source] io::Error),
    /// The file for guest memory can't be opened, or can't get the length of guest memory.
    #[error("Cannot use {} for guest memory", path.display())]
    BackingFile {
        /// The file.
        path: PathBuf,
        /// The host's error.
        #[source]
        source: io::Error,
    },
    /// The path for guest memory isn't that of a usable file.
    #[error("Guest memory can't be in {}: {why}", path.display())]
    BadBackingFile {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The size of guest memory isn't a whole number of huge pages.
    #[error("Guest memory of {bytes} bytes is not a multiple of its huge pages, of {pages}")]
    UnevenHugePages {
        /// The requested size in bytes.
        bytes: u64,
        /// The size of a huge page.
        pages: &'static str,
    },
    /// The host has no pages of this size at all.
    #[error(
        "This host has no huge pages of {0}: its processor or its kernel (CONFIG_HUGETLBFS) lacks them"
    )]
    NoHugePages(&'static str),
    /// The host has reserved too few huge pages.
    #[error(
        "The guest needs {needed} huge pages of {pages}, and the host has {available} free: reserve more by {command}"
    )]
    TooFewHugePages {
        /// The size of a huge page.
        pages: &'static str,
        /// Number of huge pages that the guest needs.
        needed: u64,
        /// Number of free huge pages.
        available: u64,
        /// The command that reserves enough.
        command: String,
    },
    /// A structure of the boot protocol doesn't fit into guest memory.
    #[error("Cannot write {what} into guest memory")]
    WriteMemory {
        /// The name of the structure.
        what: &'static str,
        /// The error of the write.
        #[source]
        source: vm_memory::GuestMemoryError,
    },

    /// A file can't be read.
    #[error("Cannot read the {what} {}", path.display())]
    ReadFile {
        /// "kernel" or "initrd".
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The host's error.
        #[source]
        source: io::Error,
    },
    /// A path names a directory or a device.
    #[error("The {what} {} is not a regular file", path.display())]
    NotAFile {
        /// "kernel" or "initrd".
        what: &'static str,
        /// The path.
        path: PathBuf,
    },
    /// The kernel is neither a bzImage nor an ELF file for x86-64.
    #[error("The kernel {0} is not a bzImage or an ELF file for x86-64")]
    NotAKernel(String),
    /// The kernel's file is known, and is something else.
    #[error(
        "The kernel {name} is {what}. kvmprof starts Linux as a bzImage, a vmlinux or a libkrunfw library, and other 64-bit kernels as ELF files"
    )]
    OtherImage {
        /// Name of the kernel.
        name: String,
        /// What it is.
        what: &'static str,
    },
    /// The kernel lacks the 64-bit entry point.
    #[error(
        "The kernel {0} has the form of a bzImage, as iPXE and GRUB have it, too, without a 64-bit entry point; a 64-bit kernel is needed"
    )]
    NoEntry64(String),
    /// The kernel's file is shorter than its header says.
    #[error("The kernel {name} is truncated: it should have {expected} bytes, but has {actual}")]
    Truncated {
        /// Name of the kernel.
        name: String,
        /// The size in bytes that its header says.
        expected: u64,
        /// The size of its file in bytes.
        actual: u64,
    },
    /// The ELF headers are inconsistent.
    #[error("The kernel {name} is a damaged ELF file: {reason}")]
    DamagedElf {
        /// Name of the kernel.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A segment of the kernel overlaps the machine's own structures.
    #[error(
        "The kernel {name} wants to be loaded at {address:#x}; below {:#x} is no place for kernels",
        layout::HIGH_MEMORY
    )]
    KernelTooLow {
        /// Name of the kernel.
        name: String,
        /// Guest-physical address of the segment.
        address: u64,
    },
    /// The kernel doesn't fit into guest memory.
    #[error(
        "The kernel {name} needs memory up to {} but the guest's ends at {}: give it more",
        Bytes(needed.next_multiple_of(1 << 20)),
        Bytes(*end)
    )]
    KernelTooLarge {
        /// Name of the kernel.
        name: String,
        /// End address of the memory that it needs.
        needed: u64,
        /// End address of the guest's memory below the 32-bit gap.
        end: u64,
    },
    /// linux-loader refused the kernel.
    #[error("Cannot load the kernel {name}")]
    Load {
        /// Name of the kernel.
        name: String,
        /// The error of linux-loader.
        #[source]
        source: linux_loader::loader::Error,
    },
    /// linux-loader refused the boot parameters.
    #[error("Cannot write the boot parameters")]
    BootParameters(#[source] linux_loader::configurator::Error),
    /// The initial RAM disk doesn't fit into guest memory.
    #[error(
        "The initrd {} is too large: it has {}, and {} are free below 3 GiB beside the kernel; give the guest more memory",
        path.display(),
        Bytes(*size),
        Bytes(*free)
    )]
    InitrdTooLarge {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
        /// Size of the free memory for it, in bytes.
        free: u64,
    },
    /// The kernel can't use an initial RAM disk.
    #[error(
        "The kernel {kernel} takes no initrd (CONFIG_BLK_DEV_INITRD), so {} can't be its initrd: give it a folder as root (--root), or a disk",
        initrd.display()
    )]
    NoInitrd {
        /// Name of the kernel.
        kernel: String,
        /// The file.
        initrd: PathBuf,
    },
    /// The initial RAM disk is empty.
    #[error("The initrd {} is empty", .0.display())]
    EmptyInitrd(PathBuf),
    /// The command line is too long.
    #[error("The command line has {length} bytes; this kernel takes at most {most}")]
    CommandLineTooLong {
        /// Its length in bytes.
        length: usize,
        /// Maximum length that the kernel takes, in bytes.
        most: usize,
    },
    /// The command line has other characters than printable ASCII.
    #[error("The command line may only have printable ASCII characters")]
    CommandLineCharacters,

    /// The host can't make an eventfd.
    #[error("Cannot make an event file descriptor")]
    EventFd(#[source] io::Error),
    /// The host can't start a thread.
    #[error("Cannot start a thread")]
    Thread(#[source] io::Error),
    /// There are more virtio devices than slots.
    #[error(
        "{asked} virtio devices are too many: the console, disks and the others may be {} together",
        layout::VIRTIO_DEVICES_MAX
    )]
    TooManyDevices {
        /// The requested number of devices.
        asked: usize,
    },
    /// A virtio device can't be made.
    #[error("Cannot make a virtio device")]
    Virtio(#[source] QueueError),
}

/// A size in bytes, which is shown with a unit.
struct Bytes(u64);

impl std::fmt::Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            bytes if bytes >= 10 << 30 => write!(f, "{} GiB", bytes >> 30),
            bytes if bytes >= 10 << 20 => write!(f, "{} MiB", bytes >> 20),
            bytes if bytes >= 10 << 10 => write!(f, "{} KiB", bytes >> 10),
            bytes => write!(f, "{bytes} bytes"),
        }
    }
}

/// For `map_err`: the error of the KVM operation with this name.
pub fn kvm(operation: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> MachineError {
    move |source| MachineError::Kvm { operation, source }
}

/// For `map_err`: the error of a write of this structure into guest memory.
pub fn write_error(what: &'static str) -> impl FnOnce(vm_memory::GuestMemoryError) -> MachineError {
    move |source| MachineError::WriteMemory { what, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_for_people() {
        assert_eq!(Bytes(4097).to_string(), "4097 bytes");
        assert_eq!(Bytes(64 << 20).to_string(), "64 MiB");
        assert_eq!(Bytes(64 << 30).to_string(), "64 GiB");
    }

    #[test]
    fn too_much_memory_names_both_sizes() {
        let error = MachineError::TooMuchMemory {
            asked: 1 << 40,
            available: 20 << 30,
        };
        let text = error.to_string();
        let expected =
            "1024 GiB of guest memory is too much memory: this host has 20 GiB available";
        assert_eq!(text, expected);
    }
}
