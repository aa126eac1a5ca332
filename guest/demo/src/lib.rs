//! The embedded bare-metal guest: several processes, kernel work, interrupts and idle time, in shares that the guest
//! itself counts.
//!
//! [`ELF`] is the image, built from `image/` when this crate is. Its ELF notes (`kvmprof_abi::note`) ask for all vCPUs
//! to be started at the entry point and say where the current thread is.
//!
//! # What the image expects of a VMM
//!
//! - Every vCPU starts at `e_entry` in 64-bit mode: CPL 0, paging on with at least the first GiB identity-mapped, flat
//!   segments, interrupts off; rdi = index of the vCPU, rdx = number of vCPUs (at most [`VCPUS_MAX`]), rsi = address of
//!   Linux's `boot_params`, of which `cmd_line_ptr` alone is read. At least 8 MiB of memory.
//! - KVM's in-kernel local APIC. A 16550 at port 0x3f8, which gets one line at the very start. ACPI's hardware-reduced
//!   sleep control at port 0x600, reset at port 0x602.
//!
//! # Command line
//!
//! `workload=NAME` chooses what the guest does ([`WORKLOADS`]); the default is `mixed`, which has a share of every row.
//! `duty=PERCENT` stands for `workload=duty` too. Other words are passed over.

mod attacks;
mod bytes;
mod ports;
mod rows;
mod symbols;
mod truth;

pub use attacks::{AttackResult, AttackResults, Victim, attack_results_area};
pub use ports::{Outcome, PortResults, Stage, Step, allow_stage, port_results_area};
pub use rows::{Mode, Row, row_of, rows};
pub use symbols::{Symbol, function_at, symbol};
pub use truth::{Counter, Truth, TruthError, VcpuTruth, counters, counters_area, truth_area};

/// Most vCPUs that the image can run on.
pub const VCPUS_MAX: usize = 64;

/// Rows of the ground truth.
pub const ROWS: usize = 9;

/// The names that `workload=` knows.
///
/// | Name | What it does |
/// |---|---|
/// | `mixed` | cycles of about 40 ms through all rows; the default |
/// | `duty` | user mode for a part of each period, halted for the rest; `duty=PERCENT` (default 50), `period=MICROSECONDS` (default 10000) |
/// | `spin` | user mode without an interrupt; counts |
/// | `gaps` | user mode, watching the TSC for the time that exits take from it; counts |
/// | `pio` | user mode, port I/O ([`UNCLAIMED_PORT`]); counts |
/// | `kernel-pio` | the same in the kernel; counts |
/// | `mmio` | reads and writes of several sizes at [`UNCLAIMED_MMIO`], checked; counts, halts on an error |
/// | `string-io` | `rep insb` and `rep outsb` at [`UNCLAIMED_PORT`], checked; counts, halts on an error |
/// | `irqoff` | the kernel with interrupts off; counts |
/// | `halt` | halted but for a timer interrupt a second; counts those |
/// | `hostile` | circular and damaged page tables, wild pointers where the note leads, absurd counts; counts |
/// | `port` | profiles itself by the framed protocol on a port of the virtio console ([`PortResults`]) |
/// | `hostile-queues` | attacks the virtio console at the level of its queues ([`AttackResults`]); `attack=N` tries only that one |
/// | `poweroff`, `reboot`, `triple-fault` | end the machine that way after the greeting |
/// | `bad-instruction` | runs an instruction that a KVM which interprets kernel mode lacks; powers off where it works |
///
/// With any other name the guest says that it doesn't know it, and powers off. A row that never ends, as in most of
/// those that count, never gets into the truth's cycles; [`VcpuTruth::running`] names it.
pub const WORKLOADS: &[&str] = &[
    "mixed",
    "duty",
    "spin",
    "gaps",
    "pio",
    "kernel-pio",
    "mmio",
    "string-io",
    "irqoff",
    "halt",
    "hostile",
    "port",
    "hostile-queues",
    "poweroff",
    "reboot",
    "triple-fault",
    "bad-instruction",
];

/// The port that `pio`, `kernel-pio` and `string-io` use: nothing may claim it, reads have to give all-ones.
pub const UNCLAIMED_PORT: u16 = 0x510;

/// The guest-physical address that `mmio` and `hostile` use: nothing may claim it, reads have to give all-ones.
pub const UNCLAIMED_MMIO: u64 = 0xe000_0000;

#[repr(C, align(4096))]
struct PageAligned<T: ?Sized>(T);

static IMAGE: &PageAligned<[u8]> =
    &PageAligned(*include_bytes!(concat!(env!("OUT_DIR"), "/demo.elf")));

/// The guest's image: a static ELF64 executable, its physical addresses those it is linked at; page-aligned.
pub static ELF: &[u8] = &IMAGE.0;

#[cfg(test)]
mod tests {
    use kvmprof_abi::note;
    use object::LittleEndian;
    use object::elf::{FileHeader64, PT_LOAD};
    use object::read::elf::{FileHeader, ProgramHeader};

    use super::*;
    use crate::symbols::{bytes_at, text_at};

    type Header = FileHeader64<LittleEndian>;
    const LITTLE: LittleEndian = LittleEndian;

    /// Type and descriptor of each note that has our owner.
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
        assert_eq!(
            note::check_start_all(descriptor(note::TYPE_START_ALL)),
            Ok(())
        );
        let located = note::parse_note(descriptor(note::TYPE_LOCATIONS)).unwrap();
        for location in [
            located.pid,
            located.tid,
            located.process_group,
            located.comm,
        ] {
            let location = location.unwrap();
            assert_eq!(
                (location.base, location.offsets().len()),
                (note::Base::Gs, 2)
            );
        }
        assert_eq!(located.interrupt_nesting.unwrap().offsets().len(), 1);
        assert_eq!(notes.len(), 2);
    }

    #[test]
    fn the_image_has_the_workloads_that_are_named_here() {
        let table = symbol("workloads").unwrap();
        let size = usize::try_from(table.size).unwrap();
        let entries = bytes_at(table.address).unwrap()[..size].chunks_exact(16);
        let names: Vec<_> = entries
            .map(|entry| {
                let pointer = u64::from_le_bytes(*entry.first_chunk().unwrap());
                text_at(pointer).unwrap()
            })
            .collect();
        assert_eq!(names, WORKLOADS);
    }
}
