//! What requests wait for, before they are carried out and behind.

use std::time::{Duration, Instant};

use kvmprof_abi::wire::device;

use super::Profiler;
use super::clocks::Flush;

/// Maximum time that the end of a recording waits for files that are still being read.
const MAX_WAIT_FOR_FILES: Duration = Duration::from_secs(1);
/// Maximum time that the kernel's symbols wait until the kernel and its modules have been located.
const MAX_WAIT_FOR_SYMBOLS: Duration = Duration::from_secs(2);
/// Maximum time that the status waits for ticks that are due. It is also available while a vCPU is stuck.
const MAX_WAIT_OF_STATUS: Duration = Duration::from_millis(20);

/// What is read out of the guest's kernel by a separate thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KernelList {
    Modules,
    Processes,
}

/// The state of such a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ListState {
    #[default]
    NotNeeded,
    /// The list is to be read after the flush: it can't be found before the kernel is located.
    Needed(KernelList),
    /// The thread has been asked for the list, with this number.
    Asked(u64),
}

/// The conditions that a stage waits for.
#[derive(Debug, Default)]
pub(super) struct Wait {
    pub flush: Option<Flush>,
    /// Whether the stage waits until the files that processes have mapped have been read.
    pub files: bool,
    pub list: ListState,
    /// The end of the wait, whether the flush is over or not.
    pub deadline: Option<Instant>,
}

impl Profiler {
    /// What a text has to wait for before it is made.
    pub(super) fn before_text(&mut self, number: u16) -> Wait {
        match number {
            device::STATUS => Wait {
                // The same as before a control request, because the status says what such a request would do.
                flush: Some(self.before_control()),
                deadline: Instant::now().checked_add(MAX_WAIT_OF_STATUS),
                ..Wait::default()
            },
            device::KALLSYMS if !self.has_ended => self.before_list(KernelList::Modules),
            device::PROCESS_LIST if !self.has_ended && !self.has_process_list() => {
                self.before_list(KernelList::Processes)
            }
            _ => Wait::default(),
        }
    }

    fn before_list(&mut self, list: KernelList) -> Wait {
        Wait {
            // Each vCPU tries to locate the kernel when it answers.
            flush: (self.info.knowledge.is_unlocated()).then(|| self.clocks.ask_all()),
            list: ListState::Needed(list),
            deadline: Instant::now().checked_add(MAX_WAIT_FOR_SYMBOLS),
            ..Wait::default()
        }
    }

    /// Whether nothing is to be waited for any more.
    pub(super) fn is_over(&self, wait: &Wait) -> bool {
        let now = Instant::now();
        if wait.deadline.is_some_and(|deadline| now >= deadline) {
            return true;
        }
        let has_list = match wait.list {
            ListState::NotNeeded => true,
            ListState::Needed(_) => false,
            ListState::Asked(number) => {
                let linux = self.info.knowledge.linux();
                linux.is_none_or(|linux| linux.modules().is_refreshed(number))
            }
        };
        has_list && self.is_flushed(wait)
    }

    pub(super) fn is_flushed(&self, wait: &Wait) -> bool {
        wait.flush.as_ref().is_none_or(|flush| {
            self.clocks.is_over(flush)
                && (!wait.files
                    || !self.processes.is_loading()
                    || flush.begun().elapsed() >= MAX_WAIT_FOR_FILES)
        })
    }

    /// Asks for the list that `wait` needs, once it can be found.
    pub(super) fn ask_for_list(&self, wait: &mut Wait) {
        let ListState::Needed(list) = wait.list else {
            return;
        };
        if !self.is_flushed(wait) || self.info.knowledge.is_pending() {
            return;
        }
        let linux = self.info.knowledge.linux();
        let asked = linux.and_then(|linux| match list {
            KernelList::Modules => linux.modules().refresh(),
            KernelList::Processes => linux.request_processes(),
        });
        wait.list = asked.map_or(ListState::NotNeeded, ListState::Asked);
    }
}
