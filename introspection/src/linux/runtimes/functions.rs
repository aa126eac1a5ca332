//! Passes the functions that a vCPU's thread meets at ticks to the thread that reads their names.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Number of functions that wait for their names at most. Others are met again at a later tick.
const QUEUE: usize = 512;
/// Number of places of those that were passed on. Two functions that share a place take turns there, and are passed on again.
const PLACES: usize = 2048;

/// A function at an address, and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewFunction {
    pub function: u64,
    pub number: u64,
}

/// A queue with one producer and one consumer, and a table of what it has passed on. Neither side waits, and neither allocates.
#[derive(Debug)]
pub struct NewFunctions {
    places: Box<[AtomicU64]>,
    queue: Box<[(AtomicU64, AtomicU64)]>,
    /// How many were put and taken so far.
    put: AtomicUsize,
    taken: AtomicUsize,
}

impl Default for NewFunctions {
    fn default() -> Self {
        Self {
            places: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
            queue: (0..QUEUE).map(|_| Default::default()).collect(),
            put: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
        }
    }
}

impl NewFunctions {
    /// Passes `new` on if it wasn't already.
    pub fn note(&self, new: NewFunction) {
        let index = usize::try_from(new.number % PLACES as u64).unwrap_or(0);
        let Some(place) = self.places.get(index) else {
            return;
        };
        if place.load(Ordering::Relaxed) == new.number {
            return;
        }
        let put = self.put.load(Ordering::Relaxed);
        if put.wrapping_sub(self.taken.load(Ordering::Acquire)) >= QUEUE {
            return;
        }
        if let Some((function, number)) = self.queue.get(put % QUEUE) {
            function.store(new.function, Ordering::Relaxed);
            number.store(new.number, Ordering::Relaxed);
            self.put.store(put.wrapping_add(1), Ordering::Release);
            place.store(new.number, Ordering::Relaxed);
        }
    }

    /// Whether any wait.
    pub fn is_waiting(&self) -> bool {
        self.put.load(Ordering::Acquire) != self.taken.load(Ordering::Relaxed)
    }

    /// The next one that waits.
    pub fn take(&self) -> Option<NewFunction> {
        let taken = self.taken.load(Ordering::Relaxed);
        if self.put.load(Ordering::Acquire) == taken {
            return None;
        }
        let (function, number) = self.queue.get(taken % QUEUE)?;
        let new = NewFunction {
            function: function.load(Ordering::Relaxed),
            number: number.load(Ordering::Relaxed),
        };
        self.taken.store(taken.wrapping_add(1), Ordering::Release);
        Some(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(number: u64) -> NewFunction {
        NewFunction {
            function: number << 4,
            number,
        }
    }

    #[test]
    fn functions_are_passed_on_once() {
        let new = NewFunctions::default();
        for number in [7, 8, 7, 7, 9, 8] {
            new.note(function(number));
        }
        let taken: Vec<u64> = std::iter::from_fn(|| new.take())
            .map(|it| it.number)
            .collect();
        assert_eq!(taken, [7, 8, 9]);
        assert!(!new.is_waiting());
        new.note(function(8));
        assert_eq!(new.take(), None);
        // One that shares its place is passed on, and so is the former one again.
        let other = 8 + PLACES as u64;
        new.note(function(other));
        new.note(function(8));
        assert_eq!(new.take(), Some(function(other)));
        assert_eq!(new.take(), Some(function(8)));
    }

    #[test]
    fn functions_wait_until_there_is_room() {
        let new = NewFunctions::default();
        let all = 1..=QUEUE as u64 + 3;
        all.clone().for_each(|number| new.note(function(number)));
        let first = std::iter::from_fn(|| new.take()).count();
        assert_eq!(first, QUEUE);
        all.for_each(|number| new.note(function(number)));
        let rest: Vec<u64> = std::iter::from_fn(|| new.take())
            .map(|it| it.number)
            .collect();
        assert_eq!(rest, [QUEUE as u64 + 1, QUEUE as u64 + 2, QUEUE as u64 + 3]);
    }
}
