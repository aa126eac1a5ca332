//! Lists all processes of a Linux guest with what is known of each, while the guest runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use kvmprof_abi::text::task_name;
use kvmprof_paging::AddressSpace;
use kvmprof_recording::processes::{GuestProcess, GuestProcessList};

use super::LinuxKnowledge;
use super::cpu::process_name;
use super::processes::{Labelled, ListedProcess, ProcessLayout, ProcessView};
use super::view::KernelView;
use crate::{PhysicalMemory, Registers};

/// A list of all processes, and when it was read.
#[derive(Debug)]
pub struct ReadProcesses {
    /// The processes.
    pub list: GuestProcessList,
    /// When the read began.
    pub begun: Instant,
    /// When it ended.
    pub ended: Instant,
}

/// The list that clients wait for.
#[derive(Debug, Default)]
pub(super) struct RequestedList {
    is_wanted: AtomicBool,
    last: Mutex<Option<Arc<ReadProcesses>>>,
}

/// A kernel's memory by its own page tables.
struct Kernel<'a, M> {
    memory: &'a M,
    registers: Registers,
    view: KernelView<'a, M>,
}

impl LinuxKnowledge {
    /// Has the thread of [`Modules::serve`](super::Modules::serve) read the list of all processes. The result is a number for
    /// [`Modules::is_refreshed`](super::Modules::is_refreshed); `None` if there is no such thread.
    pub fn request_processes(&self) -> Option<u64> {
        self.process_list.is_wanted.store(true, Ordering::Release);
        self.modules.refresh()
    }

    /// The list that was read for the last request. `None` if the processes were unknown then.
    pub fn read_processes(&self) -> Option<Arc<ReadProcesses>> {
        let last = self.process_list.last.lock();
        last.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the list if it was requested.
    pub(super) fn serve_processes<M: PhysicalMemory>(&self, memory: &M) {
        if !self.process_list.is_wanted.swap(false, Ordering::AcqRel) {
            return;
        }
        let begun = Instant::now();
        let read = self.describe_processes(memory);
        let ended = Instant::now();
        let read = read.map(|list| ReadProcesses { list, begun, ended });
        let last = self.process_list.last.lock();
        *last.unwrap_or_else(PoisonError::into_inner) = read.map(Arc::new);
    }

    /// All processes with their labels, each behind the one that has forked it. `None` if they are unknown: until the slide is known, and if there are
    /// more than 4096. Takes up to some 100 ms for these. The guest may run meanwhile: processes that are started or end may be missing, and what is said of one
    /// that ends may be of the next one in its place.
    pub fn describe_processes<M: PhysicalMemory>(&self, memory: &M) -> Option<GuestProcessList> {
        let registers = self.modules.kernel_registers(self.placement.get()?)?;
        let view = self.view(memory, &registers)?;
        let list = self.processes(memory, &registers, None)?.all()?;
        let kernel = Kernel {
            memory,
            registers,
            view,
        };
        let processes = list.iter().map(|process| kernel.describe(process));
        Some(GuestProcessList {
            processes: processes.collect(),
        })
    }
}

impl<M: PhysicalMemory> Kernel<'_, M> {
    fn describe(&self, listed: &ListedProcess) -> GuestProcess {
        let ListedProcess {
            process, parent, ..
        } = listed;
        let task = process.leader();
        let state = self.view.linux().task_list.as_ref().and_then(|layout| {
            let state = layout.state_of(&self.view, task)?;
            Some((state.letter(), layout.vcpu_of(&self.view, task)?))
        });
        let name = process_name(&self.view, task);
        let layout = self.view.linux().processes.as_ref();
        let labels = layout.map(|layout| {
            let memory = self.memory_of(layout, task);
            let memory = memory.as_ref().unwrap_or(self.view.space());
            Labelled::new(&self.view, layout, task).texts(memory)
        });
        GuestProcess {
            pid: process.pid,
            parent: parent.pid,
            name: task_name(&name).collect(),
            state: state.map_or(' ', |(letter, _)| letter),
            vcpu: state.map(|(_, vcpu)| vcpu),
            labels: labels.unwrap_or_default(),
        }
    }

    /// The memory of the process of the task at `task`; `None` for a thread of the kernel.
    fn memory_of(&self, layout: &ProcessLayout, task: u64) -> Option<AddressSpace<'_, M>> {
        let mm = self.view.pointer(task, layout.mm)?;
        let registers = Registers {
            cr3: ProcessView::new(&self.view, layout).page_tables(mm)?,
            ..self.registers
        };
        Some(AddressSpace::new(self.memory, &registers))
    }
}

#[cfg(test)]
mod tests {
    use crate::test_guest::LinuxGuest;
    use kvmprof_introspection_fixtures::kernel::{HOT, NEW, OLD, task};
    use kvmprof_introspection_fixtures::linux_guest::{DIRECT_MAP, TABLES, TASKS};
    use kvmprof_introspection_fixtures::page_tables::Tables;
    use kvmprof_introspection_fixtures::processes::FixtureMemory;

    /// Where a process has its arguments, in page tables of its own.
    const STACK: u64 = 0x7fff_0000_2000;
    const PAGE_OF_STACK: u64 = 0x50_0000;

    #[test]
    fn processes_are_described_with_their_own_memory() {
        for kernel in [OLD, HOT, NEW] {
            let guest = LinuxGuest::new(kernel);
            let list = || guest.linux().describe_processes(&guest.memory);
            assert_eq!(guest.list_processes(&[2, 1]), 3);
            // The first one is its own parent, as process 0 is, and that of task 3.
            for (index, state) in [(1_u64, 0x402_u32), (3, 1)] {
                let at = TASKS + index * 0x1000;
                let parent = DIRECT_MAP + TASKS + 0x1000;
                guest.write(at + task::PARENT, &parent.to_le_bytes());
                guest.write(at + task::STATE, &state.to_le_bytes());
                guest.write(at + task::CPU, &1_u32.to_le_bytes());
                guest.write(at + task::START_TIME, &2_500_000_000_u64.to_le_bytes());
            }
            let mut room = FixtureMemory::new(&guest, kernel.areas);
            let mm = room.process(3, &[]);
            // A copy of the kernel's tables, which also has what is the process's.
            let mut tables = Tables::new(guest.memory.clone(), TABLES, guest.levels());
            tables.skip_to(0x58_0000);
            tables.map(STACK, PAGE_OF_STACK, 1);
            guest.write(PAGE_OF_STACK, b"sh\0-c\0x\0");
            room.program(mm, 0, [STACK, STACK + 8]);
            assert_eq!(list(), None, "the kernel's place is unknown");
            guest.identify(0, &guest.kernel(0));
            let found = list().unwrap().processes;
            let shown: Vec<_> = (found.iter())
                .map(|one| (one.pid, one.parent, &*one.name, one.state, one.vcpu))
                .collect();
            assert_eq!(
                shown,
                [
                    (101, 101, "task-101", 'I', Some(1)),
                    (103, 101, "task-103", 'S', Some(1)),
                ],
                "{kernel:?}"
            );
            assert_eq!(found[1].labels["arguments"], "sh -c x");
            assert_eq!(found[1].labels["parent"], "101");
            assert_eq!(found[0].labels["started"], "2.500000000");
            assert_eq!(found[0].labels.get("arguments"), None);
        }
    }
}
