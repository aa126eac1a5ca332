//! The places of the running process's identity in a Linux guest.

use std::sync::atomic::Ordering;

use kvmprof_recording::COMM_LENGTH;
use vm_memory::GuestAddress;

use super::cpu::per_cpu;
use super::task_layout::{PerCpu, SOFTIRQ};
use super::{Cpu, LinuxKnowledge};
use crate::process_places::{
    LinearMap, ProcessPlaces, TaskMemory, TaskPointer, ValueAt, ValueKind, ValuePlace,
};
use crate::{PhysicalMemory, Registers};

/// The longest direct mapping, in bytes (`Documentation/arch/x86/x86_64/mm.rst`, 5 levels).
const DIRECT_MAP_LENGTH: u64 = 1 << 55;
/// Maximum distance of a task's fields from its start, in bytes.
const MAX_TASK: u64 = 1 << 20;

impl Cpu {
    /// The places of this CPU's running task. `None` until [`Cpu::identify`] has found a task, and while the kernel
    /// starts up.
    pub fn places<M: PhysicalMemory>(
        &self,
        linux: &LinuxKnowledge,
        memory: &M,
        registers: &Registers,
    ) -> Option<ProcessPlaces> {
        let placement = linux.placement.get()?;
        let view = linux.view(memory, registers)?;
        let base = match linux.addresses.per_cpu {
            PerCpu::NotSmp => 0,
            PerCpu::Table { .. } | PerCpu::UnknownTable => self.base?,
        };
        // Before tasks are scheduled, the kernel's start-up has pid 0, and isn't idle.
        let state = linux.addresses.system_state;
        let state = state.and_then(|state| view.variable_u32(state));
        if state.is_some_and(|state| state < linux.addresses.scheduling) {
            return None;
        }
        let direct_map = linux.direct_map.load(Ordering::Relaxed);
        (direct_map != 0).then_some(())?;
        let place = |symbol| view.translate(per_cpu(symbol, placement, base));
        let image = linux.image();
        let maps = vec![
            LinearMap {
                address: direct_map,
                physical: GuestAddress(0),
                bytes: DIRECT_MAP_LENGTH,
            },
            // The first idle task is one of the kernel's variables.
            LinearMap {
                address: image.start.wrapping_add(placement.slide),
                physical: placement.physical(image.start),
                bytes: image.end.saturating_sub(image.start),
            },
        ];
        let task = TaskPointer {
            at: place(linux.addresses.current?)?,
            maps,
            memory: linux.task_memory(direct_map),
        };
        let preempt_count = linux.addresses.preempt_count.and_then(place);
        Some(ProcessPlaces {
            task: Some(task),
            values: linux.values(preempt_count),
            interrupt_stack: linux.addresses.interrupt_stack.and_then(place),
            is_linux: true,
        })
    }
}

impl LinuxKnowledge {
    /// Where tasks have their memory, with the direct mapping at `direct_map`.
    fn task_memory(&self, direct_map: u64) -> Option<TaskMemory> {
        let layout = self.processes.as_ref()?;
        let offsets = [layout.mm, layout.address_space.pgd];
        (offsets.iter().all(|offset| *offset < MAX_TASK)).then_some(TaskMemory {
            mm: layout.mm,
            page_tables: layout.address_space.pgd,
            stack: self.tasks.stack.filter(|offset| *offset < MAX_TASK),
            direct_map,
        })
    }

    fn values(&self, preempt_count: Option<GuestAddress>) -> Vec<ValuePlace> {
        let in_task = |kind, offset: Option<u64>, width| {
            let offset = offset.filter(|offset| *offset < MAX_TASK)?;
            Some(ValuePlace {
                kind,
                at: ValueAt::Task(offset),
                width,
            })
        };
        let comm = u8::try_from(COMM_LENGTH).unwrap_or_default();
        let softirqs = ValueKind::Interrupts(SOFTIRQ.into());
        let interrupts = preempt_count.map(|address| ValuePlace {
            kind: ValueKind::PreemptCount(self.addresses.interrupts, self.addresses.preemption),
            at: ValueAt::Physical(address),
            width: 4,
        });
        let all = [
            in_task(ValueKind::Pid, self.tasks.tgid.ok(), 4),
            in_task(ValueKind::Tid, self.tasks.pid.ok(), 4),
            in_task(ValueKind::Comm, self.tasks.comm.ok(), comm),
            in_task(softirqs, self.tasks.softirq_count, 4),
            interrupts,
        ];
        all.into_iter().flatten().collect()
    }
}
