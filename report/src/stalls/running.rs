//! Names of what ran on a vCPU.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;

use crate::model::{Frame, HALTED, HALTED_MODULE, StackSum};
use crate::profile::Profile;

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

/// A [`Running`] with shared names: there may be one for each different stack, with names as long as a recording's symbols.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SharedRunning<'a> {
    process: &'a str,
    function: Arc<str>,
    module: Arc<str>,
}

impl SharedRunning<'_> {
    /// The vCPU was halted.
    pub fn halted() -> Self {
        Self {
            process: "[idle]",
            function: HALTED.into(),
            module: HALTED_MODULE.into(),
        }
    }

    /// Nothing is known: there was no sample before, or its stack is beyond the limits.
    pub fn unknown() -> Self {
        Self {
            process: "[unknown]",
            function: "[unknown]".into(),
            module: "[unknown]".into(),
        }
    }

    /// The names of the process, the function and the module.
    pub fn names(&self) -> [&str; 3] {
        [self.process, &self.function, &self.module]
    }

    /// A copy for a row. The caller takes its budget first, by [`OutputBudget::take_row`](crate::budget::OutputBudget::take_row).
    pub fn to_row(&self) -> Running {
        let [process, function, module] = self.names().map(str::to_owned);
        Running {
            process,
            function,
            module,
        }
    }
}

/// The one that is counted most often; of several such the first one.
pub(super) fn most_frequent<T: Ord>(counts: HashMap<T, u64>) -> Option<T> {
    let counts = counts.into_iter().map(|(one, count)| (count, Reverse(one)));
    counts.max().map(|(_, Reverse(one))| one)
}

/// Finds the names of what samples ran.
pub(super) struct Names<'a> {
    profile: &'a Profile,
}

impl<'a> Names<'a> {
    pub fn new(profile: &'a Profile) -> Self {
        Self { profile }
    }

    /// The functions of stack number `stack`, innermost first; none if the stack isn't known.
    pub fn frames(&self, stack: Option<u32>) -> impl Iterator<Item = Frame<'a>> + use<'a> {
        let profile = self.profile;
        let found = self.find(stack).into_iter();
        found.flat_map(|stack| profile.frames(stack))
    }

    /// What ran with stack number `stack`.
    pub fn running(&self, stack: Option<u32>) -> SharedRunning<'a> {
        let found = self.find(stack).zip(self.frames(stack).next());
        let Some((stack, innermost)) = found else {
            return SharedRunning::unknown();
        };
        SharedRunning {
            process: self.process(stack.pid),
            function: Arc::clone(innermost.name),
            module: Arc::clone(innermost.module),
        }
    }

    fn process(&self, pid: i32) -> &'a str {
        let process = self.profile.processes.get(&pid);
        process.map_or("", |process| process.shown_name(pid))
    }

    fn find(&self, stack: Option<u32>) -> Option<&'a StackSum> {
        self.profile.stacks.get(stack? as usize)
    }
}
