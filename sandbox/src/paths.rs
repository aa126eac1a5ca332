//! Which files a process may still open, make and remove, by Landlock (kernel: Documentation/userspace-api/landlock.rst).
//!
//! Files that are open already stay open. The kernel looks each path up once: a rule for a file doesn't hold for another file that takes its place
//! later. So files that are replaced need a rule for their folder.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use crate::state::{self, Mechanism};

/// The newest version of Landlock whose rights are used. An older kernel applies those that it has.
const NEWEST: ABI = ABI::V6;

/// What may be done at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A file or folder, and all below it, can be read.
    Read,
    /// Files and sockets in the folder can be made, written, removed, and renamed in their folder.
    Replace,
}

impl Use {
    fn rights(self) -> BitFlags<AccessFs> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        match self {
            Self::Read => read,
            Self::Replace => {
                read | AccessFs::WriteFile
                    | AccessFs::Truncate
                    | AccessFs::MakeReg
                    | AccessFs::MakeSock
                    | AccessFs::RemoveFile
            }
        }
    }
}

/// How far Landlock is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restricted {
    /// The kernel applies all rules.
    Fully,
    /// The kernel has an older version of Landlock, and applies what that has.
    Partly,
    /// The kernel has no Landlock, and applies nothing.
    No,
}

/// The kernel refuses rules that its version of Landlock should support.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct PathsError(#[from] RulesetError);

/// From now on this thread, and threads that it starts, may use these paths and no others. They may not connect to a TCP port or listen at
/// one, reach abstract Unix sockets of processes that aren't restricted like them, or signal other processes, not even as a file's owner
/// (fcntl(2), F_SETOWN_EX). A path at which nothing exists gets no rule.
///
/// # Errors
/// The kernel refuses rules that its version of Landlock should support.
pub fn restrict(rules: &[(PathBuf, Use)]) -> Result<Restricted, PathsError> {
    let mut ruleset = ruleset(Scope::AbstractUnixSocket | Scope::Signal)?;
    for (path, allowed) in rules {
        ruleset = allow(ruleset, path, allowed.rights())?;
    }
    enforce(ruleset)
}

fn enforce(ruleset: RulesetCreated) -> Result<Restricted, PathsError> {
    let restricted = match ruleset.restrict_self()?.ruleset {
        RulesetStatus::FullyEnforced => Restricted::Fully,
        RulesetStatus::PartiallyEnforced => Restricted::Partly,
        RulesetStatus::NotEnforced => Restricted::No,
    };
    match restricted {
        Restricted::Fully => state::note(Mechanism::Paths, "on"),
        Restricted::Partly => state::note(Mechanism::Paths, "in part"),
        Restricted::No => {}
    }
    Ok(restricted)
}

/// From now on this thread, and threads that it starts, change nothing outside of these folders, execute no file, and neither look into other processes, nor
/// signal them, nor reach their abstract Unix sockets. Reading files, TCP, and Unix sockets with a path aren't restricted. A path at which nothing exists gets no
/// rule.
///
/// # Errors
/// As for [`restrict`].
pub fn restrict_changes(folders: &[PathBuf]) -> Result<Restricted, PathsError> {
    let changes = AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
        | AccessFs::Refer;
    let others = AccessFs::Execute
        | AccessFs::MakeChar
        | AccessFs::MakeBlock
        | AccessFs::MakeSock
        | AccessFs::MakeFifo
        | AccessFs::MakeSym;
    let mut ruleset = Ruleset::default()
        .handle_access(changes | others)?
        .scope(Scope::AbstractUnixSocket | Scope::Signal)?
        .create()?;
    for folder in folders {
        ruleset = allow(ruleset, folder, changes)?;
    }
    enforce(ruleset)
}

/// From now on this thread may use no path at all, as after [`restrict`] without rules. This changes neither other threads nor what
/// [`state`] returns. It does nothing on a kernel without Landlock.
///
/// # Errors
/// As for [`restrict`].
pub fn restrict_to_none() -> Result<(), PathsError> {
    // Before Linux 6.15, a kernel treats threads with other restrictions as other processes, and threads of this process may have to signal each other.
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

fn allow(
    ruleset: RulesetCreated,
    path: &Path,
    allowed: BitFlags<AccessFs>,
) -> Result<RulesetCreated, PathsError> {
    // Files outside of all folders, such as memfds and pipes by /proc/self/fd, aren't restricted, and can have no rule.
    let Ok(path) = path.canonicalize() else {
        return Ok(ruleset);
    };
    let Ok(place) = PathFd::new(&path) else {
        return Ok(ruleset);
    };
    let rights = match path.is_dir() {
        true => allowed,
        false => allowed & AccessFs::from_file(NEWEST),
    };
    Ok(ruleset.add_rule(PathBeneath::new(place, rights))?)
}
