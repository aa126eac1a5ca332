//! Finds the chains of a queue that are in progress, by its rings alone: nothing else is known of a queue that another program has
//! served so far.

use std::collections::VecDeque;

use vm_memory::{Bytes, GuestAddress};

use super::GuestMemory;
use super::queue::{QueueError, QueueLayout};

/// Bytes before the index and before the entries of both rings (sections 2.7.6 and 2.7.8).
const INDEX: u64 = 2;
const ENTRIES: u64 = 4;

/// The state of a queue's rings.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RingState {
    /// Index of the available ring.
    pub available: u16,
    /// Index of the used ring.
    pub used: u16,
    /// Heads of the chains that were made available and not returned, in the order in which they were made available.
    pub in_progress: VecDeque<u16>,
}

impl RingState {
    /// Reads the rings of the queue at `layout`, which lies in `memory` and isn't served at the moment.
    ///
    /// # Errors
    /// The rings are inconsistent.
    pub fn read(memory: &GuestMemory, layout: &QueueLayout) -> Result<Self, QueueError> {
        let size = u16::try_from(layout.size).map_err(|_| QueueError::Size(layout.size))?;
        let word = |address: u64| {
            let word = memory.read_obj::<u16>(GuestAddress(address));
            word.map(u16::from_le)
                .map_err(|_| QueueError::OutsideMemory)
        };
        let place = |index: u16| u64::from(index % size.max(1));
        let available = word(layout.available + INDEX)?;
        let used = word(layout.used + INDEX)?;
        let rings = Rings {
            size,
            available,
            used,
            // The number of a head has 32 bits in the used ring. A correct device sets only 16 of them.
            offered: &|index| word(layout.available + ENTRIES + 2 * place(index)),
            returned: &|index| word(layout.used + ENTRIES + 8 * place(index)),
        };
        Ok(Self {
            available,
            used,
            in_progress: rings.in_progress()?,
        })
    }
}

/// Two rings, each with its last `size` entries.
struct Rings<'a> {
    size: u16,
    available: u16,
    used: u16,
    offered: &'a dyn Fn(u16) -> Result<u16, QueueError>,
    returned: &'a dyn Fn(u16) -> Result<u16, QueueError>,
}

impl Rings<'_> {
    /// The heads in the available ring that aren't in the used ring.
    ///
    /// The rings have only the last entries, and chains may be returned in any order. So this function assumes that no chain was in
    /// progress at some moment, and looks for the earliest moment for which both rings agree: since then, each chain was made available
    /// as often as it was returned, or once more. The result is right for queues that are empty now and then. A chain can be missed if the
    /// queue has taken as many other chains since as it has entries.
    fn in_progress(&self) -> Result<VecDeque<u16>, QueueError> {
        let count = self.available.wrapping_sub(self.used);
        if count > self.size {
            return Err(QueueError::AvailableIndex);
        }
        // Before the index has wrapped around, entries beyond it mean nothing.
        let known = match self.available >= count {
            true => self.size.min(self.available),
            false => self.size,
        };
        let mut balance = self.balance(known)?;
        let mut wrong = balance.iter().filter(|count| is_wrong(**count)).count();
        let mut change = |head: u16, by: i32| {
            let entry = balance.get_mut(usize::from(head));
            let entry = entry.ok_or(QueueError::DescriptorIndex)?;
            let was_wrong = is_wrong(*entry);
            *entry += by;
            wrong = wrong + usize::from(is_wrong(*entry)) - usize::from(was_wrong);
            Ok(wrong)
        };
        let mut length = known;
        let mut still_wrong = change(0, 0)?;
        while still_wrong > 0 {
            if length <= count {
                return Err(QueueError::Repeated);
            }
            let first = self.available.wrapping_sub(length);
            change((self.offered)(first)?, -1)?;
            still_wrong = change((self.returned)(first)?, 1)?;
            length -= 1;
        }
        self.heads(length, &balance)
    }

    /// For each head, how often it was made available minus how often it was returned, over the last `length` chains.
    fn balance(&self, length: u16) -> Result<Vec<i32>, QueueError> {
        let mut balance = vec![0; self.size.into()];
        let mut add = |head: u16, by: i32| {
            let entry = balance.get_mut(usize::from(head));
            *entry.ok_or(QueueError::DescriptorIndex)? += by;
            Ok(())
        };
        let first = self.available.wrapping_sub(length);
        for index in (0..length).map(|offset| first.wrapping_add(offset)) {
            add((self.offered)(index)?, 1)?;
        }
        for index in (0..self.used.wrapping_sub(first)).map(|offset| first.wrapping_add(offset)) {
            add((self.returned)(index)?, -1)?;
        }
        Ok(balance)
    }

    /// The heads whose balance isn't 0, in the order in which they were last made available.
    fn heads(&self, length: u16, balance: &[i32]) -> Result<VecDeque<u16>, QueueError> {
        let mut heads = VecDeque::new();
        let mut left = balance.to_vec();
        for back in 1..=length {
            let head = (self.offered)(self.available.wrapping_sub(back))?;
            if let Some(count) = left.get_mut(usize::from(head))
                && std::mem::take(count) == 1
            {
                heads.push_front(head);
            }
        }
        Ok(heads)
    }
}

/// Whether a balance is impossible: a chain is in progress once, or not at all.
fn is_wrong(balance: i32) -> bool {
    !(0..=1).contains(&balance)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A queue of 8 entries after these were made available and returned, from `start` on. Earlier entries aren't there.
    fn in_progress(start: u16, offered: &[u16], returned: &[u16]) -> Result<Vec<u16>, QueueError> {
        let size = 8;
        let end = |heads: &[u16]| start.wrapping_add(u16::try_from(heads.len()).unwrap());
        let ring = |heads: &[u16]| {
            let mut ring = vec![0; usize::from(size)];
            for (index, head) in (0..).zip(heads) {
                ring[usize::from(start.wrapping_add(index) % size)] = *head;
            }
            ring
        };
        let (available, used) = (ring(offered), ring(returned));
        let rings = Rings {
            size,
            available: end(offered),
            used: end(returned),
            offered: &|index| Ok(available[usize::from(index % size)]),
            returned: &|index| Ok(used[usize::from(index % size)]),
        };
        rings.in_progress().map(Vec::from)
    }

    #[test]
    fn unreturned_chains_are_in_progress() {
        let check = |offered: &[u16], returned: &[u16], expected: &[u16]| {
            assert_eq!(in_progress(0, offered, returned).unwrap(), expected);
        };
        check(&[], &[], &[]);
        check(&[3, 1, 2], &[], &[3, 1, 2]);
        check(&[3, 1, 2], &[1], &[3, 2]);
        check(&[0, 1, 0, 0], &[0, 0, 0], &[1]);
        check(&[0, 1, 0, 0], &[0, 0, 1], &[0]);
    }

    #[test]
    fn invalid_rings_are_errors() {
        for (offered, returned, error) in [
            (
                &[0, 1, 2, 3, 4, 5, 6, 7, 0][..],
                &[][..],
                QueueError::AvailableIndex,
            ),
            (&[1], &[1, 1], QueueError::AvailableIndex),
            (&[1, 1], &[], QueueError::Repeated),
            (&[8], &[], QueueError::DescriptorIndex),
            (&[1, 2], &[9], QueueError::DescriptorIndex),
        ] {
            assert_eq!(in_progress(0, offered, returned), Err(error), "{offered:?}");
        }
    }

    proptest! {
        /// Also of a queue that was empty recently, around the wrap of the index.
        #[test]
        fn descriptors_are_followed_in_any_order(
            start in any::<u16>(),
            before in prop::collection::vec(0..8_u16, 0..20),
            steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 0..14),
        ) {
            let (mut offered, mut returned) = (before.clone(), before);
            let mut now = Vec::new();
            let mut room = 8;
            for (is_offer, which) in steps {
                let free: Vec<u16> = (0..8).filter(|head| !now.contains(head)).collect();
                if is_offer && !free.is_empty() && room > 0 {
                    room -= 1;
                    let head = *which.get(&free);
                    offered.push(head);
                    now.push(head);
                } else if !now.is_empty() {
                    returned.push(now.remove(which.index(now.len())));
                }
            }
            let found = in_progress(start, &offered, &returned);
            // Without the start, at an earlier time nothing may seem to be in progress: that number is found then.
            prop_assert_eq!(found.unwrap().len(), now.len());
        }
    }
}
