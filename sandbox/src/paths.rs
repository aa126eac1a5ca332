//! Which files a process may still open, make and remove, by Landlock (kernel: Documentation/userspace-api/landlock.rst).
//!
//! What is open already stays so. Paths are looked up once: a file that takes the place of another later isn't allowed by that one's rule,
//! so what is replaced is allowed by its folder.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use crate::state::{self, Part};

/// The newest version of Landlock whose rights are used; of an older kernel what it has.
const NEWEST: ABI = ABI::V6;

/// What may be done at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A file or folder, and all below it, can be read.
    Read,
    /// A file or folder, and all below it, can be read and written to, but nothing made.
    Write,
    /// Files and sockets in the folder can be made, written, renamed and removed.
    Replace,
}

impl Use {
    fn rights(self) -> BitFlags<AccessFs> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        let write = read | AccessFs::WriteFile | AccessFs::Truncate;
        match self {
            Self::Read => read,
            Self::Write => write,
            Self::Replace => {
                write
                    | AccessFs::MakeReg
                    | AccessFs::MakeSock
                    | AccessFs::RemoveFile
                    | AccessFs::Refer
            }
        }
    }
}

/// How far Landlock is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restricted {
    /// All that is asked for.
    Fully,
    /// What this kernel's older version has.
    Partly,
    /// Not at all: this kernel has no Landlock.
    No,
}

/// The kernel's Landlock doesn't do what it says that it can.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct PathsError(#[from] RulesetError);

/// From now on this thread, and threads that it starts, may use these paths and no others, connect to no TCP port, listen at
/// none, reach no abstract Unix sockets but those of its own like, and signal no other processes, also by what sends signals for a file
/// (fcntl(2), F_SETOWN_EX). What there isn't at a path needs no rule, and gets none.
///
/// # Errors
/// The kernel refuses rules that it should know.
pub fn restrict(rules: &[(PathBuf, Use)]) -> Result<Restricted, PathsError> {
    let mut ruleset = ruleset(Scope::AbstractUnixSocket | Scope::Signal)?;
    for (path, allowed) in rules {
        ruleset = allow(ruleset, path, *allowed)?;
    }
    let restricted = match ruleset.restrict_self()?.ruleset {
        RulesetStatus::FullyEnforced => Restricted::Fully,
        RulesetStatus::PartiallyEnforced => Restricted::Partly,
        RulesetStatus::NotEnforced => Restricted::No,
    };
    match restricted {
        Restricted::Fully => state::note(Part::Paths, "on"),
        Restricted::Partly => state::note(Part::Paths, "in part"),
        Restricted::No => {}
    }
    Ok(restricted)
}

/// From now on this thread may use no path at all, as by [`restrict`] without rules. Other threads, and what is known of how far files are
/// restricted, stay as they are. On a kernel without Landlock it does nothing.
///
/// # Errors
/// The kernel refuses what it should know.
pub fn restrict_to_none() -> Result<(), PathsError> {
    // Before 6.15 a kernel takes threads with other restrictions for other processes, which this one's may have to signal.
    ruleset(Scope::AbstractUnixSocket.into())?.restrict_self()?;
    Ok(())
}

fn ruleset(scopes: BitFlags<Scope>) -> Result<RulesetCreated, PathsError> {
    Ok(Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(scopes)?
        .create()?)
}

fn allow(ruleset: RulesetCreated, path: &Path, allowed: Use) -> Result<RulesetCreated, PathsError> {
    // Files without a place among others, such as memfds and pipes by /proc/self/fd, aren't restricted, and can have no rule.
    let Ok(path) = path.canonicalize() else {
        return Ok(ruleset);
    };
    let Ok(place) = PathFd::new(&path) else {
        return Ok(ruleset);
    };
    let rights = match path.is_dir() {
        true => allowed.rights(),
        false => allowed.rights() & AccessFs::from_file(NEWEST),
    };
    Ok(ruleset.add_rule(PathBeneath::new(place, rights))?)
}
