//! Memory that two processes share, in which a thread of one asks a thread of the other, and gets answers.
//!
//! Either side may be taken over: what the other one writes is copied before it is looked at, and nothing but the copy is believed.

use std::hint::spin_loop;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::Timespec;
use rustix::thread::futex;

use crate::mapping::Mapping;

/// Words of 8 bytes that a request and an answer have room for.
pub const MESSAGE_WORDS: usize = 512;
/// Bytes of data that an answer has room for.
pub const DATA_BYTES: usize = 1 << 20;

/// Offsets of the parts. What one side writes and the other one waits for is in cache lines of its own.
const ASKED: usize = 0;
const ANSWERED: usize = 64;
const ASKER_SLEEPS: usize = 128;
const ANSWERER_SLEEPS: usize = 192;
const HELD: usize = 256;
const REQUEST: usize = 4096;
const ANSWER: usize = REQUEST + MESSAGE_WORDS * 8;
const DATA: usize = ANSWER + MESSAGE_WORDS * 8;
const BYTES: usize = DATA + DATA_BYTES;
/// How many looks at a word there are between two looks at the time.
const LOOKS: u32 = 64;

/// The memory. A process that is forked shares it with its parent.
#[derive(Debug)]
pub struct Shared(Mapping);

// SAFETY: all accesses are by atomic numbers, or by copies from and to the data, about whose contents nothing is assumed.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps new memory.
    ///
    /// # Errors
    /// There is no memory.
    pub fn map() -> io::Result<Self> {
        Mapping::shared(None, BYTES, libc::PROT_READ | libc::PROT_WRITE).map(Self)
    }

    /// Asks the other side. The number of the request is that of the last one and 1.
    pub fn ask(&self, request: &[u64]) {
        self.write_words(REQUEST, request);
        self.word(ASKED).fetch_add(1, Ordering::SeqCst);
        self.wake(ASKED, ANSWERER_SLEEPS);
    }

    /// Waits until the request `number` is answered, with a short wait that takes the processor, and then for `slice` at most. Whether it is answered.
    pub fn is_answered(&self, number: u32, spin: Duration, slice: Duration) -> bool {
        let is_it = |answered| answered == number;
        self.wait(ANSWERED, ASKER_SLEEPS, is_it, spin, Some(slice))
    }

    /// Copies the answer.
    pub fn answer_words(&self, words: &mut [u64; MESSAGE_WORDS]) {
        self.read_words(ANSWER, words);
    }

    /// Waits for another request than `last`, as [`Self::is_answered`] does; without a `slice` without a limit. Returns the request's number; `None` if no request came.
    pub fn next_request(&self, last: u32, spin: Duration, slice: Option<Duration>) -> Option<u32> {
        let is_new = |asked| asked != last;
        self.wait(ASKED, ANSWERER_SLEEPS, is_new, spin, slice)
            .then(|| self.word(ASKED).load(Ordering::Acquire))
    }

    /// Copies the request.
    pub fn request_words(&self, words: &mut [u64; MESSAGE_WORDS]) {
        self.read_words(REQUEST, words);
    }

    /// Answers the request `number`.
    pub fn answer(&self, number: u32, answer: &[u64]) {
        self.write_words(ANSWER, answer);
        self.word(ANSWERED).store(number, Ordering::SeqCst);
        self.wake(ANSWERED, ASKER_SLEEPS);
    }

    /// Wakes up the thread that waits for a request, although there may be no request.
    pub fn interrupt(&self) {
        // It fails for no word that is mapped.
        let _ = futex::wake(self.word(ASKED), futex::Flags::empty(), u32::MAX >> 1);
    }

    /// Copies `bytes` to the data, from its byte `at` on, as far as there is room.
    pub fn put_data(&self, at: usize, bytes: &[u8]) {
        let length = bytes.len().min(DATA_BYTES.saturating_sub(at));
        if length > 0 {
            // SAFETY: the range is within the data, which is mapped as long as `self` lives. Whatever the other process writes there
            // meanwhile is nothing but bytes.
            unsafe {
                let place = self.0.start().add(DATA + at);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, length);
            }
        }
    }

    /// Copies the data from its byte `at` on to `bytes`, as far as there is any.
    pub fn data(&self, at: usize, bytes: &mut [u8]) {
        let length = bytes.len().min(DATA_BYTES.saturating_sub(at));
        if length > 0 {
            // SAFETY: as for `put_data`.
            unsafe {
                let place = self.0.start().add(DATA + at);
                std::ptr::copy_nonoverlapping(place, bytes.as_mut_ptr(), length);
            }
        }
    }

    /// Adds to the time for which the channel's vCPU was held, by any channel.
    pub fn add_held(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.held_ns().fetch_add(ns, Ordering::Relaxed);
    }

    /// How long the channel's vCPU was held so far, in ns.
    pub fn held(&self) -> u64 {
        self.held_ns().load(Ordering::Relaxed)
    }

    fn held_ns(&self) -> &AtomicU64 {
        // SAFETY: the offset is within the first page, aligned to 8 bytes, and mapped as long as `self` lives; both processes access it
        // atomically.
        unsafe { AtomicU64::from_ptr(self.0.start().add(HELD).cast()) }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: all offsets are within the first page, aligned to 4 bytes, and mapped as long as `self` lives; both processes access
        // them atomically.
        unsafe { AtomicU32::from_ptr(self.0.start().add(offset).cast()) }
    }

    /// The words of a message.
    fn words(&self, offset: usize) -> &[AtomicU64; MESSAGE_WORDS] {
        // SAFETY: a message's offset is a multiple of 8, and its words are mapped as long as `self` lives; both processes access them
        // atomically.
        unsafe { &*self.0.start().add(offset).cast() }
    }

    fn write_words(&self, offset: usize, words: &[u64]) {
        for (place, word) in self.words(offset).iter().zip(words) {
            place.store(*word, Ordering::Relaxed);
        }
    }

    fn read_words(&self, offset: usize, words: &mut [u64; MESSAGE_WORDS]) {
        for (place, word) in self.words(offset).iter().zip(words) {
            *word = place.load(Ordering::Relaxed);
        }
    }

    fn wake(&self, word: usize, sleeps: usize) {
        if self.word(sleeps).load(Ordering::SeqCst) != 0 {
            // It fails for no word that is mapped.
            let _ = futex::wake(self.word(word), futex::Flags::empty(), 1);
        }
    }

    /// Waits until the word is a value of which `is_it` says so. Whether it is.
    fn wait(
        &self,
        word: usize,
        sleeps: usize,
        is_it: impl Fn(u32) -> bool,
        spin: Duration,
        slice: Option<Duration>,
    ) -> bool {
        let (word, sleeps) = (self.word(word), self.word(sleeps));
        let begin = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if is_it(word.load(Ordering::Acquire)) {
                    return true;
                }
                spin_loop();
            }
            if begin.elapsed() >= spin {
                break;
            }
        }
        sleeps.store(1, Ordering::SeqCst);
        let timeout = slice.and_then(|slice| Timespec::try_from(slice).ok());
        // Another value, a signal or the end of the time: whoever waits looks again.
        let value = word.load(Ordering::SeqCst);
        if !is_it(value) {
            let _ = futex::wait(word, futex::Flags::empty(), value, timeout.as_ref());
        }
        sleeps.store(0, Ordering::SeqCst);
        is_it(word.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn each_request_is_answered_once_whether_the_sides_sleep_or_not() {
        for spin in [Duration::ZERO, Duration::from_millis(20)] {
            let shared = Arc::new(Shared::map().unwrap());
            let answering = Arc::clone(&shared);
            let answerer = thread::spawn(move || {
                let mut words = [0; MESSAGE_WORDS];
                let mut last = 0;
                for _ in 0..500 {
                    last = answering.next_request(last, spin, None).unwrap();
                    answering.request_words(&mut words);
                    answering.put_data(DATA_BYTES - 1, &[7, 8, 9]);
                    answering.answer(last, &[words[0] + 1]);
                }
            });
            let mut words = [0; MESSAGE_WORDS];
            for number in 1..=500 {
                shared.ask(&[number]);
                let number = u32::try_from(number).unwrap();
                while !shared.is_answered(number, spin, LONG) {}
                shared.answer_words(&mut words);
                assert_eq!(words[0], u64::from(number) + 1);
            }
            let mut data = [0; 4];
            shared.data(DATA_BYTES - 1, &mut data);
            assert_eq!(data, [7, 0, 0, 0]);
            answerer.join().unwrap();
        }
    }

    #[test]
    fn waits_end_at_their_timeout() {
        let shared = Shared::map().unwrap();
        let slice = Duration::from_millis(1);
        assert_eq!(shared.next_request(0, Duration::ZERO, Some(slice)), None);
        assert!(!shared.is_answered(1, Duration::ZERO, slice));
    }
}
