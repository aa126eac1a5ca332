//! What ran on a vCPU, by name.

use serde::Serialize;

use crate::profile::{HALTED, HALTED_MODULE, Profile, Stack, StackFrame};

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

impl Running {
    /// Nothing: the vCPU was halted.
    pub fn halted() -> Self {
        Self {
            process: "[idle]".to_owned(),
            function: HALTED.to_owned(),
            module: HALTED_MODULE.to_owned(),
        }
    }

    /// Not known: there was no sample before, or its stack is beyond the limits.
    pub fn unknown() -> Self {
        Self {
            process: "[unknown]".to_owned(),
            function: "[unknown]".to_owned(),
            module: "[unknown]".to_owned(),
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
    pub fn running(&self, stack: Option<u32>) -> Running {
        let found = self.find(stack);
        let Some((pid, innermost)) = found
            .zip(self.frames(stack).into_iter().next())
            .map(|((pid, _), frame)| (*pid, frame.frame))
        else {
            return Running::unknown();
        };
        Running {
            process: self.process(pid),
            function: innermost.function.as_ref().to_owned(),
            module: innermost.module.as_ref().to_owned(),
        }
    }

    fn process(&self, pid: i32) -> String {
        let process = self.profile.processes.get(&pid);
        process.map_or_else(String::new, |process| process.shown_name(pid).to_owned())
    }

    fn find(&self, stack: Option<u32>) -> Option<&'a (i32, Stack)> {
        self.stacks.get(stack? as usize).copied()
    }
}
