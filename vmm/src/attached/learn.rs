//! Learns what runs in a guest that nobody has told about.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use kvmprof_attach::AttachedMemory;
use kvmprof_attach::tracer::{Look, TracedVcpu};
use kvmprof_introspection::{GuestKnowledge, Registers};

use crate::vcpu::select_registers;

/// Between two looks for a kernel, in a guest that hasn't started one yet.
const PAUSE: Duration = Duration::from_millis(250);

/// Finds the guest's kernel from what its first vCPU runs.
pub struct Learner {
    vcpu: TracedVcpu,
}

impl Learner {
    /// By this vCPU.
    pub fn new(vcpu: TracedVcpu) -> Self {
        Self { vcpu }
    }

    /// Completes `knowledge`, if that is pending. A guest that runs no kernel yet is looked at again and again, until
    /// `stopping` is set.
    pub fn learn(
        mut self,
        memory: &Arc<AttachedMemory>,
        knowledge: &GuestKnowledge,
        stopping: &AtomicBool,
    ) {
        let mut is_told = false;
        while knowledge.is_pending() && !stopping.load(Ordering::Relaxed) {
            if let Some(registers) = self.registers() {
                match from_memory(memory, &registers) {
                    Ok(learned) => {
                        log::info!("The guest runs {}", learned.describe());
                        knowledge.complete(learned);
                    }
                    Err(error) if !is_told => {
                        is_told = true;
                        log::warn!("{error}");
                    }
                    Err(_) => {}
                }
            }
            if knowledge.is_pending() {
                thread::park_timeout(PAUSE);
            }
        }
    }

    fn registers(&mut self) -> Option<Registers> {
        let looked = self.vcpu.look(|vcpu| vcpu.registers());
        match looked {
            Ok(Look::Seen((regs, sregs))) => Some(select_registers(&regs, &sregs)),
            Ok(_) => None,
            Err(error) => {
                log::debug!("The guest's kernel isn't looked for now: {error}");
                None
            }
        }
    }
}
fn from_memory(_m: &Arc<AttachedMemory>, _r: &Registers) -> Result<GuestKnowledge, String> {
    Err("later".into())
}
