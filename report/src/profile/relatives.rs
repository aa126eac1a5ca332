//! The callers and callees of a function.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Profile, Row, StackFrame};

/// Stands for the caller of outermost frames.
const OUTERMOST: &str = "[outermost]";
/// Stands for the function itself among its callees.
const ITSELF: &str = "[self]";

/// The kind of relatives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// The functions that called it.
    Callers,
    /// The functions that it called.
    Callees,
}

/// A function's name and module.
pub type Relative = (Arc<str>, Arc<str>);

/// The callers or callees of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relatives {
    /// The function.
    pub function: String,
    /// The kind of the relatives.
    pub relation: Relation,
    /// Samples in which the function was on the stack.
    pub samples: u64,
    /// The relatives and the samples in which they were next to it on the stack, most samples first. With recursion
    /// each sample counts once.
    pub rows: Vec<Row<Relative>>,
}

impl Relatives {
    /// The relatives of all functions called `function` in any module; `None` if no sample has it.
    pub fn new(profile: &Profile, function: &str, relation: Relation) -> Option<Self> {
        let mut samples = 0_u64;
        let mut rows: HashMap<Relative, u64> = HashMap::new();
        for recording in profile.recordings() {
            for ((pid, stack), count) in &recording.stacks {
                let frames = recording.frames(*pid, stack);
                let found = relatives(&frames, function, relation);
                if !found.is_empty() {
                    samples = samples.saturating_add(*count);
                }
                for relative in found {
                    *rows.entry(relative).or_default() += count;
                }
            }
        }
        let mut rows: Vec<Row<Relative>> = rows
            .into_iter()
            .map(|(key, count)| Row {
                key,
                own: count,
                total: count,
            })
            .collect();
        rows.sort_by(|left, right| {
            let order = right.total.cmp(&left.total);
            order.then_with(|| left.key.cmp(&right.key))
        });
        (samples > 0).then(|| Self {
            function: function.to_owned(),
            relation,
            samples,
            rows,
        })
    }
}

/// The relatives in one stack of `frames`, innermost first.
fn relatives(frames: &[StackFrame], function: &str, relation: Relation) -> HashSet<Relative> {
    let places = frames.iter().enumerate();
    let places = places.filter(|(_, frame)| &*frame.frame.function == function);
    places
        .map(|(index, frame)| {
            let (next, none) = match relation {
                Relation::Callers => (frames.get(index + 1), OUTERMOST),
                Relation::Callees => (
                    index.checked_sub(1).and_then(|index| frames.get(index)),
                    ITSELF,
                ),
            };
            let module = Arc::clone(&next.unwrap_or(frame).frame.module);
            let name = next.map_or(none.into(), |next| Arc::clone(&next.frame.function));
            (name, module)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::collect::testing::profile;
    use super::*;

    fn rows(function: &str, relation: Relation) -> Vec<(String, String, u64)> {
        let relatives = Relatives::new(&profile(&[]), function, relation).unwrap();
        let rows = relatives.rows.iter();
        rows.map(|row| (row.key.0.to_string(), row.key.1.to_string(), row.total))
            .collect()
    }

    fn row(name: &str, module: &str, count: u64) -> (String, String, u64) {
        (name.to_owned(), module.to_owned(), count)
    }

    #[test]
    fn callers_and_callees_are_next_on_the_stack() {
        assert_eq!(
            rows("copy", Relation::Callers),
            [row("entry", "[kernel]", 2)]
        );
        assert_eq!(rows("copy", Relation::Callees), [row("[self]", "[fs]", 2)]);
        // It calls itself in two samples, and is alone in one.
        assert_eq!(
            rows("entry", Relation::Callers),
            [
                row("0x50", "[user]", 2),
                row("entry", "[kernel]", 2),
                row("[outermost]", "[kernel]", 1),
            ]
        );
        assert_eq!(
            rows("entry", Relation::Callees),
            [
                row("copy", "[fs]", 2),
                row("entry", "[kernel]", 2),
                row("[self]", "[kernel]", 1),
            ]
        );
        let entry = Relatives::new(&profile(&[]), "entry", Relation::Callers);
        assert_eq!(entry.unwrap().samples, 3);
        assert_eq!(
            Relatives::new(&profile(&[]), "nothing", Relation::Callers),
            None
        );
    }
}
