//! The runtimes of languages in processes of a Linux guest: interpreters whose stacks say which functions of a program run.
//!
//! A runtime is recognized in the contents of a file ([`recognize`]), on the thread that reads files. At a tick the vCPU's thread walks
//! the frames of the running thread ([`ProcessRuntime::walk`]) and numbers their functions; the thread that reads files then reads the
//! names of those that are new ([`ProcessRuntime::new_functions`]). All of it is the process's own memory, which may have any contents:
//! walks are bounded, and what doesn't fit is left out.
//!
//! Some runtimes have lists of their frames ([`Runtime::walk`]). Others have frames of machine code only, which show what they execute
//! ([`Runtime::executed`]): the walk of the stack asks for each of them.
//!
//! Some runtimes describe themselves only in the memory of a process that has started ([`Runtime::in_process`]).
//!
//! A language is a folder or a file here that implements [`Runtime`], and a line in [`RUNTIMES`].

mod functions;
mod hotspot;
mod memory;
mod python;
#[cfg(test)]
mod test_memory;
mod v8;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use kvmprof_recording::file::LanguageFunction;
use kvmprof_recording::{Language, LanguageFrame};

use crate::PhysicalMemory;
use crate::Registers;
use crate::unwind::{BareFrame, Executed, LanguageFrames};
use functions::{NewFunction, NewFunctions};
use kvmprof_paging::AddressSpace;

use super::LinuxKnowledge;

pub use hotspot::of_jdk_25 as hotspot_of_jdk_25;
pub use memory::{ProcessMemory, SpaceMemory};
pub use python::of_version as python_of_version;
pub use v8::of_node as v8_of_node;

/// How each language is recognized.
const RUNTIMES: [Recognize; 3] = [python::recognize, v8::recognize, hotspot::recognize];
type Recognize = fn(&ProgramFile<'_>) -> Option<Arc<dyn Runtime>>;

/// Maximum number of functions whose names are read in one call.
const MAX_READ: usize = 256;

/// A file that a process executes code from.
#[derive(Clone, Copy, Debug)]
pub struct ProgramFile<'a> {
    /// Its path in the guest.
    pub path: &'a str,
    /// Its contents, which should be aligned to 8.
    pub contents: &'a [u8],
}

/// The runtime of a language, as a file has it.
pub trait Runtime: fmt::Debug + Send + Sync {
    /// The language.
    fn language(&self) -> Language;

    /// Hands the frames of `thread` to `sink`, innermost first. Bounded, without locks and allocations. The default is for runtimes that
    /// have no list of them.
    fn walk(&self, _thread: Thread, _memory: &mut dyn ProcessMemory, _sink: &mut Sink<'_>) {}

    /// What `frame` of machine code executes in `process`. Bounded, without locks and allocations. The default is for runtimes whose machine
    /// code doesn't show it.
    fn executed(
        &self,
        _frame: BareFrame,
        _process: &ProcessRuntime,
        _memory: &mut dyn ProcessMemory,
    ) -> Executed {
        Executed::Unknown
    }

    /// The runtime as the process with this `memory` describes it. `bias` is how far its file is from its own addresses there. Called on the
    /// thread that reads files. The default is for runtimes of which the file says all.
    fn in_process(&self, _bias: u64, _memory: &mut dyn ProcessMemory) -> InProcess {
        InProcess::AsInFile
    }

    /// What doesn't change while the function at `function` exists. `None` if there is none.
    fn identity(&self, function: u64, memory: &mut dyn ProcessMemory) -> Option<FunctionIdentity>;

    /// The name, the file and the lines of the function at `function`. `None` if there is none.
    fn describe(&self, function: u64, memory: &mut dyn ProcessMemory) -> Option<LanguageFunction>;
}

/// What a process's memory says about its runtime.
#[derive(Debug)]
pub enum InProcess {
    /// No more than its file: either that is all, or the runtime isn't known.
    AsInFile,
    /// Nothing yet: the process has just started.
    NotYet,
    /// This is the process's own.
    Own(Arc<dyn Runtime>),
}

/// A thread of a process.
#[derive(Clone, Copy, Debug)]
pub struct Thread {
    /// How far the runtime's file is from its own addresses in this process; wrapping.
    pub bias: u64,
    /// Its FS base, which is the address of its thread control block (`pthread_self`).
    pub pointer: u64,
}

/// Words of a function's memory by which it is told from others that had the same address.
pub type FunctionIdentity = [u64; 8];

/// Takes frames at a tick.
#[derive(Debug)]
pub struct Sink<'s> {
    process: &'s ProcessRuntime,
    frames: &'s mut LanguageFrames,
}

impl Sink<'_> {
    /// Adds a frame of the function at `function` with this identity. False if there is no more room.
    pub fn frame(
        &mut self,
        function: u64,
        identity: &FunctionIdentity,
        offset: Option<u32>,
    ) -> bool {
        let word = self.process.word(function, identity, offset);
        self.frames.push(word)
    }

    /// Lets anchors of runs be values in registers ([`LanguageFrames::hold_in`]).
    pub fn hold_in(&mut self, code: Range<u64>) {
        self.frames.hold_in(code);
    }

    /// Ends a run of frames ([`LanguageFrames::end_run`]).
    pub fn end_run(&mut self, anchor: u64) -> bool {
        self.frames.end_run(anchor)
    }

    /// Notes that further frames couldn't be found.
    pub fn cut(&mut self) {
        self.frames.cut();
    }
}

/// The runtime that the file with these contents has, if any.
pub fn recognize(file: &ProgramFile<'_>) -> Option<Arc<dyn Runtime>> {
    RUNTIMES.iter().find_map(|recognize| recognize(file))
}

/// The seed of functions' numbers. A process that chose its functions' numbers could give another process's functions names.
static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The runtime of one process, as one vCPU's thread and the thread that reads files share it. Neither ever waits.
#[derive(Debug)]
pub struct ProcessRuntime {
    /// That of the file.
    of_file: Arc<dyn Runtime>,
    /// The one that is used, once the process's memory has been asked.
    own: OnceLock<Arc<dyn Runtime>>,
    /// How often that was tried.
    tries: AtomicU32,
    bias: u64,
    /// The physical address of its page tables, and the process.
    root: u64,
    pid: i32,
    new: NewFunctions,
}

impl ProcessRuntime {
    /// The `runtime` of process `pid` with the page tables at `root`, whose file is `bias` from its own addresses.
    pub fn new(runtime: Arc<dyn Runtime>, bias: u64, root: u64, pid: i32) -> Self {
        LazyLock::force(&SEED);
        Self {
            of_file: runtime,
            own: OnceLock::new(),
            tries: AtomicU32::new(0),
            bias,
            root,
            pid,
            new: NewFunctions::default(),
        }
    }

    fn runtime(&self) -> &dyn Runtime {
        self.own.get().unwrap_or(&self.of_file).as_ref()
    }

    /// Asks the process's `memory` for its runtime, after ever longer times until it has started.
    fn ask(&self, memory: &mut dyn ProcessMemory) {
        if self.own.get().is_some() {
            return;
        }
        let tries = self.tries.fetch_add(1, Ordering::Relaxed);
        if !tries.wrapping_add(1).is_power_of_two() {
            return;
        }
        let own = match self.of_file.in_process(self.bias, memory) {
            InProcess::AsInFile => Arc::clone(&self.of_file),
            InProcess::NotYet => return,
            InProcess::Own(own) => own,
        };
        // Nobody else sets it.
        let _already = self.own.set(own);
    }

    /// The number of the function at `function`: another function with the same address, or in another process, has another one.
    fn number(&self, function: u64, identity: &FunctionIdentity) -> u64 {
        SEED.hash_one((self.root, self.pid, function, identity))
    }

    /// The word of a frame of the function at `function` with this identity, whose name is read later.
    fn word(&self, function: u64, identity: &FunctionIdentity, offset: Option<u32>) -> u64 {
        let number = self.number(function, identity);
        self.new.note(NewFunction { function, number });
        LanguageFrame::new(self.runtime().language(), number, offset).to_word()
    }

    /// What `frame` of machine code executes, by the process's `memory`.
    pub fn executed(&self, frame: BareFrame, memory: &mut dyn ProcessMemory) -> Executed {
        self.runtime().executed(frame, self, memory)
    }

    /// Fills `frames` with those of the thread that a vCPU with `registers` runs, in the process's memory.
    pub fn walk<M: PhysicalMemory>(
        &self,
        memory: &M,
        registers: &Registers,
        frames: &mut LanguageFrames,
    ) {
        let space = AddressSpace::new(memory, registers);
        let mut memory = SpaceMemory::new(memory, &space);
        self.walk_in(registers.fs_base, &mut memory, frames);
    }

    /// As [`Self::walk`], of the thread with the FS base `pointer`.
    #[doc(hidden)]
    pub fn walk_in(
        &self,
        pointer: u64,
        memory: &mut dyn ProcessMemory,
        frames: &mut LanguageFrames,
    ) {
        let bias = self.bias;
        let process = self;
        let mut sink = Sink { process, frames };
        self.runtime()
            .walk(Thread { bias, pointer }, memory, &mut sink);
    }

    /// Asks the process's memory for its runtime, if it hasn't said it yet, so that the next tick has it.
    pub fn prepare<M: PhysicalMemory>(&self, linux: &LinuxKnowledge, memory: &M) {
        if let Some(registers) = linux.process_registers(self.root) {
            let space = AddressSpace::new(memory, &registers);
            self.ask(&mut SpaceMemory::new(memory, &space));
        }
    }

    /// The functions that are new since the last call, with their names: at most some hundred of them. One that has no name by now isn't
    /// there.
    pub fn new_functions<M: PhysicalMemory>(
        &self,
        linux: &LinuxKnowledge,
        memory: &M,
    ) -> Vec<LanguageFunction> {
        if !self.new.is_waiting() && self.own.get().is_some() {
            return Vec::new();
        }
        let Some(registers) = linux.process_registers(self.root) else {
            return Vec::new();
        };
        let space = AddressSpace::new(memory, &registers);
        self.read_new(&mut SpaceMemory::new(memory, &space))
    }

    /// As [`Self::new_functions`], in the process's `memory`.
    #[doc(hidden)]
    pub fn read_new(&self, memory: &mut dyn ProcessMemory) -> Vec<LanguageFunction> {
        self.ask(memory);
        let new = std::iter::from_fn(|| self.new.take()).take(MAX_READ);
        new.filter_map(|new| self.describe(new, memory)).collect()
    }

    /// The name of the function `new`. `None` if another function has its memory now.
    fn describe(
        &self,
        new: NewFunction,
        memory: &mut dyn ProcessMemory,
    ) -> Option<LanguageFunction> {
        let NewFunction { function, number } = new;
        let is_there = |memory: &mut dyn ProcessMemory| {
            let identity = self.runtime().identity(function, memory);
            identity.is_some_and(|identity| self.number(function, &identity) == number)
        };
        if !is_there(memory) {
            return None;
        }
        let described = self.runtime().describe(function, memory)?;
        // The process runs meanwhile.
        memory.forget();
        is_there(memory).then(|| LanguageFunction {
            function: LanguageFrame::new(self.runtime().language(), number, None).function,
            ..described
        })
    }
}
