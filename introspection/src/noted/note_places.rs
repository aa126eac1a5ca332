//! The places of the running process's identity in a guest with a note or `--pid-at`.

use kvmprof_abi::note::{Base, GuestNote, Location};
use vm_memory::GuestAddress;

use super::location;
use crate::process_places::{
    LinearMap, ProcessPlaces, TaskPointer, ValueAt, ValueKind, ValuePlace,
};
use crate::{PhysicalMemory, Registers};
use kvmprof_paging::{AddressSpace, PAGE};

/// Distance before and after a pointer's target within which other targets are accepted, in bytes.
const AROUND: u64 = 4 << 20;

/// The places of the note's values on a vCPU with `registers`. Leaves out values behind two pointers, values that
/// aren't mapped now, and values behind another pointer than the first value's; they stay unknown. `None` while the GS
/// base or the pointer isn't set up, and without values.
///
/// A pointer is followed while its target stays in the memory around its present target. That memory is assumed to be
/// mapped in the same way in all address spaces, because it belongs to the kernel.
pub fn places<M: PhysicalMemory>(
    note: &GuestNote,
    memory: &M,
    registers: &Registers,
) -> Option<ProcessPlaces> {
    // A negative count means that no interrupt is serviced.
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
    if *note == GuestNote::default() || needs_gs && registers.gs_base == 0 {
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

/// The start of a chain of pointers.
fn start(location: &Location) -> (Base, i64) {
    let first = location.offsets().first().copied();
    (location.base, first.unwrap_or_default())
}

/// The place of a value that is reached without a pointer.
fn fixed<M: PhysicalMemory>(
    location: &Location,
    space: &AddressSpace<'_, M>,
    registers: &Registers,
) -> Option<ValueAt> {
    let address = location::address(location, space, registers)?;
    let at = within_page(space, address, location.width.into())?;
    Some(ValueAt::Physical(at))
}

/// The first pointer of a chain of two offsets.
fn pointer<M: PhysicalMemory>(
    location: &Location,
    space: &AddressSpace<'_, M>,
    registers: &Registers,
) -> Option<TaskPointer> {
    let (base, first) = start(location);
    let pointer = Location::new(base, 8, &[first])?;
    let at = location::address(&pointer, space, registers)?;
    let target = space.read_array(at).map(u64::from_le_bytes)?;
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
        memory: None,
        at: within_page(space, at, 8)?,
        maps: maps.collect(),
    })
}

/// The physical address of `bytes` bytes. `None` if they aren't in one page.
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
    use kvmprof_introspection_fixtures::page_tables::Memory;

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
    fn values_are_direct_or_behind_one_pointer() {
        let note = GuestNote {
            pid: gs(&[0x10, 8], 4),
            tid: gs(&[8], 4),
            comm: gs(&[0xff8], 16),
            process_group: gs(&[0x18, 8], 4),
            interrupt_nesting: gs(&[0x10, 8, 8], 4),
        };
        let places = places_at(&note, 0x1000).unwrap();
        let task = places.task.unwrap();
        // Without page tables, the memory around the target is unknown.
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
    fn an_uninitialised_guest_gives_no_values() {
        let note = |offsets| GuestNote {
            pid: gs(offsets, 4),
            ..GuestNote::default()
        };
        assert_eq!(places_at(&note(&[8]), 0), None);
        assert_eq!(places_at(&note(&[0x18, 0]), 0x1000), None);
        assert!(places_at(&note(&[0x10, 0]), 0x1000).is_some());
    }
}
