//! What a record of the host's kernel says of the guest.

use kvm_bindings::{KVM_MP_STATE_HALTED, KVM_MP_STATE_RUNNABLE};
use kvmprof_attach::sampling::Record;
use kvmprof_introspection::{Identity, ProcessPlaces};
use kvmprof_recording::{Sample, StackEnd, StackParts, StackSummary};

use super::ring::Interrupted;
use crate::clock::ClockSetting;
use crate::vcpu::{not_started, page_table_root};

/// What is known of a vCPU when its records are read.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    /// The vCPU's number.
    pub vcpu: u16,
    /// What the values of records are.
    pub places: Option<&'a ProcessPlaces>,
    /// Whether records have the privilege level. If they haven't the guest is Linux, or nothing is known of it.
    pub knows_privilege: bool,
    /// What samples have to bring.
    pub setting: ClockSetting,
}

impl Reader<'_> {
    /// The sample of a record, and its only frame if a stack was asked for. `None` if the host's kernel didn't have the
    /// program counter, or the vCPU has gone.
    pub fn sample(
        &self,
        interrupted: Interrupted,
        record: &Record,
    ) -> Option<(Sample, Option<u64>)> {
        record.is_own().then_some(())?;
        let is_started = matches!(
            record.mp_state(),
            KVM_MP_STATE_RUNNABLE | KVM_MP_STATE_HALTED
        );
        let mut sample = not_started(self.vcpu, record.time());
        // Such a vCPU has no meaningful registers.
        if !is_started {
            return Some((sample, None));
        }
        sample.pc = match interrupted {
            Interrupted::GuestKernel(pc) | Interrupted::GuestUser(pc) => pc,
            Interrupted::Host => record.rip()?,
        };
        sample.cpl = self.privilege(interrupted, record, sample.pc);
        let halted = record.mp_state() == KVM_MP_STATE_HALTED;
        let identity = self.identity(sample.cpl, halted, record);
        sample.mode = identity.mode;
        sample.pid = identity.pid;
        sample.tid = identity.tid;
        if self.setting.process_group {
            sample.process_group = identity.process_group;
        }
        sample.comm = identity.comm;
        sample.address_space = page_table_root(record.cr3());
        sample.stack = only_frame(sample.cpl, self.setting.stacks);
        let frame = (sample.stack.frames() == 1).then_some(sample.pc);
        Some((sample, frame))
    }

    fn privilege(&self, interrupted: Interrupted, record: &Record, pc: u64) -> u8 {
        match interrupted {
            // Before 6.9 the host's kernel says what was right at an earlier interrupt, so it isn't asked where Linux is
            // known by its addresses.
            Interrupted::GuestUser(_) if self.knows_privilege => 3,
            Interrupted::GuestKernel(_) if self.knows_privilege => 0,
            Interrupted::Host if self.knows_privilege => record.cpl(),
            _ if pc >> 63 == 1 => 0,
            _ => 3,
        }
    }

    fn identity(&self, cpl: u8, halted: bool, record: &Record) -> Identity {
        match self.places {
            Some(places) => places.identity(cpl, halted, |index| record.value(index)),
            None => Identity::at_level(cpl, halted),
        }
    }
}

/// The stack that is only a program counter, if that part was asked for.
fn only_frame(cpl: u8, wanted: StackParts) -> StackSummary {
    let mut stack = StackSummary::default();
    if cpl == 3 && wanted.user {
        (stack.user, stack.user_end) = (1, StackEnd::Unsupported);
    } else if cpl != 3 && wanted.kernel {
        (stack.kernel, stack.kernel_end) = (1, StackEnd::Unsupported);
    }
    stack
}

#[cfg(test)]
mod tests {
    use kvmprof_recording::Mode;

    use kvmprof_attach::sampling::RECORD_BYTES;
    use kvmprof_attach::sampling::record::{AVAILABLE, CPL, FLAGS, MP_STATE, OWN, RIP, VALUES};
    use kvmprof_introspection::{ValueAt, ValueKind, ValuePlace};

    use super::*;

    const PC: u64 = 0xffff_ffff_8100_0000;

    /// A record with the program counter [`PC`] and the pid 7, in ring 0, and these numbers in place of others.
    fn record(numbers: &[(usize, u64)]) -> Record {
        let mut bytes = [0; RECORD_BYTES];
        let own = u64::from(OWN.cast_unsigned()) | 1 << 8;
        let usual = [(FLAGS, own), (RIP, PC), (AVAILABLE, 1 << 16), (VALUES, 7)];
        for (offset, number) in usual.iter().chain(numbers) {
            bytes[*offset..offset + 8].copy_from_slice(&number.to_le_bytes());
        }
        Record::parse(&bytes).unwrap()
    }

    fn places() -> ProcessPlaces {
        ProcessPlaces {
            task: None,
            values: vec![ValuePlace {
                kind: ValueKind::Pid,
                at: ValueAt::Task(0),
                width: 4,
            }],
            is_linux: true,
        }
    }

    fn sample(knows_privilege: bool, at: Interrupted, record: &Record) -> Option<Sample> {
        let places = places();
        let reader = Reader {
            vcpu: 3,
            places: Some(&places),
            knows_privilege,
            setting: ClockSetting {
                stacks: StackParts {
                    kernel: true,
                    user: false,
                },
                ..ClockSetting::default()
            },
        };
        let (sample, frame) = reader.sample(at, record)?;
        let expected = (sample.cpl == 0 && sample.pc != 0).then_some(sample.pc);
        assert_eq!(frame, expected, "{sample:?}");
        Some(sample)
    }

    #[test]
    fn a_tick_in_the_guest_has_its_own_program_counter() {
        let user = sample(true, Interrupted::GuestUser(0x40), &record(&[])).unwrap();
        assert_eq!((user.pc, user.mode, user.pid), (0x40, Mode::User, 7));
        let kernel = sample(true, Interrupted::GuestKernel(0x40), &record(&[])).unwrap();
        assert_eq!((kernel.pc, kernel.mode), (0x40, Mode::Kernel));
        // What the host says of the mode may be old.
        let stale = sample(false, Interrupted::GuestKernel(0x40), &record(&[])).unwrap();
        assert_eq!((stale.cpl, stale.mode), (3, Mode::User));
    }

    #[test]
    fn a_tick_in_the_host_has_the_last_program_counter_or_none() {
        let host = |knows, numbers: &[_]| sample(knows, Interrupted::Host, &record(numbers));
        let kernel = host(false, &[]).unwrap();
        assert_eq!((kernel.pc, kernel.mode), (PC, Mode::Kernel));
        assert_eq!(host(true, &[(CPL, 3)]).unwrap().mode, Mode::User);
        assert_eq!(host(true, &[(AVAILABLE, 0xffff)]), None);
        assert_eq!(host(true, &[(FLAGS, 0)]), None);
    }

    #[test]
    fn what_cannot_be_read_is_unknown() {
        let unread = record(&[(FLAGS, OWN.cast_unsigned().into())]);
        let found = sample(true, Interrupted::GuestUser(0x40), &unread).unwrap();
        assert_eq!((found.pid, found.tid, found.process_group), (-1, -1, -1));
    }

    #[test]
    fn a_vcpu_that_does_not_run_is_idle() {
        let halted = record(&[(MP_STATE, KVM_MP_STATE_HALTED.into())]);
        let found = sample(true, Interrupted::Host, &halted).unwrap();
        assert_eq!((found.mode, found.pid), (Mode::Idle, 7));
        let uninitialized = record(&[(MP_STATE, 1)]);
        let found = sample(true, Interrupted::Host, &uninitialized).unwrap();
        assert_eq!((found.mode, found.pid, found.pc), (Mode::Idle, -1, 0));
    }
}
