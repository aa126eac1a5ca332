//! Where a guest with a note or `--pid-at` says who runs on a vCPU.

use kvmprof_abi::note::{GuestNote, Location};

use super::location;
use crate::memory::{AddressSpace, PAGE};
use crate::places::{ProcessPlaces, ValueAt, ValueKind, ValuePlace};
use crate::{PhysicalMemory, Registers};

/// The places of the note's values on a vCPU with `registers`. Those behind pointers are left out, and so are those that
/// aren't mapped now: they stay unknown.
pub fn places<M: PhysicalMemory>(
    note: &GuestNote,
    memory: &M,
    registers: &Registers,
) -> ProcessPlaces {
    let space = AddressSpace::new(memory, registers);
    let place = |location: Option<&Location>, kind| {
        let location = location.filter(|location| location.offsets().len() == 1)?;
        let address = location::address(location, &space, registers)?;
        let at = space.translate(address)?;
        let is_within_page = at.0 % PAGE + u64::from(location.width) <= PAGE;
        is_within_page.then_some(ValuePlace {
            kind,
            at: ValueAt::Physical(at),
            width: location.width,
        })
    };
    let values = [
        place(note.pid.as_ref(), ValueKind::Pid),
        place(note.tid.as_ref(), ValueKind::Tid),
        place(note.process_group.as_ref(), ValueKind::ProcessGroup),
        place(note.comm.as_ref(), ValueKind::Comm),
        // A count below 0 is none.
        place(
            note.interrupt_nesting.as_ref(),
            ValueKind::Interrupts(i64::MAX.cast_unsigned()),
        ),
    ];
    ProcessPlaces {
        task: None,
        values: values.into_iter().flatten().collect(),
        is_linux: false,
    }
}

#[cfg(test)]
mod tests {
    use kvmprof_abi::note::Base;
    use vm_memory::GuestAddress;

    use super::*;
    use crate::testing::page_tables::Memory;

    #[test]
    fn values_behind_pointers_are_left_out() {
        let memory = Memory::from_ranges(&[(GuestAddress(0), 0x4000)]).unwrap();
        let location = |offsets: &[i64], width| Location::new(Base::Gs, width, offsets);
        let note = GuestNote {
            pid: location(&[8], 4),
            tid: location(&[8, 0], 4),
            comm: location(&[0xff8], 16),
            ..GuestNote::default()
        };
        let registers = Registers {
            gs_base: 0x1000,
            ..Registers::default()
        };
        let pid = ValuePlace {
            kind: ValueKind::Pid,
            at: ValueAt::Physical(GuestAddress(0x1008)),
            width: 4,
        };
        assert_eq!(places(&note, &memory, &registers).values, [pid]);
    }
}
