//! Holds the vCPUs until they may run.

use std::sync::{Condvar, Mutex, PoisonError};

use kvmprof_machine::lock::lock;

/// A gate that opens once and stays open.
#[derive(Debug, Default)]
pub struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    /// A gate that is open if `is_open`.
    pub fn opened_if(is_open: bool) -> Self {
        Self {
            open: Mutex::new(is_open),
            opened: Condvar::new(),
        }
    }

    /// Opens the gate.
    pub fn open(&self) {
        *lock(&self.open) = true;
        self.opened.notify_all();
    }

    /// Whether the gate is open.
    pub fn is_open(&self) -> bool {
        *lock(&self.open)
    }

    /// Waits until the gate is open.
    pub fn pass(&self) {
        let open = lock(&self.open);
        drop(
            self.opened
                .wait_while(open, |open| !*open)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }
}
