//! Guest memory: its address ranges, the check that the host has enough memory, and the KVM slots.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::VmFd;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use vm_memory::mmap::{MmapRegionBuilder, MmapRegionError};
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryRegion, GuestRegionMmap,
    MemoryRegionAddress,
};
use vmm_sys_util::syscall::SyscallReturnCode;

mod backing;
pub(crate) mod populate;

pub use backing::{HugePages, MemoryBacking, MemoryOptions};

use crate::error::{MachineError, kvm};
use crate::layout;

/// Guest memory, in the type that all parts of kvmprof use.
pub type GuestMemory = vm_memory::GuestMemoryMmap<()>;

const PAGE_SIZE: u64 = 4096;
/// Size in bytes of the lowest memory, where small kernels are loaded.
const LOW: usize = 8 << 20;

/// Splits `bytes` bytes of memory around the 32-bit gap. Returns the guest-physical address and the size in bytes of each part.
#[must_use]
pub fn memory_ranges(bytes: u64) -> Vec<(u64, u64)> {
    let below = bytes.min(layout::GAP_START);
    let mut ranges = vec![(0, below)];
    if bytes > below {
        ranges.push((layout::GAP_END, bytes - below));
    }
    ranges
}

/// Maps guest memory as `options` say. The host provides its pages when they are accessed first.
///
/// # Errors
/// The size isn't usable, the host doesn't have enough memory, or the memory can't be mapped.
pub fn allocate(options: &MemoryOptions) -> Result<GuestMemory, MachineError> {
    let bytes = options.bytes;
    if bytes < layout::MEMORY_MIN {
        return Err(MachineError::TooLittleMemory {
            asked: bytes,
            least: layout::MEMORY_MIN,
        });
    }
    if !bytes.is_multiple_of(PAGE_SIZE) {
        return Err(MachineError::UnalignedMemory(bytes));
    }
    // The mapping itself would succeed, because it reserves nothing. The host would kill this process much later, so check beforehand.
    if options.takes_free_memory()
        && let Some(available) = available_on_host()
        && bytes > available
    {
        return Err(MachineError::TooMuchMemory {
            asked: bytes,
            available,
        });
    }
    let file = options.open()?.map(Arc::new);
    let mut offset = 0;
    let mut regions = Vec::new();
    for (address, length) in memory_ranges(bytes) {
        let place = file
            .as_ref()
            .map(|file| FileOffset::from_arc(Arc::clone(file), offset));
        regions.push(map_region(address, length, place, options)?);
        offset += length;
    }
    let failed = |source| MachineError::MapMemory { bytes, source };
    let memory = GuestMemory::from_regions(regions)
        .map_err(|error| failed(io::Error::other(error.to_string())))?;
    keep_out_of_core_dumps(&memory);
    ask_for_huge_pages(&memory);
    Ok(memory)
}

fn map_region(
    address: u64,
    length: u64,
    place: Option<FileOffset>,
    options: &MemoryOptions,
) -> Result<GuestRegionMmap<()>, MachineError> {
    let failed = |source| MachineError::MapMemory {
        bytes: options.bytes,
        source,
    };
    let size = usize::try_from(length).map_err(|_| failed(io::ErrorKind::FileTooLarge.into()))?;
    // Huge pages are reserved at once, because a lack of them later would kill this process.
    let reserve = match options.takes_free_memory() {
        true => libc::MAP_NORESERVE,
        false => 0,
    };
    let kind = match place {
        Some(_) => libc::MAP_SHARED,
        None => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    };
    let mut builder = MmapRegionBuilder::new(size)
        .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
        .with_mmap_flags(kind | reserve);
    if let Some(place) = place {
        builder = builder.with_file_offset(place);
    }
    let region = builder.build().map_err(|error| match error {
        MmapRegionError::Mmap(source) => failed(source),
        other => failed(io::Error::other(other.to_string())),
    })?;
    let beyond = || failed(io::ErrorKind::FileTooLarge.into());
    GuestRegionMmap::new(region, GuestAddress(address)).ok_or_else(beyond)
}

/// Excludes guest memory from core dumps of kvmprof: it isn't meant for those who get a dump, and would make the dump as long as itself.
fn keep_out_of_core_dumps(memory: &GuestMemory) {
    for region in memory.iter() {
        // Without this the dump is longer.
        let _ = advise(region, 0..length(region), libc::MADV_DONTDUMP);
    }
}

/// Asks the host for huge pages. Guests run faster on them, and samples, which read guest memory with a cold TLB, cost less. It is no error
/// if the host has none. The lowest memory has to wait for [`started`]: a small kernel and its boot parameters use a few pages of it, and
/// clearing huge pages for them takes a large part of the start.
fn ask_for_huge_pages(memory: &GuestMemory) {
    for region in memory.iter() {
        let low = low_part(region);
        let _ = advise(region, 0..low, libc::MADV_NOHUGEPAGE);
        let _ = advise(region, low..length(region), libc::MADV_HUGEPAGE);
    }
}

/// Lets the host use huge pages for the lowest memory, too. Call this when the guest's kernel is in `memory`.
pub fn started(memory: &GuestMemory) {
    for region in memory.iter() {
        let _ = advise(region, 0..low_part(region), libc::MADV_HUGEPAGE);
    }
}

/// Size in bytes of the part of `region` that is lowest memory. The part is at the region's beginning.
fn low_part(region: &GuestRegionMmap<()>) -> usize {
    match region.start_addr().0 {
        0 => LOW.min(length(region)),
        _ => 0,
    }
}

fn length(region: &GuestRegionMmap<()>) -> usize {
    usize::try_from(region.len()).unwrap_or(0)
}

/// Advises the host about these `bytes` of a region, counted from its start.
fn advise(
    region: &GuestRegionMmap<()>,
    bytes: Range<usize>,
    advice: libc::c_int,
) -> io::Result<()> {
    let start = region.as_ptr().wrapping_add(bytes.start).cast();
    // SAFETY: the range is a part of the region's own mapping. Whoever reads it does so by volatile accesses, as of memory that a guest
    // changes, so that the advice may change its contents.
    let result = unsafe { libc::madvise(start, bytes.len(), advice) };
    SyscallReturnCode(result).into_empty_result()
}

/// Makes all of `memory` zero, and gives its pages back to the host.
///
/// # Errors
/// The host refuses that.
pub(super) fn clear(memory: &GuestMemory) -> Result<(), MachineError> {
    for region in memory.iter() {
        match region.file_offset() {
            Some(place) => clear_file(region, place),
            // It is private and anonymous: it reads as zero from here on.
            None => advise(region, 0..length(region), libc::MADV_DONTNEED),
        }
        .map_err(MachineError::ClearMemory)?;
    }
    Ok(())
}

/// Clears the contents of the file, also for other programs that map it.
fn clear_file(region: &GuestRegionMmap<()>, place: &FileOffset) -> io::Result<()> {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match fallocate(place.file(), hole, place.start(), region.len()) {
        // The file system doesn't support holes.
        Err(Errno::OPNOTSUPP) => {}
        result => return Ok(result?),
    }
    let zeros = vec![0; 1 << 20];
    let mut done = 0;
    while done < region.len() {
        let left = usize::try_from(region.len() - done).unwrap_or(usize::MAX);
        let piece = zeros.get(..left).unwrap_or(&zeros);
        let written = region.write(piece, MemoryRegionAddress(done));
        done += written.map_err(io::Error::other)? as u64;
    }
    Ok(())
}

/// Registers guest memory with KVM, in a slot for each region.
///
/// # Errors
/// KVM refuses a slot.
pub fn register(vm: &VmFd, memory: &GuestMemory) -> Result<(), MachineError> {
    for (slot, region) in (0u32..).zip(memory.iter()) {
        let slot = kvm_userspace_memory_region {
            slot,
            flags: 0,
            guest_phys_addr: region.start_addr().0,
            memory_size: region.len(),
            userspace_addr: region.as_ptr() as u64,
        };
        // SAFETY: The region is mapped for as long as `memory` or a clone of it lives. `Machine`
        // keeps one beside the VM, and regions don't overlap.
        unsafe { vm.set_user_memory_region(slot) }
            .map_err(kvm("guest memory (KVM_SET_USER_MEMORY_REGION)"))?;
    }
    Ok(())
}

/// Number of bytes that the host can give a guest: `MemAvailable` and free swap of `/proc/meminfo` (proc_meminfo(5)). `None` if that file
/// can't be read.
fn available_on_host() -> Option<u64> {
    parse_available(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse_available(meminfo: &str) -> Option<u64> {
    let kibibytes = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_end_matches("kB").trim().parse::<u64>().ok()
    };
    let swap = kibibytes("SwapFree:").unwrap_or(0);
    kibibytes("MemAvailable:")?
        .checked_add(swap)?
        .checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_continues_above_the_gap() {
        for bytes in [512 << 20, 3 << 30] {
            assert_eq!(memory_ranges(bytes), [(0, bytes)]);
        }
        assert_eq!(memory_ranges(10 << 30), [(0, 3 << 30), (4 << 30, 7 << 30)]);
    }

    #[test]
    fn available_memory_counts_free_swap_where_the_host_shows_it() {
        let meminfo = "MemTotal:  8000 kB\nMemAvailable:    1000 kB\nSwapFree:   24 kB\n";
        assert_eq!(parse_available(meminfo), Some(1024 * 1024));
        assert_eq!(parse_available("MemTotal:  8000 kB\n"), None);
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let refused = |bytes| allocate(&MemoryOptions::private(bytes)).err().unwrap();
        let error = refused(1 << 50).to_string();
        assert!(error.contains("too much memory"), "{error}");
        let error = refused(1 << 20);
        assert!(matches!(error, MachineError::TooLittleMemory { .. }));
        let error = refused((64 << 20) + 1);
        assert!(matches!(error, MachineError::UnalignedMemory(_)));
    }

    #[test]
    fn cleared_memory_is_zero_and_can_be_used_again() {
        let folder = tempfile::tempdir().unwrap();
        for backing in [
            MemoryBacking::Private,
            MemoryBacking::Shared,
            MemoryBacking::File(folder.path().join("memory")),
        ] {
            check_clear(&MemoryOptions {
                // The memory is on both sides of the gap.
                bytes: layout::GAP_START + (1 << 20),
                backing,
            });
        }
    }

    /// Whether core dumps leave the mapping at `address` out (`dd` among its flags, proc_pid_smaps(5)).
    fn is_out_of_core_dumps(address: *const u8) -> bool {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let number = |word: &str| usize::from_str_radix(word, 16).ok();
        let has_address = |line: &&str| {
            let range = line
                .split(' ')
                .next()
                .and_then(|range| range.split_once('-'));
            let range = range.and_then(|(begin, end)| Some(number(begin)?..number(end)?));
            range.is_some_and(|range| range.contains(&address.addr()))
        };
        let mapping = smaps.lines().skip_while(|line| !has_address(line));
        let mut flags = mapping.filter_map(|line| line.strip_prefix("VmFlags:"));
        flags
            .next()
            .unwrap()
            .split_whitespace()
            .any(|flag| flag == "dd")
    }

    fn check_clear(options: &MemoryOptions) {
        let memory = allocate(options).unwrap();
        for region in memory.iter() {
            assert!(is_out_of_core_dumps(region.as_ptr()), "{options:?}");
        }
        let last = GuestAddress(layout::GAP_END + (1 << 20) - 8);
        for address in [GuestAddress(0), last] {
            memory.write_obj(u64::MAX, address).unwrap();
        }
        clear(&memory).unwrap();
        for address in [GuestAddress(0), last] {
            assert_eq!(memory.read_obj::<u64>(address).unwrap(), 0);
            memory.write_obj(7_u64, address).unwrap();
            assert_eq!(memory.read_obj::<u64>(address).unwrap(), 7);
        }
    }
}
