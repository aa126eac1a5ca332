//! Finds the kernel that runs in a guest of another program.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use kvmprof_attach::tracer::{SLOW_PAUSE, StopOutcome, TracedVcpu};
use kvmprof_attach::{AttachedMemory, NestedGuest};
use kvmprof_introspection::{GuestKnowledge, IntrospectionError, Registers};

use kvmprof_profiling::sampling::Gate;
use kvmprof_profiling::sampling::select_registers;

/// The pause between two looks for a kernel, in a guest that hasn't started one yet.
const PAUSE: Duration = Duration::from_millis(250);
/// The vCPUs are sampled after this number of looks although the registers of none could be read.
const FIRST_LOOKS: usize = 8;

/// Finds the guest's kernel from the registers of its vCPUs.
pub struct KernelFinder {
    vcpus: Vec<TracedVcpu>,
    /// The number of looks so far.
    looks: usize,
    /// Whether a vCPU's registers were read.
    has_seen: bool,
    /// Whether another kernel runs than that of the file, which has been logged.
    is_other: bool,
    /// What wasn't known of the kernel at the last look.
    gaps: Vec<String>,
}

impl KernelFinder {
    /// Looks at these vCPUs in turn: one of them may run a guest of its own, or nothing yet.
    pub fn new(vcpus: Vec<TracedVcpu>) -> Self {
        Self {
            vcpus,
            looks: 0,
            has_seen: false,
            is_other: false,
            gaps: Vec::new(),
        }
    }

    /// Completes `knowledge` if it is pending, and a kernel runs. Locates the kernel if its file is known.
    ///
    /// # Errors
    /// The reason why the kernel can't be found now, and [`IntrospectionError::OtherBuild`] once.
    pub fn look(
        &mut self,
        memory: &Arc<AttachedMemory>,
        knowledge: &GuestKnowledge,
    ) -> Result<(), IntrospectionError> {
        let is_pending = knowledge.is_pending();
        if !is_pending && !knowledge.is_unlocated() {
            return Ok(());
        }
        let Some(registers) = self.registers(memory) else {
            return Ok(());
        };
        if is_pending {
            let found = GuestKnowledge::from_memory(memory, &registers)?;
            // While a kernel starts, its memory may not have everything yet.
            let is_final = found.gaps() == self.gaps;
            self.gaps = found.gaps().to_vec();
            if is_final {
                for gap in found.gaps() {
                    log::info!("{gap}");
                }
                knowledge.complete(found);
            }
        } else if self.is_other {
            // The code that runs now may be the boot loader.
            knowledge.locate(memory, &registers);
        } else {
            let located = knowledge.locate_or_compare(memory, &registers);
            self.is_other = matches!(located, Err(IntrospectionError::OtherBuild { .. }));
            located?;
        }
        Ok(())
    }

    /// Does what [`Self::look`] does, on a thread that ends afterwards. The thread's end releases a vCPU that was too slow to be stopped.
    ///
    /// # Errors
    /// As for [`Self::look`].
    pub fn look_apart(
        &mut self,
        memory: &Arc<AttachedMemory>,
        knowledge: &GuestKnowledge,
    ) -> Result<(), IntrospectionError> {
        let looked = thread::scope(|scope| {
            let look = scope.spawn(|| self.look(memory, knowledge));
            look.join()
        });
        self.vcpus.iter_mut().for_each(TracedVcpu::tracer_has_ended);
        looked.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Looks again and again, until `knowledge` is complete and the kernel is located, or `stopping` is set. Opens the gate once it has seen a
    /// vCPU's registers, and what runs there. Returns the finder.
    pub fn search(
        mut self,
        memory: &Arc<AttachedMemory>,
        knowledge: &GuestKnowledge,
        sampled: &Gate,
        stopping: &AtomicBool,
    ) -> Self {
        let is_open = || knowledge.is_pending() || knowledge.is_unlocated();
        while is_open() && !stopping.load(Ordering::Relaxed) {
            if self.looks > 0 && !self.pause() {
                continue;
            }
            match self.look(memory, knowledge) {
                Err(error)
                    if !sampled.is_open()
                        || matches!(error, IntrospectionError::OtherBuild { .. }) =>
                {
                    log::warn!("Samples have no processes for now: {error}");
                }
                Err(error) => log::debug!("{error}"),
                Ok(()) => {}
            }
            if self.has_seen || self.looks >= FIRST_LOOKS {
                sampled.open();
            }
        }
        sampled.open();
        self
    }

    /// Pauses between two looks. False if a vCPU that was too slow for the last look may be too slow still.
    fn pause(&mut self) -> bool {
        let is_slow = self.vcpus.iter().any(TracedVcpu::is_slow);
        thread::park_timeout(if is_slow { SLOW_PAUSE } else { PAUSE });
        self.vcpus.iter_mut().for_each(TracedVcpu::let_go);
        !is_slow
    }

    /// The vCPUs, for another user on the same thread.
    pub fn into_vcpus(self) -> Vec<TracedVcpu> {
        self.vcpus
    }

    /// The registers of the vCPU whose turn it is; `None` if it runs a nested guest, or can't be stopped now.
    fn registers(&mut self, memory: &AttachedMemory) -> Option<Registers> {
        let turn = self.looks.checked_rem(self.vcpus.len())?;
        self.looks += 1;
        let vcpu = self.vcpus.get_mut(turn)?;
        let nested = memory.nested_guest(vcpu.descriptor());
        let looked = vcpu.look(|vcpu| {
            if nested.as_ref().is_some_and(NestedGuest::runs) {
                return Ok(None);
            }
            vcpu.registers().map(Some)
        });
        match looked {
            Ok(StopOutcome::Stopped(seen)) => {
                self.has_seen |= seen.is_some();
                seen.map(|(regs, sregs)| select_registers(&regs, &sregs))
            }
            Ok(_) => None,
            Err(error) => {
                log::debug!("The guest's kernel isn't looked for now: {error}");
                None
            }
        }
    }
}
