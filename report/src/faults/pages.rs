//! The pages of guest memory that were touched.

use std::collections::HashMap;
use std::io::{self, Write};

use foldhash::fast::RandomState;
use kvmprof_recording::{FaultKind, MemoryFault};

/// Maximum number of pages that are told apart: 16 GiB.
const MAX_PAGES: usize = 1 << 22;

/// A page that was touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TouchedPage {
    /// Its guest-physical address.
    pub address: u64,
    /// The guest-physical address at which its memory slot begins.
    pub slot: u64,
    /// When it was touched first, in ns of CLOCK_MONOTONIC.
    pub time: u64,
}

/// The pages of memory with faults in a recording, each with the time of its first one.
#[derive(Clone, Debug, Default)]
pub struct TouchedPages {
    /// The time and the slot, by address.
    pages: HashMap<u64, (u64, u64), RandomState>,
    left_out: u64,
}

impl TouchedPages {
    /// Takes a fault at `time`, in ns of CLOCK_MONOTONIC. Those of devices have no page.
    pub fn take(&mut self, fault: &MemoryFault, time: u64) {
        let Some(slot) = fault.slot.filter(|_| fault.kind != FaultKind::Device) else {
            return;
        };
        let page = fault.page();
        if self.pages.len() >= MAX_PAGES && !self.pages.contains_key(&page) {
            self.left_out += 1;
            return;
        }
        let (first, _) = self.pages.entry(page).or_insert((time, slot));
        // Each vCPU has blocks of its own.
        *first = time.min(*first);
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.pages.len() as u64
    }

    /// The number of faults whose pages are left out, because there were too many.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// How many of them `other` has, too.
    pub fn common(&self, other: &Self) -> u64 {
        let common = self.pages.keys();
        common.filter(|page| other.pages.contains_key(page)).count() as u64
    }

    /// The pages in the order in which they were touched first; those of one moment by their addresses.
    pub fn in_order(&self) -> Vec<TouchedPage> {
        let pages = self.pages.iter();
        let pages = pages.map(|(address, (time, slot))| TouchedPage {
            address: *address,
            slot: *slot,
            time: *time,
        });
        let mut pages: Vec<TouchedPage> = pages.collect();
        pages.sort_unstable_by_key(|page| (page.time, page.address));
        pages
    }

    /// Writes the list of the pages to `out`, for what reads them in advance: a line for each run of pages that were touched first one behind the other, in that
    /// order. It has the guest-physical address and the length in bytes, and the guest-physical address at which the memory slot begins, whose place in a file of memory a VMM
    /// knows.
    ///
    /// # Errors
    /// Writing to `out` failed.
    pub fn write_list(&self, out: &mut dyn Write) -> io::Result<()> {
        let pages = self.in_order();
        let is_next = |one: &TouchedPage, next: &TouchedPage| {
            let end = one.address.checked_add(MemoryFault::PAGE);
            one.slot == next.slot && end == Some(next.address)
        };
        for run in pages.chunk_by(is_next) {
            let bytes = MemoryFault::PAGE.saturating_mul(run.len() as u64);
            if let Some(first) = run.first() {
                writeln!(out, "{:#x} {bytes} {:#x}", first.address, first.slot)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The slot from 4 GiB on, and the one below.
    const HIGH: u64 = 1 << 32;

    fn touched(faults: &[(u64, u64)]) -> TouchedPages {
        let mut pages = TouchedPages::default();
        for (address, time) in faults {
            let fault = MemoryFault {
                address: *address,
                slot: Some(address & HIGH),
                kind: FaultKind::FirstTouch,
                time: 1,
            };
            pages.take(&fault, *time);
        }
        pages
    }

    #[test]
    fn a_page_counts_once_by_its_first_time() {
        let pages = touched(&[(0x2008, 30), (0x1000, 20), (0x2ff0, 10), (0x3000, 20)]);
        let order: Vec<(u64, u64)> = pages
            .in_order()
            .iter()
            .map(|page| (page.address, page.time))
            .collect();
        assert_eq!(order, [(0x2000, 10), (0x1000, 20), (0x3000, 20)]);
        assert_eq!((pages.count(), pages.left_out()), (3, 0));
    }

    #[test]
    fn common_pages_are_those_of_both() {
        let one = touched(&[(0x1000, 1), (0x2000, 2), (0x3000, 3)]);
        let other = touched(&[(0x3fff, 1), (0x1001, 2), (0x4000, 3), (0x5000, 4)]);
        assert_eq!((one.common(&other), other.common(&one)), (2, 2));
        assert_eq!(one.common(&TouchedPages::default()), 0);
    }

    #[test]
    fn a_list_has_runs_in_the_order_of_first_touches() {
        let last = HIGH - 0x1000;
        let pages = touched(&[
            (0x5000, 10),
            (0x2000, 20),
            (0x3000, 21),
            (0x3000, 22),
            (0x4000, 23),
            // The next one behind it is another slot's.
            (last, 30),
            (HIGH, 31),
            (HIGH + 0x1000, 32),
            (0x1000, 33),
        ]);
        let mut list = Vec::new();
        pages.write_list(&mut list).unwrap();
        let expected = "0x5000 4096 0x0\n0x2000 12288 0x0\n0xfffff000 4096 0x0\n0x100000000 8192 0x100000000\n0x1000 4096 0x0\n";
        assert_eq!(String::from_utf8(list).unwrap(), expected);
    }

    #[test]
    fn devices_have_no_pages() {
        let mut pages = TouchedPages::default();
        let device = MemoryFault {
            kind: FaultKind::Device,
            ..MemoryFault::default()
        };
        pages.take(&device, 1);
        assert_eq!(pages.count(), 0);
    }
}
