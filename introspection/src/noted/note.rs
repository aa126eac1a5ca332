//! Identifies the current process of guests with an ELF note of owner `kvmprof`, or with `--pid-at`.

use crate::{Identity, PhysicalMemory, Registers, padded};
use kvmprof_abi::note::{GuestNote, Location};
use kvmprof_recording::{COMM_LENGTH, Mode, Preemption};

use super::location;
use kvmprof_paging::AddressSpace;

/// Finds the running process and thread by `note`. Ids that the note lacks stay unknown, except that a missing thread
/// id becomes the process id.
pub fn identify<M: PhysicalMemory>(
    note: &GuestNote,
    memory: &M,
    registers: &Registers,
    halted: bool,
    want_process_group: bool,
) -> Identity {
    let space = AddressSpace::new(memory, registers);
    let number =
        |location: &Option<Location>| location::number(location.as_ref()?, &space, registers);
    let id = |location: &Option<Location>| {
        number(location)
            .and_then(|value| i32::try_from(value).ok())
            .filter(|id| *id >= 0)
    };
    let mut mode = Identity::at_level(registers.cpl, halted).mode;
    if mode == Mode::Kernel && number(&note.interrupt_nesting).is_some_and(|depth| depth > 0) {
        mode = Mode::Interrupt;
    }
    let pid = id(&note.pid);
    let comm = note
        .comm
        .as_ref()
        .and_then(|location| location::name(location, &space, registers));
    Identity {
        mode,
        pid: pid.unwrap_or(-1),
        tid: id(&note.tid).or(pid).unwrap_or(-1),
        process_group: want_process_group
            .then(|| id(&note.process_group))
            .flatten()
            .unwrap_or(-1),
        comm: padded(comm.unwrap_or([0; COMM_LENGTH])),
        preemption: Preemption::Unknown,
        started: 0,
    }
}

#[cfg(test)]
mod tests {
    use kvmprof_abi::note::Base;
    use vm_memory::{Bytes, GuestAddress};

    use super::*;
    use kvmprof_introspection_fixtures::page_tables::Memory;

    fn note() -> GuestNote {
        let location = |offset, width| Location::new(Base::Gs, width, &[offset]);
        GuestNote {
            pid: location(0, 4),
            tid: None,
            interrupt_nesting: location(4, 1),
            process_group: location(8, 8),
            comm: location(16, 16),
        }
    }

    fn memory(pid: i32, nesting: u8) -> Memory {
        let memory = Memory::from_ranges(&[(GuestAddress(0), 0x2000)]).unwrap();
        memory.write_obj(pid, GuestAddress(0x1000)).unwrap();
        memory.write_obj(nesting, GuestAddress(0x1004)).unwrap();
        memory.write_obj(77_i64, GuestAddress(0x1008)).unwrap();
        memory
            .write_slice(b"spinner\0leftover", GuestAddress(0x1010))
            .unwrap();
        memory
    }

    fn look(pid: i32, nesting: u8, cpl: u8, halted: bool) -> Identity {
        let registers = Registers {
            gs_base: 0x1000,
            cpl,
            ..Registers::default()
        };
        identify(&note(), &memory(pid, nesting), &registers, halted, true)
    }

    #[test]
    fn reads_the_process() {
        let expected = Identity {
            mode: Mode::User,
            pid: 12,
            tid: 12,
            process_group: 77,
            comm: *b"spinner\0\0\0\0\0\0\0\0\0",
            preemption: Preemption::Unknown,
            started: 0,
        };
        assert_eq!(look(12, 0, 3, false), expected);
        assert_eq!(look(-3, 0, 3, false).pid, -1);
    }

    #[test]
    fn tells_the_mode() {
        for (pid, nesting, cpl, halted, mode) in [
            (12, 1, 3, false, Mode::User),
            (12, 1, 0, false, Mode::Interrupt),
            (12, 0, 0, false, Mode::Kernel),
            (0, 0, 0, false, Mode::Kernel),
            (0, 0, 0, true, Mode::Idle),
        ] {
            let found = look(pid, nesting, cpl, halted).mode;
            assert_eq!(found, mode, "{pid} {nesting} {cpl} {halted}");
        }
    }

    #[test]
    fn unmapped_memory_is_unknown() {
        let look = |gs_base, with_group| {
            let registers = Registers {
                gs_base,
                ..Registers::default()
            };
            identify(&note(), &memory(1, 0), &registers, false, with_group)
        };
        assert_eq!(look(0x1ff0, true).comm, [0; COMM_LENGTH]);
        assert_eq!(look(1 << 40, true), Identity::unknown(Mode::Kernel));
        assert_eq!(look(0x1ff0, false).process_group, -1);
    }
}
