//! A vCPU that stands still.

use kvmprof_introspection::{ProcessFate, ProcessInstance, Registers, VcpuIntrospector};

use super::view::VcpuView;

use crate::machine::GuestMemory;

/// A process that was never met is looked for once in so many of its turns: that takes longer than to look at one.
pub const SEARCH_PERIOD: u64 = 64;

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

impl<'a> StoppedVcpu<'a> {
    /// The vCPU that `view` looks at, while it has these registers.
    pub fn new(view: &'a VcpuView<GuestMemory>, registers: &'a Registers) -> Self {
        Self {
            memory: &view.memory,
            registers,
            introspector: &view.introspector,
        }
    }

    /// What has become of process `pid`, which is `instance` if it was met. It has had so many turns before. `None` when that
    /// is unknown, or is not looked for in this turn.
    pub fn fate(
        &self,
        pid: i32,
        instance: Option<&ProcessInstance>,
        turns: u64,
    ) -> Option<ProcessFate> {
        if let Some(instance) = instance {
            return (self.introspector).fate(self.memory, self.registers, instance);
        }
        if !turns.is_multiple_of(SEARCH_PERIOD) {
            return None;
        }
        let found = (self.introspector).find_process(self.memory, self.registers, pid)?;
        found.is_none().then_some(ProcessFate::Ended)
    }
}

/// The element of `list` whose turn it is at tick number `tick`, and how many turns it has had.
pub fn in_turn<T>(list: &[T], tick: u64) -> Option<(&T, u64)> {
    let length = list.len() as u64;
    let turn = usize::try_from(tick.checked_rem(length)?).ok()?;
    Some((list.get(turn)?, tick / length))
}
