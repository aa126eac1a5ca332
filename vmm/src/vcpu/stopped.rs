//! A vCPU that stands still.

use kvmprof_introspection::{ProcessInstance, Registers, VcpuIntrospector};

use crate::machine::GuestMemory;

/// A stopped vCPU, and what has been found of it.
#[derive(Clone, Copy)]
pub struct StoppedVcpu<'a> {
    /// Guest memory.
    pub memory: &'a GuestMemory,
    /// The vCPU's registers.
    pub registers: &'a Registers,
    /// Has identified what the vCPU runs.
    pub introspector: &'a VcpuIntrospector,
}

/// A process that has something until it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchedProcess {
    /// Its id.
    pub pid: i32,
    /// The process, once it was met.
    pub instance: Option<ProcessInstance>,
}

/// A process that was never met is looked for once in so many of its turns: that takes longer.
const SEARCH_PERIOD: u64 = 64;

/// Looks at each tick whether one of some processes still lives, in turn.
#[derive(Debug, Default)]
pub struct LifeCheck {
    ticks: u64,
}

impl LifeCheck {
    /// The one of so many processes whose turn it is at this tick, and its index, if it has ended. `process` gives one by
    /// its index.
    pub fn ended(
        &mut self,
        processes: usize,
        process: impl FnOnce(usize) -> Option<WatchedProcess>,
        vcpu: StoppedVcpu<'_>,
    ) -> Option<(usize, WatchedProcess)> {
        let count = processes as u64;
        self.ticks += 1;
        let turn = usize::try_from(self.ticks.checked_rem(count)?).ok()?;
        let process = process(turn)?;
        let (memory, registers) = (vcpu.memory, vcpu.registers);
        let lives = match &process.instance {
            Some(instance) => vcpu.introspector.is_alive(memory, registers, instance)?,
            None if (self.ticks / count).is_multiple_of(SEARCH_PERIOD) => {
                let found = vcpu
                    .introspector
                    .find_process(memory, registers, process.pid)?;
                found.is_some()
            }
            None => true,
        };
        (!lives).then_some((turn, process))
    }
}
