//! The errors of reading a guest's image, from its file or its memory.

use std::io;

use kvmprof_abi::note::NoteError;

/// Why a guest image couldn't be used to find the guest's processes.
#[derive(Debug, thiserror::Error)]
pub enum IntrospectionError {
    /// The file isn't a Linux kernel.
    #[error("Not a Linux kernel: the file is neither a bzImage nor an ELF file")]
    NotAKernel,
    /// The bzImage's boot protocol is older than 2.08 (Linux 2.6.26) and has no field for the place of the compressed kernel.
    #[error(
        "The bzImage's boot protocol {}.{:02} doesn't say where the kernel is: 2.08 or newer is needed",
        .0 >> 8, .0 & 0xff
    )]
    OldBootProtocol(u16),
    /// The bzImage's header points outside the file.
    #[error("The bzImage is cut short: its payload ends at byte {end}, the file at {length}")]
    PayloadOutsideFile {
        /// The payload's end, in bytes from the file's start.
        end: u64,
        /// The file's length, in bytes.
        length: u64,
    },
    /// The payload's format isn't supported.
    #[error(
        "The kernel is compressed with {0}, which is not supported: gzip, bzip2, lzma, xz, lz4 and zstd are"
    )]
    UnsupportedCompression(&'static str),
    /// The bzImage's header says that there is no compressed kernel.
    #[error("The bzImage has no compressed kernel: its header gives it no bytes")]
    NoPayload,
    /// The payload can't be unpacked.
    #[error("The kernel's {format} payload is damaged")]
    Decompress {
        /// The compression's name.
        format: &'static str,
        /// The decompressor's error.
        source: io::Error,
    },
    /// The payload unpacks to more bytes than a kernel can have.
    #[error("The kernel unpacks to more than {0} bytes")]
    TooLarge(u64),
    /// The ELF file is malformed.
    #[error("The kernel's ELF file is damaged: {0}")]
    Elf(String),
    /// A library with a kernel doesn't tell where the kernel has to be.
    #[error(
        "The library has a kernel (KERNEL_BUNDLE), but its function krunfw_get_kernel doesn't say where that is loaded and entered"
    )]
    Bundle,
    /// The type information is malformed.
    #[error("The kernel's BTF is damaged: {0}")]
    Btf(&'static str),
    /// No kernel was found on a vCPU: it runs firmware, a boot loader or Linux's decompressor, or doesn't use long
    /// mode. A kernel may run later.
    #[error(
        "No Linux kernel is running yet: the guest is still in its firmware or boot loader, or runs a 32-bit system"
    )]
    NoKernelYet,
    /// A vCPU runs a kernel that isn't Linux.
    #[error(
        "The guest runs another kernel than Linux: only --pid-at can say where its processes are"
    )]
    OtherKernel,
    /// The given file belongs to another kernel than the one that runs.
    #[error("The file is the kernel of Linux {file}, but the guest runs {running}")]
    OtherBuild {
        /// The file's release, as in its banner.
        file: String,
        /// A description of the running kernel.
        running: String,
    },
    /// A file that is to have a kernel's types has none.
    #[error("{0} has no types: it is neither BTF nor an ELF file that has it or debug information")]
    NoTypes(String),
    /// A file that is to have a kernel's symbols has none.
    #[error(
        "{0} has no symbols: it is neither a System.map, nor a copy of /proc/kallsyms, nor an ELF file with a symbol table"
    )]
    NoSymbols(String),
    /// A copy of `/proc/kallsyms` that was made without the right to see addresses.
    #[error("The addresses in {0} are hidden: copy /proc/kallsyms as root (kernel.kptr_restrict)")]
    HiddenAddresses(String),
    /// The given types belong to another kernel.
    #[error("{file} has the types of another kernel: {compared}")]
    OtherTypes {
        /// The file.
        file: String,
        /// What was compared, and how.
        compared: String,
    },
    /// The given symbols belong to another kernel.
    #[error("{file} has the symbols of another kernel: {compared}")]
    OtherSymbols {
        /// The file.
        file: String,
        /// What was compared, and how.
        compared: String,
    },
    /// A `kvmprof` note is malformed.
    #[error("The guest's note doesn't say where its processes are")]
    Note(#[from] NoteError),
}

impl IntrospectionError {
    /// Whether a file that was given isn't that of the kernel that runs.
    #[must_use]
    pub fn is_of_other_kernel(&self) -> bool {
        matches!(
            self,
            Self::OtherBuild { .. } | Self::OtherTypes { .. } | Self::OtherSymbols { .. }
        )
    }
}
