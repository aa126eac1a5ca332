//! Makes a profile of rows.

use std::collections::BTreeMap;
use std::rc::Rc;

use kvmprof_recording::file::{Account, Contents, RecordingInfo};
use kvmprof_recording::{IDLE_PID, Mode};

use super::names::Names;
use super::{Row, RowsError};
use crate::model::{
    ModeCounts, NodeId, Process, StackSum, Thread, ThreadSamples, add_modes, sum_modes,
};
use crate::profile::Profile;
use crate::symbolize::{LabelSet, Resolver};

/// Bytes that a frame of a stack takes. Stacks share the frames of the same callers.
const NODE: usize = 4 * size_of::<NodeId>();

/// Sums rows up.
#[derive(Debug)]
pub struct RowSums {
    names: Names,
    threads: BTreeMap<i32, Thread>,
    stacks: Vec<StackSum>,
    /// The threads of these stacks.
    tids: Vec<i32>,
    /// The number of the last new frame of a stack.
    nodes: usize,
    idle: u64,
    budget: u64,
    left: u64,
}

impl RowSums {
    /// No rows yet. Their stacks can take `budget` bytes.
    pub fn new(budget: u64) -> Self {
        Self {
            names: Names::default(),
            threads: BTreeMap::new(),
            stacks: Vec::new(),
            tids: Vec::new(),
            nodes: 0,
            idle: 0,
            budget,
            left: budget,
        }
    }

    /// Adds a row.
    ///
    /// # Errors
    /// There are too many names or stacks.
    pub fn add(&mut self, row: &Row<'_>) -> Result<(), RowsError> {
        if row.ticks == 0 {
            return Ok(());
        }
        if row.is_halted() {
            self.idle = self.idle.saturating_add(row.ticks);
            return Ok(());
        }
        let labels = self.names.labels(row)?;
        let (sample, functions) = self.names.place(row, LabelSet::default())?;
        let node = self.names.node(&functions);
        let new = node.index().saturating_sub(self.nodes);
        self.nodes += new;
        let size = size_of::<StackSum>() + size_of::<(i32, ThreadSamples)>() + NODE * new;
        let left = self.left.checked_sub(size as u64);
        self.left = left.ok_or(RowsError::TooManyStacks(self.budget))?;
        let thread = self.threads.entry(sample.tid).or_default();
        (thread.pid, thread.tid, thread.comm) = (sample.pid, sample.tid, sample.comm);
        count(&mut thread.modes, row.mode, row.ticks);
        self.tids.push(sample.tid);
        self.stacks.push(StackSum {
            pid: sample.pid,
            node,
            mode: row.mode,
            labels,
            is_cut_short: row.functions.len() > functions.len(),
            ticks: row.ticks,
        });
        Ok(())
    }

    /// The profile, as of a recording with the properties `info`.
    pub fn into_profile(mut self, info: &RecordingInfo) -> Profile {
        let mut processes: BTreeMap<i32, Process> = BTreeMap::new();
        for (pid, name, _) in self.names.processes() {
            processes.entry(pid).or_default().name = name.to_owned();
        }
        if self.idle > 0 {
            let idle = self.threads.entry(IDLE_PID).or_default();
            count(&mut idle.modes, Mode::Idle, self.idle);
        }
        let mut all = ModeCounts::default();
        for thread in self.threads.values() {
            let process = processes.entry(thread.pid).or_default();
            add_modes(&mut process.modes, thread.modes);
            add_modes(&mut all, thread.modes);
        }
        let account = Account {
            ticks: sum_modes(&all),
            samples: sum_modes(&all).saturating_sub(self.idle),
            idle: self.idle,
            ..Account::default()
        };
        let parts = self.parts();
        let (code, labels) = self.names.into_parts();
        Profile {
            contents: Contents {
                info: info.clone(),
                account,
                closed: Some(account),
                ..Contents::default()
            },
            processes,
            threads: self.threads.into_values().collect(),
            stacks: self.stacks,
            parts,
            code: Rc::new(code),
            resolver: Rc::new(Resolver::from_labels(labels)),
            idle: self.idle,
            has_symbols: true,
            ..Profile::default()
        }
    }

    /// The stacks with their threads. Rows have no vCPUs.
    fn parts(&self) -> Vec<ThreadSamples> {
        let numbers: BTreeMap<i32, u32> = self.threads.keys().copied().zip(0..).collect();
        let stacks = (0..).zip(self.stacks.iter().zip(&self.tids));
        let parts = stacks.map(|(stack, (sum, tid))| ThreadSamples {
            stack,
            thread: numbers.get(tid).copied(),
            vcpu: None,
            ticks: sum.ticks,
        });
        parts.collect()
    }
}

fn count(modes: &mut ModeCounts, mode: Mode, ticks: u64) {
    let sum = &mut modes[mode.index()];
    *sum = sum.saturating_add(ticks);
}
