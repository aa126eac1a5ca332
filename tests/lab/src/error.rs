//! The errors of lab machines.

use std::fmt::{self, Display, Formatter};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use kvmprof_initramfs::InitramfsError;

/// Why a lab machine could not be prepared, or did not run to its end.
///
/// A failure of the command is not an error: it is an [`Outcome`](crate::Outcome) with the command's exit status.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A file on this host could not be read or written.
    #[error("Cannot {action} {path}")]
    File {
        /// What was attempted, as a verb.
        action: &'static str,
        /// The file in question.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A kernel, a module or a place in an initramfs cannot be used.
    #[error(transparent)]
    Initramfs(#[from] InitramfsError),
    /// Something that is neither a file, a folder nor a symbolic link was to be added.
    #[error(
        "{0} is neither a file, a folder nor a symbolic link: it cannot be put into an initramfs"
    )]
    FileKind(PathBuf),
    /// The files to add exceed the machine's memory.
    #[error(
        "The files to put in take {needed} MiB, but a machine with {memory} MiB of memory has room for {room}: \
         give it more memory"
    )]
    TooBig {
        /// Size of the initramfs, in MiB.
        needed: u64,
        /// Half of the memory, in MiB.
        room: u64,
        /// The machine's memory, in MiB.
        memory: u64,
    },
    /// A number that the machine cannot have.
    #[error("{what} of {value} is out of range: {range}")]
    OutOfRange {
        /// The setting.
        what: &'static str,
        /// The requested value.
        value: u64,
        /// The possible values.
        range: &'static str,
    },
    /// The lab was started without a command.
    #[error("No command was given to run in the lab machine")]
    NoCommand,
    /// A program that the lab needs is not installed.
    #[error("{program} is not installed: apt-get install {package}")]
    ProgramMissing {
        /// The program.
        program: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// apt knows no Debian package of the wanted kind.
    #[error(
        "No package {pattern} is known to apt: run `apt-get update`, or give a kernel (vmlinuz with its modules) \
         with --kernel or in KVMPROF_LAB_KERNEL"
    )]
    PackageUnknown {
        /// The pattern that was searched for.
        pattern: String,
    },
    /// A package could not be fetched or unpacked.
    #[error("`{command}` failed: {message}")]
    Fetch {
        /// The command that failed.
        command: String,
        /// What it printed.
        message: String,
    },
    /// A program of this source could not be built.
    #[error("Cannot build {package}: {reason}")]
    Build {
        /// The cargo package.
        package: String,
        /// The reason.
        reason: String,
    },
    /// This machine's own /dev/kvm runs no guest.
    #[error("{0}")]
    NoKvm(String),
    /// There is no folder for packages.
    #[error("No place for the cache of packages: set KVMPROF_CACHE, XDG_CACHE_HOME or HOME")]
    NoCacheFolder,
    /// The emulator did not start the machine.
    #[error("The lab machine was not started\n{console}")]
    Refused {
        /// The emulator's messages.
        console: String,
    },
    /// The machine did not come up, in several attempts.
    #[error("The lab machine did not come up{}", Lines("Its console", console))]
    NotUp {
        /// The last lines of its console, and the emulator's messages.
        console: String,
    },
    /// The machine went down before the command ended.
    #[error("The lab machine went down before its command was done{traces}")]
    WentDown {
        /// The output that it left.
        traces: Box<Traces>,
    },
    /// The time limit has passed, and the machine was ended.
    #[error("The time was up ({} s) before the lab machine's command was done{traces}", limit.as_secs())]
    Timeout {
        /// The time limit.
        limit: Duration,
        /// The output that it left.
        traces: Box<Traces>,
    },
    /// The machine was silent for so long that it was ended.
    #[error(
        "Nothing came from the lab machine for {} s, so it was ended before its command was done{traces}", limit.as_secs()
    )]
    Silent {
        /// The limit for silence.
        limit: Duration,
        /// The output that it left.
        traces: Box<Traces>,
    },
    /// The machine sent more than the caller accepts.
    #[error("The lab machine sent more than {limit} bytes of {what}")]
    TooMuch {
        /// The stream.
        what: &'static str,
        /// The limit, in bytes.
        limit: u64,
    },
    /// The machine's output folder is malformed.
    #[error("The lab machine's output folder cannot be taken: {reason}")]
    OutFolder {
        /// The problem.
        reason: String,
    },
}

/// The output of a machine that ended before its command did.
#[derive(Debug, Clone, Default)]
pub struct Traces {
    /// The last lines of its console, and the emulator's messages.
    pub console: String,
    /// The last lines of the command's standard error; empty if that was forwarded.
    pub stderr: String,
    /// The folder that the command's output folder was copied to, if one was given.
    pub out: Option<PathBuf>,
    /// Why the output folder is incomplete.
    pub out_failure: Option<String>,
}

impl Display for Traces {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (&self.out, &self.out_failure) {
            (Some(_), Some(reason)) => {
                write!(f, ". Its output folder did not come back: {reason}")?;
            }
            (Some(folder), None) => {
                write!(f, ". Its output folder is in {}", folder.display())?;
            }
            (None, _) => {}
        }
        write!(f, "{}", Lines("Its console", &self.console))?;
        if !self.stderr.is_empty() {
            write!(f, "{}", Lines("Its command", &self.stderr))?;
        }
        Ok(())
    }
}

/// A source and its output, as the rest of a message.
struct Lines<'a>(&'a str, &'a str);

impl Display for Lines<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(who, text) = self;
        match text.trim_end() {
            "" => write!(f, ". {who} said nothing"),
            text => write!(f, ". {who} said:\n{text}"),
        }
    }
}

impl LabError {
    /// The output of the machine, if it ended before its command did.
    pub fn traces(&self) -> Option<&Traces> {
        match self {
            Self::WentDown { traces }
            | Self::Timeout { traces, .. }
            | Self::Silent { traces, .. } => Some(traces),
            _ => None,
        }
    }

    /// For `map_err`: an error for the I/O error with its file.
    pub(crate) fn file(
        action: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File {
            action,
            path,
            source,
        }
    }
}
