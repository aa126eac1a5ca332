//! Where a guest with a note or `--pid-at` says who runs on a vCPU.

use kvmprof_abi::note::{Base, GuestNote, Location};
use vm_memory::GuestAddress;

use super::location;
use crate::memory::{AddressSpace, PAGE};
use crate::process_places::{
    LinearMap, ProcessPlaces, TaskPointer, ValueAt, ValueKind, ValuePlace,
};
use crate::{PhysicalMemory, Registers};

/// So far before and behind what a pointer leads to, its like are looked for.
const AROUND: u64 = 4 << 20;

/// The places of the note's values on a vCPU with `registers`. Values behind two pointers are left out, and so are those
/// that aren't mapped now, or behind another pointer than the first value: they stay unknown. `None` while the GS base or
/// the pointer isn't set up.
///
/// A pointer is followed where it stays in the memory around what it leads to now, which is mapped as now in all address
/// spaces: it leads to the kernel's own.
pub fn places<M: PhysicalMemory>(
    note: &GuestNote,
    memory: &M,
    registers: &Registers,
) -> Option<ProcessPlaces> {
    // A count below 0 is none.
    let nesting = ValueKind::Interrupts(i64::MAX.cast_unsigned());
    let values = [
        (note.pid.as_ref(), ValueKind::Pid),
        (note.tid.as_ref(), ValueKind::Tid),
        (note.process_group.as_ref(), ValueKind::ProcessGroup),
        (note.comm.as_ref(), ValueKind::Comm),
        (note.interrupt_nesting.as_ref(), nesting),
    ];
    let values = || {
        values
            .iter()
            .filter_map(|(location, kind)| Some(((*location)?, *kind)))
    };
    let needs_gs = values().any(|(location, _)| location.base == Base::Gs);
    if needs_gs && registers.gs_base == 0 {
        return None;
    }
    let space = AddressSpace::new(memory, registers);
    let chain = values()
        .map(|(location, _)| location)
        .find(|location| location.offsets().len() == 2);
    let task = match chain {
        Some(chain) => Some(pointer(chain, &space, registers)?),
        None => None,
    };
    let place = |(location, kind): (&Location, ValueKind)| {
        let at = match *location.offsets() {
            [_] => fixed(location, &space, registers)?,
            [first, offset] if Some((location.base, first)) == chain.map(start) => ValueAt::Task(
                u64::try_from(offset)
                    .ok()
                    .filter(|offset| *offset < AROUND)?,
            ),
            _ => return None,
        };
        Some(ValuePlace {
            kind,
            at,
            width: location.width,
        })
    };
    Some(ProcessPlaces {
        task,
        values: values().filter_map(place).collect(),
        interrupt_stack: None,
        is_linux: false,
    })
}

/// Where a chain starts.
fn start(location: &Location) -> (Base, i64) {
    let first = location.offsets().first().copied();
    (location.base, first.unwrap_or_default())
}

/// The place of a value behind no pointer.
fn fixed<M: PhysicalMemory>(
    location: &Location,
    space: &AddressSpace<'_, M>,
    registers: &Registers,
) -> Option<ValueAt> {
    let address = location::address(location, space, registers)?;
    let at = within_page(space, address, location.width.into())?;
    Some(ValueAt::Physical(at))
}

/// The pointer that a chain of two offsets starts with.
fn pointer<M: PhysicalMemory>(
    location: &Location,
    space: &AddressSpace<'_, M>,
    registers: &Registers,
) -> Option<TaskPointer> {
    let (base, first) = start(location);
    let pointer = Location::new(base, 8, &[first])?;
    let at = location::address(&pointer, space, registers)?;
    let mut target = [0; 8];
    space.read(at, &mut target)?;
    let target = u64::from_le_bytes(target);
    (target != 0).then_some(())?;
    let range = target.saturating_sub(AROUND)..target.saturating_add(AROUND);
    let mapped = space.mapped(&range).into_iter();
    let around = mapped.filter(|range| (range.address..range.end()).contains(&target));
    let maps = around.map(|range| LinearMap {
        address: range.address,
        physical: GuestAddress(range.physical),
        bytes: range.length,
    });
    Some(TaskPointer {
        at: within_page(space, at, 8)?,
        maps: maps.collect(),
    })
}

/// The physical address of `bytes` bytes that are in one page.
fn within_page<M: PhysicalMemory>(
    space: &AddressSpace<'_, M>,
    address: u64,
    bytes: u64,
) -> Option<GuestAddress> {
    let at = space.translate(address)?;
    (at.0 % PAGE + bytes <= PAGE).then_some(at)
}

#[cfg(test)]
mod tests {
    use vm_memory::Bytes;

    use super::*;
    use crate::testing::page_tables::Memory;

    fn gs(offsets: &[i64], width: u8) -> Option<Location> {
        Location::new(Base::Gs, width, offsets)
    }

    fn places_at(note: &GuestNote, gs_base: u64) -> Option<ProcessPlaces> {
        let memory = Memory::from_ranges(&[(GuestAddress(0), 0x4000)]).unwrap();
        memory.write_obj(0x3000_u64, GuestAddress(0x1010)).unwrap();
        let registers = Registers {
            gs_base,
            ..Registers::default()
        };
        places(note, &memory, &registers)
    }

    #[test]
    fn values_are_behind_one_pointer_or_none() {
        let note = GuestNote {
            pid: gs(&[0x10, 8], 4),
            tid: gs(&[8], 4),
            comm: gs(&[0xff8], 16),
            process_group: gs(&[0x18, 8], 4),
            interrupt_nesting: gs(&[0x10, 8, 8], 4),
        };
        let places = places_at(&note, 0x1000).unwrap();
        let task = places.task.unwrap();
        // Without page tables nothing is known of the memory around.
        assert_eq!((task.at, task.maps.len()), (GuestAddress(0x1010), 0));
        let found: Vec<(ValueKind, ValueAt)> = (places.values.iter())
            .map(|value| (value.kind, value.at))
            .collect();
        assert_eq!(
            found,
            [
                (ValueKind::Pid, ValueAt::Task(8)),
                (ValueKind::Tid, ValueAt::Physical(GuestAddress(0x1008)))
            ]
        );
    }

    #[test]
    fn a_guest_that_is_not_set_up_says_nothing() {
        let note = |offsets| GuestNote {
            pid: gs(offsets, 4),
            ..GuestNote::default()
        };
        assert_eq!(places_at(&note(&[8]), 0), None);
        assert_eq!(places_at(&note(&[0x18, 0]), 0x1000), None);
        assert!(places_at(&note(&[0x10, 0]), 0x1000).is_some());
    }
}
