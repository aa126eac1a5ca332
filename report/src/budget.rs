//! The limit of output and memory for a recording.
//!
//! A recording has each stack once and refers to it by a few bytes, which are compressed. So a hostile one of some kilobytes could become
//! gigabytes of text, or of tables in memory.

use std::cell::Cell;
use std::io::{self, Write};

/// The default limit in bytes: a part for any recording, and a part for each of its bytes. A sample takes some bytes in a recording, and some
/// kilobytes as text.
const ALWAYS: u64 = 128 << 20;
const FOR_EACH_BYTE: u64 = 1024;

/// Bytes that a row of a table takes, and each copy of one of its names beside its text.
const ROW: usize = 1024;
const NAME: usize = 48;
/// Bytes that a frame takes in a picture or in an export's tables, beside its name.
const FRAME: usize = 128;

/// The output or the tables of a recording don't fit into its budget, which has this number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "The result would take more than {0} bytes, written or in memory: if you trust the recording, allow more with --output-limit, \
     or select a part of it, for example by --time"
)]
pub struct TooMuch(pub u64);

impl From<TooMuch> for io::Error {
    fn from(error: TooMuch) -> Self {
        Self::other(error)
    }
}

/// How many bytes a command may still use for a recording, in its output and in memory.
#[derive(Clone, Debug)]
pub struct OutputBudget {
    all: u64,
    left: Cell<u64>,
}

impl OutputBudget {
    /// A budget of this number of bytes.
    pub fn new(bytes: u64) -> Self {
        Self {
            all: bytes,
            left: Cell::new(bytes),
        }
    }

    /// The default budget for a recording of `length` bytes: enough for all that recorders write.
    pub fn of_recording(length: usize) -> Self {
        Self::new(
            (length as u64)
                .saturating_mul(FOR_EACH_BYTE)
                .saturating_add(ALWAYS),
        )
    }

    /// The budget of `limit` bytes, or the default one for a recording of `length` bytes.
    pub fn limited(limit: Option<u64>, length: usize) -> Self {
        limit.map_or_else(|| Self::of_recording(length), Self::new)
    }

    /// Takes `bytes` out of the budget.
    ///
    /// # Errors
    /// Less is left.
    pub fn take(&self, bytes: usize) -> Result<(), TooMuch> {
        let left = self.left.get().checked_sub(bytes as u64);
        self.left.set(left.ok_or(TooMuch(self.all))?);
        Ok(())
    }

    /// Takes the bytes of a table's row with these names, of each of which there will be so many `copies`. It is called before they are
    /// copied: a name may be as long as the recording's symbols.
    ///
    /// # Errors
    /// Less is left.
    pub fn take_row<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
        copies: usize,
    ) -> Result<(), TooMuch> {
        let names = names.into_iter();
        let names = names.map(|name| copies.saturating_mul(NAME.saturating_add(name.len())));
        self.take(names.fold(ROW, usize::saturating_add))
    }

    /// Takes the bytes of a frame with this name in a picture or in a table. It is called before the name is copied.
    ///
    /// # Errors
    /// Less is left.
    pub fn take_frame(&self, name: &str) -> Result<(), TooMuch> {
        self.take(FRAME.saturating_add(name.len()))
    }
}

/// Writes to `out` as long as there is budget.
#[derive(Debug)]
pub struct BudgetWriter<'a, W: ?Sized> {
    /// The output.
    pub out: &'a mut W,
    /// The budget.
    pub budget: &'a OutputBudget,
}

impl<W: Write + ?Sized> Write for BudgetWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.budget.take(bytes.len())?;
        let written = self.out.write(bytes)?;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The [`TooMuch`] in an error of a [`BudgetWriter`]; `None` for other errors.
pub fn too_much(error: &io::Error) -> Option<TooMuch> {
    error.get_ref()?.downcast_ref().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_used_up() {
        let budget = OutputBudget::new(10);
        assert_eq!(budget.take(7), Ok(()));
        assert_eq!(budget.take(4), Err(TooMuch(10)));
        assert_eq!(budget.take(3), Ok(()));
        assert_eq!(budget.take(1), Err(TooMuch(10)));
    }

    #[test]
    fn rows_and_frames_are_charged_by_their_names() {
        let budget = OutputBudget::new(ROW as u64 + 2 * (2 * NAME as u64 + 7) + FRAME as u64 + 3);
        assert_eq!(budget.take_row(["four", "two"], 2), Ok(()));
        assert_eq!(budget.take_frame("two!"), Err(TooMuch(budget.all)));
        assert_eq!(budget.take_frame("two"), Ok(()));
        assert_eq!(budget.take_row([], 1), Err(TooMuch(budget.all)));
        assert_eq!(budget.left.get(), 0);
    }

    #[test]
    fn writers_end_where_the_budget_does() {
        let budget = OutputBudget::new(4);
        let mut text = Vec::new();
        let mut out = BudgetWriter {
            out: &mut text,
            budget: &budget,
        };
        out.write_all(b"abc").unwrap();
        let error = out.write_all(b"de").unwrap_err();
        assert_eq!(too_much(&error), Some(TooMuch(4)));
        assert_eq!(text, b"abc");
        assert_eq!(too_much(&io::Error::other("else")), None);
    }

    #[test]
    fn a_longer_recording_has_a_larger_budget() {
        let [short, long] = [0, 1 << 30].map(|length| OutputBudget::of_recording(length).all);
        assert_eq!(short, ALWAYS);
        assert_eq!(long, ALWAYS + (1 << 40));
        assert_eq!(OutputBudget::of_recording(usize::MAX).all, u64::MAX);
    }
}
