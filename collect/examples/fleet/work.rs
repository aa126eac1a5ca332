//! What the guests run: the contents of work.toml.

use kvmprof_recording::Mode;
use serde::Deserialize;

/// The programs of all guests, and what the kernel does for any of them.
#[derive(Deserialize)]
pub struct Work {
    pub roles: Vec<Role>,
    pub paths: Vec<Path>,
}

/// A role of guests, with as many programs as the others.
#[derive(Deserialize)]
pub struct Role {
    pub name: String,
    pub programs: Vec<Program>,
}

/// A program, and its functions in user mode.
#[derive(Deserialize)]
pub struct Program {
    /// Its name, which is its module's, too.
    pub process: String,
    pub thread: String,
    /// The functions that call one of the leaves, innermost first.
    base: Vec<String>,
    /// The functions of which one has the program counter.
    pub leaves: Vec<String>,
}

/// What the kernel does for a program.
#[derive(Deserialize)]
pub struct Path {
    mode: String,
    pub growth: Option<Growth>,
    /// How much of a guest's time it takes, relative to the weights of the others.
    pub weight: u64,
    /// How many per cent of its ticks have interrupts off.
    pub off_percent: u64,
    /// Functions, innermost first, each with its module behind it unless that is the kernel itself.
    pub functions: Vec<String>,
}

/// When a path takes more time.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Growth {
    /// In the newer kernel.
    NewKernel,
    /// On the second date, on hosts that wait longer for a lock.
    Lock,
    /// On the second date, on hosts with more interrupts.
    Interrupts,
}

/// A stack's functions, innermost first, and their modules.
type Stack = (&'static [&'static str], Vec<&'static str>);

impl Work {
    /// Reads it.
    pub fn read() -> &'static Self {
        Box::leak(Box::new(toml::from_str(include_str!("work.toml")).unwrap()))
    }
}

impl Program {
    /// The stack of these functions, which the program calls.
    pub fn called_by(
        &'static self,
        functions: impl IntoIterator<Item = (&'static str, &'static str)>,
    ) -> Stack {
        let base = self.base.iter();
        let base = base.map(|function| (function.as_str(), self.process.as_str()));
        let (functions, modules): (Vec<_>, _) = functions.into_iter().chain(base).unzip();
        (functions.leak(), modules)
    }
}

impl Path {
    /// Its functions with their modules.
    pub fn frames(&'static self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let functions = self.functions.iter();
        functions.map(|function| function.split_once(' ').unwrap_or((function, "[kernel]")))
    }

    /// What the vCPU does.
    pub fn mode(&self) -> Mode {
        let mut modes = Mode::ALL.into_iter();
        modes.find(|mode| mode.name() == self.mode).unwrap()
    }
}
