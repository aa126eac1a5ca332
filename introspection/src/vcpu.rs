//! One vCPU's view of its guest. What only vCPUs of Linux guests have is in `linux/cpu.rs`.

use std::sync::Arc;

use crate::PhysicalMemory;

use kvmprof_recording::{StackEnd, StackParts};

use super::knowledge::{Guest, GuestKnowledge};
use super::linux::{Cpu, ProcessInstance};
use super::process_places::ProcessPlaces;
use super::unwind::{StackSource, UnwindCache};
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
            Guest::Other(other) => {
                other.locate(memory, registers);
                noted::identify(other.note(), memory, registers, halted, want_process_group)
            }
        }
    }

    /// Notes where the vCPU, which is stopped with `registers` at `time` (ns of CLOCK_MONOTONIC), is in the guest's firmware, so that
    /// [`Firmware::name`](super::Firmware::name) can name that code. Does nothing once the guest's kernel is known.
    pub fn note_firmware<M: PhysicalMemory>(&self, memory: &M, registers: &Registers, time: u64) {
        if self.knowledge.is_pending() {
            self.knowledge.firmware().note(memory, registers, time);
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
            Guest::Other(other) => noted::places(other.note(), memory, registers),
        }
    }

    /// Sets the number of the guest's CPU that this vCPU is, counted from 0, and forgets everything found until now.
    pub fn renumber(&mut self, number: u16) {
        self.cpu = Cpu::new(number);
    }

    /// Forgets everything found until now, because the guest restarts. The number of its CPU stays.
    pub fn start_anew(&mut self) {
        self.renumber(self.cpu.number());
        self.cache = UnwindCache::default();
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
            Guest::Linux(_) => self.processes(memory, registers)?.running(),
            Guest::Other(_) => (pid >= 0).then(|| ProcessInstance::from_pid(pid)),
        }
    }

    /// Unwinds the selected parts of the call stack of the vCPU, which is stopped with `registers`. Among guests other
    /// than Linux, those whose image isn't stripped, and was seen to run, have call stacks; the others have only the program counter. Bounded
    /// like [`VcpuIntrospector::identify`].
    ///
    /// With `copies` it is the stack that the vCPU had when it was stopped, of which the copies were made then; all other
    /// memory that is read doesn't change. A part that continues outside the copies is truncated.
    pub fn unwind<M: PhysicalMemory>(
        &mut self,
        memory: &M,
        registers: &Registers,
        parts: StackParts,
        copies: Option<&[StackCopy<'_>]>,
        stack: &mut Stack,
    ) {
        stack.clear();
        let source = StackSource { parts, copies };
        match self.knowledge.guest() {
            Guest::Linux(linux) => {
                (self.cpu).unwind(linux, memory, registers, source, stack);
            }
            Guest::Other(other) => match other.placed() {
                Some(placed) => {
                    let unwinder = &placed.unwinder;
                    unwinder.unwind(memory, registers, source, &mut self.cache, stack);
                }
                None => stack.only(registers.rip, registers.cpl, StackEnd::Unsupported),
            },
        }
    }
}
