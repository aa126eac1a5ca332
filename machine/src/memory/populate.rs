//! Pages that are going to be written whole come all at once: a page fault for each of them takes longer than filling it.

use std::mem::MaybeUninit;

use vm_memory::{GuestAddress, GuestMemoryBackend};

use super::{GuestMemory, PAGE_SIZE};

/// Makes the host give all whole pages of `buffer`. If it doesn't (before Linux 5.14), they come one by one.
pub fn buffer(buffer: &mut [MaybeUninit<u8>]) {
    populate(buffer.as_mut_ptr().addr(), buffer.len());
}

/// Makes the host give all whole pages of a part of guest memory, which is `length` bytes long. If it doesn't (before Linux 5.14), they come
/// one by one.
pub fn guest_memory(memory: &GuestMemory, address: u64, length: u64) {
    let length = usize::try_from(length).unwrap_or(0);
    // What isn't memory is found out when it is written.
    let slices = memory.get_slices(GuestAddress(address), length);
    for slice in slices.map_while(Result::ok) {
        populate(slice.ptr_guard_mut().as_ptr().addr(), slice.len());
    }
}

fn populate(start: usize, length: usize) {
    let page = usize::try_from(PAGE_SIZE).unwrap_or(1);
    let begin = start.next_multiple_of(page);
    let end = (start + length) / page * page;
    if begin < end {
        // SAFETY: the advice changes no contents, wherever it points to: it does what a write of each page's own contents would do.
        unsafe {
            libc::madvise(
                std::ptr::without_provenance_mut(begin),
                end - begin,
                libc::MADV_POPULATE_WRITE,
            )
        };
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::Bytes;

    use super::*;
    use crate::memory::{MemoryBacking, MemoryOptions, allocate};

    /// Which pages of the range are in memory (mincore(2)).
    fn resident(start: *mut u8, pages: usize) -> Vec<bool> {
        let mut found = vec![0_u8; pages];
        let length = pages * usize::try_from(PAGE_SIZE).unwrap();
        // SAFETY: the kernel writes a byte for each page of the range, which is mapped.
        let result = unsafe { libc::mincore(start.cast(), length, found.as_mut_ptr()) };
        assert_eq!(result, 0);
        found.iter().map(|page| page & 1 != 0).collect()
    }

    #[test]
    fn whole_pages_come_and_keep_what_they_have() {
        let memory = allocate(&MemoryOptions {
            bytes: 32 << 20,
            backing: MemoryBacking::Private,
        })
        .unwrap();
        let start = memory.iter().next().unwrap().as_ptr();
        memory.write_obj(7_u64, GuestAddress(0x2ff8)).unwrap();
        guest_memory(&memory, 0x1800, 0x3000);
        let pages = resident(start, 6);
        assert_eq!(pages, [false, false, true, true, false, false]);
        assert_eq!(memory.read_obj::<u64>(GuestAddress(0x2ff8)).unwrap(), 7);
        // Beyond the memory.
        guest_memory(&memory, 0x1ff_f000, u64::MAX);
        guest_memory(&memory, u64::MAX, 4096);
        assert_eq!(resident(start, 1), [false]);
    }
}
