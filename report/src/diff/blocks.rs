//! The ticks of functions in blocks of time.
//!
//! Neighbouring ticks depend on each other: a function that runs for 50 ticks has 50 samples, and is one observation. What is known of chance is how
//! much its share varies from one long block of time to the next.

use std::collections::{HashMap, HashSet};

use crate::model::{BlockTicks, Code, Counts, Frame, FunctionId, HALTED, HALTED_MODULE};
use crate::profile::{Profile, SortBy};

/// The function for all addresses without a name, which aren't comparable between runs.
const ADDRESS: &str = "0x...";

/// The largest number of blocks. They should be long in comparison with what runs without a pause, and enough to tell how they vary.
pub const BLOCKS: usize = 16;

/// A function: its name, its module, whether it is a kernel function.
pub type Key = (String, String, bool);

/// Ticks in each block.
pub type Blocks = [u64; BLOCKS];

/// The ticks of a function in one recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FunctionTicks {
    /// All of them.
    pub ticks: u64,
    /// Those whose block is known.
    pub blocks: Blocks,
}

impl FunctionTicks {
    fn add(&mut self, ticks: u64, parts: &[BlockTicks]) {
        self.ticks = self.ticks.saturating_add(ticks);
        for part in parts {
            let block = &mut self.blocks[part.block];
            *block = block.saturating_add(part.ticks);
        }
    }
}

/// The ticks of all functions in one recording.
#[derive(Clone, Debug, Default)]
pub struct Ticks {
    /// The number of blocks of its time; 0 if the times of ticks aren't known.
    pub blocks: usize,
    /// All ticks.
    pub all: FunctionTicks,
    /// Those of each function.
    pub functions: HashMap<Key, FunctionTicks>,
}

impl Ticks {
    /// The ticks of the functions of `profile`, by self or total samples, in the times of `counts`.
    pub fn of(profile: &Profile, counts: Option<&Counts>, sort: SortBy) -> Self {
        let divided = counts.map(|counts| counts.divided(BLOCKS));
        let divided = divided.unwrap_or_default();
        let mut all = FunctionTicks::default();
        all.add(profile.samples(), &divided.all);
        let mut functions = Functions::default();
        for recording in profile.recordings() {
            // Only the first recording is the one of `counts`.
            let is_counted = std::ptr::eq(recording, profile);
            let of_first = |parts| if is_counted { parts } else { [].as_slice() };
            if recording.idle > 0 {
                let halted = (HALTED.to_owned(), HALTED_MODULE.to_owned(), true);
                let number = functions.number(halted);
                let parts = of_first(&divided.idle);
                functions.found[number].1.add(recording.idle, parts);
            }
            for (number, stack) in recording.stacks.iter().enumerate() {
                let parts = of_first(divided.of(number));
                let frames = recording.frames(stack).take(match sort {
                    SortBy::Own => 1,
                    SortBy::Total => usize::MAX,
                });
                functions.add(&recording.code, frames, stack.ticks, parts);
            }
        }
        Self {
            blocks: divided.blocks,
            all,
            functions: functions.found.into_iter().collect(),
        }
    }
}

/// The functions by numbers, since most frames have a known one.
#[derive(Debug, Default)]
struct Functions {
    found: Vec<(Key, FunctionTicks)>,
    numbers: HashMap<Key, usize>,
    /// The numbers of the functions of a profile, by theirs.
    known: HashMap<FunctionId, usize>,
    on_stack: HashSet<usize>,
}

impl Functions {
    fn number(&mut self, key: Key) -> usize {
        let next = self.found.len();
        let number = *self.numbers.entry(key.clone()).or_insert(next);
        if number == next {
            self.found.push((key, FunctionTicks::default()));
        }
        number
    }

    /// Adds the ticks of a stack with these frames. A function that is on it twice has them once.
    fn add<'a>(
        &mut self,
        code: &Code,
        frames: impl Iterator<Item = Frame<'a>>,
        count: u64,
        parts: &[BlockTicks],
    ) {
        self.on_stack.clear();
        for frame in frames {
            let number = match self.known.get(&frame.function) {
                Some(number) => *number,
                None => {
                    let number = self.number(key(code, frame.function));
                    self.known.insert(frame.function, number);
                    number
                }
            };
            if self.on_stack.insert(number) {
                self.found[number].1.add(count, parts);
            }
        }
    }
}

/// The name of a function in comparisons.
pub fn comparable_name(name: &str) -> &str {
    if name.starts_with("0x") {
        ADDRESS
    } else {
        name
    }
}

fn key(code: &Code, function: FunctionId) -> Key {
    let function = code.function(function);
    let name = comparable_name(code.text(function.name)).to_owned();
    let module = code.text(function.module).as_ref().to_owned();
    (name, module, function.is_kernel)
}
