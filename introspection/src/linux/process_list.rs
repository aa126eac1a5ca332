//! Lists all processes of a Linux guest with what is known of each, while the guest runs.

use kvmprof_abi::text::task_name;
use kvmprof_paging::AddressSpace;
use kvmprof_recording::processes::{GuestProcess, GuestProcessList};

use super::LinuxKnowledge;
use super::cpu::process_name;
use super::processes::{Labelled, ListedProcess, ProcessLayout, page_tables};
use super::view::KernelView;
use crate::{PhysicalMemory, Registers};

/// A kernel's memory by its own page tables.
struct Kernel<'a, M> {
    linux: &'a LinuxKnowledge,
    memory: &'a M,
    registers: Registers,
    view: KernelView<'a, M>,
}

impl LinuxKnowledge {
    /// All processes with their labels, each behind the one that has forked it. `None` if they are unknown: until the slide is known, and if there are
    /// more than 4096. Takes up to some 100 ms for these. The guest may run meanwhile: processes that are started or end may be missing, and what is said of one
    /// that ends may be of the next one in its place.
    pub fn describe_processes<M: PhysicalMemory>(&self, memory: &M) -> Option<GuestProcessList> {
        let registers = self.modules.kernel_registers(self.placement.get()?)?;
        let view = self.view(memory, &registers)?;
        let list = self.processes(memory, &registers, None)?.all()?;
        let kernel = Kernel {
            linux: self,
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
        let state = self.linux.task_list.as_ref().and_then(|layout| {
            let state = layout.state_of(&self.view, task)?;
            Some((state.letter(), layout.vcpu_of(&self.view, task)?))
        });
        let name = process_name(self.linux, &self.view, task);
        let layout = self.linux.processes.as_ref();
        let labels = layout.map(|layout| {
            let memory = self.memory_of(layout, task);
            let memory = memory.as_ref().unwrap_or(self.view.space());
            Labelled::new(self.linux, layout, &self.view, task).texts(memory)
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
            cr3: page_tables(&self.view, layout, mm)?,
            ..self.registers
        };
        Some(AddressSpace::new(self.memory, &registers))
    }
}
