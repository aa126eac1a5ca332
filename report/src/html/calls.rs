//! The functions and stacks of the page.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use foldhash::fast::RandomState;

use crate::diff::comparable_name;
use crate::model::{
    Code, Frame, FunctionId, HALTED, HALTED_MODULE, StackSum, Table, outermost_of_guest,
};
use crate::profile::Profile;
use crate::symbolize::{self, SourceLine};

/// Maximum number of nodes.
const MAX_NODES: usize = 200_000;
/// Maximum length of all names of functions, in bytes.
const MAX_NAMES: usize = 8 << 20;
/// Maximum number of a function's source lines.
const MAX_LINES: usize = 8;

/// The function that stands for rare stacks.
const RARE_NAME: &str = "[rare stacks]";

/// A function.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name, or its address.
    pub name: Arc<str>,
    /// `[kernel]`, a module, or a file.
    pub module: Arc<str>,
    /// Whether it is a kernel function.
    pub is_kernel: bool,
    /// The lowest and the highest of its addresses that were on a stack, in its file.
    pub addresses: Option<(u64, u64)>,
    /// The lowest of the source lines that were on a stack.
    pub lines: BTreeSet<SourceLine>,
}

/// A function with the chain of its callers. The root is number 0 and has no function. Stacks that were cut short have nodes of
/// their own, so that the page counts their ticks under any filter; it draws both as one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// Its caller's number, which is lower than its own.
    pub parent: u32,
    /// Its function's number.
    pub function: u32,
    /// Whether its callers are missing.
    pub is_cut_short: bool,
    /// Whether it is inlined into its caller.
    pub is_inlined: bool,
}

type Key = (Arc<str>, Arc<str>, bool);

/// All stacks as a tree of calls.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    functions: Vec<Function>,
    nodes: Table<Node>,
    /// The node of each stack of each recording, by its number.
    of_stacks: Vec<Vec<u32>>,
    halted: u32,
    rare: u32,
    keys: Table<Key>,
    /// The number of each of the profile's functions.
    numbers: HashMap<FunctionId, u32, RandomState>,
    name_bytes: usize,
    is_comparison: bool,
}

impl Calls {
    /// The stacks of `profile`; the rarest ones are left out if there are too many. In a comparison, addresses without a name are
    /// one function, as in [`crate::diff`].
    pub fn new(profile: &Profile, is_comparison: bool) -> Self {
        let mut calls = Self {
            is_comparison,
            ..Self::default()
        };
        let root = Node {
            parent: 0,
            // None: no other node is equal.
            function: u32::MAX,
            is_cut_short: false,
            is_inlined: false,
        };
        calls.nodes.push(root);
        calls.halted = calls.lone(root, HALTED, HALTED_MODULE);
        calls.rare = calls.lone(root, RARE_NAME, "");
        let recordings: Vec<&Profile> = profile.recordings().collect();
        let mut stacks = Vec::new();
        for (recording, profile) in recordings.iter().enumerate() {
            calls.of_stacks.push(vec![calls.rare; profile.stacks.len()]);
            let own = profile.stacks.iter().enumerate();
            let own = own.filter(|(_, stack)| stack.ticks > 0);
            stacks.extend(own.map(|(number, stack)| (recording, number, stack)));
        }
        stacks.sort_by_key(|(.., stack)| Reverse(stack.ticks));
        for (recording, number, stack) in stacks {
            if let Some(node) = calls.node_of(&profile.code, stack) {
                calls.of_stacks[recording][number] = node;
            }
        }
        calls
    }

    /// The node of a function that nothing calls.
    fn lone(&mut self, root: Node, name: &str, module: &str) -> u32 {
        let function = self.add_function((name.into(), module.into(), true));
        self.nodes.number(Node { function, ..root })
    }

    /// The node of a stack; `None` if that would exceed the limits.
    fn node_of(&mut self, code: &Code, stack: &StackSum) -> Option<u32> {
        let frames: Vec<Frame<'_>> = code.frames(stack.node).collect();
        let outermost = outermost_of_guest(&frames).filter(|_| stack.is_cut_short);
        let mut parent = 0;
        for (index, frame) in frames.iter().enumerate().rev() {
            if self.nodes.length() >= MAX_NODES || self.name_bytes >= MAX_NAMES {
                return None;
            }
            let function = self.function_of(frame);
            parent = self.nodes.number(Node {
                parent,
                function,
                is_cut_short: outermost == Some(index),
                is_inlined: frame.is_inlined,
            });
        }
        Some(parent)
    }

    /// The node of a stack of the kernel's functions that takes no ticks, its frames innermost first; [`Self::rare`] if that would exceed the limits.
    pub fn node_of_wait(
        &mut self,
        frames: impl DoubleEndedIterator<Item = Rc<[symbolize::Frame]>>,
        is_whole: bool,
    ) -> u32 {
        let mut parent = 0;
        for inlined in frames.rev() {
            for frame in inlined.iter().rev() {
                if self.nodes.length() >= MAX_NODES || self.name_bytes >= MAX_NAMES {
                    return self.rare;
                }
                let key = (Arc::clone(&frame.function), Arc::clone(&frame.module), true);
                let function = self.add_function(key);
                parent = self.nodes.number(Node {
                    parent,
                    function,
                    is_cut_short: parent == 0 && !is_whole,
                    is_inlined: frame.is_inlined,
                });
            }
        }
        parent
    }

    fn add_function(&mut self, key: Key) -> u32 {
        if let Some(known) = self.keys.find(&key) {
            return known;
        }
        self.name_bytes += key.0.len();
        self.functions.push(Function {
            name: Arc::clone(&key.0),
            module: Arc::clone(&key.1),
            is_kernel: key.2,
            addresses: None,
            lines: BTreeSet::new(),
        });
        self.keys.push(key)
    }

    fn key_of(&self, frame: &Frame<'_>) -> Key {
        let mut name = Arc::clone(frame.name);
        if self.is_comparison && *comparable_name(&name) != *name {
            name = comparable_name(&name).into();
        }
        (name, Arc::clone(frame.module), frame.is_kernel)
    }

    fn function_of(&mut self, frame: &Frame<'_>) -> u32 {
        let known = self.numbers.get(&frame.function).copied();
        let number = known.unwrap_or_else(|| {
            let number = self.add_function(self.key_of(frame));
            self.numbers.insert(frame.function, number);
            number
        });
        let function = &mut self.functions[number as usize];
        let address = frame.file_address;
        let (low, high) = function.addresses.unwrap_or((address, address));
        function.addresses = Some((low.min(address), high.max(address)));
        if let Some((file, line)) = frame.source {
            let line = SourceLine {
                file: Arc::clone(file),
                line,
            };
            if !function.lines.contains(&line) {
                function.lines.insert(line);
                if function.lines.len() > MAX_LINES {
                    function.lines.pop_last();
                }
            }
        }
        number
    }

    /// All functions, by number.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// The number of a frame's function; `None` if no stack within the limits has it.
    pub fn function_number(&self, frame: &Frame<'_>) -> Option<u32> {
        self.numbers.get(&frame.function).copied()
    }

    /// All nodes, by number.
    pub fn nodes(&self) -> &[Node] {
        self.nodes.values()
    }

    /// The node of a recording's stack, by their numbers.
    pub fn of_stack(&self, recording: usize, stack: u32) -> u32 {
        let of_stacks = self.of_stacks.get(recording);
        of_stacks
            .and_then(|nodes| nodes.get(stack as usize))
            .copied()
            .unwrap_or(self.rare)
    }

    /// The node of halted vCPUs.
    pub fn halted(&self) -> u32 {
        self.halted
    }

    /// The node of rare stacks.
    pub fn rare(&self) -> u32 {
        self.rare
    }
}
