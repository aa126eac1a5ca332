//! The memory of a guest in which one of Debian's kernels runs: its relocated image, page tables, and exception handlers.

use std::ops::Range;

use kvmprof_introspection::{Registers, Symbols};
use object::LittleEndian;
use object::elf::PT_LOAD;
use object::read::elf::{ElfFile64, ProgramHeader};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// The start of the kernel's mapping (`__START_KERNEL_map`).
const KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;
/// The distance from the image's link-time addresses to physical memory.
const MOVED: u64 = 0x140_0000;
/// The kernel's page tables, and the user half after them (`PTI_USER_PGTABLE_MASK`).
const TABLES: u64 = 0x1_0000;
const USER_TABLES: u64 = TABLES + 0x1000;
/// The interrupt descriptor table, in `cpu_entry_area`.
const IDT: u64 = 0xffff_fe00_0000_0000;
const IDT_PAGE: u64 = 0x9000;
/// Bytes of a page.
const PAGE: u64 = 4096;
const LARGE_PAGE: u64 = 2 << 20;
/// Bits of page-table entries: present and writable; a large page.
const MAPPED: u64 = 3;
const LARGE: u64 = 1 << 7;

/// A guest in which a kernel runs.
#[derive(Debug)]
pub struct RunningGuest {
    /// Its memory, from address 0 on.
    pub memory: GuestMemoryMmap<()>,
    next_table: u64,
}

impl RunningGuest {
    /// Makes a guest with `memory` bytes, 192 MiB or more, and the kernel in `elf` with these `symbols` at `slide`.
    ///
    /// # Panics
    /// If it isn't one of Debian's kernels, or this host lacks the memory.
    pub fn new(elf: &[u8], symbols: &Symbols, slide: u64, memory: usize) -> Self {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), memory)]).unwrap();
        let mut guest = Self {
            memory,
            next_table: USER_TABLES + PAGE,
        };
        guest.load(elf);
        guest.relocate(elf, slide);
        let symbol = |name: &str| symbols.address_of(name).unwrap();
        guest.boot(&symbol);
        let (start, end) = (symbol("_text"), symbol("_end"));
        let code = start..symbol("_etext");
        let init = symbol("__init_begin")..symbol("__init_end");
        guest.map_image(start..end, &code, &init, slide);
        let entry = symbol("__entry_text_start");
        for (vector, handler) in [
            (0, "asm_exc_divide_error"),
            (3, "asm_exc_int3"),
            (14, "asm_exc_page_fault"),
        ] {
            guest.gate(vector, symbol(handler) + slide);
        }
        for root in [TABLES, USER_TABLES] {
            guest.map(root, IDT, IDT_PAGE, PAGE);
        }
        // KPTI's user half has the code that enters the kernel.
        let page = entry & !(PAGE - 1);
        guest.map(USER_TABLES, page + slide, physical(page), PAGE);
        guest
    }

    /// The registers of a vCPU in the kernel, at the function at `rip`.
    pub fn kernel(rip: u64) -> Registers {
        Registers {
            rip,
            cpl: 0,
            ..long_mode(TABLES)
        }
    }

    /// The registers of a vCPU in user mode.
    pub fn user() -> Registers {
        Registers {
            rip: 0x40_1000,
            cpl: 3,
            ..long_mode(USER_TABLES)
        }
    }

    /// Replaces the bytes at link-time address `address`.
    ///
    /// # Panics
    /// If the address isn't in the image.
    pub fn patch(&self, address: u64, bytes: &[u8]) {
        self.write(physical(address), bytes);
    }

    /// Copies the segments to the places that the boot code gives them.
    fn load(&self, elf: &[u8]) {
        let file = ElfFile64::<LittleEndian>::parse(elf).unwrap();
        for header in file.elf_program_headers() {
            if header.p_type(LittleEndian) == PT_LOAD {
                let data = header.data(LittleEndian, elf).unwrap();
                self.write(header.p_paddr(LittleEndian) + MOVED, data);
            }
        }
    }

    /// Does the work of `handle_relocations` of `arch/x86/boot/compressed/misc.c`. The relocations follow the ELF file: three lists of
    /// link-time addresses, which are read from the end.
    fn relocate(&self, elf: &[u8], slide: u64) {
        let words: Vec<i32> = (elf.rchunks_exact(4))
            .map(|word| i32::from_le_bytes(word.try_into().unwrap()))
            .collect();
        let mut lists = words.split(|word| *word == 0);
        let mut list = || lists.next().unwrap().iter().map(|word| place(*word));
        let [narrow, inverse, wide] = [
            list().collect::<Vec<_>>(),
            list().collect(),
            list().collect(),
        ];
        assert!(wide.len() > 10_000, "{} relocations", wide.len());
        let low = u32::try_from(slide).unwrap();
        for (places, sign) in [(narrow, 1), (inverse, -1)] {
            for place in places {
                let value: i32 = self.memory.read_obj(place).unwrap();
                let value = value.wrapping_add(low.cast_signed().wrapping_mul(sign));
                self.memory.write_obj(value, place).unwrap();
            }
        }
        for place in wide {
            let value: u64 = self.memory.read_obj(place).unwrap();
            self.memory
                .write_obj(value.wrapping_add(slide), place)
                .unwrap();
        }
    }

    /// Makes the changes of a kernel that boots and runs: code is patched, memory that was only needed to boot is used again, and the
    /// per-CPU areas are set up.
    fn boot(&self, symbol: &impl Fn(&str) -> u64) {
        for address in (symbol("_stext")..symbol("_etext")).step_by(1009) {
            self.write(physical(address), &[0x90; 5]);
        }
        let init = symbol("__init_begin")..symbol("__init_end");
        let stale = b"Linux version 4.9.0-stale (somebody)";
        for address in init.step_by(64) {
            self.write(physical(address), stale);
        }
        let offsets = physical(symbol("__per_cpu_offset"));
        for cpu in 0..2 {
            let area = 0xffff_8880_0300_0000 + cpu * 0x2_0000;
            self.write(offsets + cpu * 8, &area.to_le_bytes());
        }
    }

    /// Maps the image: code with small pages, memory that was needed to boot not at all, and the rest with large pages if possible.
    fn map_image(&mut self, image: Range<u64>, code: &Range<u64>, init: &Range<u64>, slide: u64) {
        let mut address = image.start;
        let touches = |range: &Range<u64>, at| range.start < at + LARGE_PAGE && at < range.end;
        while address < image.end {
            let whole = address.is_multiple_of(LARGE_PAGE);
            if whole && !touches(code, address) && !touches(init, address) {
                self.map(TABLES, address + slide, physical(address), LARGE_PAGE);
                address += LARGE_PAGE;
                continue;
            }
            if !init.contains(&address) {
                self.map(TABLES, address + slide, physical(address), PAGE);
            }
            address += PAGE;
        }
    }

    /// Sets the handler of `vector`.
    fn gate(&self, vector: u64, handler: u64) {
        let [a, b, c, d, e, f, g, h] = handler.to_le_bytes();
        let entry = [a, b, 0x10, 0, 0, 0x8e, c, d, e, f, g, h, 0, 0, 0, 0];
        self.write(IDT_PAGE + vector * 16, &entry);
    }

    /// Maps a page in the tables at `root`.
    fn map(&mut self, root: u64, address: u64, physical: u64, length: u64) {
        let last = if length == PAGE { 12 } else { 21 };
        let mut table = root;
        for shift in [39, 30, 21, 12] {
            let slot = GuestAddress(table + (address >> shift & 0x1ff) * 8);
            if shift == last {
                let large = if shift == 12 { 0 } else { LARGE };
                self.memory
                    .write_obj(physical | large | MAPPED, slot)
                    .unwrap();
                return;
            }
            let entry: u64 = self.memory.read_obj(slot).unwrap();
            table = entry & !(PAGE - 1);
            if entry == 0 {
                table = self.next_table;
                self.next_table += PAGE;
                self.memory.write_obj(table | MAPPED, slot).unwrap();
            }
        }
    }

    fn write(&self, physical: u64, bytes: &[u8]) {
        let place = GuestAddress(physical);
        self.memory.write_slice(bytes, place).unwrap();
    }
}

/// The physical address of link-time address `address`.
fn physical(address: u64) -> u64 {
    address - KERNEL_MAP + MOVED
}

/// The place of a relocation of the low half of a link-time address.
fn place(address: i32) -> GuestAddress {
    GuestAddress(physical(i64::from(address).cast_unsigned()))
}

/// Registers of a vCPU in long mode with page tables at `cr3`.
fn long_mode(cr3: u64) -> Registers {
    Registers {
        cr0: 1 << 31 | 1,
        cr3,
        efer: 1 << 10,
        idt_base: IDT,
        ..Registers::default()
    }
}
