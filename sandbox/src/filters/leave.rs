//! The filter of a program that runs no guest: it may do its own work, whatever calls that takes, and may not act on others.

use std::io;

use super::apply::{LEAVING, install};
use crate::state::{self, Mechanism};

/// From now on this thread, and those that it starts, can act on no other process and on nothing that the whole host has: calls for that fail with EPERM. They can
/// start threads. Calls for files, connections and memory aren't restricted.
///
/// # Errors
/// The host's kernel has no filters, or refuses this one.
pub fn refuse_to_leave() -> io::Result<()> {
    install(LEAVING, 0)?;
    state::note(Mechanism::SystemCalls, "on");
    Ok(())
}
