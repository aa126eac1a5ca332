//! Transforms of stacks, as the Firefox Profiler has them: which frames are shown of those that were recorded.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use foldhash::fast::RandomState;

use super::code::{Code, Function, NodeId, PlaceId, PlacedFunction};
use super::frame::Frame;
use super::{HALTED, HALTED_MODULE, outermost_of_guest};

/// What is between the functions of a way.
const SEPARATOR: char = ';';

/// The kind of a [`Transform`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransformKind {
    /// The function's callers aren't there, nor are stacks without it.
    Focus,
    /// Only stacks that begin with these functions are there, from the last one of them on.
    Subtree,
    /// The function's callers call what it calls, and its own ticks are theirs.
    Merge,
    /// The ticks of what the function calls are its own.
    Collapse,
    /// What is between the function's outermost call and the innermost one isn't on these stacks.
    Recursion,
    /// Functions of other modules aren't there, nor are stacks that have no others.
    FocusModule,
    /// Functions of the module that call each other are one.
    CollapseModule,
}

impl TransformKind {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Focus,
        Self::Subtree,
        Self::Merge,
        Self::Collapse,
        Self::Recursion,
        Self::FocusModule,
        Self::CollapseModule,
    ];

    /// Its name on the command line and on the page.
    pub fn name(self) -> &'static str {
        match self {
            Self::Focus => "focus",
            Self::Subtree => "subtree",
            Self::Merge => "merge",
            Self::Collapse => "collapse",
            Self::Recursion => "recursion",
            Self::FocusModule => "focus-module",
            Self::CollapseModule => "collapse-module",
        }
    }
}

/// Changes which frames of stacks are shown. Each changes what the one before it has made; filters go by what was recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transform {
    /// What it does.
    pub kind: TransformKind,
    /// The name of the function or the module that it is about, as reports have it; of a subtree the names of the functions from the outermost one on,
    /// with `;` between them.
    pub value: String,
}

/// The text isn't a valid [`Transform`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a kind and a name are wanted, such as merge=memcpy; kinds are focus, merge, collapse and recursion, with a function, subtree, \
     with functions and ; between them, focus-module and collapse-module, with a module"
)]
pub struct NotATransform;

impl FromStr for Transform {
    type Err = NotATransform;

    fn from_str(text: &str) -> Result<Self, NotATransform> {
        let (name, value) = text.split_once('=').ok_or(NotATransform)?;
        let mut kinds = TransformKind::ALL.into_iter();
        let kind = kinds.find(|kind| kind.name() == name);
        let kind = kind.filter(|_| !value.is_empty()).ok_or(NotATransform)?;
        Ok(Self {
            kind,
            value: value.to_owned(),
        })
    }
}

impl fmt::Display for Transform {
    /// Writes the form that is parsed.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}={}", self.kind.name(), self.value)
    }
}

impl Transform {
    /// Whether there are stacks of which it leaves nothing, so that their ticks aren't there.
    pub fn drops_stacks(&self) -> bool {
        use TransformKind::{Focus, FocusModule, Subtree};
        matches!(self.kind, Focus | Subtree | FocusModule)
    }

    /// Transforms a stack, outermost frame first. Returns whether it is still there; one that has lost all of its frames can be.
    fn apply(&self, stack: &mut Vec<Shown<'_>>) -> bool {
        let name = self.value.as_str();
        let outermost = stack.iter().position(|frame| frame.name == name);
        match self.kind {
            TransformKind::Focus => {
                return outermost.is_some_and(|index| keep_from(stack, index));
            }
            TransformKind::Subtree => {
                let way: Vec<&str> = name.split(SEPARATOR).collect();
                let begins = stack.len() >= way.len()
                    && way
                        .iter()
                        .zip(&*stack)
                        .all(|(name, frame)| frame.name == *name);
                return begins && keep_from(stack, way.len() - 1);
            }
            TransformKind::Merge => keep_only(stack, |frame| frame.name != name),
            TransformKind::Collapse => {
                if let Some(index) = outermost {
                    stack.truncate(index + 1);
                }
            }
            TransformKind::Recursion => {
                let innermost = stack.iter().rposition(|frame| frame.name == name);
                if let (Some(first), Some(last)) = (outermost, innermost) {
                    stack.drain(first + 1..=last);
                }
            }
            TransformKind::FocusModule => {
                keep_only(stack, |frame| frame.module == name);
                return !stack.is_empty();
            }
            TransformKind::CollapseModule => collapse_module(stack, name),
        }
        true
    }
}

/// Removes the frames in front of number `index`. True, for callers that return it.
fn keep_from(stack: &mut Vec<Shown<'_>>, index: usize) -> bool {
    stack.drain(..index);
    if let Some(first) = stack.first_mut() {
        first.is_inlined &= index == 0;
    }
    true
}

/// Removes all other frames than those that are `wanted`. If one has gone at which callers are missing, they are missing at the next one; and what was
/// inlined into it is no part of what is there now, unless it was inlined itself.
fn keep_only(stack: &mut Vec<Shown<'_>>, wanted: impl Fn(&Shown<'_>) -> bool) {
    let (mut is_cut_short, mut is_inlined) = (false, true);
    stack.retain_mut(|frame| {
        frame.is_cut_short |= is_cut_short;
        frame.is_inlined &= is_inlined;
        let is_wanted = wanted(frame);
        (is_cut_short, is_inlined) = match is_wanted {
            true => (false, true),
            false => (frame.is_cut_short, frame.is_inlined),
        };
        is_wanted
    });
}

/// Makes one frame of each run of frames of the module called `name`.
fn collapse_module(stack: &mut Vec<Shown<'_>>, name: &str) {
    for frame in stack.iter_mut().filter(|frame| frame.module == name) {
        frame.is_module = true;
        frame.name = frame.module;
    }
    let mut is_behind_module = false;
    stack.retain_mut(|frame| {
        let is_first = !(is_behind_module && frame.is_module);
        // What was inlined into one of its functions isn't inlined into all of them.
        frame.is_inlined &= !(is_behind_module || frame.is_module);
        is_behind_module = frame.module == name;
        is_first
    });
}

/// A frame that is shown.
#[derive(Clone, Copy, Debug)]
struct Shown<'a> {
    name: &'a str,
    module: &'a str,
    /// The number of the frame that was recorded.
    number: u32,
    /// Whether it stands for its module.
    is_module: bool,
    /// Whether its callers are missing.
    is_cut_short: bool,
    /// Whether it is inlined into its caller.
    is_inlined: bool,
}

/// Applies transforms to the stacks of a [`Code`].
#[derive(Debug)]
pub(super) struct Transformer<'t> {
    transforms: &'t [Transform],
    /// The places of frames that are shown.
    places: HashMap<Own, PlaceId, RandomState>,
}

/// A frame of a stack that is shown: the number of the frame in [`Code`], whether it stands for its module, and whether it is inlined.
type Own = (u32, bool, bool);

impl<'t> Transformer<'t> {
    pub fn new(transforms: &'t [Transform]) -> Self {
        Self {
            transforms,
            places: HashMap::default(),
        }
    }

    /// Whether the stack `node` of `code` is still there.
    pub fn keeps(&self, code: &Code, node: NodeId) -> bool {
        self.transforms.is_empty() || self.shown(code, node, false).is_some()
    }

    /// What a stack of `code` becomes, and whether its callers are missing; `None` if it isn't there any more.
    pub fn apply(
        &mut self,
        code: &mut Code,
        (node, is_cut_short): (NodeId, bool),
    ) -> Option<(NodeId, bool)> {
        if self.transforms.is_empty() {
            return Some((node, is_cut_short));
        }
        let shown = self.shown(code, node, is_cut_short)?;
        let is_cut_short = shown.iter().any(|frame| frame.is_cut_short);
        let own = shown.iter();
        let own: Vec<Own> = own
            .map(|frame| (frame.number, frame.is_module, frame.is_inlined))
            .collect();
        let mut node = NodeId::default();
        for own in own {
            let known = self.places.get(&own).copied();
            let place = known.unwrap_or_else(|| {
                let place = place(code, own);
                self.places.insert(own, place);
                place
            });
            node = code.add_node(node, place);
        }
        Some((node, is_cut_short))
    }

    /// The frames of the stack `node` that are shown, outermost first.
    fn shown<'c>(
        &self,
        code: &'c Code,
        node: NodeId,
        is_cut_short: bool,
    ) -> Option<Vec<Shown<'c>>> {
        let numbers = code.frame_numbers(node);
        let mut stack: Vec<Shown<'c>> = numbers
            .map(|number| {
                let frame = code.placed(number);
                let function = code.function(frame.function);
                Shown {
                    name: code.text(function.name),
                    module: code.text(function.module),
                    number,
                    is_module: false,
                    is_cut_short: false,
                    is_inlined: frame.is_inlined,
                }
            })
            .collect();
        if is_cut_short {
            let frames: Vec<Frame<'_>> = code.frames(node).collect();
            let outermost = outermost_of_guest(&frames);
            if let Some(outermost) = outermost.and_then(|index| stack.get_mut(index)) {
                outermost.is_cut_short = true;
            }
        }
        stack.reverse();
        let mut transforms = self.transforms.iter();
        let is_there = transforms.all(|transform| transform.apply(&mut stack));
        is_there.then_some(stack)
    }
}

/// Whether the stack of a halted vCPU is still there.
pub(super) fn keep_halted(transforms: &[Transform]) -> bool {
    let mut stack = vec![Shown {
        name: HALTED,
        module: HALTED_MODULE,
        number: 0,
        is_module: false,
        is_cut_short: false,
        is_inlined: false,
    }];
    let mut transforms = transforms.iter();
    transforms.all(|transform| transform.apply(&mut stack))
}

/// The place of a frame that is shown.
fn place(code: &mut Code, (number, is_module, is_inlined): Own) -> PlaceId {
    let recorded = code.placed(number);
    let shown = match is_module {
        false => recorded,
        true => {
            let function = code.function(recorded.function);
            PlacedFunction {
                function: code.add_function(Function {
                    name: function.module,
                    ..function
                }),
                offset: None,
                source: None,
                ..recorded
            }
        }
    };
    code.add_place([PlacedFunction {
        is_inlined,
        ..shown
    }])
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::model::FrameKind;

    /// Stacks, and what transforms make of them: the same for the page, in readers/script.test.mjs.
    const CASES: &str = include_str!("../../tests/data/transforms.json");

    fn transform(text: &str) -> Transform {
        text.parse().unwrap()
    }

    /// Adds a stack, whose frames are written outermost first, as NAME@MODULE with `-` in front if they are inlined and `~` if their callers are missing.
    fn add(code: &mut Code, text: &str) -> (NodeId, bool) {
        let (mut node, mut is_cut_short) = (NodeId::default(), false);
        for text in text.split(' ') {
            let name = text.trim_start_matches(['~', '-']);
            let (name, module) = name.split_once('@').unwrap();
            let function = Function {
                name: code.name(name),
                module: code.name(module),
                is_kernel: module.starts_with('['),
            };
            is_cut_short |= text.starts_with('~');
            let function = code.add_function(function);
            let place = code.add_place([PlacedFunction {
                function,
                is_inlined: text.starts_with('-'),
                kind: FrameKind::User,
                ..PlacedFunction::default()
            }]);
            node = code.add_node(node, place);
        }
        (node, is_cut_short)
    }

    /// The stack in the same form without modules, outermost first.
    fn written(code: &Code, (node, is_cut_short): (NodeId, bool)) -> String {
        let frames: Vec<Frame<'_>> = code.frames(node).collect();
        let outermost = outermost_of_guest(&frames).filter(|_| is_cut_short);
        let frames = frames.iter().enumerate().rev();
        let frames = frames.map(|(index, frame)| {
            let cut = if outermost == Some(index) { "~" } else { "" };
            let inlined = if frame.is_inlined { "-" } else { "" };
            format!("{cut}{inlined}{}", frame.name)
        });
        frames.collect::<Vec<_>>().join(" ")
    }

    fn stacks(value: &Value) -> Vec<(String, u64)> {
        serde_json::from_value(value.clone()).unwrap()
    }

    #[test]
    fn stacks_become_what_they_become_on_the_page() {
        let document: Value = serde_json::from_str(CASES).unwrap();
        let cases = document["cases"].as_array().unwrap();
        assert!(cases.len() > 20);
        for case in cases {
            let of = case.get("of").unwrap_or(&document["stacks"]);
            let transforms: Vec<String> =
                serde_json::from_value(case["transforms"].clone()).unwrap();
            let transforms: Vec<Transform> =
                transforms.iter().map(|text| transform(text)).collect();
            let mut transformer = Transformer::new(&transforms);
            let mut code = Code::default();
            let mut sums = std::collections::BTreeMap::<String, u64>::new();
            for (text, ticks) in stacks(of) {
                let stack = add(&mut code, &text);
                let shown = transformer.apply(&mut code, stack);
                assert_eq!(shown.is_some(), transformer.keeps(&code, stack.0));
                if let Some(shown) = shown {
                    *sums.entry(written(&code, shown)).or_default() += ticks;
                }
            }
            let lines = sums.iter().map(|(stack, ticks)| format!("{stack} {ticks}"));
            let mut lines: Vec<String> = lines.collect();
            lines.sort();
            let expected: Vec<String> = serde_json::from_value(case["expected"].clone()).unwrap();
            assert_eq!(lines, expected, "{}", case["name"]);
        }
    }

    #[test]
    fn transforms_are_a_kind_and_a_name() {
        for kind in TransformKind::ALL {
            let text = format!("{}=operator=(int)", kind.name());
            assert_eq!(transform(&text).to_string(), text);
        }
        for text in ["", "merge", "merge=", "merged=a", "=a"] {
            assert_eq!(text.parse::<Transform>(), Err(NotATransform), "{text}");
        }
    }

    #[test]
    fn halted_vcpus_have_a_stack_of_one_frame() {
        let kept = |text: &str| keep_halted(&[transform(text)]);
        assert!(kept("merge=main") && kept("focus=[halted]") && kept("focus-module=[idle]"));
        assert!(!kept("focus=main") && !kept("subtree=main;[halted]") && !kept("focus-module=a"));
    }

    #[test]
    fn hidden_callers_are_those_of_the_guest() {
        let mut code = Code::default();
        let (guest, _) = add(&mut code, "a@a b@a");
        let numbers: Vec<u32> = code.frame_numbers(guest).collect();
        let host = PlacedFunction {
            kind: FrameKind::Host,
            ..code.placed(numbers[1])
        };
        let place = code.add_place([host]);
        let host = code.add_node(NodeId::default(), place);
        let place = code.add_place([code.placed(numbers[0])]);
        let node = code.add_node(host, place);
        let merged = [transform("merge=a")];
        let shown = Transformer::new(&merged)
            .apply(&mut code, (node, true))
            .unwrap();
        assert_eq!(written(&code, shown), "~b");
        let merged = [transform("merge=b")];
        let shown = Transformer::new(&merged)
            .apply(&mut code, (node, true))
            .unwrap();
        assert_eq!((written(&code, shown), shown.1), ("a".to_owned(), false));
    }
}
