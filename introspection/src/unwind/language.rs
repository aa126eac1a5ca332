//! Frames of a language in a stack: where an interpreter's frames belong among the frames of the code that runs them.

use std::mem;
use std::ops::Range;

use kvmprof_recording::MAX_STACK_FRAMES;

use super::user_registers::FrameRegisters;

/// A frame of machine code that has no unwind information, or whose code was made at run time.
#[derive(Clone, Copy, Debug, Default)]
pub struct BareFrame {
    /// The program counter: the next instruction, or the return address.
    pub ip: u64,
    /// Whether the instruction at `ip` is about to be executed. Otherwise `ip` is a return address.
    pub is_exact: bool,
    /// The stack pointer.
    pub sp: u64,
    /// The frame pointer (RBP).
    pub bp: u64,
    /// RBX, if it is known.
    pub rbx: Option<u64>,
    /// R13, if it is known.
    pub r13: Option<u64>,
    /// Whether the code is in no file with unwind information, as code that was made at run time.
    pub is_generated: bool,
}

/// What a language's runtime knows about a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Executed {
    /// Nothing: it may be any code's.
    Unknown,
    /// It is one of the runtime's, whose frame pointer leads to its caller.
    Runtime,
    /// It is one of the runtime's, and executes the function that this word stands for (`kvmprof_recording::LanguageFrame`).
    Function(u64),
    /// It seems to execute a function, which can't be read.
    Unread,
    /// It is one of the runtime's, which knows its caller.
    Called(CalledFrame),
    /// It is one of the runtime's, whose caller can't be found.
    Lost,
}

/// Maximum number of functions that one frame of machine code executes.
pub const MAX_INLINED: usize = 16;

/// A frame of machine code that needn't have a frame pointer, as its runtime knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CalledFrame {
    /// RIP, RSP and RBP of its caller.
    pub caller: [u64; 3],
    /// The words of the functions that it executes, innermost first: one, and those that a compiler has put into it.
    words: [u64; MAX_INLINED],
    length: usize,
    /// Whether some of them are missing.
    pub is_cut: bool,
}

impl CalledFrame {
    /// A frame with a caller that has these RIP, RSP and RBP. It executes no function yet.
    pub fn new(caller: [u64; 3]) -> Self {
        Self {
            caller,
            ..Self::default()
        }
    }

    /// Adds the word of a function that has called the ones before. False if there is no more room.
    pub fn push(&mut self, word: u64) -> bool {
        let place = self.words.get_mut(self.length);
        self.length += usize::from(place.is_some());
        place.map(|place| *place = word).is_some()
    }

    /// The words of the functions, innermost first.
    pub fn words(&self) -> &[u64] {
        self.words.get(..self.length).unwrap_or_default()
    }
}

/// Maximum number of times that an interpreter calls code that calls the interpreter again, on one stack.
const MAX_RUNS: usize = 256;

/// The frames of a language on one thread, of fixed size so that a walk allocates nothing. They are made of runs: each call of the
/// interpreter executes one.
#[derive(Debug)]
pub struct LanguageFrames {
    /// The words that stand for frames (`kvmprof_recording::LanguageFrame`), innermost first.
    words: [u64; MAX_STACK_FRAMES],
    length: usize,
    /// Maximum number of frames.
    limit: usize,
    runs: [Run; MAX_RUNS],
    run_count: usize,
    /// The code whose stack frames have the anchors in registers. Empty if anchors are addresses.
    holder: Range<u64>,
    is_broken: bool,
}

/// The frames that one call of the interpreter executes.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// An address in the stack frame of that call, or the value of a register in it that functions preserve.
    anchor: u64,
    /// Where its frames end.
    end: usize,
}

impl Default for LanguageFrames {
    /// Room for as many frames as a stack can have.
    fn default() -> Self {
        Self::with_limit(MAX_STACK_FRAMES)
    }
}

impl LanguageFrames {
    /// Room for `limit` frames, at most [`MAX_STACK_FRAMES`].
    pub fn with_limit(limit: usize) -> Self {
        Self {
            words: [0; MAX_STACK_FRAMES],
            length: 0,
            limit,
            runs: [Run::default(); MAX_RUNS],
            run_count: 0,
            holder: 0..0,
            is_broken: false,
        }
    }

    /// Begins a new stack.
    pub fn clear(&mut self) {
        (self.length, self.run_count, self.is_broken) = (0, 0, false);
        self.holder = 0..0;
    }

    /// Lets anchors be values that stack frames of `code` have in a register that functions preserve, instead of addresses in stack
    /// frames.
    pub fn hold_in(&mut self, code: Range<u64>) {
        self.holder = code;
    }

    /// That code; empty if anchors are addresses.
    pub fn holder(&self) -> &Range<u64> {
        &self.holder
    }

    /// Adds a frame to the run that isn't ended yet. False if there is no more room.
    pub fn push(&mut self, word: u64) -> bool {
        let is_full = self.length >= self.limit;
        let Some(place) = self.words.get_mut(self.length).filter(|_| !is_full) else {
            return false;
        };
        *place = word;
        self.length += 1;
        true
    }

    /// Ends a run, which the call of the interpreter that has `anchor` in its stack frame executes. False if there is no more room.
    pub fn end_run(&mut self, anchor: u64) -> bool {
        let end = self.length;
        let Some(place) = self.runs.get_mut(self.run_count) else {
            return false;
        };
        *place = Run { anchor, end };
        self.run_count += 1;
        true
    }

    /// The number of frames.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Notes that further frames couldn't be found.
    pub fn cut(&mut self) {
        self.is_broken = true;
    }

    /// The runs: the anchor of each, and its frames.
    pub fn runs(&self) -> Vec<(u64, Vec<u64>)> {
        let mut begin = 0;
        let mut runs = Vec::new();
        for run in &self.runs[..self.run_count] {
            runs.push((run.anchor, self.words[begin..run.end].to_vec()));
            begin = run.end;
        }
        runs
    }

    /// Whether further frames couldn't be found.
    pub fn is_cut(&self) -> bool {
        self.is_broken
    }
}

/// Puts the frames of a language behind those frames of a stack that run them, while the stack is walked.
pub struct Placer<'l> {
    frames: &'l LanguageFrames,
    /// The next run.
    next: usize,
    /// The stack pointer of the frame before.
    sp: Option<u64>,
    /// Whether the frame before holds the anchor of the next run.
    holds_next: bool,
    has_missed: bool,
}

impl<'l> Placer<'l> {
    /// A placer of `frames`.
    pub fn new(frames: &'l LanguageFrames) -> Self {
        Self {
            frames,
            next: 0,
            sp: None,
            holds_next: false,
            has_missed: false,
        }
    }

    /// Hands the frames to `push` that the frame before `frame` runs, in which `address` is executed: that one has their anchor. False if
    /// `push` has no more room.
    pub fn before(
        &mut self,
        address: u64,
        frame: &FrameRegisters,
        mut push: impl FnMut(u64) -> bool,
    ) -> bool {
        let holder = self.frames.holder();
        if holder.is_empty() {
            return self.before_stack(frame.sp, push);
        }
        if mem::take(&mut self.holds_next) && !self.place_next(&mut push) {
            return false;
        }
        let run = self.frames.runs[..self.frames.run_count].get(self.next);
        self.holds_next = run.is_some_and(|run| {
            holder.contains(&address) && frame.preserved().contains(&Some(run.anchor))
        });
        true
    }

    /// As [`Self::before`] with anchors that are addresses, for the frame with the stack pointer `sp`.
    fn before_stack(&mut self, sp: u64, mut push: impl FnMut(u64) -> bool) -> bool {
        let Some(last) = self.sp.replace(sp) else {
            return true;
        };
        while let Some(run) = self.frames.runs[..self.frames.run_count].get(self.next) {
            if (last..sp).contains(&run.anchor) {
                if !self.place_next(&mut push) {
                    return false;
                }
            } else if run.anchor < last && last <= sp {
                // No frame that was found has run them.
                self.has_missed = true;
                self.next += 1;
            } else {
                break;
            }
        }
        true
    }

    /// Hands the frames of the next run to `push`. False if there is no more room.
    fn place_next(&mut self, push: &mut impl FnMut(u64) -> bool) -> bool {
        let runs = &self.frames.runs;
        let begin = self.next.checked_sub(1);
        let begin = begin.map_or(0, |before| runs[before].end);
        let end = runs[self.next].end;
        self.next += 1;
        let mut words = self.frames.words[begin..end].iter();
        words.all(|word| push(*word))
    }

    /// Whether all frames have their place.
    pub fn is_whole(&self) -> bool {
        !self.has_missed && !self.frames.is_broken && self.next == self.frames.run_count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places `runs` of an anchor and frames among stack frames with these stack pointers, which are 1, 2, 3, ...
    fn place(runs: &[(u64, &[u64])], stack: &[u64]) -> (Vec<u64>, bool) {
        let mut frames = LanguageFrames::default();
        for (anchor, words) in runs {
            assert!(words.iter().all(|word| frames.push(*word)));
            assert!(frames.end_run(*anchor));
        }
        let stack = (1..).zip(stack);
        place_among(
            &frames,
            stack.map(|(number, sp)| FrameRegisters::new(number, *sp, None)),
        )
    }

    /// The words of `frames` among the stack frames at 1, 2, 3, ..., and whether that is all of them.
    fn place_among(
        frames: &LanguageFrames,
        stack: impl Iterator<Item = FrameRegisters>,
    ) -> (Vec<u64>, bool) {
        let mut placer = Placer::new(frames);
        let mut placed = Vec::new();
        for (number, frame) in (1..).zip(stack) {
            let has_room = placer.before(number, &frame, |word| {
                placed.push(word);
                true
            });
            assert!(has_room);
            placed.push(number);
        }
        (placed, placer.is_whole())
    }

    #[test]
    fn frames_stand_behind_those_that_run_them() {
        let runs: [(u64, &[u64]); 2] = [(0x128, &[100, 101]), (0x310, &[102])];
        let stack = [0x80, 0x100, 0x200, 0x300, 0x400];
        let placed = [1, 2, 100, 101, 3, 4, 102, 5];
        assert_eq!(place(&runs, &stack), (placed.to_vec(), true));
        // The first address of a frame is its own, the first one behind it isn't.
        let runs: [(u64, &[u64]); 1] = [(0x200, &[100])];
        assert_eq!(place(&runs, &stack), (vec![1, 2, 3, 100, 4, 5], true));
    }

    #[test]
    fn frames_without_a_place_are_missing() {
        // Below the innermost frame, and above the outermost one.
        let runs: [(u64, &[u64]); 3] = [(0x40, &[100]), (0x128, &[101]), (0x9000, &[102])];
        let stack = [0x80, 0x100, 0x200, 0x300];
        assert_eq!(place(&runs, &stack), (vec![1, 2, 101, 3, 4], false));
        let (placed, is_whole) = place(&runs[1..2], &stack[..2]);
        assert_eq!((placed, is_whole), (vec![1, 2], false));
        // Anchors that go back, as a hostile program has them, and a stack that does.
        let back: [(u64, &[u64]); 2] = [(0x210, &[100]), (0x110, &[101])];
        assert_eq!(place(&back, &stack), (vec![1, 2, 3, 100, 4], false));
        let (placed, is_whole) = place(&back, &[0x100, 0x80, 0x300]);
        assert_eq!((placed, is_whole), (vec![1, 2, 100, 101, 3], true));
    }

    /// Places runs with the anchors 100 and 200 among frames at 1, 2, 3, ... with these values in RBP, of which those from 2 to 6 hold
    /// anchors.
    fn place_held(values: &[u64]) -> (Vec<u64>, bool) {
        let mut frames = LanguageFrames::default();
        frames.hold_in(2..7);
        for anchor in [100, 200] {
            assert!(frames.push(anchor + 1) && frames.end_run(anchor));
        }
        let stack = (1..).zip(values);
        place_among(
            &frames,
            stack.map(|(number, value)| FrameRegisters::new(number, 0x1000 * number, Some(*value))),
        )
    }

    #[test]
    fn frames_stand_behind_those_that_hold_their_anchors() {
        // The first one isn't of that code, and the third one has begun or ended.
        let placed = vec![1, 2, 101, 3, 4, 201, 5];
        assert_eq!(place_held(&[100, 100, 7, 200, 0]), (placed, true));
        // Those in whose place others are, and the outermost frame, whose end nothing shows.
        for values in [
            &[0, 200, 100, 300, 0][..],
            &[0, 100, 100, 300, 0],
            &[0, 100, 300, 0, 200],
        ] {
            assert!(!place_held(values).1, "{values:?}");
        }
        assert_eq!(place_held(&[0, 200, 200]), (vec![1, 2, 3], false));
    }

    #[test]
    fn room_is_bounded() {
        let mut frames = LanguageFrames::default();
        assert_eq!(
            (0..2000).filter(|word| frames.push(*word)).count(),
            MAX_STACK_FRAMES
        );
        assert_eq!(
            (0..2000).filter(|anchor| frames.end_run(*anchor)).count(),
            MAX_RUNS
        );
    }
}
