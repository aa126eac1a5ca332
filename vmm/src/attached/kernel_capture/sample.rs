//! What a record of the host's kernel says of the guest.

use kvm_bindings::{KVM_MP_STATE_HALTED, KVM_MP_STATE_RUNNABLE};
use kvmprof_attach::sampling::Record;
use kvmprof_introspection::{Identity, ProcessPlaces};
use kvmprof_recording::{Mode, Sample, StackEnd, StackParts, StackSummary};

use super::ring::Interrupted;
use crate::clock::ClockSetting;
use crate::vcpu::page_table_root;

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
        let mut sample = Sample {
            time: record.time(),
            pid: -1,
            tid: -1,
            process_group: -1,
            vcpu: self.vcpu,
            mode: Mode::Idle,
            ..Sample::default()
        };
        // An application processor that has not had its SIPI yet has no meaningful registers.
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
            None => Identity::unknown(match (halted, cpl) {
                (true, _) => Mode::Idle,
                (false, 3) => Mode::User,
                (false, _) => Mode::Kernel,
            }),
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
