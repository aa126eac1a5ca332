//! The functions of a guest's kernel, without profiling it.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kvmprof_attach::remote::{Channel, RemoteVcpu};
use kvmprof_introspection::{BuildFiles, GuestKnowledge};
use kvmprof_profiling::ProfilingConfig;
use kvmprof_sandbox::Thread;

use super::error::AttachedError;
use super::kernel_finder::KernelFinder;
use super::{Attachment, give_up_rights};
use crate::vm::{VmError, restrict_paths};

/// The number of looks at vCPUs until the kernel is given up: one of them may run a guest of its own, or be stopped for something else.
const LOOKS: u32 = 12;
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// The functions of the Linux kernel that the guest of `attachment` runs, and those of its modules, in the form of `/proc/kallsyms`. `None` if no kernel is found that has
/// any. A vCPU is stopped for a moment for each look. This process, which has no other thread, is contained from now on, if `kvmprof_sandbox` was told to; with
/// `is_restricted` also to the files that it can need (`kvmprof_sandbox::paths`).
///
/// # Errors
/// The host refuses to contain this process, or gives no thread.
pub fn kernel_functions(
    attachment: Attachment,
    is_restricted: bool,
) -> Result<Option<String>, AttachedError> {
    // The first call asks the kernel by prctl(2) where the vDSO is, which no filter allows.
    let _ = rustix::thread::sched_getcpu();
    if is_restricted {
        restrict_paths(&ProfilingConfig::default())?;
    }
    give_up_rights(&[])?;
    // The process that traces the VMM ends with this, for which only the first thread may wait.
    let Attachment { guest, helper, .. } = attachment;
    let (memory, vcpus) = (guest.watching, guest.watched);
    let looking = thread::Builder::new().name("introspection".into());
    let looking = looking
        .spawn(move || {
            kvmprof_sandbox::enter(Thread::AttachedKernel);
            functions(memory, vcpus)
        })
        .map_err(VmError::host("a thread"))?;
    kvmprof_sandbox::enter(Thread::Main);
    let functions = looking.join().map_err(|_| VmError::Host {
        what: "to go on",
        source: io::Error::other("the thread that reads the guest's kernel panicked"),
    })?;
    drop(helper);
    Ok(functions)
}

fn functions(memory: Arc<Channel>, vcpus: Vec<RemoteVcpu>) -> Option<String> {
    let knowledge = GuestKnowledge::pending();
    let mut finder = KernelFinder::new(memory, vcpus, BuildFiles::default());
    for _ in 0..LOOKS {
        if let Err(error) = finder.look(&knowledge) {
            log::debug!("The guest's kernel isn't known: {error}");
        }
        if !knowledge.is_pending() && !knowledge.is_unlocated() {
            break;
        }
        thread::sleep(PAUSE);
    }
    let mut functions = knowledge.kallsyms()?;
    if let Some(linux) = knowledge.linux() {
        let (memory, _) = finder.into_parts();
        linux.modules().read(linux, &memory);
        functions += &linux.modules().loaded().functions();
    }
    Some(functions)
}
