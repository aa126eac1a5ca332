//! Which system calls each kind of thread may make, by seccomp(2).
//!
//! A filter applies to one thread, and to the threads that it starts. The threads here start none, so that each has only its own filter.
//! The threads share their memory, so that a fault in one thread can make another one act: what the process can do is bounded by all
//! filters together. No filter allows a thread to execute a program, to make code executable, to trace, or to make a process or a namespace.
//!
//! The tables are in the folder `build` of this crate: they are compiled when kvmprof is built. A program that runs no guest has a filter of another kind
//! ([`refuse_to_leave`]).

mod apply;
mod leave;
mod report;
mod watch;

use std::cell::Cell;
use std::io;
use std::sync::OnceLock;

use syscalls::Sysno;

pub use leave::refuse_to_leave;
pub use report::STATUS;

use crate::state::{self, Mechanism};
use crate::{Mode, Thread, capabilities, paths, user};

/// What [`prepare`] has decided.
static PREPARED: OnceLock<PreparedFilters> = OnceLock::new();

struct PreparedFilters {
    /// Reports calls that aren't allowed, and lets them be made. `None`: such a call ends the process.
    watch: Option<watch::Watch>,
}

thread_local! {
    /// Whether this thread has been contained.
    static ENTERED: Cell<bool> = const { Cell::new(false) };
}

/// From now on [`enter`] gives filters to threads. `before_report` is called in a signal handler, before a thread's forbidden call is
/// reported: it may only do what signal handlers may (signal-safety(7)), by system calls that all filters allow.
///
/// # Errors
/// The host's kernel has no filters. For [`Mode::Log`]: it has none that a thread can watch.
pub fn prepare(mode: Mode, before_report: fn()) -> io::Result<()> {
    let watch = match mode {
        Mode::Off => return Ok(()),
        Mode::On => {
            report::install(before_report)?;
            None
        }
        Mode::Log => Some(watch::Watch::start()?),
    };
    apply::probe()?;
    if PREPARED.set(PreparedFilters { watch }).is_ok() {
        state::note(Mechanism::SystemCalls, mode.name());
    }
    Ok(())
}

/// The name of the system call with this number, for messages.
pub fn call_name(call: i64) -> Option<&'static str> {
    let call = usize::try_from(call).ok().and_then(Sysno::new);
    call.map(|call| call.name())
}

/// Whether threads get filters.
pub fn is_prepared() -> bool {
    PREPARED.get().is_some()
}

/// Whether this thread has been contained by [`enter`].
pub fn is_contained() -> bool {
    ENTERED.get()
}

/// Permanently gives this thread the filter of its kind, and removes the superuser's rights that it doesn't need. After [`user::choose`] the
/// thread becomes that user, too. Does nothing if neither [`prepare`] nor [`user::choose`] was called, or if this thread has called it before.
///
/// [`prepare`] has checked that this process may have filters. If the system refuses one nevertheless, the process aborts: no thread continues
/// without its filter.
pub fn enter(thread: Thread) {
    let (prepared, user) = (PREPARED.get(), user::chosen());
    if prepared.is_none() && user.is_none() || ENTERED.replace(true) {
        return;
    }
    report::remember_name();
    let filter = || match prepared.map(|prepared| &prepared.watch) {
        None => Ok(()),
        Some(None) => apply::apply(thread),
        Some(Some(watch)) => apply::apply_watched(thread).and_then(|listener| watch.add(listener)),
    };
    let applied = capabilities::keep(thread, user).and_then(|()| filter());
    if let Err(error) = applied {
        log::error!("The thread {thread:?} can't be contained: {error}. Try --sandbox off");
        std::process::abort();
    }
}

/// Does what [`enter`] does, for a thread that needs no files and was started before [`paths::restrict`], which restricts only later threads.
/// The thread can use no path from now on; without [`prepare`] it can use all paths.
pub fn enter_without_paths(thread: Thread) {
    if is_prepared()
        && let Err(error) = paths::restrict_to_none()
    {
        log::warn!("The sandbox lacks restrictions of files for a thread {thread:?}: {error}");
    }
    enter(thread);
}
