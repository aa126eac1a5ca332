//! The functions of a guest's kernel, without profiling it.

use std::thread;
use std::time::Duration;

use kvmprof_introspection::{BuildFiles, GuestKnowledge};
use kvmprof_profiling::ProfilingConfig;
use kvmprof_sandbox::Thread;

use super::error::AttachedError;
use super::kernel_finder::KernelFinder;
use super::{Attachment, give_up_rights};
use crate::vm::restrict_paths;

/// The number of looks at vCPUs until the kernel is given up: one of them may be in user mode, or run a guest of its own.
const LOOKS: u32 = 12;
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// The functions of the Linux kernel that the guest of `attachment` runs, and those of its modules, in the form of `/proc/kallsyms`. `None` if no kernel is found that has
/// any. A vCPU is stopped for a moment for each look. The calling thread and this process, which has no other thread, are contained from now on, if `kvmprof_sandbox` was
/// told to; with `is_restricted` also to the files that they can need (`kvmprof_sandbox::paths`).
///
/// # Errors
/// The host refuses to contain this process.
pub fn kernel_functions(
    attachment: Attachment,
    is_restricted: bool,
) -> Result<Option<String>, AttachedError> {
    if is_restricted {
        restrict_paths(&ProfilingConfig::default())?;
    }
    give_up_rights(&[])?;
    kvmprof_sandbox::enter(Thread::Main);
    let Attachment { guest, .. } = attachment;
    let knowledge = GuestKnowledge::pending();
    let mut finder = KernelFinder::new(guest.watching, guest.watched, BuildFiles::default());
    for _ in 0..LOOKS {
        if let Err(error) = finder.look(&knowledge) {
            log::debug!("The guest's kernel isn't known: {error}");
        }
        if !knowledge.is_pending() && !knowledge.is_unlocated() {
            break;
        }
        thread::sleep(PAUSE);
    }
    let Some(mut functions) = knowledge.kallsyms() else {
        return Ok(None);
    };
    if let Some(linux) = knowledge.linux() {
        let (memory, _) = finder.into_parts();
        linux.modules().read(linux, &memory);
        functions += &linux.modules().loaded().functions();
    }
    Ok(Some(functions))
}
