//! Page tables with arbitrary contents.

use kvmprof_introspection_fixtures::page_tables::{Memory, long_mode};
use kvmprof_paging::Registers;
use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

/// Page tables, an address and registers with arbitrary contents.
#[derive(Debug)]
pub struct HostileTables {
    entries: Vec<u64>,
    cr3: u64,
    /// The address to look up.
    pub address: u64,
    five_levels: bool,
}

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
