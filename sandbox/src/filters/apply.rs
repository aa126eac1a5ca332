//! From a table to a filter that the kernel has.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use super::allowed::{Allowed, Condition};
use super::tables::Thread;

/// Why there is no filter.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// A table that can't be compiled.
    #[error("the filter can't be made: {0}")]
    Compile(#[from] seccompiler::BackendError),
    /// What the kernel says.
    #[error("the filter is refused: {0}")]
    Refused(#[from] io::Error),
    /// What the kernel says to the crate seccompiler.
    #[error("the filter is refused: {0}")]
    Apply(#[from] seccompiler::Error),
}

/// Whether the kernel has what [`apply`] needs.
pub(super) fn probe() -> io::Result<()> {
    let action: u32 = libc::SECCOMP_RET_TRAP;
    // SAFETY: it reads one number of 32 bits.
    let known = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0,
            &raw const action,
        )
    };
    match known {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Applies the filter of `thread` to this thread. Other calls raise SIGSYS.
pub(super) fn apply(thread: Thread) -> Result<(), FilterError> {
    let program = compile(thread, SeccompAction::Trap)?;
    Ok(seccompiler::apply_filter(&program)?)
}

/// Applies it so that other calls wait until whoever has the descriptor lets them go on: seccomp_unotify(2).
pub(super) fn apply_watched(thread: Thread) -> Result<OwnedFd, FilterError> {
    let mut program = compile(thread, SeccompAction::Log)?;
    for instruction in &mut program {
        // seccompiler has no such action. All that returns this value is what the table doesn't have.
        if instruction.k == libc::SECCOMP_RET_LOG {
            instruction.k = libc::SECCOMP_RET_USER_NOTIF;
        }
    }
    let program = libc::sock_fprog {
        len: program.len().try_into().unwrap_or(u16::MAX),
        filter: program.as_mut_ptr().cast(),
    };
    // SAFETY: the program lives until the kernel has copied it.
    let listener = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    match i32::try_from(listener) {
        // SAFETY: the kernel has just made this descriptor, which nobody else has.
        Ok(listener @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(listener) }),
        _ => Err(io::Error::last_os_error().into()),
    }
}

fn compile(
    thread: Thread,
    otherwise: SeccompAction,
) -> Result<BpfProgram, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for allowed in thread.allowed() {
        add(&mut rules, allowed)?;
    }
    SeccompFilter::new(rules, otherwise, SeccompAction::Allow, TargetArch::x86_64)?.try_into()
}

/// A call that several tables have is allowed if one of them allows it.
fn add(
    rules: &mut BTreeMap<i64, Vec<SeccompRule>>,
    allowed: &Allowed,
) -> Result<(), seccompiler::BackendError> {
    if allowed.if_any.is_empty() {
        rules.insert(allowed.call, Vec::new());
        return Ok(());
    }
    if rules.get(&allowed.call).is_some_and(Vec::is_empty) {
        return Ok(());
    }
    for condition in allowed.if_any {
        let rule = SeccompRule::new(vec![compiled(*condition)?])?;
        rules.entry(allowed.call).or_default().push(rule);
    }
    Ok(())
}

fn compiled(condition: Condition) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(
        condition.argument,
        SeccompCmpArgLen::Dword,
        SeccompCmpOp::MaskedEq(condition.mask),
        condition.value,
    )
}
