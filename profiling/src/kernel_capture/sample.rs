//! Makes samples of the records that the host's kernel has written.

use kvm_bindings::KVM_MP_STATE_HALTED;
use kvmprof_attach::sampling::Record;
use kvmprof_attach::{HostStacks, Slots};
use kvmprof_introspection::{Identity, PhysicalMemory, ProcessPlaces, Registers, ValueKind};
use kvmprof_recording::Sample;

use super::ring::Interrupted;
use crate::clock::ClockSetting;
use crate::sampling::{
    Copied, TickSender, VcpuView, has_started, in_nested_guest, not_started, page_table_root,
};

/// What is known of a vCPU when its records are read.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    /// The meanings of the records' values.
    pub places: Option<&'a ProcessPlaces>,
    /// The vCPU's registers at any time since the guest's kernel runs, for those registers that don't change and so aren't in records.
    pub registers: Registers,
    /// The mask of the bit in a record that says that the code segment has 64-bit code.
    pub long_mask: u8,
    /// The contents of samples.
    pub setting: ClockSetting,
    /// How long the vCPU's thread was held so far for looks at it, in ns.
    pub held: u64,
    /// Whether the guest may run another kernel by now than the known one. There are no samples then.
    pub is_in_doubt: bool,
    /// The unwinder of the host's stacks, if they are taken, and the names of exits.
    pub host: Option<&'a HostStacks>,
    /// The guest's memory.
    pub slots: &'a Slots,
}

impl Reader<'_> {
    /// The frame of what `record` was made at, the outermost one of its stack: an exit, or a fault of guest memory by its kind. `None` for a record of the clock.
    pub fn occasion(&self, record: &Record<'_>) -> Option<u64> {
        let (host, (reason, isa)) = (self.host?, record.exit()?);
        Some(match record.fault(self.slots) {
            Some(fault) => host.fault(fault.kind),
            None => host.exit(reason, isa),
        })
    }

    /// Returns the sample of a record, with `host_frames` below its stack, which [`VcpuView::send`] sends. Adds the process's mappings to
    /// `ticks` when they have changed. `None` if the host's kernel didn't have the program counter, or the vCPU is gone.
    pub fn sample<M: PhysicalMemory>(
        &self,
        view: &mut VcpuView<M>,
        interrupted: Interrupted,
        record: &Record<'_>,
        host_frames: &[u64],
        ticks: &mut TickSender,
    ) -> Option<Sample> {
        view.clear();
        (record.is_own() && !self.is_in_doubt).then_some(())?;
        let mut sample = not_started(view.vcpu, record.time());
        sample.fault = record.fault(self.slots);
        // Registers of such a vCPU have no meaning.
        if !has_started(record.mp_state()) {
            return Some(sample);
        }
        let halted = record.mp_state() == KVM_MP_STATE_HALTED;
        let lacks_process = u64::from(self.lacks_process(record));
        if record.is_nested() {
            let mut identity = self.identity(3, halted, record);
            if !self.setting.process_group {
                identity.process_group = -1;
            }
            view.unread_processes += lacks_process;
            return Some(in_nested_guest(view.vcpu, &identity, record.time()));
        }
        let rip = match interrupted {
            Interrupted::GuestKernel(rip) | Interrupted::GuestUser(rip) => rip,
            Interrupted::Host => record.rip()?,
        };
        sample.pc = rip.wrapping_add(record.code_base(self.long_mask));
        view.unread_processes += lacks_process;
        sample.cpl = privilege(record, sample.pc);
        let identity = self.identity(sample.cpl, halted, record);
        sample.mode = identity.mode;
        sample.pid = identity.pid;
        sample.tid = identity.tid;
        if self.setting.process_group {
            sample.process_group = identity.process_group;
        }
        (sample.comm, sample.preemption) = (identity.comm, identity.preemption);
        sample.address_space = record.cr3().map_or(0, page_table_root);
        let mut registers = Registers {
            rip: sample.pc,
            cr3: record.cr3().unwrap_or(self.registers.cr3),
            cpl: sample.cpl,
            is_64_bit_code: record.is_64_bit_code(self.long_mask),
            ..self.registers
        };
        let copies = record.copies();
        let has_copies = record.fill_general(&mut registers).is_some();
        // Where the code segment isn't known, stacks are unwound by the tables of files, which are those of 64-bit code.
        registers.is_64_bit_code |= has_copies && record.cpl().is_none();
        let copied = Copied {
            task: record.task().filter(|_| record.cr3().is_some()),
            pid: sample.pid,
            time: sample.time,
            copies: has_copies.then_some(&copies[..]),
        };
        view.capture_copied(&registers, &copied, ticks);
        sample.inner_tid = view.inner_tid(&registers, sample.tid);
        sample.stack = view.add_host_frames(host_frames);
        Some(sample)
    }

    /// Whether the host's kernel should have read the process and couldn't. No other sample proves which one it was: a child of vfork(2) has its
    /// parent's address space, and a new process that of one that has ended.
    fn lacks_process(&self, record: &Record<'_>) -> bool {
        let mut places = self
            .places
            .iter()
            .flat_map(|places| places.values.iter().enumerate());
        places.any(|(index, place)| place.kind == ValueKind::Pid && record.value(index).is_none())
    }

    fn identity(&self, cpl: u8, halted: bool, record: &Record<'_>) -> Identity {
        match self.places {
            Some(places) => places.identity(cpl, halted, |index| record.value(index)),
            None => Identity::at_level(cpl, halted),
        }
    }
}

/// The vCPU's privilege level. If the host's kernel hasn't read it, the guest is Linux or unknown, and the program counter tells the level.
/// The mode that perf reports isn't used, because before Linux 6.9 it could be that of an earlier interrupt.
fn privilege(record: &Record<'_>, pc: u64) -> u8 {
    match record.cpl() {
        Some(cpl) => cpl,
        None if pc >> 63 == 1 => 0,
        None => 3,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kvmprof_attach::sampling::RECORD_BYTES;
    use kvmprof_attach::sampling::record::{
        AVAILABLE, CODE_BASE, CPL, EXIT, FAULT, FAULT_ADDRESS, FAULT_TIME, FLAGS, MP_STATE, NESTED,
        OWN, PRIVILEGE, RIP, VALUES,
    };
    use kvmprof_introspection::{GuestKnowledge, ValueAt, ValueKind, ValuePlace};
    use kvmprof_recording::{
        DEFAULT_STACK_FRAMES, FaultKind, MemoryFault, Mode, StackEnd, StackParts,
    };
    use vm_memory::{GuestAddress, GuestMemoryMmap};

    use super::*;
    use crate::sampling::{Doorbell, tick_ring};

    const PC: u64 = 0xffff_ffff_8100_0000;

    /// A record with the program counter [`PC`] and the pid 7. `numbers` are offsets and values that differ.
    fn record(numbers: &[(usize, u64)]) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let own = u64::from(OWN.cast_unsigned()) | 1 << 8;
        let usual = [(FLAGS, own), (RIP, PC), (AVAILABLE, 1 << 16), (VALUES, 7)];
        for (offset, number) in usual.iter().chain(numbers) {
            bytes[*offset..offset + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// The same record, with a privilege level that was read.
    fn at_level(cpl: u64) -> [u8; RECORD_BYTES] {
        let flags = u64::from((OWN | PRIVILEGE).cast_unsigned()) | 1 << 8;
        record(&[(FLAGS, flags), (CPL, cpl)])
    }

    fn places() -> ProcessPlaces {
        ProcessPlaces {
            task: None,
            values: vec![ValuePlace {
                kind: ValueKind::Pid,
                at: ValueAt::Task(0),
                width: 4,
            }],
            interrupt_stack: None,
            is_linux: true,
        }
    }

    /// The sample of a record without stacks, for a setting with the kernel's stack. Counts it if its process couldn't be read, and only then.
    fn sample(at: Interrupted, record: &[u8]) -> Option<Sample> {
        let places = places();
        let reader = Reader {
            places: Some(&places),
            registers: Registers::default(),
            long_mask: 1,
            setting: ClockSetting {
                stacks: StackParts {
                    kernel: true,
                    user: false,
                },
                ..ClockSetting::default()
            },
            held: 0,
            is_in_doubt: false,
            host: None,
            slots: &Slots::default(),
        };
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x1000)]).unwrap();
        let knowledge = Arc::new(GuestKnowledge::unknown());
        let mut view = VcpuView::new(3, memory, knowledge, DEFAULT_STACK_FRAMES);
        view.follow(&reader.setting);
        let doorbell = Arc::new(Doorbell::new().unwrap());
        let (mut ticks, _receiver) = tick_ring(3, doorbell);
        let record = Record::parse(record).unwrap();
        let sample = reader.sample(&mut view, at, &record, &[], &mut ticks)?;
        let is_unread = record.value(0).is_none() && has_started(record.mp_state());
        assert_eq!(view.unread_processes, u64::from(is_unread));
        let expected = match sample.cpl == 0 && sample.pc != 0 {
            true => (1, StackEnd::Unsupported),
            false => (0, StackEnd::Absent),
        };
        let found = (sample.stack.frames(), sample.stack.kernel_end);
        assert_eq!(found, expected, "{sample:?}");
        Some(sample)
    }

    #[test]
    fn a_sample_at_a_fault_has_the_fault() {
        let flags = u64::from((OWN | FAULT).cast_unsigned()) | 1 << 8;
        let of_device = record(&[
            (FLAGS, flags),
            (EXIT, 2 << 32 | 0x400),
            (FAULT_ADDRESS, 0xfee0_0010),
            (FAULT_TIME, 900),
        ]);
        let found = sample(Interrupted::Host, &of_device).unwrap();
        let expected = MemoryFault {
            address: 0xfee0_0010,
            slot: None,
            kind: FaultKind::Device,
            time: 900,
        };
        assert_eq!((found.fault, found.pid), (Some(expected), 7));
        let of_exit = record(&[(EXIT, 2 << 32 | 0x400)]);
        assert_eq!(sample(Interrupted::Host, &of_exit).unwrap().fault, None);
    }

    #[test]
    fn a_tick_in_the_guest_has_its_own_program_counter() {
        let user = sample(Interrupted::GuestUser(0x40), &at_level(3)).unwrap();
        assert_eq!((user.pc, user.mode, user.pid), (0x40, Mode::User, 7));
        let kernel = sample(Interrupted::GuestKernel(0x40), &at_level(0)).unwrap();
        assert_eq!((kernel.pc, kernel.mode), (0x40, Mode::Kernel));
        // The mode that perf reports may be that of an earlier interrupt.
        let stale = sample(Interrupted::GuestKernel(0x40), &record(&[])).unwrap();
        assert_eq!((stale.cpl, stale.mode), (3, Mode::User));
    }

    /// As in firmware, in real mode.
    #[test]
    fn a_program_counter_is_a_linear_address() {
        const BASE: u64 = 0xf_0000;
        let flags = u64::from((OWN | PRIVILEGE).cast_unsigned()) | 1 << 8;
        let at = |cpl| {
            let record = record(&[(FLAGS, flags), (CPL, cpl), (CODE_BASE, BASE), (RIP, 0xb7b9)]);
            [Interrupted::GuestKernel(0xb7b9), Interrupted::Host]
                .map(|interrupted| sample(interrupted, &record).unwrap().pc)
        };
        assert_eq!(at(0), [0xf_b7b9; 2]);
        let is_64_bit = 1 << 8;
        assert_eq!(at(is_64_bit), [0xb7b9; 2]);
        // Whether it is real mode wasn't read.
        let unread = record(&[(CODE_BASE, BASE)]);
        let found = sample(Interrupted::GuestKernel(0xb7b9), &unread).unwrap();
        assert_eq!(found.pc, 0xb7b9);
    }

    #[test]
    fn a_tick_in_the_host_has_the_last_program_counter_or_none() {
        let host = |record: &[u8]| sample(Interrupted::Host, record);
        let kernel = host(&record(&[])).unwrap();
        assert_eq!((kernel.pc, kernel.mode), (PC, Mode::Kernel));
        assert_eq!(host(&at_level(3)).unwrap().mode, Mode::User);
        assert_eq!(host(&record(&[(AVAILABLE, 0xffff)])), None);
        assert_eq!(host(&record(&[(FLAGS, 0)])), None);
    }

    #[test]
    fn unreadable_values_are_unknown() {
        let unread = record(&[(FLAGS, OWN.cast_unsigned().into())]);
        let found = sample(Interrupted::GuestUser(0x40), &unread).unwrap();
        assert_eq!((found.pid, found.tid, found.process_group), (-1, -1, -1));
    }

    #[test]
    fn a_nested_guest_has_the_process_and_no_program_counter() {
        let flags = u64::from((OWN | PRIVILEGE | NESTED).cast_unsigned()) | 1 << 8;
        let record = record(&[(FLAGS, flags), (CPL, 0), (AVAILABLE, 0)]);
        for at in [Interrupted::GuestKernel(PC), Interrupted::Host] {
            let found = sample(at, &record).unwrap();
            assert_eq!((found.mode, found.cpl, found.pc), (Mode::User, 3, 0));
            assert_eq!((found.pid, found.address_space), (7, 0));
        }
    }

    #[test]
    fn a_vcpu_that_does_not_run_is_idle() {
        let halted = record(&[(MP_STATE, KVM_MP_STATE_HALTED.into())]);
        let found = sample(Interrupted::Host, &halted).unwrap();
        assert_eq!((found.mode, found.pid), (Mode::Idle, 7));
        let uninitialized = record(&[(MP_STATE, 1)]);
        let found = sample(Interrupted::Host, &uninitialized).unwrap();
        assert_eq!((found.mode, found.pid, found.pc), (Mode::Idle, -1, 0));
    }
}
