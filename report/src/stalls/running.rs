//! What ran on a vCPU, by name.

use std::sync::Arc;

use serde::Serialize;

use crate::profile::{HALTED, HALTED_MODULE, Profile, Stack, StackFrame};

/// How often the names of a row are in memory: in their table and in a document.
pub(super) const COPIES: usize = 2;

/// What ran on a vCPU when a sample was taken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Running {
    /// The process's name.
    pub process: String,
    /// The innermost function.
    pub function: String,
    /// `[kernel]`, a module of it, or a file.
    pub module: String,
}

/// The same with names that others share: there may be as many of these as different stacks, with names as long as a recording's symbols.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SharedRunning<'a> {
    process: &'a str,
    function: Arc<str>,
    module: Arc<str>,
}

impl SharedRunning<'_> {
    /// Nothing: the vCPU was halted.
    pub fn halted() -> Self {
        Self {
            process: "[idle]",
            function: HALTED.into(),
            module: HALTED_MODULE.into(),
        }
    }

    /// Not known: there was no sample before, or its stack is beyond the limits.
    pub fn unknown() -> Self {
        Self {
            process: "[unknown]",
            function: "[unknown]".into(),
            module: "[unknown]".into(),
        }
    }

    /// Its names.
    pub fn names(&self) -> [&str; 3] {
        [self.process, &self.function, &self.module]
    }

    /// The same with names of its own, for a row. [`Room::take_row`](crate::room::Room::take_row) comes first.
    pub fn to_row(&self) -> Running {
        let [process, function, module] = self.names().map(str::to_owned);
        Running {
            process,
            function,
            module,
        }
    }
}

/// Names what samples were of.
pub(super) struct Names<'a> {
    profile: &'a Profile,
    stacks: Vec<&'a (i32, Stack)>,
}

impl<'a> Names<'a> {
    pub fn new(profile: &'a Profile) -> Self {
        Self {
            profile,
            stacks: profile.stacks.keys().collect(),
        }
    }

    /// The functions of stack number `stack`, innermost first; none if it isn't known.
    pub fn frames(&self, stack: Option<u32>) -> Vec<StackFrame> {
        self.find(stack)
            .map_or_else(Vec::new, |(pid, stack)| self.profile.frames(*pid, stack))
    }

    /// What ran with stack number `stack`.
    pub fn running(&self, stack: Option<u32>) -> SharedRunning<'a> {
        let found = self.find(stack);
        let Some((pid, innermost)) = found
            .zip(self.frames(stack).into_iter().next())
            .map(|((pid, _), frame)| (*pid, frame.frame))
        else {
            return SharedRunning::unknown();
        };
        SharedRunning {
            process: self.process(pid),
            function: innermost.function,
            module: innermost.module,
        }
    }

    fn process(&self, pid: i32) -> &'a str {
        let process = self.profile.processes.get(&pid);
        process.map_or("", |process| process.shown_name(pid))
    }

    fn find(&self, stack: Option<u32>) -> Option<&'a (i32, Stack)> {
        self.stacks.get(stack? as usize).copied()
    }
}
