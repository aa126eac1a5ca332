//! One vCPU's view of its guest.

use std::sync::Arc;

use crate::PhysicalMemory;

use kvmprof_recording::{StackEnd, StackParts};

use super::knowledge::{Guest, GuestKnowledge};
use super::linux::{Cpu, ProcessMap};
use super::{Identity, Registers, Stack, bare_mode, noted};

/// Identifies what one vCPU is running. It belongs to that vCPU's thread.
#[derive(Debug)]
pub struct VcpuIntrospector {
    knowledge: Arc<GuestKnowledge>,
    cpu: Cpu,
}

impl VcpuIntrospector {
    /// `vcpu` is the vCPU's index, counted from 0.
    pub fn new(knowledge: Arc<GuestKnowledge>, vcpu: u16) -> Self {
        Self {
            knowledge,
            cpu: Cpu::new(vcpu),
        }
    }

    /// Finds the process and thread on the vCPU, which is stopped with `registers`, in HLT if `halted`. The process
    /// group costs two more reads, so it is looked up only on request.
    ///
    /// Takes no lock, allocates nothing, never panics, and makes a bounded number of reads whatever guest memory holds.
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

    /// The mappings of the process that [`VcpuIntrospector::identify`] has just found, if this vCPU sees the process
    /// for the first time, or its mappings have changed. `time` is the sample's.
    ///
    /// Bounded like `identify`, but allocates memory for a result, and takes some 10 us for it.
    pub fn follow_process<M: PhysicalMemory>(
        &mut self,
        memory: &M,
        registers: &Registers,
        time: u64,
    ) -> Option<Arc<ProcessMap>> {
        let linux = self.knowledge.linux()?;
        self.cpu.follow_process(linux, memory, registers, time)
    }

    /// Forgets the last process's mappings, which couldn't be passed on, so that they are returned again.
    pub fn forget_process(&mut self) {
        self.cpu.forget_process();
    }

    /// Unwinds the selected parts of the call stack. The vCPU is stopped with `registers`. Guests other than Linux have
    /// only the program counter. Bounded like [`VcpuIntrospector::identify`].
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
