//! The counters of one process.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pmc::{COUNTERS, CounterId};

use super::ProcessKey;

/// A counter of a process.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    is_configured: bool,
    is_enabled: bool,
    value: u64,
    /// Counts of descendants that have ended.
    children: u64,
    /// When it was enabled, in ns of the guest's CLOCK_MONOTONIC.
    enabled_from: u64,
}

/// A process that has counters.
#[derive(Clone, Debug)]
pub struct Process {
    pid: i32,
    /// When it was started; `None` until it has been seen.
    started: Option<u64>,
    /// A process that was started later than this is another one.
    before: u64,
    parent: Option<ProcessKey>,
    /// The number that this process shares with those that have inherited their counters from it, or it from them.
    family: u64,
    /// Whether it may have descendants that haven't inherited the counters that it has now.
    has_others: bool,
    is_saved: bool,
    counters: [Counter; COUNTERS],
}

impl Process {
    /// The process with this pid that was started before `time`, in ns of the guest's CLOCK_MONOTONIC. It begins a family.
    pub fn new(pid: i32, time: u64, family: u64) -> Self {
        Self {
            pid,
            started: None,
            before: time,
            parent: None,
            family,
            has_others: true,
            is_saved: false,
            counters: [Counter::default(); COUNTERS],
        }
    }

    /// Its id.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The process's key; `None` until it has been seen.
    pub fn key(&self) -> Option<ProcessKey> {
        let started = self.started?;
        Some(ProcessKey {
            pid: self.pid,
            started,
        })
    }

    /// Its parent when it was last seen.
    pub fn parent(&self) -> Option<ProcessKey> {
        self.parent
    }

    /// Whether `key` is this process.
    pub fn is(&self, key: ProcessKey) -> bool {
        let is_its_time = match self.started {
            Some(started) => started == key.started,
            None => key.started <= self.before,
        };
        key.pid == self.pid && is_its_time
    }

    /// Notes that the process was seen with this parent.
    pub fn meet(&mut self, key: ProcessKey, parent: Option<ProcessKey>) {
        self.started = Some(key.started);
        self.parent = parent.or(self.parent);
    }

    /// The process `key`, which this process has forked; `None` if no counter was enabled at that time.
    pub fn fork(&self, key: ProcessKey) -> Option<Self> {
        let inherit = |counter: &Counter| {
            let is_inherited = counter.is_enabled && counter.enabled_from <= key.started;
            Counter {
                is_configured: is_inherited,
                is_enabled: is_inherited,
                enabled_from: key.started,
                ..Counter::default()
            }
        };
        let counters = self.counters.each_ref().map(inherit);
        let has_any = counters.iter().any(|counter| counter.is_enabled);
        let parent = self.key();
        has_any.then(|| Self {
            parent,
            counters,
            started: Some(key.started),
            // All that it forks inherits what it has inherited, until a call changes that.
            has_others: false,
            ..Self::new(key.pid, key.started, self.family)
        })
    }

    /// The number of its family.
    pub fn family(&self) -> u64 {
        self.family
    }

    /// Whether it may have descendants that haven't inherited the counters that it has now.
    pub fn has_others(&self) -> bool {
        self.has_others
    }

    /// Sets whether it may have such descendants.
    pub fn set_others(&mut self, has_others: bool) {
        self.has_others = has_others;
    }

    fn counter(&self, id: CounterId) -> Option<&Counter> {
        self.counters.get(id.number())
    }

    fn counter_mut(&mut self, id: CounterId) -> Result<&mut Counter, Errno> {
        self.counters.get_mut(id.number()).ok_or(Errno::EINVAL)
    }

    /// Configures a counter, which is stopped, at 0. The counts of its children stay.
    pub fn configure(&mut self, id: CounterId) -> Result<(), Errno> {
        let counter = self.counter_mut(id)?;
        *counter = Counter {
            is_configured: true,
            children: counter.children,
            ..Counter::default()
        };
        Ok(())
    }

    /// Starts a counter, at `time` in ns of the guest's CLOCK_MONOTONIC.
    ///
    /// # Errors
    /// ENXIO if it isn't configured, EINPROGRESS if it runs.
    pub fn enable(&mut self, id: CounterId, time: u64) -> Result<(), Errno> {
        let counter = self.counter_mut(id)?;
        if !counter.is_configured {
            return Err(Errno::ENXIO);
        }
        if counter.is_enabled {
            return Err(Errno::EINPROGRESS);
        }
        counter.is_enabled = true;
        counter.enabled_from = time;
        Ok(())
    }

    /// Stops a counter.
    ///
    /// # Errors
    /// ENXIO if it isn't configured.
    pub fn disable(&mut self, id: CounterId) -> Result<(), Errno> {
        let counter = self.counter_mut(id)?;
        if !counter.is_configured {
            return Err(Errno::ENXIO);
        }
        counter.is_enabled = false;
        Ok(())
    }

    /// The count of the process, or of its children that have ended.
    ///
    /// # Errors
    /// ENXIO if it isn't configured.
    pub fn value(&self, id: CounterId, children: bool) -> Result<u64, Errno> {
        match self.counter(id) {
            Some(counter) if counter.is_configured && children => Ok(counter.children),
            Some(counter) if counter.is_configured => Ok(counter.value),
            _ => Err(Errno::ENXIO),
        }
    }

    /// Stops the process's counters, or lets them continue.
    pub fn set_saved(&mut self, is_saved: bool) {
        self.is_saved = is_saved;
    }

    /// Whether a counter is configured.
    pub fn is_configured(&self, id: CounterId) -> bool {
        self.counter(id)
            .is_some_and(|counter| counter.is_configured)
    }

    /// Whether a counter is enabled.
    pub fn is_enabled(&self, id: CounterId) -> bool {
        self.counter(id).is_some_and(|counter| counter.is_enabled)
    }

    /// The bits of the counters that count now.
    pub fn wanted(&self) -> u32 {
        if self.is_saved {
            return 0;
        }
        let all = CounterId::ALL.into_iter();
        let enabled = all.filter(|id| self.is_enabled(*id));
        enabled.fold(0, |bits, id| bits | id.bit())
    }

    /// Adds `counts` of a stretch of time in which the process ran.
    pub fn count(&mut self, counts: &[u64; COUNTERS]) {
        if self.is_saved {
            return;
        }
        for (counter, count) in self.counters.iter_mut().zip(counts) {
            if counter.is_enabled {
                counter.value = counter.value.saturating_add(*count);
            }
        }
    }

    /// Takes the counts of the process and its children, which begin at 0 again.
    pub fn take_counts(&mut self) -> [u64; COUNTERS] {
        let mut counts = [0; COUNTERS];
        for (counter, count) in self.counters.iter_mut().zip(&mut counts) {
            *count = counter.value.saturating_add(counter.children);
            (counter.value, counter.children) = (0, 0);
        }
        counts
    }

    /// Adds the `counts` of a child that has ended.
    pub fn accumulate(&mut self, counts: &[u64; COUNTERS]) {
        for (counter, count) in self.counters.iter_mut().zip(counts) {
            if counter.is_configured {
                counter.children = counter.children.saturating_add(*count);
            }
        }
    }
}
