//! What the samples of a boot are in.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use crate::export::{Event, ExportError, Source};
use crate::symbolize::{CodeAddress, Resolved};
use kvmprof_recording::Mode;
use kvmprof_recording::tasks::{Task, TaskLook};

/// The function that calls each initcall, and each module's init function (init/main.c).
const CALLER: &str = "do_one_initcall";
/// The prefix of the functions that trace its calls, which are no initcalls (init/main.c).
const TRACING: &str = "trace_initcall_";
/// The function that calls it for a module (kernel/module/main.c).
const MODULE_LOADER: &str = "do_init_module";
/// The first function of the kernel's own first process, whose thread makes the initcalls.
const FIRST_THREAD: &str = "kernel_init";
/// The module of the kernel itself in frames.
const KERNEL: &str = "[kernel]";
/// Bytes that a sample takes, with its copies that are sorted by time, by thread and by vCPU.
const SEEN: usize = 3 * size_of::<BootSample>();

/// What a sample was in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SampledCode {
    /// In the code that unpacks the kernel.
    Loader,
    /// In the kernel, in no initcall.
    Kernel,
    /// Between two initcalls.
    Between,
    /// In an initcall, or in a function that it has called.
    Initcall(Rc<str>),
    /// In the init function of a module.
    Module {
        /// The function.
        function: Rc<str>,
        /// The module, in brackets.
        module: Rc<str>,
    },
    /// In a process.
    User,
    /// The vCPU was halted.
    Idle,
}

/// A sample of a boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BootSample {
    /// Its time, in ns from the recording's start.
    pub time: u64,
    /// The process; 1 for the first one, also while the guest doesn't say so yet.
    pub pid: i32,
    /// The thread.
    pub tid: i32,
    /// The vCPU.
    pub vcpu: u16,
    /// The number of ticks that it stands for: 1, or more if the vCPU was halted.
    pub ticks: u64,
    pub place: SampledCode,
    /// Whether the thread wasn't on a vCPU, but waited there, by a look at the guest's tasks.
    pub is_waiting: bool,
}

#[cfg(test)]
impl BootSample {
    /// A sample of the main thread of a process, on the first vCPU.
    pub fn at(time: u64, pid: i32, place: SampledCode) -> Self {
        Self {
            time,
            pid,
            tid: pid,
            vcpu: 0,
            ticks: 1,
            place,
            is_waiting: false,
        }
    }
}

/// What is known from a stack.
#[derive(Clone, Debug)]
struct StackActivity {
    place: SampledCode,
    /// Whether it is a stack of the kernel's own first process.
    is_first: bool,
}

impl StackActivity {
    /// The process and the thread of a stack that was taken of these: the kernel's first process doesn't have its pid from the beginning.
    fn thread(&self, pid: i32, tid: i32) -> (i32, i32) {
        if self.is_first { (1, 1) } else { (pid, tid) }
    }
}

/// A function on a stack.
#[derive(Clone, Copy, Debug)]
struct Function<'a> {
    name: &'a str,
    module: &'a str,
    is_kernel: bool,
    is_inlined: bool,
    /// Whether the name is that of a function, and no address.
    is_known: bool,
}

/// Finds what the events of a recording were in. Each stack is looked at once.
#[derive(Debug)]
pub(super) struct Places<'a> {
    source: &'a Source,
    /// The results by the stack's number in the profile.
    found: Vec<Option<StackActivity>>,
    /// The results by the stack in which a task waits.
    waits: HashMap<Box<[u64]>, StackActivity>,
    names: Names<'a>,
}

/// The names of functions and modules. Each is in memory once.
#[derive(Debug)]
struct Names<'a> {
    source: &'a Source,
    names: HashSet<Rc<str>>,
}

impl Names<'_> {
    /// # Errors
    /// The name doesn't fit into the budget.
    fn get(&mut self, name: &str) -> Result<Rc<str>, ExportError> {
        if let Some(known) = self.names.get(name) {
            return Ok(Rc::clone(known));
        }
        self.source.budget().take(name.len())?;
        let name: Rc<str> = name.into();
        self.names.insert(Rc::clone(&name));
        Ok(name)
    }
}

impl<'a> Places<'a> {
    /// A reader of the events of `source`.
    pub fn of(source: &'a Source) -> Self {
        let names = Names {
            source,
            names: HashSet::new(),
        };
        Self {
            source,
            found: vec![None; source.stacks()],
            waits: HashMap::new(),
            names,
        }
    }

    /// The sample of this event; `began` is the recording's start on the event's clock.
    ///
    /// # Errors
    /// There is no budget for it.
    pub fn seen(&mut self, event: &Event, began: u64) -> Result<BootSample, ExportError> {
        self.source.budget().take(SEEN)?;
        let found = self.found(event)?;
        let thread = self.source.thread(event);
        let (pid, tid) = found.thread(thread.pid, thread.tid);
        Ok(BootSample {
            time: event.time.saturating_sub(began),
            pid,
            tid,
            vcpu: event.vcpu,
            ticks: event.ticks,
            place: found.place,
            is_waiting: false,
        })
    }

    /// Where a `task` of a `look` waits, if that is in an initcall, or if it makes them and waits in between; `began` as for [`Self::seen`].
    ///
    /// # Errors
    /// There is no budget for it.
    pub fn waiting(
        &mut self,
        task: &Task,
        look: &TaskLook,
        began: u64,
    ) -> Result<Option<BootSample>, ExportError> {
        let frames = look.frames_of(task.stack);
        if task.is_on_vcpu || frames.is_empty() {
            return Ok(None);
        }
        let budget = self.source.budget();
        let found = match self.waits.get(frames) {
            Some(found) => found.clone(),
            None => {
                budget.take(size_of_val(frames) + size_of::<StackActivity>())?;
                let resolver = &self.source.profile().resolver;
                let resolved = frames
                    .iter()
                    .map(|at| resolver.resolve(CodeAddress::in_kernel(*at)));
                let resolved: Vec<Resolved> = resolved.collect();
                let functions = resolved
                    .iter()
                    .flat_map(|at| at.frames.iter().map(move |frame| (at, frame)));
                let functions = functions.map(|(at, frame)| Function {
                    name: &frame.function,
                    module: &frame.module,
                    is_kernel: true,
                    is_inlined: frame.is_inlined,
                    is_known: at.offset.is_some() && !frame.is_inlined,
                });
                let functions: Vec<Function<'_>> = functions.collect();
                let found = found(Mode::Kernel, &functions, &mut self.names)?;
                self.waits.insert(frames.into(), found.clone());
                found
            }
        };
        let makes_calls = matches!(
            found.place,
            SampledCode::Between | SampledCode::Initcall(_) | SampledCode::Module { .. }
        );
        if !makes_calls && !found.is_first {
            return Ok(None);
        }
        budget.take(SEEN)?;
        let (pid, tid) = found.thread(task.pid, task.tid);
        Ok(Some(BootSample {
            time: look.time.saturating_sub(began),
            pid,
            tid,
            vcpu: task.vcpu,
            ticks: 1,
            place: found.place,
            is_waiting: true,
        }))
    }

    fn found(&mut self, event: &Event) -> Result<StackActivity, ExportError> {
        let Some(stack) = event.stack.filter(|_| event.mode != Mode::Idle) else {
            return Ok(StackActivity {
                place: SampledCode::Idle,
                is_first: false,
            });
        };
        let place = &mut self.found[stack as usize];
        if let Some(found) = place {
            return Ok(found.clone());
        }
        let frames = self.source.frames(event).into_iter();
        let functions = frames.map(|frame| Function {
            name: frame.name,
            module: frame.module,
            is_kernel: frame.is_kernel,
            is_inlined: frame.is_inlined,
            is_known: frame.offset.is_some(),
        });
        let functions: Vec<Function<'_>> = functions.collect();
        let found = found(event.mode, &functions, &mut self.names)?;
        *place = Some(found.clone());
        Ok(found)
    }
}

/// What is known from the `frames` of a stack that was taken in this mode.
fn found(
    mode: Mode,
    frames: &[Function<'_>],
    names: &mut Names<'_>,
) -> Result<StackActivity, ExportError> {
    let is_first = (frames.iter()).any(|frame| frame.is_kernel && frame.name == FIRST_THREAD);
    let place = place(mode, frames, names)?;
    Ok(StackActivity { place, is_first })
}

fn place(
    mode: Mode,
    frames: &[Function<'_>],
    names: &mut Names<'_>,
) -> Result<SampledCode, ExportError> {
    if mode == Mode::User {
        return Ok(SampledCode::User);
    }
    let kernel = frames.iter().filter(|frame| frame.is_kernel);
    let kernel: Vec<&Function<'_>> = kernel.collect();
    let caller = kernel.iter().rposition(|frame| frame.name == CALLER);
    let Some(caller) = caller else {
        let innermost = kernel.first();
        let is_known = innermost.is_some_and(|frame| {
            frame.is_known && (frame.module == KERNEL || frame.module.starts_with('['))
        });
        return Ok(if is_known {
            SampledCode::Kernel
        } else {
            SampledCode::Loader
        });
    };
    let (callees, callers) = kernel.split_at(caller);
    // Functions that are inlined into the caller are part of it.
    let Some(called) = callees.iter().rfind(|frame| !frame.is_inlined) else {
        return Ok(SampledCode::Between);
    };
    let function = plain(called.name);
    if function.starts_with(TRACING) {
        return Ok(SampledCode::Between);
    }
    let function = names.get(function)?;
    Ok(if callers.iter().any(|frame| frame.name == MODULE_LOADER) {
        let module = names.get(called.module)?;
        SampledCode::Module { function, module }
    } else {
        SampledCode::Initcall(function)
    })
}

/// The function's name in the source: without the suffixes that a compiler appends (`.cold`, `.isra.0`).
fn plain(name: &str) -> &str {
    name.split_once('.').map_or(name, |(name, _)| name)
}
