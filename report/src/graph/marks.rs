//! Folded stacks for flame graphs, whose names say besides what a frame is coloured by.

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::RandomState;
use kvmprof_recording::Mode;

use crate::profile::{FRAME, HALTED, Profile, mark, outermost_of_guest, plain, root};
use crate::room::{Room, TooMuch};

/// Marks in names, which are taken out of the picture again: characters for private use.
pub const INTERRUPT: char = '\u{e001}';
pub const IDLE: char = '\u{e002}';
pub const CUT: char = '\u{e003}';
const MARKS: [char; 3] = [INTERRUPT, IDLE, CUT];

/// A frame of the graph.
#[derive(Debug)]
struct Node {
    /// Its caller's number, which is lower; the root's is its own.
    parent: usize,
    /// Its name and the suffix of its kind.
    name: (String, &'static str),
    is_cut_short: bool,
    /// Its ticks, those in interrupts, and those in idle time.
    ticks: [u64; 3],
    /// Ticks of stacks that end here.
    own: u64,
}

/// What a frame is told apart by: its caller, its name and the suffix of its kind, whether its callers are missing.
type Key = (usize, (String, &'static str), bool);

/// All frames. The first one is below all others.
#[derive(Debug)]
struct Tree {
    nodes: Vec<Node>,
    numbers: HashMap<Key, usize, RandomState>,
}

impl Tree {
    fn child(&mut self, parent: usize, name: (String, &'static str), is_cut_short: bool) -> usize {
        let key = (parent, name, is_cut_short);
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        let number = self.nodes.len();
        self.nodes.push(Node {
            parent,
            name: key.1.clone(),
            is_cut_short,
            ticks: [0; 3],
            own: 0,
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
        if self.is_cut_short {
            name.push(CUT);
        }
        name + suffix
    }
}

/// The folded stacks of `profile` for [`super::Graph::draw`]: as [`crate::profile::folded`] has them, but that the outermost frame of
/// a stack that was cut short is marked, and those with most of their ticks in interrupts or in idle time are.
///
/// # Errors
/// There is no `room` for them, or for the picture.
pub fn marked(profile: &Profile, room: &Room) -> Result<Vec<String>, TooMuch> {
    let mut tree = Tree {
        nodes: Vec::new(),
        numbers: HashMap::default(),
    };
    tree.child(0, (String::new(), ""), false);
    for (number, recording) in profile.recordings().enumerate() {
        let number = (!profile.merged.is_empty()).then_some(number);
        for ((pid, stack), count) in &recording.stacks {
            let process = tree.child(0, (root(recording, number, *pid), ""), false);
            let mut at = process;
            let frames = recording.frames(*pid, stack);
            let outermost = outermost_of_guest(&frames).filter(|_| stack.is_cut_short());
            for (index, frame) in frames.iter().enumerate().rev() {
                let name = (plain(&frame.frame.function), mark(frame));
                room.take(FRAME.saturating_add(name.0.len()))?;
                at = tree.child(at, name, outermost == Some(index));
            }
            tree.count(at, *count, stack.mode);
        }
        if recording.idle > 0 {
            let process = tree.child(0, (root(recording, number, 0), ""), false);
            let halted = tree.child(process, (HALTED.to_owned(), ""), false);
            tree.count(halted, recording.idle, Mode::Idle);
        }
    }
    let ends = tree.nodes.iter().enumerate();
    let ends = ends.filter(|(_, node)| node.own > 0);
    let mut lines: BTreeMap<String, u64> = BTreeMap::new();
    for (number, node) in ends {
        let line = tree.line(number);
        room.take(line.len())?;
        lines.insert(line, node.own);
    }
    let lines = lines.into_iter();
    Ok(lines
        .map(|(line, count)| format!("{line} {count}"))
        .collect())
}
