//! Reads the names of functions of languages, as vCPUs meet them.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use kvmprof_recording::file::LanguageFunctions;

use super::BinarySources;
use kvmprof_introspection::ProcessRuntime;

/// How long functions wait for their names while the thread has nothing else to do.
const PERIOD: Duration = Duration::from_millis(50);
/// Maximum number of processes whose functions are read. Those of further ones have no names.
const MAX_PROCESSES: usize = 16_384;
/// Maximum number of functions that are remembered as read. Beyond it, all are forgotten, and read again when they are met again.
const MAX_READ: usize = 1 << 18;

/// Reads functions of all processes.
#[derive(Debug, Default)]
pub struct LanguageFunctionReader {
    processes: Vec<Weak<ProcessRuntime>>,
    /// The functions that were read: several vCPUs meet the same ones.
    read: HashSet<u64>,
    next: Option<Instant>,
}

impl LanguageFunctionReader {
    /// Adds a process.
    pub fn add(&mut self, process: &Arc<ProcessRuntime>) {
        if self.processes.len() < MAX_PROCESSES {
            self.processes.push(Arc::downgrade(process));
        }
        self.next.get_or_insert_with(|| Instant::now() + PERIOD);
    }

    /// When functions should be read; `None` if there is no process.
    pub fn next(&self) -> Option<Instant> {
        self.next
    }

    /// A block of the functions that have been met since the last call, if the time has come, and there are any.
    pub fn read(&mut self, sources: &BinarySources) -> Option<Arc<[u8]>> {
        let now = Instant::now();
        if self.next.is_none_or(|next| now < next) {
            return None;
        }
        let mut functions = Vec::new();
        self.processes.retain(|process| {
            let process = process.upgrade();
            if let Some(process) = &process {
                functions.extend(sources.new_functions(process));
            }
            process.is_some()
        });
        self.next = (!self.processes.is_empty()).then(|| Instant::now() + PERIOD);
        if self.read.len() >= MAX_READ {
            self.read.clear();
        }
        functions.retain(|function| self.read.insert(function.function));
        if functions.is_empty() {
            return None;
        }
        Some(LanguageFunctions { functions }.to_block()?.into())
    }
}
