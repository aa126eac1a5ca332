//! Tests of the programs for faults of guest memory: the host's kernel runs them in this thread, in the order in which a vCPU passes the tracepoints.

use std::hint::black_box;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use kvmprof_introspection::bytes::u64_at;
use kvmprof_introspection::{Btf, Types};
use kvmprof_recording::{FaultKind, MemoryFault};

use super::faults::{self, STATE_BYTES, SampledFaults};
use super::program::{self, Sampled};
use super::record::{RECORD_BYTES, Record};
use super::testing::{plan, sampled_faults, slots};
use vm_memory::GuestAddress;

use crate::host_kernel::types;
use crate::host_kernel::vcpu_layout::{State, VcpuLayout};
use crate::kernel_memory::bpf;
use crate::tracepoint::{ExitMembers, FaultMembers, Member};
use crate::{Backing, Mapping, Slot, Slots};

/// The processor's reasons, each with the instruction set that names it, which is the vCPU's number, too.
const EPT_VIOLATION: [u64; 2] = [48, 1];
const NESTED_PAGE_FAULT: [u64; 2] = [0x400, 2];
const HALT: [u64; 2] = [0x78, 2];
/// An address in the guest's memory, and an error: a write, without a page.
const ADDRESS: u64 = 0x12_3456;
const WRITE: u64 = 2;

/// The three programs, and what they share.
struct Programs {
    exit: OwnedFd,
    fault: OwnedFd,
    entry: OwnedFd,
    another_threads_wait: OwnedFd,
    userfault: OwnedFd,
    record: OwnedFd,
    state: OwnedFd,
    _outputs: OwnedFd,
}

impl Programs {
    /// Those for one of `period` faults of vCPU number `vcpu`, whose thread this one is.
    fn new(vcpu: u32, period: u64) -> Self {
        let types = types().unwrap();
        let types = Types::Btf(Btf::parse(&types).unwrap());
        let mut layout = VcpuLayout::find(&types).unwrap();
        layout.state = State::Unknown;
        let offset = |member| types.need("task_struct", member).unwrap();
        let read = offset("ioac") + types.need("task_io_accounting", "read_bytes").unwrap();
        let counts = [offset("min_flt"), offset("maj_flt"), read];
        let outputs = bpf::create_event_array().unwrap();
        let record = bpf::create_map(RECORD_BYTES).unwrap();
        let state = bpf::create_map(STATE_BYTES).unwrap();
        // The programs are given two numbers.
        let [first, second] = [0, 8].map(|offset| Member { offset, bytes: 8 });
        let thread = rustix::thread::gettid().as_raw_pid();
        let sampled = SampledFaults {
            thread: thread.cast_unsigned(),
            vcpu,
            period,
            exit: ExitMembers {
                reason: first,
                isa: second,
                rip: first,
                vcpu: second,
            },
            fault: FaultMembers {
                address: first,
                error: second,
            },
            counts: counts.map(|offset| i32::try_from(offset).ok()),
            ..sampled_faults(state.as_raw_fd())
        };
        let mut plan = plan(false);
        plan.outputs = outputs.as_raw_fd();
        plan.record = record.as_raw_fd();
        plan.sampled = Sampled::Faults(sampled);
        let [exit, fault, entry, another_threads_wait, userfault] = [
            faults::at_exit(&sampled),
            program::instructions(&layout, &plan),
            faults::at_entry(&plan, &sampled),
            faults::at_another_threads_wait(&sampled),
            faults::at_userfault(&sampled),
        ]
        .map(|instructions| bpf::load(&instructions).unwrap());
        Self {
            exit,
            fault,
            entry,
            another_threads_wait,
            userfault,
            record,
            state,
            _outputs: outputs,
        }
    }

    fn run(program: &OwnedFd, numbers: [u64; 2]) {
        // With 0 others would have no record of the tracepoint.
        assert_eq!(bpf::run(program, numbers).unwrap(), 1);
    }

    /// A fault at an exit for this `reason`, up to the entry.
    fn fault(&self, reason: [u64; 2]) {
        Self::run(&self.exit, reason);
        Self::run(&self.fault, [ADDRESS, WRITE]);
    }

    fn enter(&self) {
        Self::run(&self.entry, [0; 2]);
    }

    /// Whether a record waits for the entry.
    fn waits(&self) -> bool {
        let state = bpf::value(&self.state, STATE_BYTES).unwrap();
        match u64_at(&state, 24).unwrap() {
            0 => false,
            length => {
                assert_eq!(length, RECORD_BYTES as u64);
                true
            }
        }
    }

    /// The fault of the last record, and when it began.
    fn last(&self) -> (MemoryFault, u64) {
        let bytes = bpf::value(&self.record, RECORD_BYTES).unwrap();
        let record = Record::parse(&bytes).unwrap();
        (record.fault(&slots()).unwrap(), record.time())
    }
}

fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

#[test]
fn a_record_has_the_fault_and_what_the_host_did_until_the_entry() {
    for reason @ [_, vcpu] in [EPT_VIOLATION, NESTED_PAGE_FAULT] {
        let programs = Programs::new(u32::try_from(vcpu).unwrap(), 1);
        // What this thread needs is in memory after that.
        programs.fault(reason);
        assert!(programs.waits());
        programs.enter();
        for (touches, expected) in [(false, FaultKind::Mapped), (true, FaultKind::FirstTouch)] {
            let begin = now();
            programs.fault(reason);
            let middle = now();
            assert!(programs.waits());
            // More than 32 MiB malloc(3) never takes out of memory that was given back, whose pages are there.
            let pages = touches.then(|| black_box(vec![1_u8; 40 << 20]));
            let end = now();
            programs.enter();
            drop(pages);
            assert!(!programs.waits());
            let (fault, time) = programs.last();
            assert_eq!(fault.kind, expected, "{reason:x?}");
            assert_eq!((fault.address, fault.slot), (ADDRESS, Some(0)));
            assert!((begin..=middle).contains(&time));
            assert!((end - middle..=now() - begin).contains(&fault.time));
        }
    }
}

#[test]
fn a_record_has_what_was_noted_since_its_exit() {
    let programs = Programs::new(2, 1);
    let kind_after = |noted: &[&OwnedFd]| {
        programs.fault(NESTED_PAGE_FAULT);
        for program in noted {
            Programs::run(program, [0; 2]);
        }
        programs.enter();
        programs.last().0.kind
    };
    // What this thread needs is in memory after that.
    kind_after(&[]);
    let (wait, userfault) = (&programs.another_threads_wait, &programs.userfault);
    assert_eq!(kind_after(&[wait]), FaultKind::Waited);
    assert_eq!(kind_after(&[userfault]), FaultKind::Userfault);
    assert_eq!(kind_after(&[userfault, wait]), FaultKind::Userfault);
    std::thread::scope(|scope| {
        // Another thread's waits, and those between an entry and an exit, aren't the fault's.
        scope.spawn(|| Programs::run(userfault, [0; 2]));
        Programs::run(wait, [0; 2]);
    });
    assert_eq!(kind_after(&[]), FaultKind::Mapped);
}

/// The pages of a file that aren't in memory, as those of a guest whose memory is in it.
#[test]
fn a_record_tells_what_was_read_from_a_disk() {
    let programs = Programs::new(2, 1);
    let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    file.write_all(&vec![1; 1 << 20]).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mapping = Mapping::shared(Some(file.as_fd()), 1 << 20, libc::PROT_READ).unwrap();
    programs.fault(NESTED_PAGE_FAULT);
    // SAFETY: the mapping lives, and this is its first byte.
    assert_eq!(unsafe { mapping.start().read_volatile() }, 1);
    programs.enter();
    let bytes = bpf::value(&programs.record, RECORD_BYTES).unwrap();
    let kinds = [Backing::Swap, Backing::File].map(|backing| {
        let slot = slots().find(GuestAddress(0)).copied().unwrap();
        let slots = Slots::new(&[Slot { backing, ..slot }]).unwrap();
        Record::parse(&bytes).unwrap().fault(&slots).unwrap().kind
    });
    assert_eq!(kinds, [FaultKind::SwapIn, FaultKind::FileRead]);
}

#[test]
fn other_exits_vcpus_and_periods_have_no_record() {
    let programs = Programs::new(2, 3);
    let waits = |reason| {
        programs.fault(reason);
        let waits = programs.waits();
        programs.enter();
        waits
    };
    assert_eq!(
        [NESTED_PAGE_FAULT; 7].map(waits),
        [false, false, true, false, false, true, false]
    );
    // Neither counts.
    assert_eq!([HALT, EPT_VIOLATION].map(waits), [false; 2]);
    assert_eq!([NESTED_PAGE_FAULT; 2].map(waits), [false, true]);
    // While a record waits there is no other one: a vCPU that was given up, until it exits again.
    (0..3).for_each(|_| programs.fault(NESTED_PAGE_FAULT));
    assert!(programs.waits());
    Programs::run(&programs.fault, [ADDRESS + 8, WRITE]);
    Programs::run(&programs.exit, HALT);
    assert!(!programs.waits());
    programs.enter();
}

#[test]
fn another_threads_faults_are_not_counted() {
    let programs = Programs::new(2, 1);
    std::thread::scope(|scope| {
        scope.spawn(|| programs.fault(NESTED_PAGE_FAULT));
    });
    assert!(!programs.waits());
    programs.fault(NESTED_PAGE_FAULT);
    assert!(programs.waits());
    std::thread::scope(|scope| {
        scope.spawn(|| programs.enter());
    });
    assert!(programs.waits());
}
