//! What a sample tells about a boot.

use crate::export::{Event, Frame};
use kvmprof_recording::Mode;

/// The function that calls each initcall, and each module's init function (init/main.c).
const CALLER: &str = "do_one_initcall";
/// How the functions begin that trace it, which are no initcalls (init/main.c).
const TRACING: &str = "trace_initcall_";
/// What calls it for a module (kernel/module/main.c).
const MODULE_LOADER: &str = "do_init_module";
/// The first function of the kernel's own first process, whose thread makes the initcalls.
const FIRST_THREAD: &str = "kernel_init";
/// The module of the kernel itself in frames.
const KERNEL: &str = "[kernel]";

/// Where a sample was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Before the kernel: in what unpacks it.
    Loader,
    /// In the kernel, in no initcall.
    Kernel,
    /// Between two initcalls.
    Between,
    /// In an initcall, or in what it has called.
    Initcall(String),
    /// In the init function of a module.
    Module {
        /// The function.
        function: String,
        /// The module, in brackets.
        module: String,
    },
    /// In a process.
    User,
    /// The vCPU was halted.
    Idle,
}

/// A sample of a boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// From the recording's begin, in ns.
    pub time: u64,
    /// The process; 1 for the first one also where the guest can't tell yet.
    pub pid: i32,
    /// The thread.
    pub tid: i32,
    /// The vCPU.
    pub vcpu: u16,
    /// How many ticks it stands for: one, but where the vCPU was halted.
    pub ticks: u64,
    pub place: Place,
}

impl Seen {
    /// What this event, with these frames, tells; `began` is the recording's begin on the event's clock.
    pub fn new(event: &Event, frames: &[Frame<'_>], began: u64) -> Self {
        let is_first = (frames.iter()).any(|frame| frame.is_kernel && frame.name == FIRST_THREAD);
        let (pid, tid) = if is_first {
            (1, 1)
        } else {
            (event.pid, event.tid)
        };
        Self {
            time: event.time.saturating_sub(began),
            pid,
            tid,
            vcpu: event.vcpu,
            ticks: event.ticks,
            place: place(event, frames),
        }
    }
}

fn place(event: &Event, frames: &[Frame<'_>]) -> Place {
    if event.stack.is_none() || event.mode == Mode::Idle {
        return Place::Idle;
    }
    if event.mode == Mode::User {
        return Place::User;
    }
    let kernel = frames.iter().filter(|frame| frame.is_kernel);
    let kernel: Vec<&Frame<'_>> = kernel.collect();
    let caller = kernel.iter().rposition(|frame| frame.name == CALLER);
    let Some(caller) = caller else {
        let innermost = kernel.first();
        let is_known = innermost.is_some_and(|frame| {
            frame.offset.is_some() && (frame.module == KERNEL || frame.module.starts_with('['))
        });
        return if is_known {
            Place::Kernel
        } else {
            Place::Loader
        };
    };
    let (callees, callers) = kernel.split_at(caller);
    // What is inlined into the caller is a part of it.
    let Some(called) = callees.iter().rfind(|frame| !frame.is_inlined) else {
        return Place::Between;
    };
    let function = plain(&called.name).to_owned();
    if function.starts_with(TRACING) {
        return Place::Between;
    }
    if callers.iter().any(|frame| frame.name == MODULE_LOADER) {
        Place::Module {
            function,
            module: called.module.clone().into_owned(),
        }
    } else {
        Place::Initcall(function)
    }
}

/// The function as the source has it: without what a compiler appends to a part of one (`.cold`, `.isra.0`).
fn plain(name: &str) -> &str {
    name.split_once('.').map_or(name, |(name, _)| name)
}
