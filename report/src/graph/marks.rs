//! Folded stacks for flame graphs. Names have marks that decide a frame's colour.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use foldhash::fast::RandomState;
use kvmprof_recording::Mode;

use crate::budget::{OutputBudget, TooMuch};
use crate::model::{CUT_SHORT, HALTED, outermost_of_guest};
use crate::profile::{GroupNames, Grouping, Levels, Profile, counted, mark, plain, without_mark};

/// Marks in names: characters for private use, which are removed from the picture.
pub const INTERRUPT: char = '\u{e001}';
pub const IDLE: char = '\u{e002}';
pub const CUT: char = '\u{e003}';
/// Of what isn't a function.
pub const GROUP: char = '\u{e004}';
/// All of them.
pub const MARKS: [char; 4] = [INTERRUPT, IDLE, CUT, GROUP];

/// A frame of the graph.
#[derive(Debug)]
struct Node {
    /// The number of its caller, which is lower; the root has its own.
    parent: usize,
    /// Its name and the suffix of its kind.
    name: (String, &'static str),
    /// Its ticks, those in interrupts, and those in idle time.
    ticks: [u64; 3],
    /// Ticks of stacks whose outermost frame it is because they were cut short.
    cut_short: u64,
    /// Ticks of stacks that end here.
    own: u64,
    /// Whether it is a process in a group.
    is_group: bool,
}

/// The identity of a frame: its caller, its name and the suffix of its kind.
type Key = (usize, (String, &'static str));

/// All frames. The first one is the root.
#[derive(Debug)]
struct Tree {
    nodes: Vec<Node>,
    numbers: HashMap<Key, usize, RandomState>,
}

impl Tree {
    fn child(&mut self, parent: usize, name: (String, &'static str)) -> usize {
        let key = (parent, name);
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        let number = self.nodes.len();
        self.nodes.push(Node {
            parent,
            name: key.1.clone(),
            ticks: [0; 3],
            cut_short: 0,
            own: 0,
            is_group: false,
        });
        self.numbers.insert(key, number);
        number
    }

    /// Adds ticks of a stack that ends with this frame.
    fn count(&mut self, number: usize, count: u64, mode: Mode) {
        let parts = [true, mode == Mode::Interrupt, mode == Mode::Idle];
        let own = &mut self.nodes[number].own;
        *own = own.saturating_add(count);
        let mut at = number;
        while at > 0 {
            let node = &mut self.nodes[at];
            for (sum, is_part) in node.ticks.iter_mut().zip(parts) {
                *sum = sum.saturating_add(if is_part { count } else { 0 });
            }
            at = node.parent;
        }
    }

    /// The stack that ends with this frame, folded.
    fn line(&self, number: usize) -> String {
        let mut names = Vec::new();
        let mut at = number;
        while at > 0 {
            names.push(self.nodes[at].marked());
            at = self.nodes[at].parent;
        }
        names.reverse();
        names.join(";")
    }
}

impl Node {
    fn marked(&self) -> String {
        let [ticks, interrupt, idle] = self.ticks;
        let (name, suffix) = &self.name;
        let mut name = name.replace(MARKS, "");
        let is_most = |part: u64| part > ticks / 2 && part > ticks - part;
        if is_most(idle) {
            name.push(IDLE);
        } else if is_most(interrupt) {
            name.push(INTERRUPT);
        }
        if self.cut_short > 0 {
            name.push(CUT);
        }
        if self.is_group {
            name.push(GROUP);
        }
        name + suffix
    }
}

/// The folded stacks of `profile` for [`super::Graph::draw`]. They differ from those of [`crate::profile::folded`] by marks: one for the
/// outermost frame of stacks that were cut short, and others for frames with most of their ticks in interrupts or in idle time. Processes stand on frames
/// of the groups `by` that aren't of code, those of the first one outermost.
///
/// # Errors
/// They, or the picture, don't fit into `budget`.
pub fn marked(
    profile: &Profile,
    by: &Levels,
    budget: &OutputBudget,
) -> Result<Vec<String>, TooMuch> {
    let mut tree = Tree {
        nodes: Vec::new(),
        numbers: HashMap::default(),
    };
    tree.child(0, (String::new(), ""));
    let levels = by.above(Grouping::Process);
    let names = GroupNames::new(profile);
    for counted in counted(profile, &levels) {
        let stack = &counted.stack;
        let mut at = 0;
        for grouping in levels.groupings() {
            let name = plain(&names.name(grouping, grouping.value(&counted, None)));
            if *grouping != Grouping::Process {
                budget.take_frame(&name)?;
            }
            let is_group = at > 0;
            at = tree.child(at, (name, ""));
            tree.nodes[at].is_group = is_group;
        }
        if counted.is_halted {
            at = tree.child(at, (HALTED.to_owned(), ""));
            tree.count(at, stack.ticks, stack.mode);
            continue;
        }
        let frames = counted.frames();
        let outermost = outermost_of_guest(&frames).filter(|_| stack.is_cut_short);
        for (index, frame) in frames.iter().enumerate().rev() {
            let name = (plain(frame.name), mark(frame));
            budget.take_frame(&name.0)?;
            at = tree.child(at, name);
            if outermost == Some(index) {
                let cut_short = &mut tree.nodes[at].cut_short;
                *cut_short = cut_short.saturating_add(stack.ticks);
            }
        }
        tree.count(at, stack.ticks, stack.mode);
    }
    let ends = tree.nodes.iter().enumerate();
    let ends = ends.filter(|(_, node)| node.own > 0);
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for (number, node) in ends {
        let line = tree.line(number);
        budget.take(line.len())?;
        lines.insert(line, node.own);
    }
    let lines = lines.into_iter();
    Ok(lines
        .map(|(line, count)| format!("{line} {count}"))
        .collect())
}

/// Folded stacks with two counts for [`super::Graph::draw`], made from those with frames `[cut short]`: instead of these, the frames above them are
/// marked, so that a function is one frame with its ticks in all stacks.
pub fn with_torn_edges<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut counts: BTreeMap<String, [u64; 2]> = BTreeMap::new();
    // Stacks up to the frame with a torn edge, with their numbers of frames.
    let mut torn: BTreeSet<(usize, String)> = BTreeSet::new();
    for line in lines {
        let line = line.replace(MARKS, "");
        let mut parts = line.rsplitn(3, ' ');
        let (Some(after), Some(before), Some(stack)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let mut frames: Vec<&str> = stack.split(';').collect();
        if let Some(place) = frames.iter().position(|frame| *frame == CUT_SHORT) {
            frames.remove(place);
            if let Some(whole) = frames.get(..=place) {
                torn.insert((whole.len(), whole.join(";")));
            }
        }
        let sums = counts.entry(frames.join(";")).or_default();
        for (sum, count) in sums.iter_mut().zip([before, after]) {
            *sum = sum.saturating_add(count.parse().unwrap_or(0));
        }
    }
    let lengths: BTreeSet<usize> = torn.iter().map(|(length, _)| *length).collect();
    let lines = counts.into_iter().map(|(stack, [before, after])| {
        let mut frames: Vec<String> = stack.split(';').map(str::to_owned).collect();
        // From the innermost frame outwards: the names of frames further out must not have marks when they are looked up.
        for length in lengths.range(..=frames.len()).rev() {
            let key = (*length, frames[..*length].join(";"));
            if torn.contains(&key) {
                let name = &mut frames[length - 1];
                name.insert(without_mark(name).len(), CUT);
            }
        }
        format!("{} {before} {after}", frames.join(";"))
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_frames_become_marks() {
        let lines = [
            "p;[cut short];f_[k];g 2 3",
            "p;f_[k];g 10 20",
            "p;f_[k];g;h 1 0",
            "p;main;[cut short];f_[k] 0 4",
            "p;main;f_[k] 5 5",
            "q;f_[k];g 7 7",
            "p;[cut short] 1 1",
            "p;a\u{e003}b 6 6",
        ];
        assert_eq!(
            with_torn_edges(lines.into_iter()),
            [
                "p 1 1",
                "p;ab 6 6",
                "p;f\u{e003}_[k];g 12 23",
                "p;f\u{e003}_[k];g;h 1 0",
                "p;main;f\u{e003}_[k] 5 9",
                "q;f_[k];g 7 7",
            ]
        );
    }
}
