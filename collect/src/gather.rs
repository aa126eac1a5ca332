//! Sums up one guest's recording by window of time.

mod gaps;
mod rows;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::RandomState;
use glob::Pattern;
use kvmprof_recording::file::{
    Account, Block, Budget, KernelInfo, Kind, Piece, ReadError, Reader, RecordingInfo, Samples,
};
use kvmprof_recording::{COMM_LENGTH, Mode, Sample, Ticks};
use kvmprof_report::model::{ProcessNames, Stack};
use kvmprof_report::symbolize::Resolver;

use self::gaps::{Gaps, split_off_earlier};
use crate::batch::Window;
use crate::hash::Hashed;
use crate::names::{BatchNames, GuestStacks, MAX_STACKS};

/// Maximum number of processes (pids) in a window whose names are kept.
const MAX_PIDS: usize = 8192;
/// Maximum number of open windows of a guest: the present one, and earlier ones whose last samples haven't come yet.
const MAX_OPEN: usize = 8;
/// Maximum number of resolved names that are kept from one window to the next. Few, for they would be most of what a guest takes in memory, and
/// only stacks that are new to a guest are named.
const MAX_FOUND: usize = 256;
/// Maximum number of bytes of symbols, mappings and files of one guest that are kept.
const MAX_NAMES: usize = 64 << 20;

/// The labels of processes that leave the host by default: those that a group of processes has in common.
pub const LABELS_OF_GROUPS: [&str; 7] = [
    "user",
    "cgroup",
    "container",
    "runtime",
    "pod",
    "qos",
    "unit",
];

/// The names that a window keeps. Ticks of all others count as those of [`OTHER`](crate::batch::OTHER).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Maximum number of names of processes.
    pub processes: usize,
    /// Maximum number of names of threads.
    pub threads: usize,
    /// Names of processes and of threads that must not leave the host. Their stacks aren't kept either.
    pub drop: Vec<Pattern>,
    /// Names of processes and of threads that leave the host as a hash.
    pub hash: Option<Hashed>,
    /// The keys of labels of processes that leave the host.
    pub labels: Vec<String>,
}

impl Policy {
    /// Whether the names of this thread must not leave the host, by its own name or that of its process.
    fn drops(&self, process: &str, thread: &str) -> bool {
        let mut patterns = self.drop.iter();
        patterns.any(|pattern| pattern.matches(process) || pattern.matches(thread))
    }

    /// The names as they leave the host, and whether the stacks do. A process that is hashed has all its threads hashed. A thread that is hashed
    /// leaves the process's name as it is, since other threads have it, too.
    fn shown(&self, process: String, thread: String) -> (String, String, bool) {
        let Some(hash) = &self.hash else {
            return (process, thread, true);
        };
        match (hash.covers(&process), hash.covers(&thread)) {
            (true, _) => (hash.of(&process), hash.of(&thread), hash.keeps_stacks),
            (false, true) => (process, hash.of(&thread), hash.keeps_stacks),
            (false, false) => (process, thread, true),
        }
    }
}

/// The state of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It goes on.
    Live,
    /// The guest was restarted, or its names take too much memory: another recording has to be started.
    Stale,
    /// It has ended.
    Ended,
}

/// A clock for windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowClock {
    /// CLOCK_REALTIME, in ns since 1970.
    pub real: u64,
    /// CLOCK_MONOTONIC at the same moment, in ns: the clock of samples.
    pub monotonic: u64,
    /// The length of windows, in s.
    pub length: u32,
    /// The earliest start of a window that isn't closed, in s since 1970.
    pub first: u64,
}

impl WindowClock {
    /// The start of the present window, in s since 1970.
    pub fn window(&self) -> u64 {
        self.window_of(self.real)
    }

    fn window_of(&self, real: u64) -> u64 {
        let length = u64::from(self.length.max(1));
        real / 1_000_000_000 / length * length
    }

    /// CLOCK_REALTIME at a past time of CLOCK_MONOTONIC, in ns.
    fn real_at(&self, monotonic: u64) -> u64 {
        let before = self.monotonic.saturating_sub(monotonic);
        self.real.saturating_sub(before)
    }

    /// The start of the window for this time of CLOCK_MONOTONIC. If that window is closed, that of the first one that isn't.
    fn open_window_of(&self, monotonic: u64) -> u64 {
        let start = self.window_of(self.real_at(monotonic));
        start.max(self.first).min(self.window())
    }
}

/// The number of samples, and of those with interrupts off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    ticks: u64,
    interrupts_off: u64,
}

impl Count {
    fn of(sample: &Sample) -> Self {
        Self {
            ticks: 1,
            interrupts_off: sample.has_interrupts_off().into(),
        }
    }

    fn add(&mut self, other: Self) {
        self.ticks = self.ticks.saturating_add(other.ticks);
        self.interrupts_off = self.interrupts_off.saturating_add(other.interrupts_off);
    }
}

/// The ticks of one guest in one window.
#[derive(Debug, Default)]
struct OpenWindow {
    account: Account,
    /// Samples by the stack's number and the thread's name.
    rows: HashMap<(u32, [u8; COMM_LENGTH]), Count, RandomState>,
    names: HashMap<i32, ProcessNames, RandomState>,
    /// Samples beyond the limits, by mode.
    elsewhere: [Count; Mode::ALL.len()],
}

/// A guest's recording that is being read, and its open windows.
#[derive(Debug)]
pub struct Gather {
    reader: Reader,
    budget: Budget,
    room: usize,
    info: RecordingInfo,
    kernel: KernelInfo,
    resolver: Resolver,
    /// The stacks of open windows, and of some earlier ones.
    stacks: GuestStacks,
    open: BTreeMap<u64, OpenWindow>,
    is_stale: bool,
    was_reset: bool,
    /// Labels of the guest, which all its rows have beside those of their processes.
    labels: BTreeMap<String, String>,
}

impl Default for Gather {
    fn default() -> Self {
        Self {
            reader: Reader::default(),
            budget: Budget::default(),
            room: MAX_NAMES,
            info: RecordingInfo::default(),
            kernel: KernelInfo::default(),
            resolver: Resolver::default(),
            stacks: GuestStacks::default(),
            open: BTreeMap::new(),
            is_stale: false,
            was_reset: false,
            labels: BTreeMap::new(),
        }
    }
}

impl Gather {
    /// The recording of a guest with these `labels`.
    pub fn with_labels(labels: BTreeMap<String, String>) -> Self {
        Self {
            labels,
            ..Self::default()
        }
    }

    /// The recording's properties. Its rate is 0 until they have been read.
    pub fn info(&self) -> &RecordingInfo {
        &self.info
    }

    /// Takes the next bytes of the recording.
    ///
    /// # Errors
    /// It isn't a recording of a known format, or is damaged.
    pub fn feed(&mut self, bytes: &[u8], now: WindowClock) -> Result<State, ReadError> {
        self.reader.push(bytes);
        let mut has_ended = false;
        while let Some(block) = self.reader.next_block()? {
            has_ended |= self.take(block, now)?;
        }
        Ok(match (has_ended, self.is_stale) {
            (true, _) => State::Ended,
            (false, true) => State::Stale,
            (false, false) => State::Live,
        })
    }

    /// Takes a block. True at the recording's end.
    fn take(&mut self, block: Block, now: WindowClock) -> Result<bool, ReadError> {
        if matches!(
            block.kind,
            Some(
                Kind::Symbols
                    | Kind::Mappings
                    | Kind::Labels
                    | Kind::Binary
                    | Kind::Functions
                    | Kind::GeneratedCode
            )
        ) {
            let room = self.room.checked_sub(block.contents.len());
            let (Some(room), true) = (room, self.budget.take(&block)) else {
                // From here on, functions are shown by their addresses, until there is a new recording.
                self.is_stale = true;
                return Ok(false);
            };
            self.room = room;
        }
        match block.piece()? {
            Some(Piece::Info(info)) => self.info = info,
            Some(Piece::Kernel(kernel)) => {
                // Its functions have its build id from now on.
                self.stacks.forget_names();
                self.kernel = kernel;
            }
            Some(Piece::Samples(samples)) => self.add(&samples, now)?,
            Some(Piece::End(_)) => return Ok(true),
            Some(Piece::Reset(_)) => (self.is_stale, self.was_reset) = (true, true),
            Some(piece) => {
                // A function that was shown by its address may have a name now. New mappings don't concern stacks that are known.
                if matches!(
                    piece,
                    Piece::Symbols(_)
                        | Piece::Binary(_)
                        | Piece::Functions(_)
                        | Piece::GeneratedCode(_)
                ) {
                    self.stacks.forget_names();
                }
                self.resolver.add_piece(piece);
            }
            None => {}
        }
        Ok(false)
    }

    /// Adds ticks to windows. A sample counts for the window of its time. Ticks without a sample come before the next sample of their vCPU in the block, or, if
    /// there is none, before the present time.
    fn add(&mut self, samples: &Samples, now: WindowClock) -> Result<(), ReadError> {
        let (resolver, stacks) = (&self.resolver, &mut self.stacks);
        let (open, hz) = (&mut self.open, self.info.hz);
        let mut gaps = Gaps::default();
        let result = samples.read(|ticks, frames| {
            gaps.enter(ticks);
            if let Some(sample) = &ticks.sample {
                add_gap(open, gaps.take(ticks.vcpu), hz, now, sample.time);
                let start = now.open_window_of(sample.time);
                part(open, start).add(sample, frames, resolver, stacks);
            }
        });
        for gap in gaps.into_accounts() {
            add_gap(open, gap, hz, now, now.monotonic);
        }
        result
    }

    /// Whether the guest was restarted: earlier names are invalid then.
    pub fn was_reset(&self) -> bool {
        self.was_reset
    }

    /// The starts of the open windows.
    pub fn open(&self) -> impl Iterator<Item = u64> {
        self.open.keys().copied()
    }

    /// Closes the window that began at `start`. `None` if it has no ticks. `guest` is the guest's name.
    pub fn close(
        &mut self,
        start: u64,
        guest: &str,
        policy: &Policy,
        names: &mut BatchNames<'_>,
    ) -> Option<Window> {
        let part = self.open.remove(&start)?;
        let mut rows = part.rows(
            (&self.resolver, &self.kernel),
            &mut self.stacks,
            (policy, &self.labels),
            names,
        );
        if !self.info.knows_interrupts() {
            for row in &mut rows {
                row.interrupts_off = None;
            }
        }
        self.resolver.forget_beyond(MAX_FOUND);
        self.forget_stacks();
        Some(Window {
            guest: guest.to_owned(),
            kernel: self.kernel.release.clone(),
            hz: self.info.hz,
            jitter: Some(self.info.jitter),
            account: part.account,
            rows,
        })
    }

    /// Forgets the stacks that no open window has, if there are many stacks.
    fn forget_stacks(&mut self) {
        if !self.stacks.are_many() {
            return;
        }
        let rows = self.open.values().flat_map(|part| part.rows.keys());
        let new = self.stacks.keep(rows.map(|(number, _)| *number));
        for part in self.open.values_mut() {
            let rows = std::mem::take(&mut part.rows).into_iter();
            part.rows = rows
                .filter_map(|((number, comm), count)| {
                    let number = new.get(number as usize).copied().flatten()?;
                    Some(((number, comm), count))
                })
                .collect();
        }
    }
}

/// The window that begins at `start`, or the oldest open one if there are too many.
fn part(open: &mut BTreeMap<u64, OpenWindow>, start: u64) -> &mut OpenWindow {
    let first = open.first_key_value().map(|(first, _)| *first);
    let key = match first {
        Some(first) if open.len() >= MAX_OPEN && !open.contains_key(&start) => first,
        _ => start,
    };
    open.entry(key).or_default()
}

/// Adds the ticks of a vCPU without a sample, of which there are `hz` per second. The last one was right before the time `end` of CLOCK_MONOTONIC, in ns.
fn add_gap(
    open: &mut BTreeMap<u64, OpenWindow>,
    mut gap: Account,
    hz: u32,
    now: WindowClock,
    end: u64,
) {
    if gap.ticks == 0 {
        return;
    }
    let start = now.open_window_of(end);
    let since = now
        .real_at(end)
        .saturating_sub(start.saturating_mul(1_000_000_000));
    let earlier = split_off_earlier(&mut gap, hz, since);
    // A block of the recorder covers one window and one second at most.
    let before = start.saturating_sub(now.length.into()).max(now.first);
    for (start, gap) in [(before, earlier), (start, gap)] {
        if gap.ticks > 0 {
            part(open, start).account.merge(&gap);
        }
    }
}

impl OpenWindow {
    fn add(
        &mut self,
        sample: &Sample,
        frames: &[u64],
        resolver: &Resolver,
        stacks: &mut GuestStacks,
    ) {
        self.account.enter(&Ticks {
            sample: Some(*sample),
            ..Ticks::default()
        });
        if self.names.len() < MAX_PIDS || self.names.contains_key(&sample.pid) {
            self.names.entry(sample.pid).or_default().note(sample);
        }
        let view = Stack::new(sample, frames, resolver.state_of(sample).state);
        let number = stacks.number(sample.pid, view);
        // The number is bounded because a thread can change its name as often as it likes.
        let key = number.map(|number| (number, sample.comm));
        let key = key.filter(|key| self.rows.len() < MAX_STACKS || self.rows.contains_key(key));
        let sum = match key {
            Some(key) => self.rows.entry(key).or_default(),
            None => &mut self.elsewhere[sample.mode.index()],
        };
        sum.add(Count::of(sample));
    }
}
