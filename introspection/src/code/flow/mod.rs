//! Follows values through one function: what each instruction reads, writes and passes on, in terms of the function's
//! arguments, per-CPU variables and constants.
//!
//! Each instruction is visited once, with the values of the first path that leads to it. So a value is what it is on
//! one path, not on all of them: a recipe looks for accesses that only one member or variable explains, and
//! [`super::Findings`] compares recipes.

mod walk;

use std::collections::BTreeMap;

use iced_x86::{Instruction, Register};

use crate::only;

/// The stack pointer at a function's start: the first values are those of the registers, by their numbers.
const STACK_TOP: Value = Value(4);
/// A value, as an index into [`Flow::nodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Value(u32);

/// How a value came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// The function's argument with this index.
    Argument(usize),
    /// The start of the CPU's per-CPU area: what GS points to.
    PerCpu,
    /// A constant, such as an address.
    Constant(u64),
    /// Another value plus a number.
    Sum(Value, i64),
    /// Read from memory: bytes at a distance from another value.
    Read(Value, i64, u8),
    /// The result of the instruction at this address, in the register with this number.
    Result(u64, usize),
}

/// The place of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// What the access is relative to.
    pub base: Value,
    /// The distance from there, in bytes.
    pub offset: i64,
    /// The factor of a further register that is added; 0 if there is none.
    pub scale: u8,
}

/// How an instruction uses a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It reads from there.
    Read,
    /// It writes there.
    Write,
    /// It reads and writes.
    Update,
    /// It computes the address.
    Address,
}

/// An access to memory.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    pub place: Place,
    pub kind: Use,
    /// Bytes; 0 for an address.
    pub width: u8,
    pub instruction: Instruction,
    /// The value in the other operand, if that is a register.
    pub value: Option<Value>,
}

impl Access {
    /// Whether the instruction is atomic: it has a LOCK prefix, or DS, which a running kernel with one CPU has put in its
    /// place (`alternatives_smp_unlock`, `arch/x86/kernel/alternative.c`).
    pub fn is_atomic(&self) -> bool {
        let instruction = &self.instruction;
        instruction.has_lock_prefix() || instruction.segment_prefix() == Register::DS
    }
}

/// A call, or a jump to another function.
#[derive(Clone, Debug)]
pub struct Call {
    /// The function's address, if the instruction has it.
    pub target: Option<u64>,
    /// The values in the registers of arguments.
    pub arguments: [Value; 6],
    /// The words on the stack, the last one that was pushed first.
    pub pushed: Vec<Value>,
}

/// What a function does, in the order in which it was visited.
#[derive(Debug, Default)]
pub struct Flow {
    nodes: Vec<Node>,
    indices: BTreeMap<Node, Value>,
    pub accesses: Vec<Access>,
    pub calls: Vec<Call>,
    /// What the function returns, once for each place where it does.
    pub returned: Vec<Value>,
}

impl Flow {
    /// How `value` came about.
    pub fn node(&self, value: Value) -> Node {
        let index = usize::try_from(value.0).unwrap_or(usize::MAX);
        (self.nodes.get(index)).copied().unwrap_or(Node::PerCpu)
    }

    /// True if `value` is the argument with this index.
    pub fn is_argument(&self, value: Value, index: usize) -> bool {
        self.node(value) == Node::Argument(index)
    }

    /// The distance from `base` if `value` is a word of `width` bytes that was read there.
    pub fn read_from(&self, value: Value, width: u8) -> Option<(Value, u64)> {
        match self.node(value) {
            Node::Read(base, offset, found) if found == width => {
                Some((base, u64::try_from(offset).ok()?))
            }
            _ => None,
        }
    }

    /// The per-CPU variable of 8 bytes that `value` was read from.
    pub fn per_cpu(&self, value: Value) -> Option<u64> {
        match self.node(value) {
            Node::Read(base, offset, 8) if self.node(base) == Node::PerCpu => {
                Some(offset.cast_unsigned())
            }
            _ => None,
        }
    }

    /// The reads of `width` bytes from the structure at `base`: their offsets in it.
    pub fn reads_of(&self, base: Value, width: u8) -> impl Iterator<Item = u64> {
        let words = self.words_of(base, width);
        words.filter_map(|(offset, access)| (access.kind != Use::Write).then_some(offset))
    }

    /// The offset of the reads of `width` bytes from the structure at `base`, if all have the same.
    pub fn only_read_of(&self, base: Value, width: u8) -> Option<u64> {
        only(self.reads_of(base, width))
    }

    /// The offsets of the accesses to the structure at `base`, of `width` bytes, in their order.
    pub fn words_of(&self, base: Value, width: u8) -> impl Iterator<Item = (u64, &Access)> {
        self.accesses.iter().filter_map(move |access| {
            let is_it = access.place.base == base
                && access.place.scale == 0
                && access.width == width
                && access.kind != Use::Address;
            let offset = u64::try_from(access.place.offset).ok();
            offset.filter(|_| is_it).map(|offset| (offset, access))
        })
    }

    /// The value of the argument with this index, if the function uses it.
    pub fn argument(&self, index: usize) -> Option<Value> {
        self.find(Node::Argument(index))
    }

    /// The value that came about in this way.
    pub fn find(&self, node: Node) -> Option<Value> {
        self.indices.get(&node).copied()
    }

    /// All values, and how they came about.
    pub fn values(&self) -> impl Iterator<Item = (Value, Node)> {
        let numbers = (0..).map(Value);
        numbers.zip(self.nodes.iter().copied())
    }

    /// The address of the variable that an access with this `place` is to.
    pub fn variable(&self, place: Place) -> Option<u64> {
        match self.node(place.base) {
            Node::Constant(0) if place.scale == 0 => Some(place.offset.cast_unsigned()),
            _ => None,
        }
    }

    fn value(&mut self, node: Node) -> Value {
        let next = Value(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        *self.indices.entry(node).or_insert_with(|| {
            self.nodes.push(node);
            next
        })
    }

    /// `value` plus `distance`.
    fn sum(&mut self, value: Value, distance: i64) -> Value {
        match self.node(value) {
            _ if distance == 0 => value,
            Node::Sum(base, offset) => match offset.wrapping_add(distance) {
                0 => base,
                offset => self.value(Node::Sum(base, offset)),
            },
            Node::Constant(number) => {
                self.value(Node::Constant(number.wrapping_add_signed(distance)))
            }
            _ => self.value(Node::Sum(value, distance)),
        }
    }

    /// The place at `value` plus `offset`.
    fn place(&mut self, value: Value, offset: i64, scale: u8) -> Place {
        let (base, offset) = match self.node(value) {
            Node::Sum(base, inner) => (base, inner.wrapping_add(offset)),
            Node::Constant(number) => (
                self.value(Node::Constant(0)),
                number.cast_signed().wrapping_add(offset),
            ),
            _ => (value, offset),
        };
        Place {
            base,
            offset,
            scale,
        }
    }
}
