//! Names of functions and the stacks that consist of them. They are kept from window to window, since most stacks occur in each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvmprof_recording::file::KernelInfo;
use kvmprof_report::model::{Namer, Stack, StackCounts, Table};
use kvmprof_report::symbolize::Resolver;

use crate::batch::{Function, Tables};

/// Maximum number of stacks of one guest at a time, and of the frames in these stacks.
pub const MAX_STACKS: usize = 4096;
const MAX_FRAMES: usize = 65_536;
/// Maximum number of stacks of one guest that are kept although no open window has them.
const MAX_REMEMBERED: usize = 512;
/// Maximum number of frames in the named stacks of all guests. Beyond it, all names are forgotten.
const MAX_NAMED: usize = 1 << 20;

/// The named stacks of all guests, each once.
#[derive(Debug)]
pub struct Names {
    functions: Table<Function<Arc<str>>>,
    stacks: Table<Box<[u32]>>,
    frames: usize,
    /// Changes whenever the numbers become invalid. No other `Names` has the same one.
    generation: u64,
}

impl Default for Names {
    fn default() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self {
            functions: Table::default(),
            stacks: Table::default(),
            frames: 0,
            generation: LAST.fetch_add(1, Ordering::Relaxed) + 1,
        }
    }
}

impl Names {
    /// Forgets everything if it takes too much memory. It is called between two batches, as it makes the numbers of stacks invalid.
    fn make_room(&mut self) {
        if self.frames > MAX_NAMED {
            *self = Self::default();
        }
    }

    /// The number of `stack`, whose frames `resolver` names, of a guest with this `kernel`.
    fn stack(&mut self, stack: Stack<'_>, (resolver, kernel): (&Resolver, &KernelInfo)) -> u32 {
        let mut namer = Namer::new(resolver, Some(kernel));
        let node = namer.node(stack);
        let functions = namer.code().frames(node).map(|frame| {
            self.functions.number(Function {
                name: Arc::clone(frame.name),
                module: Arc::clone(frame.module),
                build_id: frame.code.build_id.into(),
                is_kernel: frame.is_kernel,
            })
        });
        let functions: Box<[u32]> = functions.collect();
        let known = self.stacks.find(&functions);
        known.unwrap_or_else(|| {
            self.frames += functions.len();
            self.stacks.push(functions)
        })
    }
}

/// Puts named stacks into the tables of one batch.
#[derive(Debug)]
pub struct BatchNames<'a> {
    names: &'a mut Names,
    /// The tables.
    pub tables: Tables,
    /// The indexes of stacks and functions in the tables, by their numbers in `names`.
    stacks: Vec<Option<u32>>,
    functions: Vec<Option<u32>>,
}

impl<'a> BatchNames<'a> {
    /// The tables of a new batch. Forgets names if they take too much memory.
    pub fn new(names: &'a mut Names) -> Self {
        names.make_room();
        Self {
            names,
            tables: Tables::default(),
            stacks: Vec::new(),
            functions: Vec::new(),
        }
    }

    /// The index in the tables of the stack with this number in `names`.
    fn place(&mut self, number: u32) -> u32 {
        let index = number as usize;
        if let Some(Some(place)) = self.stacks.get(index) {
            return *place;
        }
        let functions: &[u32] = self.names.stacks.get(number).map_or(&[], |stack| stack);
        let mut frames = Vec::with_capacity(functions.len());
        for function in functions {
            let known = self.functions.get(*function as usize).copied().flatten();
            let named = self.names.functions.get(*function);
            let new = || named.map(|function| self.tables.frame(function));
            let Some(frame) = known.or_else(new) else {
                continue;
            };
            note(&mut self.functions, *function as usize, frame);
            frames.push(frame);
        }
        let stack = self.tables.stack(frames);
        note(&mut self.stacks, index, stack);
        stack
    }
}

fn note(places: &mut Vec<Option<u32>>, index: usize, place: u32) {
    if places.len() <= index {
        places.resize(index + 1, None);
    }
    places[index] = Some(place);
}

/// The stacks of one guest with their numbers, and the numbers of the named stacks that they correspond to.
#[derive(Debug, Default)]
pub struct GuestStacks {
    counts: StackCounts,
    frames: usize,
    /// The number of the named stack, by the stack's number. `None` if it isn't known.
    named: Vec<Option<u32>>,
    generation: u64,
}

impl GuestStacks {
    /// The number of a stack. `None` if there are too many stacks.
    pub fn number(&mut self, pid: i32, stack: Stack<'_>) -> Option<u32> {
        self.counts.find(pid, stack).or_else(|| {
            let frames = self.frames.saturating_add(stack.frames.len());
            let has_room = self.counts.len() < MAX_STACKS && frames <= MAX_FRAMES;
            let number = has_room.then(|| self.counts.insert(pid, stack))??;
            self.frames = frames;
            Some(number)
        })
    }

    /// The process and the stack with this number.
    pub fn get(&self, number: u32) -> Option<(i32, Stack<'_>)> {
        self.counts.get(number)
    }

    /// The index in the tables of `names` of the stack with this number, named by the resolver of `code`, of a guest with its kernel.
    pub fn place(
        &mut self,
        number: u32,
        code: (&Resolver, &KernelInfo),
        names: &mut BatchNames<'_>,
    ) -> Option<u32> {
        if self.generation != names.names.generation {
            self.forget_names();
            self.generation = names.names.generation;
        }
        let known = self.named.get(number as usize).copied().flatten();
        let named = match known {
            Some(named) => named,
            None => {
                let (_, stack) = self.counts.get(number)?;
                let named = names.names.stack(stack, code);
                note(&mut self.named, number as usize, named);
                named
            }
        };
        Some(names.place(named))
    }

    /// Forgets the stacks' names, after further names have become known.
    pub fn forget_names(&mut self) {
        self.named.clear();
    }

    /// Whether there are so many stacks that those without an open window should be [forgotten](Self::keep).
    pub fn are_many(&self) -> bool {
        self.counts.len() > MAX_REMEMBERED
    }

    /// Forgets all stacks except those that are `used`. Returns the new numbers of these, by their old numbers.
    pub fn keep(&mut self, used: impl IntoIterator<Item = u32>) -> Vec<Option<u32>> {
        let old = std::mem::take(self);
        let mut numbers = vec![None; old.counts.len()];
        for number in used {
            let (Some(place), Some((pid, stack))) =
                (numbers.get_mut(number as usize), old.counts.get(number))
            else {
                continue;
            };
            if place.is_none() {
                *place = self.number(pid, stack);
            }
        }
        numbers
    }
}

#[cfg(test)]
mod tests {
    use kvmprof_recording::Sample;
    use kvmprof_report::symbolize::ProcessState;

    use super::*;

    fn number(stacks: &mut GuestStacks, pc: u64) -> Option<u32> {
        let sample = Sample {
            pc,
            ..Sample::default()
        };
        stacks.number(1, Stack::new(&sample, &[], ProcessState::default()))
    }

    #[test]
    fn names_in_use_are_renumbered_not_dropped() {
        let mut stacks = GuestStacks::default();
        for pc in 0..1000 {
            assert_eq!(number(&mut stacks, pc).map(u64::from), Some(pc));
        }
        assert!(stacks.are_many());
        let new = stacks.keep([999, 7, 999, 5000]);
        assert_eq!((new[999], new[7]), (Some(0), Some(1)));
        assert_eq!((new[8], new.len()), (None, 1000));
        assert_eq!(number(&mut stacks, 7), Some(1));
        assert_eq!(number(&mut stacks, 8), Some(2));
        assert!(!stacks.are_many());
    }

    #[test]
    fn stacks_and_their_frames_are_bounded() {
        let mut stacks = GuestStacks::default();
        let known = (0..10_000).filter(|pc| number(&mut stacks, *pc).is_some());
        assert_eq!(known.count(), MAX_STACKS);
        let sample = Sample::default();
        let deep = [7; 1000];
        let mut stacks = GuestStacks::default();
        for pid in 0..100 {
            let view = Stack::new(&sample, &deep, ProcessState::default());
            let is_known = stacks.number(pid, view).is_some();
            assert_eq!(is_known, pid < 65, "{pid}");
        }
    }

    #[test]
    fn names_are_reused_up_to_a_limit() {
        let (resolver, kernel) = (Resolver::default(), KernelInfo::default());
        let code = (&resolver, &kernel);
        let mut names = Names::default();
        let mut stacks = GuestStacks::default();
        let first = number(&mut stacks, 0x1000).unwrap();
        let second = number(&mut stacks, 0x2000).unwrap();
        // Each batch has only the names of its rows.
        let mut batch = BatchNames::new(&mut names);
        assert_eq!(stacks.place(second, code, &mut batch), Some(0));
        assert_eq!(stacks.place(first, code, &mut batch), Some(1));
        assert_eq!(stacks.place(second, code, &mut batch), Some(0));
        let mut batch = BatchNames::new(&mut names);
        assert_eq!(stacks.place(first, code, &mut batch), Some(0));
        let mut made = crate::batch::Batch::default();
        batch.tables.into_batch(&mut made);
        assert_eq!((made.stacks.len(), made.frames.len()), (1, 1));
        assert_eq!(made.name(made.frames[0].function), "0x1000");
        // Another function gets the first one's number.
        names.frames = MAX_NAMED + 1;
        let mut batch = BatchNames::new(&mut names);
        stacks.place(second, code, &mut batch);
        let mut made = crate::batch::Batch::default();
        batch.tables.into_batch(&mut made);
        assert_eq!(made.name(made.frames[0].function), "0x2000");
    }
}
