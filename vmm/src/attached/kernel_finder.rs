//! Finds the kernel that runs in a guest of another program.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use kvmprof_attach::remote::{Channel, RemoteVcpu};
use kvmprof_introspection::{
    BuildFiles, GuestKnowledge, IntrospectionError, LinuxKnowledge, Registers,
};

use super::vcpu_look::VcpuLook;
use kvmprof_profiling::clock::monotonic_ns;
use kvmprof_profiling::sampling::Gate;

/// The pause between two looks for a kernel, in a guest that hasn't started one yet.
const PAUSE: Duration = Duration::from_millis(250);
/// The vCPUs are sampled after this number of looks although the registers of none could be read.
const FIRST_LOOKS: usize = 8;

/// Finds the guest's kernel from the registers of its vCPUs.
pub struct KernelFinder {
    memory: Arc<Channel>,
    vcpus: Vec<RemoteVcpu>,
    /// The number of looks so far.
    looks: usize,
    /// Whether a vCPU's registers were read.
    has_seen: bool,
    /// Whether another kernel runs than that of the file, which has been logged.
    is_other: bool,
    /// What the kernel's build has left behind, if it was given.
    files: BuildFiles,
    reading: Reading,
}

/// The reading of a running kernel, which may just have been started.
#[derive(Default)]
pub struct Reading {
    /// What wasn't known of the kernel the last time.
    gaps: Vec<String>,
}

impl Reading {
    /// Whether a kernel was read that has to be read again.
    pub fn is_open(&self) -> bool {
        !self.gaps.is_empty()
    }

    /// Reads the kernel that a vCPU with `registers` runs. `None` if its memory may be incomplete: it has to be read again.
    ///
    /// # Errors
    /// There is no Linux kernel, or `files` are those of another one.
    pub fn read(
        &mut self,
        memory: &Arc<Channel>,
        registers: &Registers,
        files: &BuildFiles,
    ) -> Result<Option<GuestKnowledge>, IntrospectionError> {
        let found = GuestKnowledge::from_memory_with(memory, registers, files)?;
        let gaps = found.linux().map_or(&[][..], LinuxKnowledge::gaps);
        if gaps != self.gaps {
            self.gaps = gaps.to_vec();
            return Ok(None);
        }
        for gap in gaps {
            log::info!("{gap}");
        }
        Ok(Some(found))
    }
}

impl KernelFinder {
    /// Looks at these vCPUs in turn, in the guest whose memory is `memory`: one of them may run a guest of its own, or nothing yet.
    pub fn new(memory: Arc<Channel>, vcpus: Vec<RemoteVcpu>, files: BuildFiles) -> Self {
        Self {
            memory,
            vcpus,
            looks: 0,
            has_seen: false,
            is_other: false,
            files,
            reading: Reading::default(),
        }
    }

    /// Completes `knowledge` if it is pending, and a kernel runs. Locates the kernel if its file is known.
    ///
    /// # Errors
    /// The reason why the kernel can't be found now, and once that a file is another kernel's ([`IntrospectionError::is_of_other_kernel`]).
    pub fn look(&mut self, knowledge: &GuestKnowledge) -> Result<(), IntrospectionError> {
        let is_pending = knowledge.is_pending();
        if !is_pending && !knowledge.is_unlocated() {
            return Ok(());
        }
        let Some(registers) = self.registers() else {
            return Ok(());
        };
        let memory = &self.memory;
        if is_pending {
            if let Some(found) = self.reading.read(memory, &registers, &self.files)? {
                knowledge.firmware().name(&**memory);
                knowledge.complete(found);
                knowledge.firmware().end(monotonic_ns());
            }
        } else if let Some(linux) = knowledge.linux()
            && linux.locate(memory, &registers).is_none()
            // The code that runs now may be the boot loader.
            && !self.is_other
        {
            let compared = linux.compare_with_running(memory, &registers);
            self.is_other = matches!(compared, Err(IntrospectionError::OtherBuild { .. }));
            compared?;
        }
        knowledge.locate_image(memory, &registers);
        Ok(())
    }

    /// Looks again and again, until `knowledge` is complete and the kernel is located, or `stopping` is set. Opens the gate once it has seen a
    /// vCPU's registers, and what runs there. Returns the finder.
    pub fn search(
        mut self,
        knowledge: &GuestKnowledge,
        sampled: &Gate,
        stopping: &AtomicBool,
    ) -> Self {
        let is_open = || knowledge.is_pending() || knowledge.is_unlocated();
        while is_open() && !stopping.load(Ordering::Relaxed) {
            if self.looks > 0 {
                thread::park_timeout(PAUSE);
            }
            if knowledge.is_pending() {
                knowledge.firmware().name(&*self.memory);
            }
            match self.look(knowledge) {
                Err(error) if error.is_of_other_kernel() && !self.files.is_empty() => {
                    log::warn!("{error}: the kernel's own memory is read instead");
                    self.files = BuildFiles::default();
                }
                Err(error) if !sampled.is_open() || error.is_of_other_kernel() => {
                    log::warn!("Samples have no processes for now: {error}");
                }
                Err(error) => log::debug!("{error}"),
                Ok(()) => {}
            }
            // The first samples wait for a second reading, too.
            if self.has_seen && !self.reading.is_open() || self.looks >= FIRST_LOOKS {
                sampled.open();
            }
        }
        sampled.open();
        self
    }

    /// The memory and the vCPUs, for another user on the same thread.
    pub fn into_parts(self) -> (Arc<Channel>, Vec<RemoteVcpu>) {
        (self.memory, self.vcpus)
    }

    /// The registers of the vCPU whose turn it is; `None` if it hasn't started, runs a nested guest, or can't be stopped now.
    fn registers(&mut self) -> Option<Registers> {
        let turn = self.looks.checked_rem(self.vcpus.len())?;
        self.looks += 1;
        let vcpu = self.vcpus.get_mut(turn)?;
        let registers = VcpuLook::new(vcpu).registers();
        self.has_seen |= registers.is_some();
        registers
    }
}
