//! One vCPU's view of its guest.

use std::sync::Arc;

use crate::PhysicalMemory;

use kvmprof_recording::{StackEnd, StackParts};

use super::knowledge::{Guest, GuestKnowledge};
use super::linux::{Cpu, ProcessMap};
use super::{Identity, Registers, Stack, bare_mode, noted};

/// Tells whom one vCPU is running. It belongs to that vCPU's thread.
#[derive(Debug)]
pub struct VcpuIntrospector {
    knowledge: Arc<GuestKnowledge>,
    cpu: Cpu,
}

impl VcpuIntrospector {
    /// For the vCPU of index `vcpu`, counted from 0.
    pub fn new(knowledge: Arc<GuestKnowledge>, vcpu: u16) -> Self {
        Self {
            knowledge,
            cpu: Cpu::new(vcpu),
        }
    }

    /// Whom the vCPU is running, which stands still with `registers`, in HLT when `halted`. The process
    /// group costs two more pointers to follow, so it is looked up only when wanted.
    ///
    /// Waits for no lock, allocates nothing, never panics, and reads a bounded number of times whatever is in
    /// guest memory.
    pub fn identify<M: PhysicalMemory>(
        &mut self,
        memory: &M,
        registers: &Registers,
        halted: bool,
        want_process_group: bool,
    ) -> Identity {
        match self.knowledge.guest() {
            Guest::Linux(linux) => {
                self.cpu
                    .identify(linux, memory, registers, halted, want_process_group)
            }
            Guest::Note(note, _) => {
                noted::identify(note, memory, registers, halted, want_process_group)
            }
            Guest::Unknown(_) => Identity::unknown(bare_mode(registers, halted)),
        }
    }

    /// Where the process that [`VcpuIntrospector::identify`] has just met has its code, if that is news: this vCPU
    /// meets it for the first time, or finds other mappings than before. `time` is that of the sample.
    ///
    /// Bounded as `identify` is, but what is found is put into new memory, and takes longer: some 10 us.
    pub fn follow_process<M: PhysicalMemory>(
        &mut self,
        memory: &M,
        registers: &Registers,
        time: u64,
    ) -> Option<Arc<ProcessMap>> {
        let linux = self.knowledge.linux()?;
        self.cpu.follow_process(linux, memory, registers, time)
    }

    /// The last news of a process couldn't be passed on: they will come again.
    pub fn forget_process(&mut self) {
        self.cpu.forget_process();
    }

    /// The wanted parts of the call stack of the vCPU, which stands still with `registers`; of guests other than
    /// Linux only the program counter. Bounded as [`VcpuIntrospector::identify`] is.
    pub fn unwind<M: PhysicalMemory>(
        &mut self,
        memory: &M,
        registers: &Registers,
        parts: StackParts,
        stack: &mut Stack,
    ) {
        stack.clear();
        match self.knowledge.guest() {
            Guest::Linux(linux) => (self.cpu).unwind(linux, memory, registers, parts, stack),
            Guest::Note(..) | Guest::Unknown(_) => {
                stack.only(registers.rip, registers.cpl, StackEnd::Unsupported);
            }
        }
    }
}
