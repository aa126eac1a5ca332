//! The ids of threads in their innermost pid namespaces.

use super::RunningTask;
use crate::PhysicalMemory;
use crate::linux::view::KernelView;

/// Number of threads that one vCPU remembers.
const KNOWN: usize = 256;
/// The number of bits of a place among them, and a factor that spreads addresses over the highest bits (Knuth's, of the golden ratio).
const BITS: u32 = KNOWN.ilog2();
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// The ids of the threads that one vCPU has run last. A thread keeps its id for good, so it is read once.
#[derive(Debug)]
pub struct InnerIds {
    /// Each address of a `task_struct` has one place.
    known: Box<[Known; KNOWN]>,
}

/// A thread's id in its innermost pid namespace; `None` if that is the guest's first one.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    thread: Thread,
    inner: Option<i32>,
}

/// A thread: its `task_struct`, its id in the first namespace, and when it was started. A later thread may have the same structure and id, but
/// was started later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Thread {
    task: u64,
    tid: i32,
    started: u64,
}

impl Default for InnerIds {
    fn default() -> Self {
        let known = Box::new([Known::default(); KNOWN]);
        Self { known }
    }
}

impl InnerIds {
    /// The id of the running thread `tid`. `None` if its innermost namespace is the guest's first one, or if it is unknown.
    pub fn find<M: PhysicalMemory>(
        &mut self,
        view: &KernelView<'_, M>,
        RunningTask { task, started, .. }: RunningTask,
        tid: i32,
    ) -> Option<i32> {
        let thread = started.map(|started| Thread { task, tid, started });
        let place = usize::try_from(task.wrapping_mul(FACTOR) >> (u64::BITS - BITS)).ok()?;
        let known = self.known.get_mut(place)?;
        if thread == Some(known.thread) {
            return known.inner;
        }
        let layout = view.linux().processes.as_ref()?.perf_map.as_ref().ok()?;
        let (level, own) = layout.innermost_pid(view, task, tid)?;
        let inner = (level > 0).then_some(own);
        if let Some(thread) = thread {
            *known = Known { thread, inner };
        }
        inner
    }
}
