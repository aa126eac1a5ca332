//! Page tables in guest memory, and the registers that select them.

#[cfg(test)]
use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::Registers;
use crate::memory::{CR0_PG, CR4_LA57, EFER_LMA, FRAME, LARGE, PAGE, PRESENT};

/// Guest memory.
pub type Memory = GuestMemoryMmap<()>;

/// Registers of a vCPU in long mode, with 4 or 5 levels of page tables at `cr3`.
pub fn long_mode(cr3: u64, five_levels: bool) -> Registers {
    Registers {
        cr0: CR0_PG | 1,
        cr3,
        cr4: if five_levels { CR4_LA57 } else { 0 },
        efer: EFER_LMA,
        ..Registers::default()
    }
}

/// Page tables under construction.
#[derive(Debug)]
pub struct Tables {
    /// The memory that holds them.
    pub memory: Memory,
    root: u64,
    next: u64,
    levels: u32,
}

impl Tables {
    /// Page tables with `levels` levels, from physical address `start` on in `memory`.
    pub fn new(memory: Memory, start: u64, levels: u32) -> Self {
        Self {
            memory,
            root: start,
            next: start + PAGE,
            levels,
        }
    }

    /// Places further tables at `next`.
    pub fn skip_to(&mut self, next: u64) {
        self.next = next;
    }

    /// The address of the next table.
    pub fn end(&self) -> u64 {
        self.next
    }

    /// Maps `address` to `physical` at `level`: 1 is 4 KiB, 2 is 2 MiB, 3 is 1 GiB.
    pub fn map(&mut self, address: u64, physical: u64, level: u32) {
        let mut table = self.root;
        for current in (level + 1..=self.levels).rev() {
            let slot = GuestAddress(table + (address >> (12 + 9 * (current - 1)) & 0x1ff) * 8);
            let entry = self.memory.read_obj::<u64>(slot).unwrap();
            table = entry & FRAME;
            if entry & PRESENT == 0 {
                table = self.next;
                self.next += PAGE;
                self.memory.write_obj(table | 7, slot).unwrap();
            }
        }
        let slot = GuestAddress(table + (address >> (12 + 9 * (level - 1)) & 0x1ff) * 8);
        let large = if level > 1 { LARGE } else { 0 };
        self.memory
            .write_obj(physical | large | 1 << 63 | 3, slot)
            .unwrap();
    }
}

/// Page tables, an address and registers with arbitrary contents.
#[cfg(test)]
#[derive(Debug)]
pub struct HostileTables {
    entries: Vec<u64>,
    cr3: u64,
    /// The address to look up.
    pub address: u64,
    five_levels: bool,
}

#[cfg(test)]
impl HostileTables {
    /// A strategy for arbitrary tables.
    pub fn any() -> impl Strategy<Value = Self> {
        let entries = prop::collection::vec(any::<u64>(), 512);
        let all = (entries, any::<u64>(), any::<u64>(), any::<bool>());
        all.prop_map(|(entries, cr3, address, five_levels)| Self {
            entries,
            cr3,
            address,
            five_levels,
        })
    }

    /// Writes the entries to the start of `memory`, each changed by `change`.
    pub fn write(&self, memory: &Memory, change: impl Fn(u64) -> u64) {
        for (index, entry) in (0..).zip(&self.entries) {
            let place = GuestAddress(index * 8);
            memory.write_obj(change(*entry), place).unwrap();
        }
    }

    /// Registers that select arbitrary tables, and registers whose tables are at an address with only the bits of `mask`.
    pub fn registers(&self, mask: u64) -> [Registers; 2] {
        [self.cr3, self.cr3 & mask].map(|cr3| long_mode(cr3, self.five_levels))
    }
}
