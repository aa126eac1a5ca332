//! The kernel's initcalls, which it calls one after another while it boots (`do_one_initcall`, `init/main.c`).
//!
//! An initcall that ends by a jump to another function (a tail call) isn't on the stack after that. But the loop over
//! the kernel's table of initcalls has a pointer to an entry in a register, and `do_one_initcall` saves that register
//! in its frame.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Symbols;
use crate::bytes::i32_at;

/// Bytes of an entry: the distance from its own address to its initcall (CONFIG_HAVE_ARCH_PREL32_RELOCATIONS,
/// `include/linux/init.h`).
const ENTRY: usize = 4;
/// Maximum number of entries: distribution kernels have some 1,500.
const MAX_ENTRIES: usize = 16 << 10;
/// Maximum length of `do_one_initcall`, in bytes.
const MAX_CALLER: u64 = 64 << 10;
/// The value while no stack has shown the offset.
const UNKNOWN: u64 = 0;

/// A kernel's table of initcalls. All addresses are link-time addresses.
#[derive(Debug)]
pub struct Initcalls {
    /// `do_one_initcall`.
    caller: Range<u64>,
    /// The start of the table.
    table: u64,
    /// The code of each entry's initcall, up to the next symbol.
    functions: Vec<Range<u64>>,
    /// The offset in `do_one_initcall` that initcalls return to, times 2, plus 1 if the pointer is to the next entry at
    /// that time. Learned from a stack; [`UNKNOWN`] before.
    learned: AtomicU64,
}

impl Initcalls {
    /// Maximum length of a frame of `do_one_initcall`, in bytes. Usual frames have some 100.
    pub const MAX_FRAME: u64 = 40 * 8;

    /// Reads the `entries` of the table at `table`, for a kernel with its `do_one_initcall` at `caller`. `None` if an
    /// entry isn't that of a function's start, or there are none or too many.
    pub fn parse(
        caller: Range<u64>,
        table: u64,
        entries: &[u8],
        symbols: &Symbols,
    ) -> Option<Self> {
        let length = caller.end.checked_sub(caller.start)?;
        let count = entries.len() / ENTRY;
        let is_table = entries.len().is_multiple_of(ENTRY) && (1..=MAX_ENTRIES).contains(&count);
        if !is_table || !(1..=MAX_CALLER).contains(&length) {
            return None;
        }
        let functions = (0..count).map(|index| {
            let own = table.checked_add((index * ENTRY) as u64)?;
            let distance = i32_at(entries, index * ENTRY)?;
            let begin = own.wrapping_add_signed(i64::from(distance));
            let (_, offset) = symbols.function_at(begin)?;
            let end = symbols.address_after(begin)?;
            (offset == 0).then_some(begin..end)
        });
        Some(Self {
            functions: functions.collect::<Option<_>>()?,
            caller,
            table,
            learned: AtomicU64::new(UNKNOWN),
        })
    }

    /// Whether `address` is in `do_one_initcall`.
    pub fn calls_at(&self, address: u64) -> bool {
        self.caller.contains(&address)
    }

    /// The start of the initcall that `do_one_initcall` has called, if the initcall has ended by a jump to `callee`.
    /// `None` if `callee` is in the initcall, or if that is unknown. `back` is the return address into
    /// `do_one_initcall`, and `words` are those of its frame, as link-time addresses; a word is `None` if it can't be
    /// read.
    ///
    /// The first stack with its initcall on it shows whether the pointer is to the next entry, and the return address
    /// of initcalls, because `do_one_initcall` also calls other functions.
    pub fn ended(
        &self,
        back: u64,
        callee: u64,
        words: impl Iterator<Item = Option<u64>>,
    ) -> Option<u64> {
        let place = back.checked_sub(self.caller.start)?;
        let position = self.position(words)?;
        let function = |is_next: bool| {
            let index = position.checked_sub(usize::from(is_next))?;
            self.functions.get(index)
        };
        let learned = self.learned.load(Ordering::Relaxed);
        if learned == UNKNOWN {
            let holds = |is_next: bool| function(is_next).is_some_and(|it| it.contains(&callee));
            let (is_this, is_next) = (holds(false), holds(true));
            if is_this != is_next {
                let found = (place << 1) | u64::from(is_next);
                self.learned.store(found, Ordering::Relaxed);
            }
            return None;
        }
        let initcall = function(learned & 1 == 1)?;
        (learned >> 1 == place && !initcall.contains(&callee)).then_some(initcall.start)
    }

    /// Whether a stack has shown the pointer and the return address. Later stacks don't change them.
    pub fn has_learned(&self) -> bool {
        self.learned.load(Ordering::Relaxed) != UNKNOWN
    }

    /// Forgets what stacks have shown, because the kernel restarts and may patch its code differently.
    pub fn forget(&self) {
        self.learned.store(UNKNOWN, Ordering::Relaxed);
    }

    /// The index of the entry that one of `words` points to. At most the number of entries, because the pointer to the
    /// next entry is finally after the last one. `None` if no word points to an entry, or if words point to different
    /// entries.
    fn position(&self, words: impl Iterator<Item = Option<u64>>) -> Option<usize> {
        let mut found = None;
        for word in words {
            let distance = word?.wrapping_sub(self.table);
            let Ok(distance) = usize::try_from(distance) else {
                continue;
            };
            let index = distance / ENTRY;
            if !distance.is_multiple_of(ENTRY) || index > self.functions.len() {
                continue;
            }
            if found.is_some_and(|other| other != index) {
                return None;
            }
            found = Some(index);
        }
        found
    }
}
