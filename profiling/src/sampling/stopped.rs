//! A stopped vCPU.

use kvmprof_introspection::{
    GuestProcesses, ProcessFate, ProcessInstance, Registers, VcpuIntrospector,
};

use super::view::VcpuView;

use kvmprof_machine::GuestMemory;

/// A process that has never been seen is searched once in this many of its turns: a search takes longer than a look at a known process.
pub const SEARCH_PERIOD: u64 = 64;

/// A stopped vCPU, and what has been found of it.
#[derive(Clone, Copy)]
pub struct StoppedVcpu<'a> {
    /// Guest memory.
    pub memory: &'a GuestMemory,
    /// The vCPU's registers.
    pub registers: &'a Registers,
    /// The introspector, which has identified the process that the vCPU runs.
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

    /// The processes of a Linux guest; `None` for other guests, and while they are unknown.
    pub fn processes(&self) -> Option<GuestProcesses<'_, GuestMemory>> {
        (self.introspector).processes(self.memory, self.registers)
    }

    /// The fate of process `pid`, which is `instance` if it has been seen. The process has had this many turns before. `None` if the
    /// fate is unknown, or if the process isn't searched in this turn.
    pub fn fate(
        &self,
        pid: i32,
        instance: Option<&ProcessInstance>,
        turns: u64,
    ) -> Option<ProcessFate> {
        if let Some(instance) = instance {
            return self.processes()?.fate(instance);
        }
        if !turns.is_multiple_of(SEARCH_PERIOD) {
            return None;
        }
        self.processes()?
            .find(pid)?
            .is_none()
            .then_some(ProcessFate::Ended)
    }
}

/// The element of `list` whose turn it is at tick number `tick`, and the number of turns that it has had before.
pub fn in_turn<T>(list: &[T], tick: u64) -> Option<(&T, u64)> {
    let length = list.len() as u64;
    let turn = usize::try_from(tick.checked_rem(length)?).ok()?;
    Some((list.get(turn)?, tick / length))
}
