//! One vCPU's view of its guest. What only vCPUs of Linux guests have is in `linux/cpu.rs`.

use std::sync::Arc;

use crate::PhysicalMemory;

use kvmprof_recording::{StackEnd, StackParts};

use super::knowledge::{Guest, GuestKnowledge};
use super::linux::StackSource;
use super::linux::{Cpu, ProcessFate, ProcessInstance};
use super::process_places::ProcessPlaces;
use super::unwind::UnwindCache;
use super::{Identity, Registers, Stack, StackCopy, noted};

/// Identifies what one vCPU is running. Belongs to that vCPU's thread.
#[derive(Debug)]
pub struct VcpuIntrospector {
    pub(crate) knowledge: Arc<GuestKnowledge>,
    pub(crate) cpu: Cpu,
    /// The cache for stacks of guests that aren't Linux.
    cache: UnwindCache,
}

impl VcpuIntrospector {
    /// `vcpu` is the vCPU's index, counted from 0.
    pub fn new(knowledge: Arc<GuestKnowledge>, vcpu: u16) -> Self {
        Self {
            knowledge,
            cpu: Cpu::new(vcpu),
            cache: UnwindCache::default(),
        }
    }

    /// Finds the process and thread on the vCPU, which is stopped with `registers`, in HLT if `halted`. The process
    /// group costs two more reads, so it is looked up only on request.
    ///
    /// Takes no lock, allocates nothing, never panics, and makes a bounded number of reads for any contents of guest memory.
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
            Guest::Unknown(_) => Identity::at_level(registers.cpl, halted),
        }
    }

    /// The places of the identity of whatever this vCPU runs from now on, which can be read without its registers.
    /// `None` until [`VcpuIntrospector::identify`] has found a process, and for guests whose processes are unknown.
    pub fn places<M: PhysicalMemory>(
        &self,
        memory: &M,
        registers: &Registers,
    ) -> Option<ProcessPlaces> {
        match self.knowledge.guest() {
            Guest::Linux(linux) => self.cpu.places(linux, memory, registers),
            Guest::Note(note, _) => noted::places(note, memory, registers),
            Guest::Unknown(_) => None,
        }
    }

    /// Whether the result of [`VcpuIntrospector::places`] is final. Until a Linux kernel has been seen on this vCPU,
    /// the places are those of the CPU with the vCPU's number. That can be another CPU, if vCPUs were added later, or
    /// if the first ones don't run.
    pub fn places_are_sure(&self) -> bool {
        let linux = self.knowledge.linux();
        linux.is_none_or(|linux| self.cpu.is_sure(linux))
    }

    /// Sets the number of the guest's CPU that this vCPU is, counted from 0, and forgets everything found until now.
    pub fn renumber(&mut self, number: u16) {
        self.cpu = Cpu::new(number);
    }

    /// The process that [`VcpuIntrospector::identify`] has just found with this `pid`. `None` if it can't be
    /// distinguished from later ones with the same pid.
    pub fn instance<M: PhysicalMemory>(
        &self,
        memory: &M,
        registers: &Registers,
        pid: i32,
    ) -> Option<ProcessInstance> {
        match self.knowledge.guest() {
            Guest::Linux(linux) => self.cpu.instance(linux, memory, registers),
            Guest::Note(..) if pid >= 0 => Some(ProcessInstance::from_pid(pid)),
            Guest::Note(..) | Guest::Unknown(_) => None,
        }
    }

    /// The state of `instance` now. `None` if that is unknown. Visits up to 4096 processes.
    pub fn fate<M: PhysicalMemory>(
        &self,
        memory: &M,
        registers: &Registers,
        instance: &ProcessInstance,
    ) -> Option<ProcessFate> {
        let linux = self.knowledge.linux()?;
        linux.fate(memory, registers, instance)
    }

    /// Whether `instance` is alive, according to its structure alone. `None` if that memory now has another use, so
    /// that only [`VcpuIntrospector::fate`] can tell.
    pub fn lives<M: PhysicalMemory>(
        &self,
        memory: &M,
        registers: &Registers,
        instance: &ProcessInstance,
    ) -> Option<bool> {
        let linux = self.knowledge.linux()?;
        linux.lives(memory, registers, instance)
    }

    /// The process `pid` of a Linux guest; `Some(None)` if there is none. `None` if that is unknown. Visits up to 4096
    /// processes.
    pub fn find_process<M: PhysicalMemory>(
        &self,
        memory: &M,
        registers: &Registers,
        pid: i32,
    ) -> Option<Option<ProcessInstance>> {
        let linux = self.knowledge.linux()?;
        linux.find_process(memory, registers, pid)
    }

    /// Forgets the last process's mappings, which the caller couldn't pass on, so that they are returned again.
    pub fn forget_process(&mut self) {
        self.cpu.forget_process();
    }

    /// Unwinds the selected parts of the call stack of the vCPU, which is stopped with `registers`. Among guests other
    /// than Linux, those whose image isn't stripped have call stacks; the others have only the program counter. Bounded
    /// like [`VcpuIntrospector::identify`].
    pub fn unwind<M: PhysicalMemory>(
        &mut self,
        memory: &M,
        registers: &Registers,
        parts: StackParts,
        stack: &mut Stack,
    ) {
        let copies = None;
        self.unwind_at(memory, registers, StackSource { parts, copies }, stack);
    }

    /// Unwinds the selected parts of the call stack that a vCPU had when it was stopped with `registers`, from `copies`
    /// of the stack that were made then, and from memory that doesn't change. A part that continues outside the copies
    /// is truncated. Bounded like [`VcpuIntrospector::identify`].
    pub fn unwind_copies<M: PhysicalMemory>(
        &mut self,
        memory: &M,
        registers: &Registers,
        parts: StackParts,
        copies: &[StackCopy<'_>],
        stack: &mut Stack,
    ) {
        let copies = Some(copies);
        self.unwind_at(memory, registers, StackSource { parts, copies }, stack);
    }

    fn unwind_at<M: PhysicalMemory>(
        &mut self,
        memory: &M,
        registers: &Registers,
        source: StackSource<'_>,
        stack: &mut Stack,
    ) {
        stack.clear();
        match self.knowledge.guest() {
            Guest::Linux(linux) => (self.cpu).unwind(linux, memory, registers, source, stack),
            Guest::Note(..) | Guest::Unknown(_) => match self.knowledge.image_unwinder() {
                // Only stacks of Linux guests are copied.
                Some(unwinder) if source.copies.is_none() => {
                    unwinder.unwind(memory, registers, source.parts, &mut self.cache, stack);
                }
                _ => stack.only(registers.rip, registers.cpl, StackEnd::Unsupported),
            },
        }
    }
}
