//! Samples of faults of guest memory, by three programs at tracepoints of KVM: one notes each exit; one makes the record at the fault, as other programs do for
//! other samples; one adds at the next entry how long the fault took and what the host's kernel did meanwhile, and puts the record into the ring. Two more note
//! what the thread's own numbers don't tell: that another thread waits for the page, and that a userfaultfd's handler was asked for it.

use std::ffi::CStr;

use kvmprof_recording::{FaultKind, MemoryFault};
use vm_memory::GuestAddress;

use super::assembly::{
    ADD_IMMEDIATE, ADD_REGISTER, CONTEXT, FLAG_SET, HELPER_KTIME_GET_NS, JUMP,
    JUMP_IF_ABOVE_IMMEDIATE, JUMP_IF_NOT, JUMP_IF_NOT_EQUAL, JUMP_IF_ZERO, OR_IMMEDIATE,
    OR_REGISTER, Program, RECORD, STORE_IMMEDIATE_64, SUBTRACT_REGISTER, TARGET, offset16,
};
use super::program::Plan;
use super::record::{
    EXIT as GUEST_EXIT, FAULT, FAULT_ADDRESS, FAULT_ERROR, FAULT_TIME, FAULTED, FLAGS, READ,
    Record, TIME, USERFAULT, WAITED,
};
use crate::kernel_memory::bpf::Instruction;
use crate::kernel_memory::program::{
    EXIT, HELPER_GET_CURRENT_TASK, HELPER_PROBE_READ_KERNEL, LOAD_64, MOVE_IMMEDIATE,
    MOVE_REGISTER, STORE_64,
};
use crate::tracepoint::{ExitMembers, FaultMembers, ISA_SVM, ISA_VMX};
use crate::{Backing, Slot, Slots};

/// Offsets in the value of the map that the programs share: the number of faults since the last sample; when the vCPU left the guest; why, as a record has it; the
/// length of the record that waits for the entry, or 0; the thread's numbers of faults without and with a wait, and of bytes read, before and after; and flags of
/// what was noted since the exit.
const COUNT: i16 = 0;
const LEFT: i16 = 8;
const REASON: i16 = 16;
const LENGTH: i16 = 24;
const BEFORE: i16 = 32;
const AFTER: i16 = 56;
const NOTED: i16 = 80;
/// The size of that value.
pub const STATE_BYTES: usize = 88;

/// The function of the host's kernel that asks the handler of a userfaultfd for a page (`fs/userfaultfd.c`).
pub const USERFAULTS: &CStr = c"handle_userfault";

/// The reasons of faults, each with the instruction set that names it: SDM volume 3, appendix C; AMD APM volume 2, appendix C.
const EPT_VIOLATION: u64 = ISA_VMX << 32 | 48;
const NESTED_PAGE_FAULT: u64 = ISA_SVM << 32 | 0x400;
/// Bits of the error: a write, with both (SDM volume 3, table 28-7; AMD APM volume 2, section 15.25.6).
const WRITE: u64 = 1 << 1;
/// The page is there, with other rights: with VT-x one of those to read, to write and to execute.
const PRESENT_VMX: u64 = 0b111 << 3;
const PRESENT_SVM: u64 = 1;

/// Which faults of a vCPU are sampled.
#[derive(Clone, Copy, Debug)]
pub struct SampledFaults {
    /// The vCPU's thread, by the id that all of the host has it by.
    pub thread: u32,
    /// The vCPU's number.
    pub vcpu: u32,
    /// The last one of so many.
    pub period: u64,
    /// The descriptor of the map that the programs share.
    pub state: i32,
    pub exit: ExitMembers,
    pub fault: FaultMembers,
    /// `task_struct.min_flt`, `maj_flt` and `ioac.read_bytes`, the last if it is there.
    pub counts: [Option<i32>; 3],
}

impl Program {
    /// Counts a fault. The returned jumps are taken if it isn't sampled: as one of another thread, of a guest's own page tables, or while a record waits.
    pub fn count_fault(&mut self, faults: &SampledFaults) -> Vec<usize> {
        let is_others = self.skip_others(faults.thread);
        self.load_value(TARGET, faults.state);
        self.add(LOAD_64, 1, TARGET, REASON, 0);
        self.load_immediate(2, EPT_VIOLATION);
        let is_no_violation = self.jump(JUMP_IF_NOT_EQUAL, 1, 2, 0);
        let is_violation = self.jump(JUMP, 0, 0, 0);
        self.land(is_no_violation);
        self.load_immediate(2, NESTED_PAGE_FAULT);
        let is_other = self.jump(JUMP_IF_NOT_EQUAL, 1, 2, 0);
        self.land(is_violation);
        self.add(LOAD_64, 1, TARGET, LENGTH, 0);
        let waits = self.jump(JUMP_IF_NOT, 1, 0, 0);
        let is_early = self.skip_early(TARGET, COUNT, faults.period);
        vec![is_others, is_other, waits, is_early]
    }

    /// Puts into the record what is known at the fault. Its time is that of the exit.
    pub fn describe_fault(&mut self, faults: &SampledFaults, time_offset: u64) {
        self.load_value(2, faults.state);
        self.add(LOAD_64, 1, 2, REASON, 0);
        self.add(STORE_64, RECORD, 1, offset16(GUEST_EXIT), 0);
        self.add(LOAD_64, 1, 2, LEFT, 0);
        self.load_immediate(2, time_offset);
        self.registers(ADD_REGISTER, 1, 2);
        self.add(STORE_64, RECORD, 1, offset16(TIME), 0);
        for (member, place) in [
            (faults.fault.address, FAULT_ADDRESS),
            (faults.fault.error, FAULT_ERROR),
        ] {
            self.load_member(1, member);
            self.add(STORE_64, RECORD, 1, offset16(place), 0);
        }
        self.immediate(OR_IMMEDIATE, FLAG_SET, FAULT);
        self.read_counts(faults, BEFORE);
    }

    /// Has the record, whose length is in register 5, wait for the entry.
    pub fn await_entry(&mut self, faults: &SampledFaults) {
        self.load_value(1, faults.state);
        self.add(STORE_64, 1, 5, LENGTH, 0);
    }

    /// Reads the thread's numbers to `place`. One that isn't there stays 0. Changes [`TARGET`].
    fn read_counts(&mut self, faults: &SampledFaults, place: i16) {
        self.call(HELPER_GET_CURRENT_TASK);
        self.registers(MOVE_REGISTER, TARGET, 0);
        for (member, place) in faults
            .counts
            .into_iter()
            .zip([place, place + 8, place + 16])
        {
            let Some(member) = member else {
                continue;
            };
            self.load_value(1, faults.state);
            self.immediate(ADD_IMMEDIATE, 1, place.into());
            self.immediate(MOVE_IMMEDIATE, 2, 8);
            self.registers(MOVE_REGISTER, 3, TARGET);
            self.immediate(ADD_IMMEDIATE, 3, member);
            self.call(HELPER_PROBE_READ_KERNEL);
        }
    }

    /// Adds the flags of what the host's kernel did between the two looks at the thread's numbers.
    fn flag_host_faults(&mut self, faults: &SampledFaults) {
        self.load_value(1, faults.state);
        self.load(3, FLAGS);
        for (flag, before, after) in [
            (FAULTED, BEFORE, AFTER),
            (WAITED, BEFORE + 8, AFTER + 8),
            (READ, BEFORE + 16, AFTER + 16),
        ] {
            self.add(LOAD_64, 2, 1, after, 0);
            self.add(LOAD_64, 4, 1, before, 0);
            self.registers(SUBTRACT_REGISTER, 2, 4);
            let none = self.jump(JUMP_IF_ZERO, 2, 0, 0);
            self.immediate(OR_IMMEDIATE, 3, flag);
            self.land(none);
        }
        self.add(LOAD_64, 2, 1, NOTED, 0);
        self.registers(OR_REGISTER, 3, 2);
        self.add(STORE_64, RECORD, 3, offset16(FLAGS), 0);
    }

    /// Ends a program at a tracepoint, where these jumps lead, too.
    fn finish(mut self, ends: impl IntoIterator<Item = usize>) -> Vec<Instruction> {
        self.land_all(ends);
        self.immediate(MOVE_IMMEDIATE, 0, 1);
        self.add(EXIT, 0, 0, 0, 0);
        self.0
    }
}

/// The program at `kvm_exit`.
pub fn at_exit(faults: &SampledFaults) -> Vec<Instruction> {
    let mut program = Program::default();
    program.registers(MOVE_REGISTER, CONTEXT, 1);
    let is_others = program.skip_others(faults.thread);
    program.load_value(TARGET, faults.state);
    // A record without an entry is that of a vCPU that was given up.
    for member in [REASON, LENGTH, NOTED] {
        program.add(STORE_IMMEDIATE_64, TARGET, 0, member, 0);
    }
    let is_another = program.skip_vcpu(faults.exit, faults.vcpu);
    program.call(HELPER_KTIME_GET_NS);
    program.add(STORE_64, TARGET, 0, LEFT, 0);
    program.load_reason(faults.exit);
    program.add(STORE_64, TARGET, 1, REASON, 0);
    program.finish([is_others, is_another])
}

/// The program at `kvm_try_async_get_page`: the vCPU's thread halts, and another one waits for the page.
pub fn at_another_threads_wait(faults: &SampledFaults) -> Vec<Instruction> {
    note(faults, WAITED)
}

/// The program at [`USERFAULTS`].
pub fn at_userfault(faults: &SampledFaults) -> Vec<Instruction> {
    note(faults, USERFAULT)
}

fn note(faults: &SampledFaults, flag: i32) -> Vec<Instruction> {
    let mut program = Program::default();
    let is_others = program.skip_others(faults.thread);
    program.load_value(TARGET, faults.state);
    program.add(LOAD_64, 1, TARGET, NOTED, 0);
    program.immediate(OR_IMMEDIATE, 1, flag);
    program.add(STORE_64, TARGET, 1, NOTED, 0);
    program.finish([is_others])
}

/// The program at `kvm_entry`, which puts the record of `plan` into the ring.
pub fn at_entry(plan: &Plan, faults: &SampledFaults) -> Vec<Instruction> {
    let mut program = Program::default();
    program.registers(MOVE_REGISTER, CONTEXT, 1);
    let is_others = program.skip_others(faults.thread);
    program.load_value(TARGET, faults.state);
    program.add(LOAD_64, FLAG_SET, TARGET, LENGTH, 0);
    let none = program.jump(JUMP_IF_ZERO, FLAG_SET, 0, 0);
    program.add(STORE_IMMEDIATE_64, TARGET, 0, LENGTH, 0);
    let room = i32::try_from(plan.room()).unwrap_or_default();
    let is_longer = program.jump(JUMP_IF_ABOVE_IMMEDIATE, FLAG_SET, 0, room);
    program.load_record(plan.record);
    program.call(HELPER_KTIME_GET_NS);
    program.add(LOAD_64, 1, TARGET, LEFT, 0);
    program.registers(SUBTRACT_REGISTER, 0, 1);
    program.add(STORE_64, RECORD, 0, offset16(FAULT_TIME), 0);
    program.read_counts(faults, AFTER);
    program.flag_host_faults(faults);
    program.registers(MOVE_REGISTER, 5, FLAG_SET);
    program.put_record(plan.outputs);
    program.finish([is_others, none, is_longer])
}

impl Record<'_> {
    /// The fault of guest memory at which the record was made, in a guest with these `slots`; `None` for other records, and for faults of a nested guest, whose addresses
    /// aren't the guest's.
    pub fn fault(&self, slots: &Slots) -> Option<MemoryFault> {
        (self.has(FAULT) && !self.is_nested()).then_some(())?;
        let address = self.u64(FAULT_ADDRESS);
        let slot = slots.find(GuestAddress(address));
        Some(MemoryFault {
            address,
            slot: slot.map(|slot| slot.address.0),
            kind: slot.map_or(FaultKind::Device, |slot| self.kind(slot)),
            time: self.u64(FAULT_TIME),
        })
    }

    /// What a fault was of memory in this `slot`.
    fn kind(&self, slot: &Slot) -> FaultKind {
        let error = self.u64(FAULT_ERROR);
        let present = match self.exit().map(|(_, isa)| u64::from(isa)) {
            Some(ISA_VMX) => PRESENT_VMX,
            Some(ISA_SVM) => PRESENT_SVM,
            _ => return FaultKind::Other,
        };
        let is_write = error & WRITE != 0;
        if self.has(USERFAULT) {
            return FaultKind::Userfault;
        }
        match (error & present != 0, self.has(WAITED), self.has(FAULTED)) {
            (false, true, _) => match (self.has(READ), slot.backing) {
                (true, Backing::Swap) => FaultKind::SwapIn,
                (true, Backing::File) => FaultKind::FileRead,
                _ => FaultKind::Waited,
            },
            (false, false, true) => FaultKind::FirstTouch,
            (false, false, false) => FaultKind::Mapped,
            (true, false, true) if is_write => FaultKind::WriteAfterShare,
            (true, false, false) if is_write && slot.logs_writes => FaultKind::DirtyLog,
            (true, ..) => FaultKind::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{NESTED, OWN, RECORD_BYTES};
    use super::*;

    const MEMORY: u64 = 1 << 32;

    fn slots(logs_writes: bool) -> Slots {
        let slot = Slot {
            address: GuestAddress(MEMORY),
            bytes: 0x10_0000,
            host_address: 0,
            is_read_only: false,
            logs_writes,
            backing: Backing::default(),
        };
        Slots::new(&[slot]).unwrap()
    }

    /// A record of a fault for `reason` with these flags.
    fn record(reason: u64, flags: i32, address: u64, error: u64) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        for (offset, number) in [
            (FLAGS, u64::from((OWN | flags).cast_unsigned())),
            (GUEST_EXIT, reason),
            (FAULT_ADDRESS, address),
            (FAULT_ERROR, error),
            (FAULT_TIME, 77),
        ] {
            bytes[offset..offset + 8].copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn kinds_are_those_that_the_host_proves() {
        use FaultKind::{DirtyLog, FirstTouch, Mapped, Other, Waited, WriteAfterShare};
        let (ept, npf) = (EPT_VIOLATION, NESTED_PAGE_FAULT);
        // An EPT violation has the rights in bits 3 to 5, a nested page fault the page's presence in bit 0, and bits from 32 on.
        for (reason, flags, error, logs, expected) in [
            (ept, FAULTED, 2, false, FirstTouch),
            (ept, FAULTED, 1, true, FirstTouch),
            (npf, FAULTED, 1 << 32 | 6, false, FirstTouch),
            (ept, WAITED, 1, false, Waited),
            (npf, WAITED | FAULTED, 6, false, Waited),
            (ept, 0, 2, false, Mapped),
            (npf, 0, 4, true, Mapped),
            (ept, FAULTED, 0b1000 | 2, false, WriteAfterShare),
            (npf, FAULTED, 7, true, WriteAfterShare),
            (ept, 0, 0b10_1000 | 2, true, DirtyLog),
            (npf, 0, 7, true, DirtyLog),
            // Nobody notes the writes.
            (npf, 0, 7, false, Other),
            // Code in a page that isn't to be executed, and a page that came back in between.
            (ept, 0, 0b1000 | 4, true, Other),
            (npf, WAITED, 7, true, Other),
            (npf, FAULTED, 5, true, Other),
            (3 << 32, FAULTED, 6, true, Other),
        ] {
            let bytes = record(reason, FAULT | flags, MEMORY + 0x1234, error);
            let fault = Record::parse(&bytes).unwrap().fault(&slots(logs)).unwrap();
            assert_eq!(fault.kind, expected, "{reason:#x} {flags:#x} {error:#x}");
            assert_eq!((fault.slot, fault.time), (Some(MEMORY), 77));
            assert_eq!(
                (fault.address, fault.page()),
                (MEMORY + 0x1234, MEMORY + 0x1000)
            );
        }
    }

    #[test]
    fn waits_are_by_what_the_memory_is_backed_by_and_for_handlers() {
        use FaultKind::{FileRead, SwapIn, Userfault, Waited};
        for (flags, error, backing, expected) in [
            (WAITED | READ, 6, Backing::Swap, SwapIn),
            (WAITED | READ | FAULTED, 6, Backing::File, FileRead),
            (WAITED | READ, 6, Backing::Unknown, Waited),
            // Another thread has it read.
            (WAITED, 6, Backing::Swap, Waited),
            (WAITED, 6, Backing::File, Waited),
            // A handler gives the page, or lets the guest write to it.
            (WAITED | USERFAULT, 6, Backing::Swap, Userfault),
            (USERFAULT, 6, Backing::Unknown, Userfault),
            (WAITED | USERFAULT, 7, Backing::Swap, Userfault),
        ] {
            let bytes = record(NESTED_PAGE_FAULT, FAULT | flags, MEMORY, error);
            let slot = Slot {
                backing,
                ..*slots(false).iter().next().unwrap()
            };
            let slots = Slots::new(&[slot]).unwrap();
            let fault = Record::parse(&bytes).unwrap().fault(&slots).unwrap();
            assert_eq!(fault.kind, expected, "{flags:#x} {backing:?}");
        }
    }

    #[test]
    fn addresses_without_memory_are_devices() {
        let at = |address| {
            let bytes = record(NESTED_PAGE_FAULT, FAULT | FAULTED, address, 6);
            Record::parse(&bytes).unwrap().fault(&slots(false)).unwrap()
        };
        for address in [0, MEMORY - 1, MEMORY + 0x10_0000, u64::MAX] {
            let fault = at(address);
            let expected = (FaultKind::Device, None, address);
            assert_eq!((fault.kind, fault.slot, fault.address), expected);
        }
    }

    #[test]
    fn other_records_are_of_no_fault() {
        for flags in [0, FAULTED | WAITED, FAULT | NESTED] {
            let bytes = record(NESTED_PAGE_FAULT, flags, MEMORY, 6);
            let fault = Record::parse(&bytes).unwrap().fault(&slots(false));
            assert_eq!(fault, None, "{flags:#x}");
        }
    }
}
