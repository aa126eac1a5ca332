//! The embedded bare-metal guest: several processes, kernel work, interrupts and idle time, in shares that the guest
//! itself counts.
//!
//! [`ELF`] is the image, built from `image/` with this crate. Its ELF notes (`kvmprof_abi::note`) request that all
//! vCPUs start at the entry point, and give the location of the current thread. The guest repeats cycles of about 40 ms
//! with all [`rows`], and takes no options on its command line.
//!
//! # Requirements of the image
//!
//! - Every vCPU starts at `e_entry` in 64-bit mode: CPL 0, paging on with at least the first GiB identity-mapped, flat
//!   segments, interrupts off; rdi = index of the vCPU, rdx = number of vCPUs (at most [`VCPUS_MAX`]), rsi = address of
//!   Linux's `boot_params`, which the demo does not read. At least 8 MiB of memory.
//! - KVM's in-kernel local APIC. A 16550 at port 0x3f8, which gets one line at the very start.
//!
//! # Other guests with the same kernel
//!
//! The kernel in `image/` runs one workload, here that in `image/workload/`. `kvmprof-guest-builder` links it with
//! another one; [`Image`] finds the symbols and the ground truth of the result.

mod bytes;
mod image;
mod rows;
mod stacks;
mod truth;

pub use bytes::{i32_at, u32_at, u64_at};
pub use image::{Image, PageAligned, Symbol};
pub use rows::{Mode, Row, row_of, rows};
pub use stacks::{INTERRUPT, Stack, process_of, stacks};
pub use truth::{Truth, TruthError, VcpuTruth};

/// Maximum number of vCPUs of the kernel.
pub const VCPUS_MAX: usize = 64;

/// Rows of the ground truth.
pub const ROWS: usize = 9;

static BYTES: &PageAligned<[u8]> =
    &PageAligned(*include_bytes!(concat!(env!("OUT_DIR"), "/demo.elf")));

/// The demo guest's image: a static ELF64 executable, page-aligned. Its physical addresses are its link addresses.
pub static ELF: &[u8] = &BYTES.0;

/// The same image with its symbols.
pub static IMAGE: Image = Image::new(&BYTES.0);

/// The demo guest's symbol `name`; `None` if there is none with a size.
pub fn symbol(name: &str) -> Option<Symbol> {
    IMAGE.symbol(name)
}

/// The demo guest's function at a program counter; `None` outside its functions.
pub fn function_at(pc: u64) -> Option<&'static str> {
    IMAGE.function_at(pc)
}

#[cfg(test)]
mod tests {
    use kvmprof_abi::note;
    use object::LittleEndian;
    use object::elf::{FileHeader64, PT_LOAD};
    use object::read::elf::{FileHeader, ProgramHeader};

    use super::*;

    type Header = FileHeader64<LittleEndian>;
    const LITTLE: LittleEndian = LittleEndian;

    /// Type and descriptor of each note of kvmprof.
    fn notes() -> Vec<(u32, &'static [u8])> {
        let header = Header::parse(ELF).unwrap();
        let mut found = Vec::new();
        for segment in header.program_headers(LITTLE, ELF).unwrap() {
            let Some(mut notes) = segment.notes(LITTLE, ELF).unwrap() else {
                continue;
            };
            while let Some(note) = notes.next().unwrap() {
                if note.name() == note::OWNER.as_bytes() {
                    found.push((note.n_type(LITTLE).0, note.desc()));
                }
            }
        }
        found
    }

    #[test]
    fn segments_are_loadable_at_the_addresses_they_are_linked_at() {
        let header = Header::parse(ELF).unwrap();
        let mut entry_is_loaded = false;
        for segment in header.program_headers(LITTLE, ELF).unwrap() {
            if segment.p_type(LITTLE) != PT_LOAD {
                continue;
            }
            let start = segment.p_paddr(LITTLE);
            let end = start + segment.p_memsz(LITTLE);
            assert_eq!(start, segment.p_vaddr(LITTLE));
            assert!(start >= 1 << 20 && end <= 8 << 20, "{start:#x} to {end:#x}");
            entry_is_loaded |= (start..end).contains(&header.e_entry(LITTLE));
        }
        assert!(entry_is_loaded);
        assert!(ELF.as_ptr().cast::<u64>().is_aligned());
    }

    #[test]
    fn the_image_asks_for_all_vcpus_and_locates_everything() {
        let notes = notes();
        let descriptor = |kind| notes.iter().find(|note| note.0 == kind).unwrap().1;
        let all = note::check_start_all(descriptor(note::TYPE_START_ALL));
        assert_eq!(all, Ok(()));
        let located = note::parse_note(descriptor(note::TYPE_LOCATIONS)).unwrap();
        let ids = [located.pid, located.tid, located.process_group];
        for location in ids.into_iter().chain([located.comm]).map(Option::unwrap) {
            let found = (location.base, location.offsets().len());
            assert_eq!(found, (note::Base::Gs, 2));
        }
        assert_eq!(located.interrupt_nesting.unwrap().offsets().len(), 1);
        assert_eq!(notes.len(), 2);
    }
}
