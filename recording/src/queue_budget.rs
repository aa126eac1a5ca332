//! A common limit of bytes that wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The limit of the bytes that wait in all [shares](Share) together, without each share's own bytes.
#[derive(Debug)]
pub struct QueueBudget {
    bytes: usize,
    taken: AtomicUsize,
}

impl QueueBudget {
    /// A budget of this number of bytes.
    pub fn new(bytes: usize) -> Self {
        Self {
            bytes,
            taken: AtomicUsize::new(0),
        }
    }

    /// A budget without a limit.
    pub fn unlimited() -> Arc<Self> {
        Arc::new(Self::new(usize::MAX))
    }

    /// The number of bytes that no share has taken.
    pub fn left(&self) -> usize {
        self.bytes
            .saturating_sub(self.taken.load(Ordering::Relaxed))
    }

    /// Takes `bytes` if they are left.
    fn take(&self, bytes: usize) -> bool {
        let more = |taken: usize| {
            let taken = taken.checked_add(bytes)?;
            (taken <= self.bytes).then_some(taken)
        };
        let order = Ordering::Relaxed;
        self.taken.fetch_update(order, order, more).is_ok()
    }
}

/// The bytes that wait in one place. The first ones don't count in the common [`QueueBudget`], further ones do. They are given back when the share
/// is dropped.
#[derive(Debug)]
pub struct Share {
    budget: Arc<QueueBudget>,
    own: usize,
    /// The number of bytes in the common budget.
    taken: usize,
}

impl Share {
    /// A share without bytes. The first `own` bytes don't count in the budget.
    pub fn new(budget: &Arc<QueueBudget>, own: usize) -> Self {
        Self {
            budget: Arc::clone(budget),
            own,
            taken: 0,
        }
    }

    /// The maximum number of bytes that it can have now.
    pub fn capacity(&self) -> usize {
        let common = self.taken.saturating_add(self.budget.left());
        self.own.saturating_add(common)
    }

    /// Changes its number of bytes to `bytes` if they fit into the budget. Returns whether they do.
    #[must_use]
    pub fn resize(&mut self, bytes: usize) -> bool {
        let taken = bytes.saturating_sub(self.own);
        let fits = taken <= self.taken || self.budget.take(taken - self.taken);
        if fits {
            self.give_back(self.taken.saturating_sub(taken));
            self.taken = taken;
        }
        fits
    }

    /// Changes its number of bytes to `bytes`, also if they don't fit into the budget.
    pub fn force(&mut self, bytes: usize) {
        let taken = bytes.saturating_sub(self.own);
        let more = taken.saturating_sub(self.taken);
        if more > 0 {
            self.budget.taken.fetch_add(more, Ordering::Relaxed);
        }
        self.give_back(self.taken.saturating_sub(taken));
        self.taken = taken;
    }

    fn give_back(&self, bytes: usize) {
        if bytes > 0 {
            self.budget.taken.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back(self.taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_bytes_are_charged_to_the_common_limit() {
        let budget = Arc::new(QueueBudget::new(100));
        let [mut first, mut second] = [(); 2].map(|()| Share::new(&budget, 10));
        assert_eq!(first.capacity(), 110);
        assert!(first.resize(10));
        assert_eq!(budget.left(), 100);
        assert!(first.resize(70));
        assert_eq!((budget.left(), first.capacity()), (40, 110));
        // The rest of the common limit, and in any case its own.
        assert_eq!(second.capacity(), 50);
        assert!(!second.resize(51));
        assert_eq!(budget.left(), 40);
        assert!(second.resize(50) && !first.resize(71) && second.resize(50));
        assert_eq!((budget.left(), second.capacity()), (0, 50));
        assert!(first.resize(20) && second.resize(100));
        assert_eq!(budget.left(), 0);
        drop(second);
        assert_eq!(budget.left(), 90);
        drop(first);
        assert_eq!(budget.left(), 100);
    }

    #[test]
    fn forced_bytes_count_and_leave_other_queues_their_own() {
        let budget = Arc::new(QueueBudget::new(100));
        let [mut first, mut second] = [(); 2].map(|()| Share::new(&budget, 10));
        first.force(210);
        assert_eq!((budget.left(), first.capacity()), (0, 210));
        assert!(second.resize(10) && !second.resize(11));
        first.force(60);
        assert_eq!(budget.left(), 50);
        assert!(second.resize(60));
    }

    #[test]
    fn an_unlimited_budget_is_never_full() {
        let budget = QueueBudget::unlimited();
        let [mut first, mut second] = [(); 2].map(|()| Share::new(&budget, 0));
        assert!(first.resize(usize::MAX / 2) && second.resize(1));
        assert!(second.capacity() > usize::MAX / 4);
    }
}
