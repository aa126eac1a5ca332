//! Sums with levels: a row for each group of samples, and in it the rows of the groups that it consists of.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;

use super::groups::{Counted, GroupNames, Value, counted};
use super::{Levels, ModeCounts, Profile, SortBy};
use crate::budget::{OutputBudget, TooMuch};

/// A group of samples.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    pub value: Value<'a>,
    pub name: String,
    /// Samples in which the program counter was in it, and those in which it was somewhere on the stack; the same if no level up to this one is of code.
    pub own: u64,
    pub total: u64,
    /// The latter by mode.
    pub modes: ModeCounts,
    /// Its groups by the next level; their own samples add up to its own ones.
    pub groups: Vec<Group<'a>>,
}

/// A group while it is counted.
#[derive(Debug)]
struct Node<'a> {
    parent: usize,
    /// The number of its grouping.
    level: usize,
    value: Value<'a>,
    own: u64,
    total: u64,
    modes: ModeCounts,
}

/// The groups, each behind the one that it is a part of. The first one is of all samples.
#[derive(Debug)]
struct Tree<'a> {
    nodes: Vec<Node<'a>>,
    numbers: HashMap<(usize, Value<'a>), usize, RandomState>,
}

impl<'a> Node<'a> {
    fn new(parent: usize, level: usize, value: Value<'a>) -> Self {
        Self {
            parent,
            level,
            value,
            own: 0,
            total: 0,
            modes: ModeCounts::default(),
        }
    }
}

impl<'a> Tree<'a> {
    /// The number of the group `value` of the group `parent`.
    fn child(
        &mut self,
        parent: usize,
        level: usize,
        value: Value<'a>,
        budget: &OutputBudget,
    ) -> Result<usize, TooMuch> {
        if let Some(number) = self.numbers.get(&(parent, value)) {
            return Ok(*number);
        }
        budget.take_row([], 1)?;
        let number = self.nodes.len();
        self.nodes.push(Node::new(parent, level, value));
        self.numbers.insert((parent, value), number);
        Ok(number)
    }

    /// Adds the ticks of `counted` to a group that they are in, unless they were added before. `is_own` is for the innermost frame.
    fn count(&mut self, number: usize, counted: &Counted<'_>, is_own: bool, is_new: bool) {
        let node = &mut self.nodes[number];
        let ticks = counted.stack.ticks;
        if is_own {
            node.own = node.own.saturating_add(ticks);
        }
        if is_new {
            node.total = node.total.saturating_add(ticks);
            let mode = &mut node.modes[counted.stack.mode.index()];
            *mode = mode.saturating_add(ticks);
        }
    }
}

/// The groups of `profile` by the first of `levels`, which consist of those by the next one, each by `sort`.
///
/// # Errors
/// They don't fit into `budget`.
pub fn groups<'a>(
    profile: &'a Profile,
    levels: &Levels,
    sort: SortBy,
    budget: &OutputBudget,
) -> Result<Vec<Group<'a>>, TooMuch> {
    let mut tree = Tree {
        nodes: vec![Node::new(0, 0, Value::None)],
        numbers: HashMap::default(),
    };
    let frames_needed = match levels.are_of_code() {
        true => usize::MAX,
        false => 1,
    };
    let mut seen = HashSet::<usize, RandomState>::default();
    for counted in counted(profile, levels) {
        seen.clear();
        for (index, frame) in counted.frames().iter().take(frames_needed).enumerate() {
            let mut at = 0;
            for (level, grouping) in levels.groupings().iter().enumerate() {
                let value = grouping.value(&counted, Some(frame));
                at = tree.child(at, level, value, budget)?;
                let is_new = seen.insert(at);
                tree.count(at, &counted, index == 0, is_new);
            }
        }
    }
    nested(profile, levels, tree, sort, budget)
}

/// The groups of `tree` in each other.
fn nested<'a>(
    profile: &Profile,
    levels: &Levels,
    tree: Tree<'a>,
    sort: SortBy,
    budget: &OutputBudget,
) -> Result<Vec<Group<'a>>, TooMuch> {
    let names = GroupNames::new(profile);
    let mut lists: Vec<Vec<Group<'a>>> = Vec::new();
    lists.resize_with(tree.nodes.len(), Vec::new);
    // Backwards: a group comes behind all of its own groups.
    for (number, node) in tree.nodes.into_iter().enumerate().rev() {
        let mut groups = std::mem::take(&mut lists[number]);
        groups.sort_by(|left, right| {
            let order = |group: &Group<'_>| match sort {
                SortBy::Own => Reverse((group.own, group.total)),
                SortBy::Total => Reverse((group.total, group.own)),
            };
            let by_samples = order(left).cmp(&order(right));
            by_samples.then_with(|| left.name.cmp(&right.name))
        });
        if number == 0 {
            return Ok(groups);
        }
        let grouping = levels.groupings().get(node.level);
        let name = grouping.map(|grouping| names.name(grouping, node.value));
        let name = name.unwrap_or_default();
        budget.take(name.len())?;
        lists[node.parent].push(Group {
            value: node.value,
            name,
            own: node.own,
            total: node.total,
            modes: node.modes,
            groups,
        });
    }
    Ok(Vec::new())
}
