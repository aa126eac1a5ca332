//! Where the VMM has what a program reads of guest memory.

use kvmprof_introspection::{ProcessPlaces, TaskMemory, ValueAt, ValuePlace};

use super::assembly::Range;
use super::program::{Pointer, Read, ReadMemory, Source};
use crate::Slots;

/// Maximum number of parts of guest memory in which tasks are searched. A guest has one below 4 GiB, one above, and its kernel's
/// image.
pub const MAX_RANGES: usize = 8;
/// Minimum size of a slot with memory, in bytes: smaller slots are firmware and devices.
const MIN_SLOT: u64 = 1 << 20;

/// The VMM's address for guest-physical `address`.
pub fn host_address(slots: &Slots, address: u64, bytes: u64) -> Option<u64> {
    let slot = slots.find(vm_memory::GuestAddress(address))?;
    let within = address.checked_sub(slot.address.0)?;
    (within.checked_add(bytes)? <= slot.bytes).then_some(())?;
    slot.host_address.checked_add(within)
}

/// The largest parts of guest memory, by physical address.
pub fn physical_memory(slots: &Slots) -> Vec<Range> {
    let mut memory: Vec<Range> = slots
        .iter()
        .filter(|slot| slot.bytes >= MIN_SLOT && !slot.is_read_only)
        .map(|slot| Range {
            guest: slot.address.0,
            bytes: slot.bytes,
            host: slot.host_address,
        })
        .collect();
    memory.sort_by_key(|range| std::cmp::Reverse(range.bytes));
    memory.truncate(MAX_RANGES);
    memory
}

/// Where the VMM has the pointer to the running task, and the memory that it can point to.
pub fn pointer(places: &ProcessPlaces, slots: &Slots) -> Option<Pointer> {
    let task = places.task.as_ref()?;
    let mut ranges = Vec::new();
    for map in &task.maps {
        let end = map.physical.0.saturating_add(map.bytes);
        for slot in slots.iter().filter(|slot| slot.bytes >= MIN_SLOT) {
            let first = slot.address.0.max(map.physical.0);
            let bytes = slot.end().min(end).saturating_sub(first);
            let host = host_address(slots, first, bytes);
            let guest = map
                .address
                .checked_add(first.saturating_sub(map.physical.0));
            if let (1.., Some(host), Some(guest)) = (bytes, host, guest) {
                ranges.push(Range { guest, bytes, host });
            }
        }
    }
    ranges.truncate(MAX_RANGES);
    let at = host_address(slots, task.at.0, 8)?;
    Some(Pointer {
        at,
        ranges,
        memory: task.memory.and_then(read_memory),
    })
}

fn read_memory(memory: TaskMemory) -> Option<ReadMemory> {
    let offset = |offset: u64| i32::try_from(offset).ok();
    Some(ReadMemory {
        mm: offset(memory.mm)?,
        page_tables: offset(memory.page_tables)?,
        stack: memory.stack.and_then(offset),
        direct_map: memory.direct_map,
    })
}

/// Where the VMM has the values of `places`.
pub fn reads(places: &ProcessPlaces, slots: &Slots) -> Vec<Read> {
    let values = places.values.iter().take(ProcessPlaces::MAX);
    let read = |(index, value): (usize, &ValuePlace)| {
        let source = match value.at {
            ValueAt::Physical(at) => Source::Host(host_address(slots, at.0, value.width.into())?),
            ValueAt::Task(offset) => Source::Pointer(i32::try_from(offset).ok()?),
        };
        Some(Read {
            index,
            source,
            bytes: value.width.min(16),
        })
    };
    values.enumerate().filter_map(read).collect()
}
