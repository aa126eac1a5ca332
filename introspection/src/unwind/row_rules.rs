//! The rules of unwind tables: how the registers of a function's caller are computed from those of the function (DWARF 5,
//! section 6.4.1).
//!
//! Rules come from the guest. Evaluation is bounded, and a rule that can't be evaluated gives no value: nothing else is
//! used in its place.

use gimli::{
    CfaRule, EhFrame, Encoding, Expression, Operation, RegisterRule, UnwindContext,
    UnwindContextStorage, UnwindExpression, UnwindTableRow,
};

use super::unwind_table::Bytes;
use super::user_registers::{FrameRegisters, GENERAL, number};

/// Maximum number of registers with rules in a row, and of rows that an entry's instructions save.
const MAX_RULES: usize = 32;
const MAX_ROWS: usize = 20;
/// Maximum number of operations of an expression, and of values on its stack.
const MAX_OPERATIONS: usize = 64;
const MAX_VALUES: usize = 16;
/// Number of rows that a cache keeps: a prime number, so that addresses spread over all places.
const CACHED: usize = 509;
/// Maximum number of registers that a cached row restores.
const MAX_SAVED: usize = 7;

/// Room for the rows of an entry, of fixed size.
pub(super) struct RowStorage;

impl UnwindContextStorage<usize> for RowStorage {
    type Rules = [(gimli::Register, RegisterRule<usize>); MAX_RULES];
    type Stack = Box<[UnwindTableRow<usize, Self>; MAX_ROWS]>;
}

pub(super) type Context = UnwindContext<usize, RowStorage>;
pub(super) type Row = UnwindTableRow<usize, RowStorage>;

/// What evaluates rows: their section, and the registers of the function.
pub(super) struct Evaluator<'a, 'b, F> {
    pub section: &'a EhFrame<Bytes<'b>>,
    pub encoding: Encoding,
    pub frame: &'a FrameRegisters,
    /// Reads a word of the stack.
    pub read: F,
}

/// The result of a row: the function's caller, or the stack's end.
pub(super) type RowResult = Result<FrameRegisters, Ended>;

/// The kind of a stack's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The function has no caller, by its rule.
    Outermost,
    /// The word with the return address is 0. The stack pointer behind it.
    NoAddress(u64),
}

impl<F: FnMut(u64) -> Option<u64>> Evaluator<'_, '_, F> {
    /// The caller by `row`. `None` if a rule that is needed can't be evaluated.
    pub fn row(&mut self, row: &Row) -> Option<RowResult> {
        let returns = row.register(gimli::Register(number::RA))?;
        if returns == RegisterRule::Undefined {
            return Some(Err(Ended::Outermost));
        }
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                self.frame.get(register.0)?.checked_add_signed(*offset)?
            }
            CfaRule::Expression(expression) => self.expression(expression, None)?,
        };
        let mut others = self.frame.preserved();
        let mut sp = Some(cfa);
        for (register, rule) in row.registers() {
            match register.0 {
                number::RA => {}
                number::RSP => sp = self.register(number::RSP, rule, cfa),
                other if usize::from(other) < GENERAL => {
                    others[usize::from(other)] = self.register(other, rule, cfa);
                }
                _ => {}
            }
        }
        let (sp, ip) = (sp?, self.register(number::RA, &returns, cfa)?);
        if ip == 0 && matches!(returns, RegisterRule::Offset(_)) {
            return Some(Err(Ended::NoAddress(sp)));
        }
        Some(Ok(self.frame.caller(ip, sp, others)))
    }

    fn register(&mut self, own: u16, rule: &RegisterRule<usize>, cfa: u64) -> Option<u64> {
        match rule {
            RegisterRule::SameValue => self.frame.get(own),
            RegisterRule::Offset(offset) => (self.read)(cfa.checked_add_signed(*offset)?),
            RegisterRule::ValOffset(offset) => cfa.checked_add_signed(*offset),
            RegisterRule::Register(other) => self.frame.get(other.0),
            RegisterRule::Expression(expression) => {
                let place = self.expression(expression, Some(cfa))?;
                (self.read)(place)
            }
            RegisterRule::ValExpression(expression) => self.expression(expression, Some(cfa)),
            _ => None,
        }
    }

    /// The value of an expression, which begins with `first` on its stack.
    fn expression(
        &mut self,
        expression: &UnwindExpression<usize>,
        first: Option<u64>,
    ) -> Option<u64> {
        let expression: Expression<Bytes<'_>> = expression.get(self.section).ok()?;
        let mut operations = expression.operations(self.encoding);
        let mut values = Values::default();
        if let Some(first) = first {
            values.push(first)?;
        }
        for _ in 0..MAX_OPERATIONS {
            match operations.next().ok()? {
                Some(operation) => self.operation(&operation, &mut values)?,
                None => return values.pop(),
            }
        }
        None
    }

    fn operation(&mut self, operation: &Operation<Bytes<'_>>, values: &mut Values) -> Option<()> {
        let value = match *operation {
            Operation::Nop => return Some(()),
            Operation::Drop => return values.pop().map(|_| ()),
            Operation::UnsignedConstant { value } => value,
            Operation::SignedConstant { value } => value.cast_unsigned(),
            Operation::RegisterOffset {
                register,
                offset,
                base_type: gimli::UnitOffset(0),
            } => (self.frame.get(register.0)?).wrapping_add_signed(offset),
            Operation::Deref {
                base_type: gimli::UnitOffset(0),
                size: 8,
                space: false,
            } => (self.read)(values.pop()?)?,
            Operation::Pick { index } => values.pick(index)?,
            Operation::PlusConstant { value } => values.pop()?.wrapping_add(value),
            Operation::Neg => values.pop()?.wrapping_neg(),
            Operation::Not => !values.pop()?,
            _ => {
                let (right, left) = (values.pop()?, values.pop()?);
                return values.push(binary(operation, left, right)?);
            }
        };
        values.push(value)
    }
}

/// The value of an operation with two operands. Comparisons are those of signed numbers (DWARF 5, section 2.5.1.5).
fn binary(operation: &Operation<Bytes<'_>>, left: u64, right: u64) -> Option<u64> {
    let signed = (left.cast_signed(), right.cast_signed());
    let shift = u32::try_from(right).ok();
    Some(match operation {
        Operation::Plus => left.wrapping_add(right),
        Operation::Minus => left.wrapping_sub(right),
        Operation::Mul => left.wrapping_mul(right),
        Operation::And => left & right,
        Operation::Or => left | right,
        Operation::Xor => left ^ right,
        Operation::Shl => left.checked_shl(shift?)?,
        Operation::Shr => left.checked_shr(shift?)?,
        Operation::Shra => signed.0.checked_shr(shift?)?.cast_unsigned(),
        Operation::Eq => u64::from(left == right),
        Operation::Ne => u64::from(left != right),
        Operation::Ge => u64::from(signed.0 >= signed.1),
        Operation::Gt => u64::from(signed.0 > signed.1),
        Operation::Le => u64::from(signed.0 <= signed.1),
        Operation::Lt => u64::from(signed.0 < signed.1),
        _ => return None,
    })
}

/// The stack of an expression.
#[derive(Default)]
struct Values {
    values: [u64; MAX_VALUES],
    count: usize,
}

impl Values {
    fn push(&mut self, value: u64) -> Option<()> {
        *self.values.get_mut(self.count)? = value;
        self.count += 1;
        Some(())
    }

    fn pop(&mut self) -> Option<u64> {
        self.count = self.count.checked_sub(1)?;
        self.values.get(self.count).copied()
    }

    fn pick(&self, index: u8) -> Option<u64> {
        let place = self.count.checked_sub(1)?.checked_sub(index.into())?;
        self.values.get(place).copied()
    }
}

/// A row of the usual form: the caller's stack pointer is at a distance from a register, and registers are saved at
/// distances from that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UsualRow {
    base: u16,
    distance: i32,
    /// Registers and their distances. Unused places have the number [`u16::MAX`].
    saved: [(u16, i32); MAX_SAVED],
    /// The distance of the return address; `None` if there is no caller.
    returns: Option<i32>,
    /// Whether functions preserve the registers of the System V ABI. Go's don't.
    preserves: bool,
}

impl UsualRow {
    /// `None` if `row` has another form.
    fn of(row: &Row) -> Option<Self> {
        let near = |offset: i64| i32::try_from(offset).ok();
        let CfaRule::RegisterAndOffset { register, offset } = row.cfa() else {
            return None;
        };
        let mut saved = [(u16::MAX, 0); MAX_SAVED];
        let mut places = saved.iter_mut();
        let mut returns = None;
        let mut has_returns = false;
        for (register, rule) in row.registers() {
            match (register.0, rule) {
                (number::RA, RegisterRule::Undefined) => has_returns = true,
                (number::RA, RegisterRule::Offset(offset)) => {
                    has_returns = true;
                    returns = Some(near(*offset)?);
                }
                (number::RA | number::RSP, _) => return None,
                (other, RegisterRule::Offset(offset)) if usize::from(other) < GENERAL => {
                    *places.next()? = (other, near(*offset)?);
                }
                (other, _) if usize::from(other) < GENERAL => return None,
                _ => {}
            }
        }
        has_returns.then_some(Self {
            base: register.0,
            distance: near(*offset)?,
            saved,
            returns,
            preserves: true,
        })
    }

    /// The row of a function of Go with a frame of `size` bytes below the return address; or of one without a caller, if there is no size.
    pub fn of_go(size: Option<i32>) -> Option<Self> {
        const ADDRESS: i32 = 8;
        Some(Self {
            base: number::RSP,
            distance: size.unwrap_or(0).checked_add(ADDRESS)?,
            saved: [(u16::MAX, 0); MAX_SAVED],
            returns: size.map(|_| -ADDRESS),
            preserves: false,
        })
    }

    /// The caller of `frame`. `None` if it can't be found.
    pub fn caller(
        &self,
        frame: &FrameRegisters,
        mut read: impl FnMut(u64) -> Option<u64>,
    ) -> Option<RowResult> {
        let Some(returns) = self.returns else {
            return Some(Err(Ended::Outermost));
        };
        let cfa = (frame.get(self.base)?).checked_add_signed(self.distance.into())?;
        let mut read = |distance: i32| read(cfa.checked_add_signed(distance.into())?);
        let mut others = match self.preserves {
            true => frame.preserved(),
            false => [None; GENERAL],
        };
        for (register, distance) in self.saved {
            if let Some(place) = others.get_mut(usize::from(register)) {
                *place = read(distance);
            }
        }
        Some(match read(returns)? {
            0 => Err(Ended::NoAddress(cfa)),
            ip => Ok(frame.caller(ip, cfa, others)),
        })
    }
}

/// Room for evaluating rows, and the usual rows that were evaluated last. All memory is allocated when it is made.
pub(super) struct RowCache {
    pub context: Context,
    pub known: KnownRows,
}

impl RowCache {
    /// A cache for the rows of `owner`.
    pub fn new(owner: u64) -> Self {
        Self {
            context: Context::new_in(),
            known: KnownRows {
                rows: vec![None; CACHED],
                owner,
            },
        }
    }
}

/// The rows of a [`RowCache`], by the addresses of code.
pub(super) struct KnownRows {
    rows: Vec<Option<(u64, UsualRow)>>,
    /// Whose rows these are.
    owner: u64,
}

impl KnownRows {
    /// Forgets the rows unless they are those of `owner`.
    pub fn belong_to(&mut self, owner: u64) {
        if self.owner != owner {
            self.rows.fill(None);
            self.owner = owner;
        }
    }

    fn place(address: u64) -> usize {
        usize::try_from(address % CACHED as u64).unwrap_or(0)
    }

    /// The row that was noted for `address`.
    pub fn row(&self, address: u64) -> Option<&UsualRow> {
        let known = self.rows.get(Self::place(address))?.as_ref();
        known
            .filter(|(known, _)| *known == address)
            .map(|(_, row)| row)
    }

    /// Notes `row` for `address`, if it has the usual form.
    pub fn note(&mut self, address: u64, row: &Row) {
        if let Some(row) = UsualRow::of(row) {
            self.keep(address, row);
        }
    }

    /// Keeps `row` for `address`.
    pub fn keep(&mut self, address: u64, row: UsualRow) {
        if let Some(place) = self.rows.get_mut(Self::place(address)) {
            *place = Some((address, row));
        }
    }
}
