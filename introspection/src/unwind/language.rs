//! Frames of a language in a stack: where an interpreter's frames belong among the frames of the code that runs them.

use kvmprof_recording::MAX_STACK_FRAMES;

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
    is_broken: bool,
}

/// The frames that one call of the interpreter executes.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// An address in the stack frame of that call.
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
            is_broken: false,
        }
    }

    /// Begins a new stack.
    pub fn clear(&mut self) {
        (self.length, self.run_count, self.is_broken) = (0, 0, false);
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
    has_missed: bool,
}

impl<'l> Placer<'l> {
    /// A placer of `frames`.
    pub fn new(frames: &'l LanguageFrames) -> Self {
        Self {
            frames,
            next: 0,
            sp: None,
            has_missed: false,
        }
    }

    /// Hands the frames to `push` that the frame before the one with the stack pointer `sp` runs: that stack frame has their anchor. False
    /// if `push` has no more room.
    pub fn before(&mut self, sp: u64, mut push: impl FnMut(u64) -> bool) -> bool {
        let Some(last) = self.sp.replace(sp) else {
            return true;
        };
        while let Some(run) = self.frames.runs[..self.frames.run_count].get(self.next) {
            if (last..sp).contains(&run.anchor) {
                let begin = self.next.checked_sub(1);
                let begin = begin.map_or(0, |before| self.frames.runs[before].end);
                self.next += 1;
                let mut words = self.frames.words[begin..run.end].iter();
                if !words.all(|word| push(*word)) {
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
        let mut placer = Placer::new(&frames);
        let mut placed = Vec::new();
        for (number, sp) in (1..).zip(stack) {
            let has_room = placer.before(*sp, |word| {
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
