//! Programs of all kinds, up to the largest, for tests of what hosts' kernels accept.

use std::os::fd::AsRawFd;

use kvmprof_introspection::{
    Btf, LinearMap, ProcessPlaces, TaskMemory, TaskPointer, Types, ValueAt, ValueKind, ValuePlace,
};
use vm_memory::GuestAddress;

use super::assembly::Range;
use super::faults::{self, SampledFaults};
use super::places::MAX_RANGES;
use super::program::{self, Plan, Sampled, SampledExits};
use super::stacks::{LinuxStacks, Stacks};
use super::{SamplingError, VcpuLayout, error, host, pointer, reads};
use crate::host_kernel::types;
use crate::host_kernel::vcpu_layout::State;
use crate::kernel_memory::bpf::{self, Trigger};
use crate::tracepoint::{ExitMembers, FaultMembers, Member};
use crate::{HostKernelError, Slot, Slots};

/// Where the guest's second memory begins.
const HIGH: u64 = 1 << 32;

/// The memory of a guest in the VMM.
pub(crate) fn slots() -> Slots {
    let slot = |address, bytes, host_address| Slot {
        address: GuestAddress(address),
        bytes,
        host_address,
        is_read_only: false,
        logs_writes: false,
        backing: crate::Backing::default(),
    };
    Slots::new(&[
        slot(0, 64 << 20, 0x7000_0000_0000),
        slot(HIGH, 32 << 20, 0x7100_0000_0000),
        slot(0xfffc_0000, 256 << 10, 0x7200_0000_0000),
    ])
    .unwrap_or_default()
}

/// Where this guest has its processes.
pub(crate) fn places() -> ProcessPlaces {
    let value = |kind, at, width| ValuePlace { kind, at, width };
    ProcessPlaces {
        task: Some(TaskPointer {
            memory: Some(TaskMemory {
                mm: 0x900,
                page_tables: 0x78,
                stack: Some(0x20),
                direct_map: 0xffff_8880_0000_0000,
            }),
            at: GuestAddress(0x1000),
            maps: vec![
                LinearMap {
                    address: 0xffff_8880_0000_0000,
                    physical: GuestAddress(0),
                    bytes: 1 << 46,
                },
                LinearMap {
                    address: 0xffff_ffff_8100_0000,
                    physical: GuestAddress(16 << 20),
                    bytes: 8 << 20,
                },
            ],
        }),
        values: vec![
            value(ValueKind::Pid, ValueAt::Task(0x500), 4),
            value(
                ValueKind::Interrupts(1),
                ValueAt::Physical(GuestAddress(HIGH + 8)),
                4,
            ),
            // Half of it is behind the end.
            value(
                ValueKind::Comm,
                ValueAt::Physical(GuestAddress((64 << 20) - 8)),
                16,
            ),
        ],
        interrupt_stack: None,
        is_linux: true,
    }
}

/// Has this host's kernel verify programs for all kinds of processors, without and with stacks: up to 8 KiB of each, 5 levels of page tables, 8
/// ranges of memory, and the host's stacks, or at exits or faults. Their addresses are unmapped, and they aren't run. The result is their number.
///
/// # Errors
/// The kernel refuses one, or its layout isn't known.
pub fn load_programs() -> Result<usize, SamplingError> {
    let types = types()?;
    let types = Types::Btf(Btf::parse(&types).map_err(HostKernelError::from)?);
    let mut layout = VcpuLayout::find(&types)?;
    let outputs = bpf::create_event_array().map_err(error::refused)?;
    let host_record = bpf::create_map(host::MAX_HOST_RECORD_BYTES).map_err(error::refused)?;
    let mut count = 0;
    let exits = bpf::create_map(size_of::<u64>()).map_err(error::refused)?;
    let exits = sampled_exits(exits.as_raw_fd());
    let state = bpf::create_map(faults::STATE_BYTES).map_err(error::refused)?;
    let faults = sampled_faults(state.as_raw_fd());
    let host_record = Some(host_record.as_raw_fd());
    for (state, with_places, stacks) in kinds() {
        layout.state = state;
        for (host_record, sampled) in [
            (None, Sampled::Ticks),
            (host_record, Sampled::Ticks),
            (None, Sampled::Exits(exits)),
            (None, Sampled::Faults(faults)),
        ] {
            let mut plan = plan(with_places);
            plan.outputs = outputs.as_raw_fd();
            plan.stacks.clone_from(&stacks);
            plan.host_record = host_record;
            plan.sampled = sampled;
            let record = bpf::create_map(plan.room()).map_err(error::refused)?;
            plan.record = record.as_raw_fd();
            bpf::load_for(plan.trigger(), &program::instructions(&layout, &plan))?;
            count += 1;
            if let Sampled::Faults(faults) = &sampled {
                for (trigger, program) in [
                    (plan.trigger(), faults::at_exit(faults)),
                    (plan.trigger(), faults::at_another_threads_wait(faults)),
                    (Trigger::Function, faults::at_userfault(faults)),
                    (plan.trigger(), faults::at_entry(&plan, faults)),
                ] {
                    bpf::load_for(trigger, &program)?;
                    count += 1;
                }
            }
        }
    }
    Ok(count)
}

/// The variants: the processor, whether the location of processes is known, and what is copied of stacks.
fn kinds() -> [(State, bool, Option<Stacks>); 6] {
    let svm = State::Svm { vmcb: 0x1000 };
    let software = State::Software {
        cpl: 4,
        code: 8,
        base: 16,
    };
    let without_pointer = Stacks {
        hides_pointer: true,
        ..stacks(8192, true, 5, MAX_RANGES)
    };
    [
        (State::Unknown, false, None),
        (State::Unknown, true, Some(without_pointer)),
        (software, true, None),
        (svm, true, Some(stacks(4096, false, 4, 1))),
        (software, true, Some(stacks(4096, true, 4, 3))),
        (svm, true, Some(stacks(8192, true, 5, MAX_RANGES))),
    ]
}

fn stacks(bytes: i32, user: bool, levels: i32, ranges: usize) -> Stacks {
    let range = |index: u64| Range {
        guest: index << 30,
        bytes: 1 << 20,
        host: (1 << 40) + (index << 30),
    };
    Stacks {
        bytes,
        linux: Some(LinuxStacks {
            user,
            interrupt_stack: Some(0x1000),
        }),
        hides_pointer: false,
        levels,
        memory: (0..).map(range).take(ranges).collect(),
    }
}

/// One of 7 exits of a vCPU, as Linux 6.12 describes the tracepoint.
fn sampled_exits(count: i32) -> SampledExits {
    let member = |offset, bytes| Member { offset, bytes };
    SampledExits {
        thread: 1234,
        vcpu: 1,
        period: 7,
        count,
        members: ExitMembers {
            reason: member(8, 4),
            isa: member(24, 4),
            rip: member(16, 8),
            vcpu: member(56, 4),
        },
    }
}

/// One of 7 faults, as Linux 6.12 describes the tracepoint.
pub(crate) fn sampled_faults(state: i32) -> SampledFaults {
    let member = |offset| Member { offset, bytes: 8 };
    let SampledExits {
        thread,
        vcpu,
        period,
        members,
        ..
    } = sampled_exits(-1);
    SampledFaults {
        thread,
        vcpu,
        period,
        state,
        exit: members,
        fault: FaultMembers {
            address: member(24),
            error: member(32),
        },
        counts: [0x900, 0x908, 0x910].map(Some),
    }
}

pub(crate) fn plan(with_places: bool) -> Plan {
    let (places, slots) = (places(), slots());
    let reads = reads(&places, &slots).into_iter();
    Plan {
        vcpu: 0xffff_8880_0000_1000,
        kvm: 0xffff_8880_0000_2000,
        outputs: -1,
        has_nested_paging: true,
        record: -1,
        pointer: pointer(&places, &slots).filter(|_| with_places),
        reads: reads.filter(|_| with_places).collect(),
        stacks: None,
        host_record: None,
        sampled: Sampled::Ticks,
        time_offset: 0,
    }
}
