//! What a sample tells about a boot.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use crate::export::{Event, ExportError, Frame, Source};
use kvmprof_recording::Mode;
use kvmprof_recording::tasks::{Task, TaskLook};

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
/// Bytes that a sample takes, with what is made of it to sort samples by time, by thread and by vCPU.
const SEEN: usize = 3 * size_of::<Seen>();

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
    /// Whether the thread wasn't on a vCPU, but waited there, by a look at the guest's tasks.
    pub is_waiting: bool,
}

/// What a stack tells.
#[derive(Clone, Debug)]
struct Told {
    place: Place,
    /// Whether it is one of the kernel's own first process.
    is_first: bool,
}

/// Says where the events of a recording were. A stack is looked at once.
#[derive(Debug)]
pub(super) struct Places<'a> {
    source: &'a Source,
    /// By the stack's number in the profile.
    told: Vec<Option<Told>>,
    /// By the stack in which a task waits.
    waits: HashMap<Box<[u64]>, Told>,
    names: Names<'a>,
}

/// The names of functions and modules, each of which is in memory once.
#[derive(Debug)]
struct Names<'a> {
    source: &'a Source,
    names: HashSet<Rc<str>>,
}

impl Names<'_> {
    /// # Errors
    /// There is no room for one more.
    fn get(&mut self, name: &str) -> Result<Rc<str>, ExportError> {
        if let Some(known) = self.names.get(name) {
            return Ok(Rc::clone(known));
        }
        self.source.room().take(name.len())?;
        let name: Rc<str> = name.into();
        self.names.insert(Rc::clone(&name));
        Ok(name)
    }
}

impl<'a> Places<'a> {
    /// Those of `source`.
    pub fn of(source: &'a Source) -> Self {
        let names = Names {
            source,
            names: HashSet::new(),
        };
        Self {
            source,
            told: vec![None; source.profile().stacks.len()],
            waits: HashMap::new(),
            names,
        }
    }

    /// What this event tells; `began` is the recording's begin on the event's clock.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn seen(&mut self, event: &Event, began: u64) -> Result<Seen, ExportError> {
        self.source.room().take(SEEN)?;
        let Told { place, is_first } = self.told(event)?;
        let (pid, tid) = if is_first {
            (1, 1)
        } else {
            (event.pid, event.tid)
        };
        Ok(Seen {
            time: event.time.saturating_sub(began),
            pid,
            tid,
            vcpu: event.vcpu,
            ticks: event.ticks,
            place,
            is_waiting: false,
        })
    }

    /// What a `task` of a `look` tells, if it waits in an initcall, or makes them and waits in between; `began` as for [`Self::seen`].
    ///
    /// # Errors
    /// There is no room for it.
    pub fn waiting(
        &mut self,
        task: &Task,
        look: &TaskLook,
        began: u64,
    ) -> Result<Option<Seen>, ExportError> {
        let frames = look.frames_of(task.stack);
        if task.is_on_vcpu || frames.is_empty() {
            return Ok(None);
        }
        let room = self.source.room();
        let told = match self.waits.get(frames) {
            Some(told) => told.clone(),
            None => {
                room.take(size_of_val(frames) + size_of::<Told>())?;
                let named = self.source.frames_of_task(frames);
                let told = told(Mode::Kernel, &named, &mut self.names)?;
                self.waits.insert(frames.into(), told.clone());
                told
            }
        };
        let makes_calls = matches!(
            told.place,
            Place::Between | Place::Initcall(_) | Place::Module { .. }
        );
        if !makes_calls && !told.is_first {
            return Ok(None);
        }
        room.take(SEEN)?;
        let (pid, tid) = if told.is_first {
            (1, 1)
        } else {
            (task.pid, task.tid)
        };
        Ok(Some(Seen {
            time: look.time.saturating_sub(began),
            pid,
            tid,
            vcpu: task.vcpu,
            ticks: 1,
            place: told.place,
            is_waiting: true,
        }))
    }

    fn told(&mut self, event: &Event) -> Result<Told, ExportError> {
        let Some(stack) = event.stack.as_ref().filter(|_| event.mode != Mode::Idle) else {
            return Ok(Told {
                place: Place::Idle,
                is_first: false,
            });
        };
        let stacks = &self.source.profile().stacks;
        let known = stacks.find(event.pid, stack.into());
        let known = known.and_then(|number| self.told.get_mut(number as usize));
        match known {
            Some(Some(told)) => Ok(told.clone()),
            Some(place) => {
                let frames = self.source.frames(event);
                let told = told(event.mode, &frames, &mut self.names)?;
                *place = Some(told.clone());
                Ok(told)
            }
            // One beyond the profile's limits. It has to be looked at each time, which the room keeps within bounds.
            None => {
                let frames = self.source.frames_to_keep(event)?;
                told(event.mode, &frames, &mut self.names)
            }
        }
    }
}

/// What the `frames` of a stack tell, which was taken in this mode.
fn told(mode: Mode, frames: &[Frame<'_>], names: &mut Names<'_>) -> Result<Told, ExportError> {
    let is_first = (frames.iter()).any(|frame| frame.is_kernel && frame.name == FIRST_THREAD);
    let place = place(mode, frames, names)?;
    Ok(Told { place, is_first })
}

fn place(mode: Mode, frames: &[Frame<'_>], names: &mut Names<'_>) -> Result<Place, ExportError> {
    if mode == Mode::User {
        return Ok(Place::User);
    }
    let kernel = frames.iter().filter(|frame| frame.is_kernel);
    let kernel: Vec<&Frame<'_>> = kernel.collect();
    let caller = kernel.iter().rposition(|frame| frame.name == CALLER);
    let Some(caller) = caller else {
        let innermost = kernel.first();
        let is_known = innermost.is_some_and(|frame| {
            frame.offset.is_some() && (frame.module == KERNEL || frame.module.starts_with('['))
        });
        return Ok(if is_known {
            Place::Kernel
        } else {
            Place::Loader
        });
    };
    let (callees, callers) = kernel.split_at(caller);
    // What is inlined into the caller is a part of it.
    let Some(called) = callees.iter().rfind(|frame| !frame.is_inlined) else {
        return Ok(Place::Between);
    };
    let function = plain(&called.name);
    if function.starts_with(TRACING) {
        return Ok(Place::Between);
    }
    let function = names.get(function)?;
    Ok(if callers.iter().any(|frame| frame.name == MODULE_LOADER) {
        let module = names.get(&called.module)?;
        Place::Module { function, module }
    } else {
        Place::Initcall(function)
    })
}

/// The function as the source has it: without what a compiler appends to a part of one (`.cold`, `.isra.0`).
fn plain(name: &str) -> &str {
    name.split_once('.').map_or(name, |(name, _)| name)
}
