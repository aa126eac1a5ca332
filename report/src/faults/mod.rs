//! Faults of guest memory: what they were, how long they took, who made them, and the pages that were touched.

mod pages;

use std::collections::HashMap;
use std::hash::Hash;

use foldhash::fast::RandomState;
use kvmprof_recording::exits::Exits;
use kvmprof_recording::file::RecordingInfo;
use kvmprof_recording::{FaultKind, MemoryFault};
use serde::Serialize;

use crate::budget::{OutputBudget, TooMuch};
use crate::model::FrameKind;
use crate::profile::{Profile, Selected, Selection, StackSum, Watcher};
use crate::symbolize::Resolver;

pub use pages::{TouchedPage, TouchedPages};

/// Maximum number of memory slots and pages of devices that are told apart.
const MAX_PLACES: usize = 4096;
/// Number of points of a curve.
const POINTS: u64 = 20;
/// How often the names of a row are in memory: in their table and in a document.
const COPIES: usize = 2;
/// What stands for a name that isn't known.
const UNKNOWN: &str = "[unknown]";

/// Faults of the same kind and group.
#[derive(Clone, Copy, Debug, Default)]
struct FaultSum {
    faults: Exits,
    longest: u64,
}

impl FaultSum {
    fn add(&mut self, other: Self) {
        self.faults.add(other.faults);
        self.longest = self.longest.max(other.longest);
    }
}

/// Sums by group and kind.
type Sums<Group> = HashMap<(Group, FaultKind), FaultSum, RandomState>;

/// Where a fault was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Place {
    /// The memory slot that begins at this guest-physical address.
    Slot(u64),
    /// The page of a device at this one.
    Device(u64),
    /// One of the others, when there are too many.
    Other,
}

impl Place {
    fn of(fault: &MemoryFault) -> Self {
        fault.slot.map_or(Self::Device(fault.page()), Self::Slot)
    }

    fn name(self) -> String {
        match self {
            Self::Slot(begin) => format!("slot at {begin:#x}"),
            Self::Device(page) => format!("page {page:#x}"),
            Self::Other => "[others]".to_owned(),
        }
    }
}

/// Collects the data of [`Faults`] while a recording is summed up. Its memory is bounded for any recording.
#[derive(Debug, Default)]
pub struct FaultWatcher {
    /// The begin of the selected time, and the time of the last fault, in ns of CLOCK_MONOTONIC.
    begin: u64,
    last: u64,
    by_stack: Sums<Option<u32>>,
    by_place: Sums<Place>,
    pages: TouchedPages,
}

impl Watcher for FaultWatcher {
    fn begin(&mut self, _: usize, info: &RecordingInfo, selection: &Selection, _: &Resolver) {
        *self = Self {
            begin: selection.time.begin_in(info.began_monotonic_ns),
            ..Self::default()
        };
    }

    fn take(&mut self, selected: &Selected) {
        let Some((sample, fault)) = selected.sample.and_then(|one| Some((one, one.fault?))) else {
            return;
        };
        let sum = FaultSum {
            faults: Exits {
                count: 1,
                time: fault.time,
            },
            longest: fault.time,
        };
        let by_stack = self.by_stack.entry((selected.stack, fault.kind));
        by_stack.or_default().add(sum);
        let mut place = (Place::of(&fault), fault.kind);
        if self.by_place.len() >= MAX_PLACES && !self.by_place.contains_key(&place) {
            place.0 = Place::Other;
        }
        self.by_place.entry(place).or_default().add(sum);
        self.pages.take(&fault, sample.time);
        self.last = self.last.max(sample.time);
    }
}

impl FaultWatcher {
    /// Whether there was no fault.
    pub fn is_empty(&self) -> bool {
        self.by_place.is_empty()
    }

    /// The pages that were touched.
    pub fn into_pages(self) -> TouchedPages {
        self.pages
    }
}

/// Faults of the same kind, of a process or another group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FaultRow {
    /// The group's name; that of the kind in the table of kinds.
    pub name: String,
    /// The kind.
    pub kind: &'static str,
    /// How many.
    pub count: u64,
    /// How long they took together, in ns.
    pub time_ns: u64,
    /// How long one took at most, in ns.
    pub longest_ns: u64,
}

/// How many pages had been touched at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CurvePoint {
    /// The time since the begin of the selected time, in ns.
    pub time_ns: u64,
    /// The number of pages.
    pub pages: u64,
}

/// The faults of guest memory in a recording. Rows with the most time are first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Faults {
    /// By kind alone.
    pub kinds: Vec<FaultRow>,
    /// By process.
    pub processes: Vec<FaultRow>,
    /// By container; none if no process was in one.
    pub containers: Vec<FaultRow>,
    /// By the innermost function.
    pub functions: Vec<FaultRow>,
    /// By memory slot, and pages of devices.
    pub places: Vec<FaultRow>,
    /// The number of pages that were touched.
    pub pages: u64,
    /// The number of faults whose pages aren't counted, because there were too many.
    pub pages_left_out: u64,
    /// The pages touched since the begin, over the time to the last fault.
    pub curve: Vec<CurvePoint>,
}

impl Faults {
    /// The first `top` rows of each table, from what `watcher` has collected while `profile` was summed up.
    ///
    /// # Errors
    /// They don't fit into `budget`.
    pub fn new(
        profile: &Profile,
        watcher: &FaultWatcher,
        top: usize,
        budget: &OutputBudget,
    ) -> Result<Self, TooMuch> {
        let by = |name: &dyn Fn(&StackSum) -> String| {
            let named = |stack: Option<u32>| match stack_of(profile, stack) {
                Some(stack) => name(stack),
                None => UNKNOWN.to_owned(),
            };
            rows(&watcher.by_stack, named, top, budget)
        };
        let container = |stack: &StackSum| {
            let container = profile.labels().value(stack.labels, "container");
            container.unwrap_or("-").to_owned()
        };
        let mut containers = by(&container)?;
        if containers
            .iter()
            .all(|row| row.name == "-" || row.name == UNKNOWN)
        {
            containers.clear();
        }
        Ok(Self {
            kinds: kinds(watcher, budget)?,
            processes: by(&|stack| process(profile, stack.pid))?,
            containers,
            functions: by(&|stack| function(profile, stack))?,
            places: rows(&watcher.by_place, Place::name, top, budget)?,
            pages: watcher.pages.count(),
            pages_left_out: watcher.pages.left_out(),
            curve: watcher.curve(),
        })
    }
}

fn kinds(watcher: &FaultWatcher, budget: &OutputBudget) -> Result<Vec<FaultRow>, TooMuch> {
    let mut kinds: Sums<FaultKind> = Sums::default();
    for ((_, kind), sum) in &watcher.by_place {
        kinds.entry((*kind, *kind)).or_default().add(*sum);
    }
    let name = |kind: FaultKind| kind.name().to_owned();
    rows(&kinds, name, usize::MAX, budget)
}

/// The `top` rows with the most time of the groups that have names by `name`. Groups of the same name are one.
fn rows<Group: Copy + Eq + Hash>(
    sums: &Sums<Group>,
    name: impl Fn(Group) -> String,
    top: usize,
    budget: &OutputBudget,
) -> Result<Vec<FaultRow>, TooMuch> {
    let mut named: HashMap<(String, FaultKind), FaultSum, RandomState> = HashMap::default();
    for ((group, kind), sum) in sums {
        let name = name(*group);
        if !named.contains_key(&(name.clone(), *kind)) {
            budget.take_row([name.as_str()], COPIES)?;
        }
        named.entry((name, *kind)).or_default().add(*sum);
    }
    let rows = named.into_iter().map(|((name, kind), sum)| FaultRow {
        name,
        kind: kind.name(),
        count: sum.faults.count,
        time_ns: sum.faults.time,
        longest_ns: sum.longest,
    });
    let mut rows: Vec<FaultRow> = rows.collect();
    rows.sort_by(|one, other| {
        let by_time = (other.time_ns, other.count).cmp(&(one.time_ns, one.count));
        by_time.then_with(|| (&one.name, one.kind).cmp(&(&other.name, other.kind)))
    });
    rows.truncate(top);
    Ok(rows)
}

fn stack_of(profile: &Profile, stack: Option<u32>) -> Option<&StackSum> {
    profile.stacks.get(stack? as usize)
}

fn process(profile: &Profile, pid: i32) -> String {
    let process = profile.processes.get(&pid);
    process.map_or_else(|| UNKNOWN.to_owned(), |process| process.label(pid))
}

/// The guest's innermost function, with its module.
fn function(profile: &Profile, stack: &StackSum) -> String {
    let mut frames = profile.frames(stack);
    match frames.find(|frame| frame.kind != FrameKind::Host) {
        Some(frame) => format!("{} ({})", frame.name, frame.module),
        None => UNKNOWN.to_owned(),
    }
}

impl FaultWatcher {
    fn curve(&self) -> Vec<CurvePoint> {
        let pages = self.pages.in_order();
        let length = self.last.saturating_sub(self.begin);
        if pages.is_empty() || length == 0 {
            return Vec::new();
        }
        let points = 1..=POINTS;
        points
            .map(|point| {
                let part = u128::from(length) * u128::from(point) / u128::from(POINTS);
                let time_ns = u64::try_from(part).unwrap_or(length);
                let until = self.begin.saturating_add(time_ns);
                let pages = pages.partition_point(|page| page.time <= until) as u64;
                CurvePoint { time_ns, pages }
            })
            .collect()
    }
}
