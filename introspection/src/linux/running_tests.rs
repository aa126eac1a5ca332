use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::test_guest::LinuxGuest;
use crate::{GuestKnowledge, IntrospectionError, VcpuIntrospector};
use kvmprof_introspection_fixtures::kallsyms::Layout;
use kvmprof_introspection_fixtures::kernel::{BUILD_ID, HOT, Kernel, NEW, OLD, TEXT, offsets};
use kvmprof_introspection_fixtures::linux_guest::{IDT, IDT_PAGE, IMAGE, MEMORY, SLIDE};
use kvmprof_introspection_fixtures::page_tables::{Memory, Tables, long_mode};
use std::cell::Cell;
use std::sync::Arc;

/// Free memory of guests, for page tables.
const FREE: u64 = 0x80_0000;
/// The kernel's mapping in the guests.
const MAPPING: u64 = TEXT + SLIDE;

fn read_kernel(guest: &LinuxGuest, registers: &Registers) -> GuestKnowledge {
    GuestKnowledge::from_memory(&guest.memory, registers).unwrap()
}

fn refused(memory: &Memory, registers: &Registers) -> IntrospectionError {
    GuestKnowledge::from_memory(memory, registers).unwrap_err()
}

/// Checks that both kinds of knowledge about `guest` are the same.
fn agree(guest: &LinuxGuest, found: GuestKnowledge, what: &str) {
    guest.linux().locate(&guest.memory, &guest.kernel(0));
    let (ours, image) = (found.linux().unwrap(), guest.linux());
    assert_eq!(ours.release(), image.release(), "{what}");
    assert_eq!(ours.slide(), Some(SLIDE), "{what}");
    assert_eq!(ours.placement.get(), image.placement.get(), "{what}");
    assert_eq!(ours.image(), image.image(), "{what}");
    assert_eq!(ours.banner, image.banner, "{what}");
    assert_eq!(ours.symbols().len(), image.symbols().len(), "{what}");
    assert_eq!(found.kallsyms(), guest.knowledge.kallsyms(), "{what}");
    let id: String = BUILD_ID.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!((ours.build_id(), image.build_id()), (&*id, &*id), "{what}");
    let described = |linux: &LinuxKnowledge| format!("{:?} {:?}", linux.addresses, linux.tasks);
    assert_eq!(described(ours), described(image), "{what}");
    let described = |linux: &LinuxKnowledge| format!("{:?} {:?}", linux.processes, linux.instances);
    assert_eq!(described(ours), described(image), "{what}");
    let described = |linux: &LinuxKnowledge| format!("{:?}", linux.initcalls.as_ref().unwrap());
    assert_eq!(described(ours), described(image), "{what}");
    let (orc, expected) = (ours.orc().unwrap(), image.orc().unwrap());
    assert_eq!(orc.len(), expected.len(), "{what}");
    for function in [offsets::FRAMED, offsets::ENTRY, offsets::STACK_END] {
        assert_eq!(orc.find(TEXT + function), expected.find(TEXT + function));
    }
    let found = Arc::new(found);
    for (cpu, pid) in [(0, 41), (1, 42)] {
        for registers in [guest.user(), guest.kernel(usize::from(cpu))] {
            let registers = Registers {
                cr4: long_mode(0, guest.levels() == 5).cr4,
                ..registers
            };
            let mut vcpu = VcpuIntrospector::new(Arc::clone(&found), cpu);
            let identity = vcpu.identify(&guest.memory, &registers, false, true);
            assert_eq!((identity.pid, identity.tid), (pid, pid + 100), "{what}");
        }
    }
}

#[test]
fn a_running_kernel_gives_the_same_facts_as_its_file() {
    for kernel in [OLD, HOT, NEW] {
        for layout in Layout::ALL {
            let kernel = Kernel { layout, ..kernel };
            let guest = LinuxGuest::new(kernel);
            for registers in [guest.user(), guest.kernel(0)] {
                let what = format!("{kernel:?}, CPL {}", registers.cpl);
                agree(&guest, read_kernel(&guest, &registers), &what);
            }
        }
    }
}

#[test]
fn a_file_is_compared_with_the_kernel_that_runs() {
    let guest = LinuxGuest::new(HOT);
    let compare = |file: &[u8], registers: &Registers| {
        let knowledge = GuestKnowledge::from_kernel_image(file).unwrap();
        let linux = knowledge.linux().unwrap();
        linux.locate(&guest.memory, registers);
        let compared = linux.compare_with_running(&guest.memory, registers);
        (compared.map_err(|error| error.to_string()), linux.slide())
    };
    let own = HOT.file();
    let changed = |from: &str, to: &str| {
        let mut words = own.windows(from.len());
        let place = words.position(|word| word == from.as_bytes()).unwrap();
        let mut file = own.clone();
        file[place..place + from.len()].copy_from_slice(to.as_bytes());
        file
    };
    assert_eq!(compare(&own, &guest.user()), (Ok(()), Some(SLIDE)));
    let release = changed("6.99.0-test", "6.98.0-test");
    let error = "The file is the kernel of Linux 6.98.0-test, but the guest runs Linux 6.99.0-test";
    assert_eq!(compare(&release, &guest.user()), (Err(error.into()), None));
    let build = changed("#1 SMP", "#2 SMP");
    let error =
        "The file is the kernel of Linux 6.99.0-test, but the guest runs another build of it";
    assert_eq!(compare(&build, &guest.kernel(0)), (Err(error.into()), None));
    // Without a running kernel, there is nothing to compare.
    let (compared, slide) = compare(&release, &Registers::default());
    assert!(
        compared
            .unwrap_err()
            .starts_with("No Linux kernel is running yet")
    );
    assert_eq!(slide, None);
    // A kernel that runs but isn't found, because its exception table leads elsewhere.
    guest.write(IDT_PAGE, &[0; 4096]);
    let registers = guest.user();
    let knowledge = GuestKnowledge::from_kernel_image(&own).unwrap();
    let linux = knowledge.linux().unwrap();
    assert!(linux.locate(&guest.memory, &registers).is_none());
    assert!(
        linux
            .compare_with_running(&guest.memory, &registers)
            .is_ok()
    );
}

#[test]
fn a_running_kernel_is_found_with_five_levels_of_page_tables() {
    let guest = LinuxGuest::with_levels(HOT, 5);
    let cr4 = long_mode(0, true).cr4;
    let registers = Registers {
        cr4,
        ..guest.user()
    };
    let found = read_kernel(&guest, &registers);
    assert_eq!(found.linux().unwrap().slide(), Some(SLIDE));
    assert_eq!(found.linux().unwrap().release(), "6.99.0-test");
}

#[test]
fn a_running_kernel_is_found_without_its_exception_handlers() {
    let guest = LinuxGuest::new(HOT);
    guest.write(IDT_PAGE, &[0; 4096]);
    // By the program counter, and in user mode by the page tables alone.
    for registers in [guest.kernel(0), guest.user()] {
        assert_eq!(
            read_kernel(&guest, &registers).linux().unwrap().slide(),
            Some(SLIDE)
        );
    }
}

/// Registers of a vCPU in `guest`'s kernel, with page tables at `root` that map the image by 4 KiB pages: each to the
/// physical address that `place` gives for its offset.
fn small_pages(guest: &LinuxGuest, root: u64, place: impl Fn(u64) -> Option<u64>) -> Registers {
    let mut tables = Tables::new(guest.memory.clone(), root, 4);
    tables.map(IDT, IDT_PAGE, 1);
    for page in (0..offsets::END).step_by(4096) {
        if let Some(physical) = place(page) {
            tables.map(MAPPING + page, physical, 1);
        }
    }
    Registers {
        cr3: root,
        ..guest.kernel(0)
    }
}

#[test]
fn pages_of_any_size_and_holes_are_crossed() {
    for kernel in [OLD, HOT, NEW] {
        let guest = LinuxGuest::new(kernel);
        let registers = small_pages(&guest, FREE, |page| Some(IMAGE + page));
        agree(&guest, read_kernel(&guest, &registers), "4 KiB pages");
        // Memory that was only needed to boot has been unmapped.
        let registers = small_pages(&guest, FREE + 0x10_0000, |page| {
            (page != offsets::PER_CPU_LOAD).then_some(IMAGE + page)
        });
        agree(&guest, read_kernel(&guest, &registers), "with a hole");
        // The same memory is outside guest memory.
        let registers = small_pages(&guest, FREE + 0x20_0000, |page| {
            let outside = page == offsets::PER_CPU_LOAD;
            Some(if outside { 1 << 40 } else { IMAGE + page })
        });
        agree(&guest, read_kernel(&guest, &registers), "without a page");
    }
}

#[test]
fn stale_banners_are_not_taken_for_the_release() {
    let guest = LinuxGuest::new(HOT);
    guest.write(IMAGE + 0x800, b"Linux version 4.9.0-stale (somebody)\0");
    let found = read_kernel(&guest, &guest.kernel(0));
    agree(&guest, found, "a stale banner");
}

#[test]
fn a_large_page_may_reach_beyond_memory() {
    let guest = LinuxGuest::new(OLD);
    // The image is at the end of memory, whose last large page is incomplete.
    let memory = Memory::from_ranges(&[(GuestAddress(0), MEMORY + 0x10_0000)]).unwrap();
    let mut tables = Tables::new(memory.clone(), FREE, 4);
    tables.map(MAPPING, MEMORY as u64, 2);
    tables.map(IDT, IDT_PAGE, 1);
    let mut page = [0; 4096];
    guest
        .memory
        .read_slice(&mut page, GuestAddress(IDT_PAGE))
        .unwrap();
    memory.write_slice(&page, GuestAddress(IDT_PAGE)).unwrap();
    let image = OLD.image_at(SLIDE);
    memory
        .write_slice(&image, GuestAddress(MEMORY as u64))
        .unwrap();
    let registers = Registers {
        cr3: FREE,
        ..guest.kernel(0)
    };
    let found = GuestKnowledge::from_memory(&memory, &registers).unwrap();
    assert_eq!(found.linux().unwrap().slide(), Some(SLIDE));
    let linux = found.linux().unwrap();
    assert_eq!(linux.image(), TEXT..TEXT + offsets::END);
}

#[test]
fn memory_far_from_the_image_is_not_copied() {
    let guest = LinuxGuest::new(OLD);
    let mut registers = small_pages(&guest, FREE, |page| Some(IMAGE + page));
    let mut tables = Tables::new(guest.memory.clone(), FREE + 0x10_0000, 4);
    tables.map(MAPPING, IMAGE, 2);
    tables.map(MAPPING - 0x800_0000, 0, 2);
    tables.map(MAPPING + 0x800_0000, 0, 2);
    tables.map(IDT, IDT_PAGE, 1);
    registers.cr3 = FREE + 0x10_0000;
    let image = running::RunningImage::read(&guest.memory, &registers).unwrap();
    let image = image.image();
    let [segment] = image.segments() else {
        panic!("{} segments", image.segments().len());
    };
    assert_eq!((segment.address, segment.data.len()), (MAPPING, 2 << 20));
}

#[test]
fn firmware_and_boot_loaders_are_not_taken_for_a_kernel() {
    let guest = LinuxGuest::new(OLD);
    let nothing = |registers: &Registers| {
        let error = refused(&guest.memory, registers);
        assert!(matches!(error, IntrospectionError::NoKernelYet), "{error}");
        assert!(error.to_string().contains("yet"));
    };
    nothing(&Registers::default());
    // Protected mode, with garbage where long mode would have gates.
    guest.write(0, &[0xff; 512]);
    nothing(&Registers {
        cr0: 1,
        rip: 0xffff_fff0,
        ..Registers::default()
    });
    nothing(&Registers {
        efer: 0,
        ..guest.kernel(0)
    });
    // Long mode as in UEFI's firmware: an identity mapping, with handlers in it.
    let mut tables = Tables::new(guest.memory.clone(), FREE, 4);
    tables.map(0, 0, 2);
    let registers = Registers {
        rip: 0x7000,
        idt_base: 0x3000,
        ..long_mode(FREE, false)
    };
    nothing(&registers);
    guest.write(0x3000, &[0, 0x70, 8, 0, 0, 0x8e, 0, 0]);
    nothing(&registers);
    // Page tables that aren't in memory.
    nothing(&long_mode(1 << 45, false));
}

#[test]
fn other_kernels_are_recognised() {
    let guest = LinuxGuest::new(OLD);
    let other = |registers: &Registers| {
        let error = refused(&guest.memory, registers);
        assert!(matches!(error, IntrospectionError::OtherKernel), "{error}");
    };
    // Code in the upper half, with nothing at Linux's addresses.
    let mut tables = Tables::new(guest.memory.clone(), FREE, 4);
    tables.map(0xffff_f800_1234_0000, 0, 2);
    other(&Registers {
        rip: 0xffff_f800_1234_5678,
        ..long_mode(FREE, false)
    });
    // Code at Linux's addresses, without its banner.
    guest.write(IMAGE + offsets::BANNER, b"FreeBSD 14.2-RELEASE");
    for registers in [guest.user(), guest.kernel(0)] {
        other(&registers);
    }
}

#[test]
fn missing_parts_of_a_kernel_in_memory_are_named() {
    let gaps = |guest: &LinuxGuest| {
        let found = read_kernel(guest, &guest.kernel(0));
        let linux = found.linux().unwrap();
        assert_eq!(
            (linux.release(), linux.slide()),
            ("6.99.0-test", Some(SLIDE))
        );
        linux.gaps().join("\n")
    };
    let guest = LinuxGuest::new(OLD);
    guest.write(IMAGE + offsets::BTF, &[0; 64]);
    let said = gaps(&guest);
    assert!(said.contains("the kernel's BTF is damaged"), "{said}");
    let guest = LinuxGuest::new(OLD);
    let table = usize::try_from(offsets::PAGE_TABLES - offsets::SYMBOLS).unwrap();
    guest.write(IMAGE + offsets::SYMBOLS, &vec![0; table]);
    let said = gaps(&guest);
    assert!(
        said.contains("No names of functions: the kernel has no symbol table"),
        "{said}"
    );
}

#[test]
fn huge_and_circular_page_tables_are_bounded() {
    let guest = LinuxGuest::new(OLD);
    let hostile = |level: u32| {
        // All addresses of the kernel's mapping lead to the same page, or to more memory than there is.
        let mut tables = Tables::new(guest.memory.clone(), FREE, 4);
        tables.map(IDT, IDT_PAGE, 1);
        match level {
            1 => {
                // A table of pages that all entries of the table above point to.
                let (above, below) = (FREE + 0x10_0000, FREE + 0x10_1000);
                tables.map(KERNEL_MAP, 0, 3);
                let third = third_table(&guest.memory);
                let slot = GuestAddress(third + 510 * 8);
                guest.memory.write_obj(above | 3, slot).unwrap();
                for index in 0..512 {
                    let slots = [above, below].map(|table| GuestAddress(table + index * 8));
                    guest.memory.write_obj(below | 3, slots[0]).unwrap();
                    let page = (IMAGE + index * 4096) | 3;
                    guest.memory.write_obj(page, slots[1]).unwrap();
                }
            }
            2 => {
                for address in (KERNEL_MAP..KERNEL_MAP + KERNEL_MAP_LENGTH).step_by(2 << 20) {
                    tables.map(address, IMAGE, 2);
                }
            }
            _ => tables.map(KERNEL_MAP, 0, 3),
        }
        Registers {
            cr3: FREE,
            ..guest.kernel(0)
        }
    };
    for level in 1..=3 {
        let registers = hostile(level);
        if let Ok(image) = running::RunningImage::read(&guest.memory, &registers) {
            let image = image.image();
            let total: usize = (image.segments().iter())
                .map(|segment| segment.data.len())
                .sum();
            assert!(total <= 256 << 20, "{total}");
        }
        let _either = GuestKnowledge::from_memory(&guest.memory, &registers);
    }
    // A table that is its own entry.
    for index in 0..512 {
        let slot = GuestAddress(FREE + index * 8);
        guest.memory.write_obj(FREE | 3, slot).unwrap();
    }
    let _either = GuestKnowledge::from_memory(&guest.memory, &long_mode(FREE, false));
}

/// The table of level 3 for the kernel's mapping, in tables at [`FREE`].
fn third_table(memory: &Memory) -> u64 {
    let entry: u64 = memory.read_obj(GuestAddress(FREE + 511 * 8)).unwrap();
    entry & 0xf_ffff_f000
}

/// Guest memory that counts the reads.
struct Counted<'a> {
    memory: &'a Memory,
    reads: Cell<u64>,
    bytes: Cell<u64>,
}

impl<'a> Counted<'a> {
    fn new(memory: &'a Memory) -> Self {
        Self {
            memory,
            reads: Cell::new(0),
            bytes: Cell::new(0),
        }
    }
}

impl PhysicalMemory for Counted<'_> {
    fn read_physical(&self, address: GuestAddress, buffer: &mut [u8]) -> Option<()> {
        self.reads.set(self.reads.get() + 1);
        self.bytes.set(self.bytes.get() + buffer.len() as u64);
        self.memory.read_physical(address, buffer)
    }

    fn contains(&self, address: GuestAddress) -> bool {
        self.memory.contains(address)
    }
}

/// Only the kernel's image and its page tables are read, for any size of guest memory.
#[test]
fn a_large_guest_takes_no_more_reads_than_a_small_one() {
    let guest = LinuxGuest::new(HOT);
    let large = [(GuestAddress(0), 3 << 30), (GuestAddress(4 << 30), 1 << 30)];
    let large = Memory::from_ranges(&large).unwrap();
    let mut bytes = vec![0; MEMORY];
    let start = GuestAddress(0);
    guest.memory.read_slice(&mut bytes, start).unwrap();
    large.write_slice(&bytes, start).unwrap();
    for registers in [guest.user(), guest.kernel(0)] {
        let [small, large] = [&guest.memory, &large].map(|memory| {
            let counted = Counted::new(memory);
            let found = GuestKnowledge::from_memory(&counted, &registers).unwrap();
            assert_eq!(found.linux().unwrap().slide(), Some(SLIDE));
            (counted.reads.get(), counted.bytes.get())
        });
        assert_eq!(small, large);
        // The image is mapped by one large page.
        let (reads, bytes) = large;
        assert!(reads < 1000 && bytes < 3 << 20, "{reads} {bytes}");
    }
}

proptest! {
    #[test]
    fn a_damaged_kernel_in_memory_gives_an_error_or_knowledge(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..16),
        tables in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>()), 0..4),
        cr3 in any::<u64>(),
        idt_base in any::<u64>(),
        choice in any::<u8>(),
    ) {
        let guest = LinuxGuest::new(HOT);
        for (index, value) in flips {
            let at = index.index(usize::try_from(offsets::END).unwrap()) as u64;
            guest.write(IMAGE + at, &[value]);
        }
        for (index, value) in tables {
            // The guest's page tables, with entries that may point into memory.
            let value = if value & 1 == 0 { (value % MEMORY as u64) | 3 } else { value };
            let at = 0x1_0000 + index.index(0x8000 / 8) as u64 * 8;
            guest.memory.write_obj(value, GuestAddress(at)).unwrap();
        }
        let mut registers = if choice & 1 == 0 { guest.user() } else { guest.kernel(0) };
        if choice & 2 != 0 { registers.cr3 = cr3; }
        if choice & 4 != 0 { registers.cr3 = cr3 % MEMORY as u64; }
        if choice & 8 != 0 { registers.idt_base = idt_base; }
        let counted = Counted::new(&guest.memory);
        let found = GuestKnowledge::from_memory(&counted, &registers);
        // Both halves of the page tables, with an image of the maximum size from each.
        prop_assert!(counted.reads.get() < 2_000_000, "{}", counted.reads.get());
        prop_assert!(counted.bytes.get() < 600 << 20, "{}", counted.bytes.get());
        if let Ok(found) = found {
            prop_assert!(!found.linux().unwrap().release().is_empty());
            found.kallsyms();
            let mut vcpu = VcpuIntrospector::new(Arc::new(found), 0);
            vcpu.identify(&guest.memory, &registers, false, true);
        }
    }
}
