//! The walks from an instruction to where its function returns, and from a function's begin to an instruction.

use iced_x86::{Code, FlowControl, Instruction, Mnemonic};

use super::super::orc::OrcEntry;
use super::CodeRules;
use super::roles::Role;
use super::state::{Contradiction, State};

/// Maximum number of instructions that one walk visits.
const MAX_INSTRUCTIONS: usize = 384;
/// Maximum number of instructions that it visits after it has found a return, to see whether others agree.
const MAX_AFTER_RETURN: usize = 64;
/// Maximum number of paths that wait to be visited.
const MAX_PATHS: usize = 32;

/// Where a walk from a function's begin ends.
#[derive(Clone, Copy)]
pub struct Goal {
    pub offset: u32,
    /// Whether it is the instruction there, or the call before it, which needn't return.
    pub is_exact: bool,
}

/// One walk.
pub struct Walk<'a> {
    rules: &'a CodeRules,
    /// `None`: to where the function returns.
    goal: Option<Goal>,
    seen: [(u32, State); MAX_INSTRUCTIONS],
    count: usize,
    paths: [(u32, State); MAX_PATHS],
    waiting: usize,
    /// Where a warning may continue, which is followed only if nothing else leads to a return.
    warned: Option<(u32, State)>,
    found: Option<OrcEntry>,
    /// The number of instructions that may be visited.
    limit: usize,
}

impl<'a> Walk<'a> {
    pub fn new(rules: &'a CodeRules) -> Self {
        let state = State::begin();
        Self {
            rules,
            goal: None,
            seen: [(0, state); MAX_INSTRUCTIONS],
            count: 0,
            paths: [(0, state); MAX_PATHS],
            waiting: 0,
            warned: None,
            found: None,
            limit: MAX_INSTRUCTIONS,
        }
    }

    /// The rule at `offset`, by the ways from there to a return.
    pub fn until_return(self, offset: u32) -> Option<OrcEntry> {
        self.from(offset)
    }

    /// The rule at `goal`, by the ways that lead there from `begin`, where a function is called.
    pub fn until_goal(mut self, begin: u32, goal: Goal) -> Option<OrcEntry> {
        self.goal = Some(goal);
        self.from(begin)
    }

    fn from(mut self, offset: u32) -> Option<OrcEntry> {
        self.paths[0].0 = offset;
        self.waiting = 1;
        loop {
            while self.waiting > 0 {
                self.waiting -= 1;
                let (offset, state) = self.paths[self.waiting];
                if self.path(offset, state).is_err() {
                    return None;
                }
            }
            match self.warned.take() {
                Some(path) if self.found.is_none() => {
                    self.paths[0] = path;
                    self.waiting = 1;
                }
                _ => return self.found,
            }
        }
    }

    fn path(&mut self, mut offset: u32, mut state: State) -> Result<(), Contradiction> {
        while self.count < self.limit {
            let seen = self.seen[..self.count].iter();
            if let Some((_, other)) = seen.clone().find(|(at, _)| *at == offset) {
                return if other.sp == state.sp {
                    Ok(())
                } else {
                    Err(Contradiction)
                };
            }
            self.seen[self.count] = (offset, state);
            self.count += 1;
            let Some(instruction) = self.rules.instruction(offset) else {
                return Ok(());
            };
            let next = self.rules.offset_of(instruction.next_ip());
            if self.is_goal(offset, next, &instruction) {
                self.found_rule(state.entry_from_begin())?;
            }
            match instruction.flow_control() {
                FlowControl::Next => match (state.step(&instruction), self.goal) {
                    // Nothing is known of what follows; other ways may lead to the goal.
                    (Err(_), Some(_)) => return Ok(()),
                    (Ok(()), Some(_)) if state.is_above_begin() => return Err(Contradiction),
                    (stepped, _) => stepped?,
                },
                // What leaves the kernel or changes the code segment isn't called as functions are.
                FlowControl::Return if !is_near_return(&instruction) => return Err(Contradiction),
                FlowControl::Return => return self.returned(&state),
                FlowControl::UnconditionalBranch => {
                    match self.jump(offset, instruction.near_branch_target()) {
                        Jump::Within(target) => {
                            offset = target;
                            continue;
                        }
                        Jump::Away => return self.returned(&state),
                        // What a file has for a test of the processor's features is a jump to code outside, which becomes
                        // NOPs or a jump to the other case (`_static_cpu_has`, `arch/x86/include/asm/cpufeature.h`).
                        Jump::Aside => {}
                        Jump::Unknown => return Ok(()),
                    }
                }
                FlowControl::ConditionalBranch => {
                    let target = instruction.near_branch_target();
                    if let Jump::Within(target) = self.jump(offset, target)
                        && self.waiting < MAX_PATHS
                    {
                        self.paths[self.waiting] = (target, state);
                        self.waiting += 1;
                    }
                }
                FlowControl::Call => {
                    if self.rules.is_no_return(instruction.near_branch_target()) {
                        return Ok(());
                    }
                }
                FlowControl::IndirectCall => {}
                FlowControl::Exception if instruction.mnemonic() == Mnemonic::Ud2 => {
                    let next = next.filter(|next| self.is_same(offset, *next));
                    self.warned = self.warned.or(next.map(|next| (next, state)));
                    return Ok(());
                }
                _ => return Ok(()),
            }
            match next.filter(|next| self.is_same(offset, *next)) {
                Some(next) => offset = next,
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Whether both offsets are in the same function.
    fn is_same(&self, one: u32, other: u32) -> bool {
        self.rules.function(one) == self.rules.function(other)
    }

    fn jump(&self, from: u32, target: u64) -> Jump {
        let Some(target) = self.rules.offset_of(target) else {
            return match self.rules.leaves(target) {
                true => Jump::Away,
                false if self.rules.is_kernel() => Jump::Aside,
                false => Jump::Unknown,
            };
        };
        let (Some((begin, role)), Some(own)) =
            (self.rules.function(target), self.rules.function(from))
        else {
            return Jump::Unknown;
        };
        match role {
            _ if (begin, role) == own => Jump::Within(target),
            Role::ReturnThunk => Jump::Away,
            Role::JumpThunk => Jump::Unknown,
            Role::Part => Jump::Within(target),
            // From a part back to its function.
            _ if own.1 == Role::Part && begin != target => Jump::Within(target),
            _ if begin == target => Jump::Away,
            _ => Jump::Unknown,
        }
    }

    /// Whether the instruction at `offset` is the goal.
    fn is_goal(&self, offset: u32, next: Option<u32>, instruction: &Instruction) -> bool {
        self.goal.is_some_and(|goal| match goal.is_exact {
            true => offset == goal.offset,
            false => {
                let flow = instruction.flow_control();
                let is_call = matches!(flow, FlowControl::Call | FlowControl::IndirectCall);
                is_call && next == Some(goal.offset)
            }
        })
    }

    /// The function returns, or calls another one at its end.
    fn returned(&mut self, state: &State) -> Result<(), Contradiction> {
        match self.goal {
            Some(_) if state.sp == State::begin().sp => Ok(()),
            Some(_) => Err(Contradiction),
            None => self.found_rule(state.entry()),
        }
    }

    fn found_rule(&mut self, entry: Option<OrcEntry>) -> Result<(), Contradiction> {
        let entry = entry.ok_or(Contradiction)?;
        match self.found {
            None => {
                self.found = Some(entry);
                self.limit = self.limit.min(self.count + MAX_AFTER_RETURN);
            }
            Some(other) if other.sp == entry.sp && other != entry => return Err(Contradiction),
            Some(_) => {}
        }
        Ok(())
    }
}

fn is_near_return(instruction: &Instruction) -> bool {
    matches!(instruction.code(), Code::Retnq | Code::Retnq_imm16)
}

/// Where a jump leads to.
enum Jump {
    /// To the same function.
    Within(u32),
    /// To another function, at the end of this one.
    Away,
    /// Out of the kernel's code, to come back.
    Aside,
    Unknown,
}
