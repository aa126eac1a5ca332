//! The walk through one function.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use iced_x86::{
    FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};

use super::super::Code;
use super::{Access, Call, Flow, Node, Place, STACK_TOP, Use, Value};

/// Maximum number of instructions that are visited in one function.
const MAX_INSTRUCTIONS: usize = 4096;
/// Maximum number of paths that wait to be visited.
const MAX_PATHS: usize = 1024;
/// Maximum number of words on the stack that are followed.
const MAX_STACKED: usize = 128;
/// Maximum number of a call's arguments on the stack that are looked at.
const MAX_PUSHED: i64 = 6;
/// The registers of a function's first arguments (System V ABI for x86-64, section 3.2.3).
const ARGUMENTS: [Register; 6] = [
    Register::RDI,
    Register::RSI,
    Register::RDX,
    Register::RCX,
    Register::R8,
    Register::R9,
];
/// The registers that a call may change, and that don't have arguments.
const CALL_CLOBBERED: [Register; 3] = [Register::RAX, Register::R10, Register::R11];

/// The values at one place in the code.
#[derive(Clone, Debug)]
struct State {
    registers: [Value; 16],
    /// The words on the stack, by their distance from its top at the function's start.
    stacked: BTreeMap<i64, Value>,
}

impl Flow {
    /// Follows the function at `function`, link-time addresses.
    pub fn of(code: &Code<'_>, function: Range<u64>) -> Self {
        let mut flow = Self::default();
        let mut registers = [Value(0); 16];
        for (number, register) in registers.iter_mut().enumerate() {
            *register = flow.value(Node::Result(function.start, number));
        }
        let mut state = State {
            registers,
            stacked: BTreeMap::new(),
        };
        for (index, register) in ARGUMENTS.into_iter().enumerate() {
            let value = flow.value(Node::Argument(index));
            state.set(register, value);
        }
        let mut walk = Walk {
            code,
            function,
            seen: BTreeSet::new(),
            factory: InstructionInfoFactory::new(),
            paths: vec![],
        };
        walk.paths.push((walk.function.start, state));
        while let Some((address, state)) = walk.paths.pop() {
            walk.path(&mut flow, address, state);
        }
        flow
    }
}

/// The number of a general register, and whether it is one.
fn number(register: Register) -> Option<usize> {
    let full = register.full_register();
    full.is_gpr64().then(|| full.number())
}

impl State {
    fn get(&self, register: Register) -> Option<Value> {
        self.registers.get(number(register)?).copied()
    }

    fn set(&mut self, register: Register, value: Value) {
        if let Some(place) = number(register).and_then(|number| self.registers.get_mut(number)) {
            *place = value;
        }
    }

    /// Notes `value` as the word of the stack at this distance.
    fn store(&mut self, distance: i64, value: Value) {
        if self.stacked.len() < MAX_STACKED || self.stacked.contains_key(&distance) {
            self.stacked.insert(distance, value);
        }
    }
}

/// The walk through one function.
struct Walk<'c, 'a> {
    code: &'c Code<'a>,
    function: Range<u64>,
    seen: BTreeSet<u64>,
    factory: InstructionInfoFactory,
    /// Where paths continue that aren't visited yet.
    paths: Vec<(u64, State)>,
}

impl Walk<'_, '_> {
    /// Follows a path until it ends, or reaches what was visited.
    fn path(&mut self, flow: &mut Flow, mut address: u64, mut state: State) {
        while self.seen.len() < MAX_INSTRUCTIONS && self.seen.insert(address) {
            let Some(instruction) = self.code.instruction(address) else {
                return;
            };
            let next = instruction.next_ip();
            match instruction.flow_control() {
                FlowControl::Next => self.step(flow, &instruction, &mut state),
                FlowControl::ConditionalBranch => {
                    if self.paths.len() < MAX_PATHS {
                        let target = instruction.near_branch_target();
                        self.paths.push((target, state.clone()));
                    }
                }
                FlowControl::UnconditionalBranch => {
                    let target = instruction.near_branch_target();
                    if !self.function.contains(&target) && self.code.is_function(target) {
                        flow.leave(&instruction, &state);
                        return;
                    }
                    address = target;
                    continue;
                }
                FlowControl::Call | FlowControl::IndirectCall => {
                    if !self.is_tracer(&instruction) {
                        flow.call(&instruction, &state);
                        for register in ARGUMENTS.into_iter().chain(CALL_CLOBBERED) {
                            let number = number(register).unwrap_or_default();
                            let result = flow.value(Node::Result(address, number));
                            state.set(register, result);
                        }
                    }
                }
                FlowControl::Return => {
                    flow.returned.extend(state.get(Register::RAX));
                    return;
                }
                // A warning continues behind it.
                FlowControl::Exception if instruction.mnemonic() == Mnemonic::Ud2 => {}
                _ => return,
            }
            address = next;
        }
    }

    /// Whether `call` is the tracer's, which changes nothing: `__fentry__`, or without its name a function's first
    /// instruction.
    fn is_tracer(&self, call: &Instruction) -> bool {
        match self.code.name(call.near_branch_target()) {
            Some(name) => name == "__fentry__",
            None => call.ip() <= self.function.start.saturating_add(4),
        }
    }

    /// An instruction that the next one follows.
    fn step(&mut self, flow: &mut Flow, instruction: &Instruction, state: &mut State) {
        let place = memory_place(flow, instruction, state);
        if let Some(place) = place {
            flow.access(instruction, place, state, &mut self.factory);
        }
        let known = flow.result(instruction, place, state);
        let mnemonic = instruction.mnemonic();
        match mnemonic {
            Mnemonic::Push => {
                let unknown = flow.value(Node::Result(instruction.ip(), 16));
                let value = flow
                    .operand(instruction, 0, place, state)
                    .unwrap_or(unknown);
                flow.move_stack(state, -8);
                if let Some(top) = flow.top(state) {
                    state.store(top, value);
                }
                return;
            }
            Mnemonic::Pop => {
                let unknown = flow.value(Node::Result(instruction.ip(), 16));
                let top = flow.top(state);
                let value = top.and_then(|top| state.stacked.get(&top)).copied();
                state.set(instruction.op0_register(), value.unwrap_or(unknown));
                flow.move_stack(state, 8);
                return;
            }
            Mnemonic::Mov if instruction.op0_kind() == OpKind::Memory => {
                let value = flow.operand(instruction, 1, place, state);
                let slot = place.and_then(|place| flow.slot(place));
                if let (Some(value), Some(slot)) = (value, slot) {
                    state.store(slot, value);
                }
                return;
            }
            _ => {}
        }
        if let Some(value) = known {
            state.set(instruction.op0_register(), value);
            return;
        }
        let info = self.factory.info(instruction);
        for used in info.used_registers() {
            let is_written = !matches!(
                used.access(),
                OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
            );
            if let Some(number) = number(used.register()).filter(|_| is_written) {
                let value = flow.value(Node::Result(instruction.ip(), number));
                state.set(used.register(), value);
            }
        }
    }
}

/// The place of the instruction's operand in memory, if it has one.
fn memory_place(flow: &mut Flow, instruction: &Instruction, state: &State) -> Option<Place> {
    let kinds = instruction.op_kinds();
    let mut kinds = kinds.into_iter();
    if !kinds.any(|kind| kind == OpKind::Memory) || instruction.mnemonic() == Mnemonic::Nop {
        return None;
    }
    let displacement = instruction.memory_displacement64().cast_signed();
    let (base, index) = (instruction.memory_base(), instruction.memory_index());
    let mut scale: u8 = match index {
        Register::None => 0,
        _ => u8::try_from(instruction.memory_index_scale()).unwrap_or(0),
    };
    let base = match base {
        _ if instruction.segment_prefix() == Register::GS => flow.value(Node::PerCpu),
        Register::RIP | Register::EIP | Register::None if index == Register::None => {
            flow.value(Node::Constant(0))
        }
        // Only an index: an array at a constant address.
        Register::None => flow.value(Node::Constant(0)),
        register => state.get(register)?,
    };
    // An index that is a known number, or a value plus one.
    let index = state.get(index).map(|value| flow.node(value));
    let known = match index {
        Some(Node::Constant(number)) => Some((number.cast_signed(), 0)),
        Some(Node::Sum(_, number)) => Some((number, scale)),
        _ => None,
    };
    let distance = known.map_or(0, |(number, _)| number.wrapping_mul(scale.into()));
    scale = known.map_or(scale, |(_, scale)| scale);
    Some(flow.place(base, displacement.wrapping_add(distance), scale))
}

impl Flow {
    /// The distance of the stack's top from where it was at the function's start.
    fn top(&self, state: &State) -> Option<i64> {
        let top = state.get(Register::RSP)?;
        self.slot(Place {
            base: top,
            offset: 0,
            scale: 0,
        })
    }

    /// The distance of `place` from the stack's top at the function's start, if it is on the stack.
    fn slot(&self, place: Place) -> Option<i64> {
        let is_top = |value| value == STACK_TOP;
        match self.node(place.base) {
            _ if place.scale != 0 => None,
            Node::Sum(base, distance) if is_top(base) => Some(distance.wrapping_add(place.offset)),
            _ if is_top(place.base) => Some(place.offset),
            _ => None,
        }
    }

    fn move_stack(&mut self, state: &mut State, distance: i64) {
        if let Some(top) = state.get(Register::RSP) {
            let moved = self.sum(top, distance);
            state.set(Register::RSP, moved);
        }
    }

    /// Notes an access, by what the instruction does with its operands.
    fn access(
        &mut self,
        instruction: &Instruction,
        place: Place,
        state: &State,
        factory: &mut InstructionInfoFactory,
    ) {
        let kind = match instruction.mnemonic() {
            Mnemonic::Lea => Use::Address,
            _ => {
                let info = factory.info(instruction);
                let mut used = info.used_memory().iter().map(|memory| memory.access());
                match used.next_back() {
                    Some(OpAccess::Write | OpAccess::CondWrite) => Use::Write,
                    Some(OpAccess::ReadWrite | OpAccess::ReadCondWrite) => Use::Update,
                    _ => Use::Read,
                }
            }
        };
        let width = u8::try_from(instruction.memory_size().size()).unwrap_or(0);
        let mut registers = (0..instruction.op_count())
            .filter(|index| instruction.op_kind(*index) == OpKind::Register);
        let value = registers.next().map(|index| instruction.op_register(index));
        self.accesses.push(Access {
            place,
            kind,
            width: if kind == Use::Address { 0 } else { width },
            instruction: *instruction,
            value: value.and_then(|register| state.get(register)),
        });
    }

    /// The value of an operand: a register, a number, or a word of memory.
    fn operand(
        &mut self,
        instruction: &Instruction,
        index: u32,
        place: Option<Place>,
        state: &State,
    ) -> Option<Value> {
        match instruction.op_kind(index) {
            OpKind::Register => state.get(instruction.op_register(index)),
            OpKind::Memory => {
                let place = place.filter(|place| place.scale == 0)?;
                let width = u8::try_from(instruction.memory_size().size()).ok()?;
                let slot = self.slot(place).filter(|_| width == 8);
                if let Some(stacked) = slot.and_then(|slot| state.stacked.get(&slot)) {
                    return Some(*stacked);
                }
                Some(self.value(Node::Read(place.base, place.offset, width)))
            }
            _ => {
                let number = instruction.try_immediate(index).ok()?;
                Some(self.value(Node::Constant(number)))
            }
        }
    }

    /// The value that the instruction gives its first operand, a register, if it is known.
    fn result(
        &mut self,
        instruction: &Instruction,
        place: Option<Place>,
        state: &State,
    ) -> Option<Value> {
        if instruction.op_count() == 0 || instruction.op0_kind() != OpKind::Register {
            return None;
        }
        let destination = instruction.op0_register();
        if destination.size() < 4 {
            return None;
        }
        let immediate = instruction.try_immediate(1).ok().map(u64::cast_signed);
        let held = state.get(destination)?;
        match instruction.mnemonic() {
            Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Movsxd => {
                self.operand(instruction, 1, place, state)
            }
            Mnemonic::Lea => {
                let place = place.filter(|place| place.scale == 0)?;
                Some(match self.node(place.base) {
                    Node::Constant(0) => self.value(Node::Constant(place.offset.cast_unsigned())),
                    _ => self.sum(place.base, place.offset),
                })
            }
            Mnemonic::Add if destination.size() == 8 => Some(self.sum(held, immediate?)),
            Mnemonic::Sub if destination.size() == 8 => {
                Some(self.sum(held, immediate?.wrapping_neg()))
            }
            Mnemonic::Xor if instruction.op1_kind() == OpKind::Register => {
                let is_zero = instruction.op1_register() == destination;
                is_zero.then(|| self.value(Node::Constant(0)))
            }
            // These only compare.
            Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Bt => Some(held),
            _ => None,
        }
    }

    fn call(&mut self, instruction: &Instruction, state: &State) {
        let is_direct = instruction.op0_kind() == OpKind::NearBranch64;
        let arguments = ARGUMENTS.map(|register| state.get(register).unwrap_or(Value(0)));
        let top = self.top(state).unwrap_or(0);
        let words = (0..MAX_PUSHED).map(|word| top.wrapping_add(word * 8));
        let pushed = words.map_while(|word| state.stacked.get(&word).copied());
        self.calls.push(Call {
            target: is_direct.then(|| instruction.near_branch_target()),
            arguments,
            pushed: pushed.collect(),
        });
    }

    /// A jump to another function: to return, or to let it return.
    fn leave(&mut self, instruction: &Instruction, state: &State) {
        self.call(instruction, state);
        self.returned.extend(state.get(Register::RAX));
    }
}
