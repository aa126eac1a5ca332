//! Where registers are at one instruction, relative to the stack or the frame with which the walk began.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::super::orc::{Base, Kind, OrcEntry};

/// Two paths disagree, or an instruction isn't understood.
pub struct Contradiction;

/// A place on the stack: how many bytes above the base it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    pub base: Base,
    pub offset: i32,
}

impl At {
    /// Where RSP points to when a walk begins.
    const BEGIN: Self = Self::base(Base::Sp);

    const fn base(base: Base) -> Self {
        Self { base, offset: 0 }
    }

    fn moved(self, distance: i32) -> Option<Self> {
        let offset = self.offset.checked_add(distance)?;
        Some(Self { offset, ..self })
    }
}

/// Where the caller's RBP is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bp {
    /// In RBP.
    Held,
    /// It was in RBP, is on the stack there, and RBP has something else.
    Pushed(At),
    /// It was popped from there.
    Popped(At),
    /// RBP was overwritten, and the caller's wasn't seen on the stack.
    Overwritten,
}

/// The state at one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Where RSP points to; `None` if that is unknown.
    pub sp: Option<At>,
    bp: Bp,
    /// Where RBP points to, if it was made a frame pointer on the way.
    frame: Option<At>,
    /// Where the caller's RBP was pushed.
    pushed: Option<At>,
}

impl State {
    /// The state where a walk begins.
    pub fn begin() -> Self {
        Self {
            sp: Some(At::BEGIN),
            bp: Bp::Held,
            frame: None,
            pushed: None,
        }
    }

    /// Follows an instruction that the next one follows.
    pub fn step(&mut self, instruction: &Instruction) -> Result<(), Contradiction> {
        let is_register = instruction.op_count() > 0 && instruction.op0_kind() == OpKind::Register;
        let first = if is_register {
            instruction.op0_register().full_register()
        } else {
            Register::None
        };
        let second = match instruction.op_count() > 1 && instruction.op1_kind() == OpKind::Register
        {
            true => instruction.op1_register(),
            false => Register::None,
        };
        let immediate = instruction.try_immediate(1).ok();
        let immediate = immediate.and_then(|number| i32::try_from(number.cast_signed()).ok());
        match (instruction.mnemonic(), first) {
            (Mnemonic::Push, Register::RBP) => {
                self.moved(-8);
                if self.bp == Bp::Held {
                    self.pushed = self.sp;
                }
            }
            (Mnemonic::Push | Mnemonic::Pushfq, _) => self.moved(-8),
            (Mnemonic::Popfq, _) => self.moved(8),
            (Mnemonic::Pop, Register::RSP) => {
                let is_top = self.sp == Some(At::BEGIN);
                self.sp = is_top.then_some(At::base(Base::SpIndirect));
            }
            (Mnemonic::Pop, Register::RBP) => {
                self.load_bp(self.sp);
                self.moved(8);
            }
            (Mnemonic::Pop, _) => self.moved(8),
            (Mnemonic::Leave, _) => {
                self.sp = self.frame_base(0);
                self.load_bp(self.sp);
                self.moved(8);
            }
            // Functions with large frames store registers there instead of pushing them.
            (Mnemonic::Mov, Register::None)
                if second == Register::RBP
                    && instruction.memory_base() == Register::RSP
                    && self.bp == Bp::Held =>
            {
                self.pushed = self.word_at(instruction);
            }
            (Mnemonic::Mov, Register::RBP) if instruction.memory_base() == Register::RSP => {
                self.load_bp(self.word_at(instruction));
            }
            (Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Bt, _) => {}
            (Mnemonic::Mov, Register::RBP) if second == Register::RSP => {
                self.frame = self.sp;
                self.overwrite_bp();
            }
            (Mnemonic::Mov, Register::RSP) if second == Register::RBP => {
                self.sp = self.frame_base(0)
            }
            (Mnemonic::Add, Register::RSP) => self.moved(immediate.ok_or(Contradiction)?),
            (Mnemonic::Sub, Register::RSP) => match immediate {
                Some(number) => self.moved(number.checked_neg().ok_or(Contradiction)?),
                // An array of a variable length. Only RBP leads back.
                None => self.sp = None,
            },
            (Mnemonic::And, Register::RSP) => self.sp = None,
            (Mnemonic::Lea, Register::RSP) if instruction.memory_index() == Register::None => {
                let distance = instruction.memory_displacement64().cast_signed();
                let distance = i32::try_from(distance).map_err(|_| Contradiction)?;
                match instruction.memory_base() {
                    Register::RSP => self.moved(distance),
                    Register::RBP => self.sp = self.frame_base(distance),
                    _ => return Err(Contradiction),
                }
            }
            (_, Register::RSP) => return Err(Contradiction),
            (_, Register::RBP) => {
                self.frame = None;
                self.overwrite_bp();
            }
            (Mnemonic::Enter, _) => return Err(Contradiction),
            _ => {}
        }
        Ok(())
    }

    fn moved(&mut self, distance: i32) {
        self.sp = self.sp.and_then(|at| at.moved(distance));
    }

    /// The place of the instruction's operand in memory, relative to RSP.
    fn word_at(&self, instruction: &Instruction) -> Option<At> {
        let distance = instruction.memory_displacement64().cast_signed();
        let distance = i32::try_from(distance).ok()?;
        let is_plain = instruction.memory_index() == Register::None;
        self.sp.filter(|_| is_plain)?.moved(distance)
    }

    /// What RBP points to, plus a distance.
    fn frame_base(&self, distance: i32) -> Option<At> {
        let at = match (self.frame, self.bp) {
            (Some(frame), _) => frame,
            (None, Bp::Held) => At::base(Base::Bp),
            (None, _) => return None,
        };
        at.moved(distance)
    }

    fn overwrite_bp(&mut self) {
        if self.bp == Bp::Held {
            self.bp = self.pushed.map_or(Bp::Overwritten, Bp::Pushed);
        }
    }

    /// RBP is loaded from a place on the stack.
    fn load_bp(&mut self, at: Option<At>) {
        self.frame = None;
        self.bp = match (at, self.bp) {
            (Some(at), _) if self.pushed == Some(at) => {
                self.pushed = None;
                Bp::Held
            }
            (Some(at), _) => Bp::Popped(at),
            (None, _) => Bp::Overwritten,
        };
    }

    /// Whether the return address has been popped, in a walk from the begin of a function.
    pub fn is_above_begin(&self) -> bool {
        self.sp
            .is_some_and(|at| at.base == Base::Sp && at.offset > 0)
    }

    /// The rule where a walk from the begin of a function is in this state: there RSP was at the return address.
    pub fn entry_from_begin(&self) -> Option<OrcEntry> {
        const CALLER: i32 = 8;
        let (sp, at) = match (self.sp, self.frame) {
            (Some(at), _) => (Base::Sp, at),
            (None, Some(at)) => (Base::Bp, at),
            (None, None) => return None,
        };
        let bp = match self.bp {
            // What RBP has is on the stack, too, unless that word has been popped.
            Bp::Held => {
                (self.pushed).filter(|pushed| self.sp.is_none_or(|sp| sp.offset <= pushed.offset))
            }
            Bp::Pushed(from) => Some(from),
            Bp::Popped(_) | Bp::Overwritten => return None,
        };
        if [Some(at), bp]
            .iter()
            .flatten()
            .any(|at| at.base != Base::Sp)
        {
            return None;
        }
        let sp_offset = i16::try_from(CALLER.checked_sub(at.offset)?).ok()?;
        let bp_offset = bp.map_or(Some(0), |at| at.offset.checked_sub(CALLER))?;
        let bp_offset = i16::try_from(bp_offset).ok()?;
        let is_kept = sp_offset > 0 && sp_offset % 8 == 0 && bp_offset <= 0 && bp_offset % 8 == 0;
        is_kept.then_some(OrcEntry {
            kind: Kind::Call,
            sp,
            sp_offset,
            bp: bp.map_or(Base::Undefined, |_| Base::CallerSp),
            bp_offset,
        })
    }

    /// The rule of a function that returns in this state.
    pub fn entry(&self) -> Option<OrcEntry> {
        let at = self.sp?;
        let caller = at.offset.checked_add(8)?;
        let sp_offset = i16::try_from(caller)
            .ok()
            .filter(|offset| *offset > 0 && offset % 8 == 0)?;
        let (bp, bp_offset) = match self.bp {
            Bp::Held => (Base::Undefined, 0),
            Bp::Popped(from) if from.base == at.base => {
                let offset = i16::try_from(from.offset.checked_sub(caller)?).ok()?;
                (Base::CallerSp, offset)
            }
            Bp::Popped(_) | Bp::Pushed(_) | Bp::Overwritten => return None,
        };
        let is_kept = bp_offset <= 0 && bp_offset % 8 == 0;
        is_kept.then_some(OrcEntry {
            kind: Kind::Call,
            sp: at.base,
            sp_offset,
            bp,
            bp_offset,
        })
    }
}
