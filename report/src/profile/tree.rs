//! The call tree as text: where the time goes from the outermost frame inwards.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::{KERNEL_MARK, TableStyle, without_mark};
use crate::text::visible;

/// A frame with less than this part of all ticks isn't shown: 1 %.
const FOLDED: u128 = 100;
/// Columns of a terminal, which lines don't exceed.
const WIDTH: usize = 80;
/// The heading above the lines.
pub const TREE_HEADING: &str = "    TOTAL     SELF   FRAME";

/// A frame under a path of callers.
#[derive(Debug, Default)]
struct Node<'a> {
    name: &'a str,
    /// Ticks with the frame at this place.
    total: u64,
    /// Ticks of these with the program counter in it.
    own: u64,
    /// The callees, in `Tree::nodes`, by name.
    callees: BTreeMap<&'a str, usize>,
}

/// The frames of folded stacks; the first node is the root of all.
#[derive(Debug)]
struct Tree<'a> {
    nodes: Vec<Node<'a>>,
}

impl<'a> Tree<'a> {
    fn new(lines: &'a [String]) -> Self {
        let mut tree = Self {
            nodes: vec![Node::default()],
        };
        for line in lines {
            if let Some((stack, ticks)) = line.rsplit_once(' ') {
                tree.add(stack, ticks.parse().unwrap_or_default());
            }
        }
        tree
    }

    fn add(&mut self, stack: &'a str, ticks: u64) {
        let mut at = 0;
        for name in stack.split(';') {
            self.count(at, ticks);
            let known = self.node(at).and_then(|node| node.callees.get(name));
            at = match known {
                Some(known) => *known,
                None => self.insert(at, name),
            };
        }
        self.count(at, ticks);
        if let Some(node) = self.nodes.get_mut(at) {
            node.own = node.own.saturating_add(ticks);
        }
    }

    fn count(&mut self, at: usize, ticks: u64) {
        if let Some(node) = self.nodes.get_mut(at) {
            node.total = node.total.saturating_add(ticks);
        }
    }

    fn insert(&mut self, caller: usize, name: &'a str) -> usize {
        let new = self.nodes.len();
        self.nodes.push(Node {
            name,
            ..Node::default()
        });
        if let Some(caller) = self.nodes.get_mut(caller) {
            caller.callees.insert(name, new);
        }
        new
    }

    fn node(&self, at: usize) -> Option<&Node<'a>> {
        self.nodes.get(at)
    }

    /// The callees of a frame that are shown, most ticks first, and those that aren't.
    fn callees<'t>(
        &'t self,
        node: &Node<'a>,
        whole: u64,
    ) -> (Vec<&'t Node<'a>>, Vec<&'t Node<'a>>) {
        let callees = node.callees.values().filter_map(|at| self.node(*at));
        let (mut shown, folded): (Vec<_>, Vec<_>) =
            callees.partition(|node| is_shown(node.total, whole));
        shown.sort_by_key(|node| (u64::MAX - node.total, node.name));
        (shown, folded)
    }
}

/// A line that waits to be printed.
struct Line<'t, 'a> {
    what: Shown<'t, 'a>,
    /// What is before its name: the branch that it is on.
    branch: String,
    /// The same for the frames that it calls.
    below: String,
    is_heaviest: bool,
}

enum Shown<'t, 'a> {
    Frame(&'t Node<'a>),
    /// Frames that aren't shown: how many, and their ticks.
    Folded(usize, u64),
}

/// Prints the call tree of `stacks`, folded ones. The callees of a frame are below it, and on branches of their own where there are several.
///
/// # Errors
/// Writing to `out` failed.
pub fn print_tree(stacks: &[String], style: TableStyle, out: &mut dyn Write) -> io::Result<()> {
    // On a terminal longer lines would be broken.
    let lines = tree_lines(stacks, None, style.bars.then_some(WIDTH));
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    writeln!(out, "{}", style.heading(TREE_HEADING))?;
    for line in lines {
        match line.is_heaviest {
            true => writeln!(out, "{}", style.heading(&line.text))?,
            false => writeln!(out, "{}", line.text)?,
        }
    }
    writeln!(out, "\n* the heaviest path. Frames below 1 % are left out.")
}

/// A line of a call tree.
#[derive(Debug)]
pub struct TreeLine {
    /// Its text, with a `*` if it is on the heaviest path.
    pub text: String,
    /// Whether it is on the heaviest path.
    pub is_heaviest: bool,
}

/// The lines of the call tree of `stacks`, folded ones, each in at most `width` characters. Shares are of `whole`, which is all
/// of their ticks if it isn't given.
pub fn tree_lines(stacks: &[String], whole: Option<u64>, width: Option<usize>) -> Vec<TreeLine> {
    let tree = Tree::new(stacks);
    let Some(root) = tree.node(0).filter(|root| root.total > 0) else {
        return Vec::new();
    };
    let whole = whole.unwrap_or(root.total);
    let (mut lines, mut waiting) = (Vec::new(), Vec::new());
    push_callees(&tree, root, whole, ("", true), &mut waiting);
    while let Some(line) = waiting.pop() {
        lines.push(TreeLine {
            text: line.text(whole, width),
            is_heaviest: line.is_heaviest,
        });
        if let Shown::Frame(node) = line.what {
            let caller = (line.below.as_str(), line.is_heaviest);
            push_callees(&tree, node, whole, caller, &mut waiting);
        }
    }
    lines
}

/// Adds the lines for the callees of `node`, whose margin and whether it is on the heaviest path `caller` has, the first one last.
fn push_callees<'t, 'a>(
    tree: &'t Tree<'a>,
    node: &'t Node<'a>,
    whole: u64,
    (margin, is_heaviest): (&str, bool),
    waiting: &mut Vec<Line<'t, 'a>>,
) {
    let (shown, folded) = tree.callees(node, whole);
    let ticks = folded
        .iter()
        .fold(0, |sum: u64, node| sum.saturating_add(node.total));
    let mut all: Vec<Shown<'_, '_>> = shown.into_iter().map(Shown::Frame).collect();
    if is_shown(ticks, whole) {
        all.push(Shown::Folded(folded.len(), ticks));
    }
    let last = all.len().saturating_sub(1);
    for (index, what) in all.into_iter().enumerate().rev() {
        let (branch, below) = match (last, index == last) {
            (0, _) => ("", ""),
            (_, false) => ("├ ", "│ "),
            (_, true) => ("└ ", "  "),
        };
        let is_frame = matches!(what, Shown::Frame(_));
        waiting.push(Line {
            what,
            branch: format!("{margin}{branch}"),
            below: format!("{margin}{below}"),
            is_heaviest: is_heaviest && index == 0 && is_frame,
        });
    }
}

/// Whether a frame with `ticks` of `whole` is shown.
fn is_shown(ticks: u64, whole: u64) -> bool {
    ticks > 0 && u128::from(ticks) * FOLDED >= u128::from(whole)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "it is shown with one digit behind the point"
)]
fn share(ticks: u64, whole: u64) -> f64 {
    ticks as f64 * 100.0 / whole.max(1) as f64
}

impl Line<'_, '_> {
    fn text(&self, whole: u64, width: Option<usize>) -> String {
        let mark = if self.is_heaviest { '*' } else { ' ' };
        let branch = &self.branch;
        let text = match self.what {
            Shown::Folded(count, ticks) => {
                let total = share(ticks, whole);
                format!("  {total:>5.1} %            {branch}… {count} below 1 % each")
            }
            Shown::Frame(node) => {
                let kind = match node.name.ends_with(KERNEL_MARK) {
                    true => 'k',
                    false => ' ',
                };
                let name = visible(without_mark(node.name));
                let (total, own) = (share(node.total, whole), share(node.own, whole));
                format!("{mark} {total:>5.1} %  {own:>5.1} % {kind} {branch}{name}")
            }
        };
        match width {
            Some(width) if text.chars().count() > width => {
                let kept = text.chars().take(width.saturating_sub(1));
                kept.chain(['…']).collect()
            }
            _ => text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(lines: &[&str], bars: bool) -> Vec<String> {
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        let style = TableStyle {
            bars,
            colours: false,
        };
        let mut out = Vec::new();
        print_tree(&lines, style, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_heaviest_path_is_marked_and_small_frames_are_folded() {
        let lines = printed(
            &[
                "a-1;main 500",
                "a-1;main x;entry_[k] 3",
                "a-1;main;work;entry_[k];copy_[k] 1000",
                "a-1;main;rest 400",
                "b-2;main 77",
                "b-2;one 10",
                "b-2;two 10",
            ],
            false,
        );
        assert_eq!(
            lines[2..lines.len() - 2],
            [
                "*  95.2 %    0.0 %   ├ a-1",
                "*  95.0 %   25.0 %   │ main",
                "*  50.0 %    0.0 %   │ ├ work",
                "*  50.0 %    0.0 % k │ │ entry",
                "*  50.0 %   50.0 % k │ │ copy",
                "   20.0 %   20.0 %   │ └ rest",
                "    4.8 %    0.0 %   └ b-2",
                "    3.9 %    3.9 %     ├ main",
                "    1.0 %              └ … 2 below 1 % each",
            ]
        );
    }

    #[test]
    fn lines_fit_on_a_terminal() {
        let name = "é".repeat(100);
        let lines = printed(&[&format!("a-1;{name}\u{1b}[2J 3")], true);
        assert!(lines.iter().all(|line| line.chars().count() <= 100));
        assert_eq!(lines[3].chars().count(), WIDTH);
        assert!(lines[3].ends_with('…') && !lines.concat().contains('\u{1b}'));
        let whole = printed(&[&format!("a-1;{name} 3")], false);
        assert!(whole[3].ends_with(&name));
    }

    #[test]
    fn there_is_no_tree_of_nothing() {
        assert!(printed(&[], false).is_empty());
    }
}
