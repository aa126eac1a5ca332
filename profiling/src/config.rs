//! How a guest is profiled.

use std::path::PathBuf;

use kvmprof_introspection::{GuestKnowledge, TaskScope};
use kvmprof_recording::file::FileOptions;
use kvmprof_recording::{DEFAULT_STACK_FRAMES, SamplingEvent, StackParts};

use crate::clock::{ClockSource, DEFAULT_HZ, TickSource};

/// How a guest is profiled, whichever program runs it.
#[derive(Debug)]
pub struct ProfilingConfig {
    /// Ticks a second on each vCPU; 0 for no clock.
    pub hz: u32,
    /// What takes the samples.
    pub source: ClockSource,
    /// Whether ticks have a random phase; never with [`ClockSource::Kernel`].
    pub jitter: bool,
    /// Whether samples have the stacks of the host's kernel and of the VMM below the guest's; only with [`ClockSource::Kernel`].
    pub host_stacks: bool,
    /// Maximum number of frames of a call stack, half of them the kernel's. It is at most
    /// [`MAX_STACK_FRAMES`](kvmprof_recording::MAX_STACK_FRAMES).
    pub max_stack: usize,
    /// Maximum number of addresses in a table of prf: 3 to [`kvmprof_abi::prf::MAX_ADDRESSES`].
    pub prf_addresses: usize,
    /// A folder on the host with the guest's files. Programs whose stacks are recorded are searched there.
    pub sysroot: Option<PathBuf>,
    /// The types (BTF) of the guest's kernel, if its image doesn't have them.
    pub btf: Option<PathBuf>,
    /// The symbols of the guest's kernel, if its image doesn't have them.
    pub symbols: Option<PathBuf>,
    /// The knowledge of the guest; `None` to find it out.
    pub knowledge: Option<GuestKnowledge>,
    /// Whether processes have their command lines among their labels.
    pub arguments: bool,
    /// The path of the socket for clients; `None` for no socket.
    pub socket: Option<PathBuf>,
    /// The recording of all ticks; `None` for no recording.
    pub record: Option<RecordPlan>,
}

impl ProfilingConfig {
    /// This knowledge, without what the configuration leaves out.
    pub fn restricted(&self, knowledge: GuestKnowledge) -> GuestKnowledge {
        match self.arguments {
            true => knowledge,
            false => knowledge.without_arguments(),
        }
    }
}

impl Default for ProfilingConfig {
    /// The default rate by timers, for no client and without a recording.
    fn default() -> Self {
        Self {
            hz: DEFAULT_HZ,
            source: ClockSource::Thread,
            jitter: false,
            host_stacks: false,
            max_stack: DEFAULT_STACK_FRAMES,
            prf_addresses: kvmprof_abi::prf::MAX_ADDRESSES,
            sysroot: None,
            btf: None,
            symbols: None,
            knowledge: None,
            arguments: true,
            socket: None,
            record: None,
        }
    }
}

/// What to record, and to which file.
#[derive(Clone, Debug)]
pub struct RecordPlan {
    /// The path of the new file.
    pub path: PathBuf,
    /// The recorded parts of stacks.
    pub stacks: StackParts,
    /// The looks at the guest's tasks; `None` for no looks.
    pub looks: Option<LookPlan>,
    /// The event that makes the ticks; `None` for the clock.
    pub event: Option<SamplingEvent>,
    /// The limit of the file's length, and the place for the reason of an incomplete file.
    pub file: FileOptions,
}

impl RecordPlan {
    /// The source of ticks, with a clock at `hz` ticks a second; `None` if the clock should make the ticks and there is no clock.
    pub fn source(&self, hz: u32) -> Option<TickSource> {
        match self.event {
            Some(event) => Some(TickSource::Event(event)),
            None => TickSource::clock(hz),
        }
    }
}

/// The looks at the guest's tasks that a recording has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookPlan {
    /// Number of ticks of the clock between two looks.
    pub ticks: u32,
    /// The tasks that the looks have.
    pub scope: TaskScope,
}

impl LookPlan {
    /// A look at all tasks every `ticks` ticks.
    pub fn all(ticks: u32) -> Self {
        Self {
            ticks,
            scope: TaskScope::All,
        }
    }
}
