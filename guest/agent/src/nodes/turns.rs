//! Turns, which divide limited resources among programs of any user. There is a limit for all users together, and one for each user. A call
//! that waits gets a turn when another one has ended; no user can take the turns of the others.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::rc::Rc;

/// Maximum number of turns at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub total: usize,
    pub of_one_user: usize,
}

/// The number of turns that each user has.
type TurnCounts = Rc<RefCell<HashMap<u32, usize>>>;

/// A turn, which ends when it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    user: u32,
    taken: TurnCounts,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut taken = self.taken.borrow_mut();
        if let Some(count) = taken.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.user);
            }
        }
    }
}

/// The items that wait for a turn.
#[derive(Debug)]
pub(super) struct Queue<T> {
    limits: Limits,
    taken: TurnCounts,
    /// By user, in the order in which they came. A user without items isn't in the map.
    waiting: BTreeMap<u32, VecDeque<T>>,
    /// The user who had the last turn.
    last: u32,
}

impl<T> Queue<T> {
    /// An empty queue.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            taken: TurnCounts::default(),
            waiting: BTreeMap::new(),
            last: 0,
        }
    }

    /// Adds an item of `user`.
    pub fn add(&mut self, user: u32, item: T) {
        self.waiting.entry(user).or_default().push_back(item);
    }

    /// Gives a turn to the next item, and removes it from the queue; users alternate. `None` if there is no item that can have a turn.
    pub fn next(&mut self) -> Option<(Turn, T)> {
        let user = self.next_user()?;
        let of_user = self.waiting.get_mut(&user)?;
        let item = of_user.pop_front()?;
        if of_user.is_empty() {
            self.waiting.remove(&user);
        }
        *self.taken.borrow_mut().entry(user).or_default() += 1;
        self.last = user;
        let taken = Rc::clone(&self.taken);
        Some((Turn { user, taken }, item))
    }

    fn next_user(&self) -> Option<u32> {
        let taken = self.taken.borrow();
        if taken.values().sum::<usize>() >= self.limits.total {
            return None;
        }
        let after = self.waiting.range((Excluded(self.last), Unbounded));
        let mut users = after.chain(self.waiting.range(..=self.last));
        let is_free = |user| taken.get(&user).copied().unwrap_or(0) < self.limits.of_one_user;
        users.find_map(|(user, _)| is_free(*user).then_some(*user))
    }

    /// Removes and returns the items for which `is_so` returns true.
    pub fn take_if(&mut self, is_so: impl Fn(&T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        self.waiting.retain(|_, of_user| {
            let (out, stays) = std::mem::take(of_user).into_iter().partition(&is_so);
            *of_user = stays;
            taken.extend::<VecDeque<T>>(out);
            !of_user.is_empty()
        });
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> Queue<u64> {
        let limits = Limits {
            total: 4,
            of_one_user: 2,
        };
        Queue::new(limits)
    }

    #[test]
    fn users_take_turns_within_the_total() {
        let mut queue = queue();
        for user in [3, 5, 9] {
            for _ in 0..2 {
                queue.add(user, u64::from(user));
            }
        }
        let turns: Vec<(Turn, u64)> = std::iter::from_fn(|| queue.next()).collect();
        let order: Vec<u64> = turns.iter().map(|(_, user)| *user).collect();
        assert_eq!(order, [3, 5, 9, 3]);
        drop(turns);
        let order: Vec<u64> = std::iter::from_fn(|| Some(queue.next()?.1)).collect();
        assert_eq!(order, [5, 9]);
    }

    #[test]
    fn a_cancelled_waiter_gets_no_turn() {
        let mut queue = queue();
        for item in [10, 20, 21, 22] {
            queue.add(u32::from(item > 15), item);
        }
        assert_eq!(queue.take_if(|item| *item == 20), [20]);
        assert!(queue.take_if(|item| *item == 20).is_empty());
        assert_eq!(queue.next().unwrap().1, 21);
        assert_eq!(queue.take_if(|_| true), [10, 22]);
        assert!(queue.next().is_none());
    }
}
