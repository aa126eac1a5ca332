//! Reads the host kernel's memory. A small eBPF program, which this module makes and runs by BPF_PROG_TEST_RUN, does the reads.

pub(crate) mod bpf;
mod error;
pub(crate) mod program;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

pub use error::KernelMemoryError;

use crate::capabilities;
use crate::mapping::Mapping;

/// Maximum number of bytes that one run of the program reads.
const AT_ONCE: usize = 4096;

/// The host kernel's memory, for reading. It can be shared by threads, which take turns.
#[derive(Debug)]
pub struct KernelMemory {
    program: OwnedFd,
    /// The map into which the program copies what it reads. The program keeps the map alive.
    value: Mutex<MappedValue>,
}

impl KernelMemory {
    /// Loads the program.
    ///
    /// # Errors
    /// The kernel has no eBPF, this process lacks a capability for it, or the kernel is locked down against reads of
    /// its memory.
    pub fn open() -> Result<Self, KernelMemoryError> {
        let map = bpf::create_map(AT_ONCE).map_err(why_refused)?;
        let limit = i32::try_from(AT_ONCE).unwrap_or_default();
        let instructions = program::instructions(map.as_raw_fd(), limit);
        let program = bpf::load(&instructions).map_err(why_refused)?;
        let value = MappedValue::map(&map).map_err(|error| KernelMemoryError::Failed {
            what: "map what the eBPF program reads",
            error,
        })?;
        let memory = Self {
            program,
            value: Mutex::new(value),
        };
        // Some sandboxes allow a process to load programs, but not to run them. In such a sandbox this call fails.
        memory.own_task().map_err(why_refused)?;
        Ok(memory)
    }

    /// The address of the calling thread's `struct task_struct`.
    ///
    /// # Errors
    /// bpf(2) fails.
    pub fn own_task(&self) -> io::Result<u64> {
        let mut address = [0; 8];
        self.run([0, 0], &mut address)?;
        Ok(u64::from_ne_bytes(address))
    }

    /// Fills `buffer` from kernel address `address`. `None` if a part isn't the kernel's memory; the buffer's contents are
    /// unspecified then. The kernel changes its memory meanwhile: up to 4096 bytes are read within a microsecond.
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> Option<()> {
        let mut address = address;
        for part in buffer.chunks_mut(AT_ONCE) {
            let bytes = u64::try_from(part.len()).ok()?;
            // Address 0 asks for something else; nothing can be read there.
            (address != 0).then_some(())?;
            self.run([address, bytes], part).ok()?;
            address = address.checked_add(bytes)?;
        }
        Some(())
    }

    /// The 64-bit number at `offset` in the structure at kernel address `structure`.
    pub fn u64(&self, structure: u64, offset: u64) -> Option<u64> {
        self.member(structure, offset).map(u64::from_ne_bytes)
    }

    /// The 32-bit number at `offset` in the structure at kernel address `structure`.
    pub fn u32(&self, structure: u64, offset: u64) -> Option<u32> {
        self.member(structure, offset).map(u32::from_ne_bytes)
    }

    /// The byte at `offset` in the structure at kernel address `structure`.
    pub fn byte(&self, structure: u64, offset: u64) -> Option<u8> {
        self.member(structure, offset).map(u8::from_ne_bytes)
    }

    /// The pointer at `offset` in the structure at kernel address `structure`; `None` if it is null, too.
    pub fn pointer(&self, structure: u64, offset: u64) -> Option<u64> {
        (self.u64(structure, offset)).filter(|pointer| *pointer != 0)
    }

    fn member<const N: usize>(&self, structure: u64, offset: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.read(structure.checked_add(offset)?, &mut bytes)?;
        Some(bytes)
    }

    fn run(&self, arguments: [u64; 2], result: &mut [u8]) -> io::Result<()> {
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        match bpf::run(&self.program, arguments)? {
            0 => value.copy_to(result),
            error => Err(io::Error::from_raw_os_error(error.saturating_neg())),
        }
    }
}

/// The error for a failed call of bpf(2).
pub(crate) fn why_refused(error: io::Error) -> KernelMemoryError {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => KernelMemoryError::NoBpf,
        Some(libc::EPERM | libc::EACCES) => {
            let missing = capabilities::missing(&capabilities::EBPF);
            if missing.is_empty() {
                KernelMemoryError::Forbidden
            } else {
                KernelMemoryError::MissingCapabilities(missing)
            }
        }
        Some(libc::EINVAL) => KernelMemoryError::Refused(error),
        _ => KernelMemoryError::Failed {
            what: "load and run an eBPF program",
            error,
        },
    }
}

/// The mapped value of a map.
#[derive(Debug)]
struct MappedValue(Mapping);

impl MappedValue {
    fn map(map: &OwnedFd) -> io::Result<Self> {
        Mapping::shared(Some(map.as_fd()), AT_ONCE, libc::PROT_READ).map(Self)
    }

    /// Copies the first bytes of the value to `buffer`.
    fn copy_to(&self, buffer: &mut [u8]) -> io::Result<()> {
        if buffer.len() > AT_ONCE {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the mapping has AT_ONCE readable bytes as long as `self` lives; only the program writes there, which
        // has been run under the lock that the caller holds.
        unsafe { std::ptr::copy_nonoverlapping(self.0.start(), buffer.as_mut_ptr(), buffer.len()) };
        Ok(())
    }
}
