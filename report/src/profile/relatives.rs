//! The callers and callees of a function.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Profile, Row, SortBy, by_samples};
use crate::model::{Frame, NameId};

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

impl Relation {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Callers => "callers",
            Self::Callees => "callees",
        }
    }
}

/// A function's name and module.
pub type Relative = (Arc<str>, Arc<str>);

/// The same by numbers; no name for the function's own begin or end.
type RelativeId = (Option<NameId>, NameId);

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
        let name = profile.code.find_name(function)?;
        let mut samples = 0_u64;
        let mut rows: HashMap<RelativeId, u64> = HashMap::new();
        for recording in profile.recordings() {
            for stack in recording.stacks() {
                let frames: Vec<Frame<'_>> = recording.frames(stack).collect();
                let found = relatives(&frames, name, relation);
                if !found.is_empty() {
                    samples = samples.saturating_add(stack.ticks);
                }
                for relative in found {
                    *rows.entry(relative).or_default() += stack.ticks;
                }
            }
        }
        let none = match relation {
            Relation::Callers => OUTERMOST,
            Relation::Callees => ITSELF,
        };
        let text = |name: NameId| Arc::clone(profile.code.text(name));
        let mut rows: Vec<Row<Relative>> = rows
            .into_iter()
            .map(|((name, module), count)| Row {
                key: (name.map_or(none.into(), text), text(module)),
                own: count,
                total: count,
            })
            .collect();
        by_samples(&mut rows, SortBy::Total);
        (samples > 0).then(|| Self {
            function: function.to_owned(),
            relation,
            samples,
            rows,
        })
    }
}

/// The relatives of the function called `name` in one stack of `frames`, innermost first.
fn relatives(frames: &[Frame<'_>], name: NameId, relation: Relation) -> HashSet<RelativeId> {
    let places = frames.iter().enumerate();
    let places = places.filter(|(_, frame)| frame.name_id == name);
    places
        .map(|(index, frame)| {
            let next = match relation {
                Relation::Callers => frames.get(index + 1),
                Relation::Callees => index.checked_sub(1).and_then(|index| frames.get(index)),
            };
            let module = next.unwrap_or(frame).module_id;
            (next.map(|next| next.name_id), module)
        })
        .collect()
}
