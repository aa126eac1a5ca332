//! What a recording says of itself.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use kvmprof_recording::file::{Facts, KernelFacts, Stacks};

use crate::clock::monotonic_ns;
use crate::profiler::{ClockPlan, MachineFacts};
use kvmprof_introspection::{GuestKnowledge, StackWish};

/// What is to be recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordWish {
    /// The parts of the stacks.
    pub stacks: StackWish,
    /// The processes, by pid; none: all of them.
    pub pids: Vec<i32>,
}

/// The facts of a recording that begins now, of ticks at `hz` on each of `vcpus` vCPUs.
pub fn facts(
    machine: &MachineFacts,
    clock: &ClockPlan,
    hz: u32,
    vcpus: usize,
    wish: &RecordWish,
) -> Facts {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Facts {
        program: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: machine.kernel.clone(),
        vcpus: u32::try_from(vcpus).unwrap_or(u32::MAX),
        hz,
        clock: clock.source.name().to_owned(),
        jitter: clock.jitter,
        memory_bytes: machine.memory_bytes,
        began_ns: now.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
        began_monotonic_ns: monotonic_ns(),
        stacks: Stacks {
            kernel: wish.stacks.kernel,
            user: wish.stacks.user,
        },
        pids: wish.pids.clone(),
    }
}

/// The block about the guest's kernel, once it is known where that runs.
pub fn kernel_block(knowledge: &GuestKnowledge) -> Option<Arc<[u8]>> {
    let linux = knowledge.linux()?;
    let facts = KernelFacts {
        release: linux.release().to_owned(),
        build_id: linux.build_id().to_owned(),
        slide: linux.slide()?,
    };
    Some(facts.to_block()?.into())
}
