//! Sums of intervals.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::{
    AccessKind, Counts, ExitInterval, Exits, InterruptKind, Lost, OfAccess, OfFunction,
    OfInterrupt, OfProcess, OfReason, OfThread, OfWait,
};

/// Maximum number of pairs of a reason and a vCPU, each of which has a histogram.
const MAX_REASONS: usize = 8192;
/// Maximum number of other entries of a kind, and of names.
const MAX_ENTRIES: usize = 1 << 16;
/// Maximum number of guests that ran while vCPUs waited.
const MAX_GUESTS: usize = 4096;

/// Adds intervals up. What doesn't fit into a table of a fixed size counts as lost there.
#[derive(Clone, Debug, Default)]
pub struct ExitSums {
    /// All but the tables, which are empty; `None` before the first interval.
    rest: Option<ExitInterval>,
    reasons: BTreeMap<(u32, u32), OfReason>,
    accesses: BTreeMap<(u32, AccessKind, u64), OfAccess>,
    functions: BTreeMap<(u32, Option<i32>, u64), OfFunction>,
    processes: BTreeMap<(u32, Option<i32>), OfProcess>,
    threads: BTreeMap<u32, OfThread>,
    waits: BTreeMap<(u32, u32, u32), OfWait>,
    interrupts: BTreeMap<(u32, InterruptKind, u32), OfInterrupt>,
}

impl ExitSums {
    /// Adds an interval, which is later than those before.
    pub fn add(&mut self, interval: &ExitInterval) {
        let mut lost = self.add_exits(&interval.counts);
        lost.add(self.add_waits(&interval.counts));
        lost.add(interval.counts.lost);
        self.add_rest(interval).counts.lost.add(lost);
    }

    /// Adds exits. Returns those for which there is no room.
    fn add_exits(&mut self, counts: &Counts) -> Lost {
        Lost {
            reasons: add(
                (&mut self.reasons, MAX_REASONS),
                &counts.reasons,
                |one| ((one.reason, one.vcpu), one.exits),
                |sum, one| {
                    sum.exits.add(one.exits);
                    sum.left.add(one.left);
                    sum.longest = sum.longest.max(one.longest);
                    sum.histogram.add(&one.histogram);
                },
            ),
            accesses: add(
                (&mut self.accesses, MAX_ENTRIES),
                &counts.accesses,
                |one| ((one.reason, one.kind, one.place), one.exits),
                |sum, one| sum.exits.add(one.exits),
            ),
            functions: add(
                (&mut self.functions, MAX_ENTRIES),
                &counts.functions,
                |one| ((one.reason, one.process, one.address), one.exits),
                |sum, one| sum.exits.add(one.exits),
            ),
            processes: add(
                (&mut self.processes, MAX_ENTRIES),
                &counts.processes,
                |one| ((one.reason, one.process), one.exits),
                |sum, one| {
                    sum.exits.add(one.exits);
                    sum.name = one.name;
                },
            ),
            ..Lost::default()
        }
    }

    /// Adds waits for a processor and interrupts. Returns what had no room.
    fn add_waits(&mut self, counts: &Counts) -> Lost {
        Lost {
            threads: add(
                (&mut self.threads, MAX_ENTRIES),
                &counts.threads,
                |one| (one.thread, one.waits),
                |sum, one| {
                    sum.waits.add(one.waits);
                    sum.migrations = sum.migrations.saturating_add(one.migrations);
                    sum.vcpu = one.vcpu;
                },
            ),
            waits: add(
                (&mut self.waits, MAX_ENTRIES),
                &counts.waits,
                |one| {
                    let key = (one.thread, one.other_thread, one.other_process);
                    (key, one.turns)
                },
                |sum, one| {
                    sum.turns.add(one.turns);
                    sum.name = one.name;
                },
            ),
            interrupts: add(
                (&mut self.interrupts, MAX_ENTRIES),
                &counts.interrupts,
                |one| ((one.thread, one.kind, one.number), one.time),
                |sum, one| sum.time.add(one.time),
            ),
            ..Lost::default()
        }
    }

    /// Adds what isn't in the tables, and isn't lost.
    fn add_rest(&mut self, interval: &ExitInterval) -> &mut ExitInterval {
        let rest = self.rest.get_or_insert_with(|| ExitInterval {
            begin: interval.begin,
            knows_processes: true,
            ..ExitInterval::default()
        });
        rest.begin = rest.begin.min(interval.begin);
        rest.end = rest.end.max(interval.end);
        rest.vcpus = rest.vcpus.max(interval.vcpus);
        rest.knows_processes &= interval.knows_processes;
        rest.missing.clone_from(&interval.missing);
        rest.host.add(interval.host);
        for (number, name) in &interval.names {
            if rest.names.len() < MAX_ENTRIES {
                rest.names.insert(*number, name.clone());
            }
        }
        for (process, container) in &interval.containers {
            if rest.containers.len() < MAX_ENTRIES {
                rest.containers.insert(*process, container.clone());
            }
        }
        for (number, name) in &interval.softirqs {
            if rest.softirqs.len() < MAX_ENTRIES {
                rest.softirqs.insert(*number, name.clone());
            }
        }
        for guest in &interval.guests {
            let mut known = rest.guests.iter_mut();
            if let Some(known) = known.find(|known| known.process == guest.process) {
                let room = MAX_ENTRIES.saturating_sub(known.vcpus.len());
                known.vcpus.extend(guest.vcpus.iter().take(room));
            } else if rest.guests.len() < MAX_GUESTS {
                rest.guests.push(guest.clone());
            }
        }
        let counts = &mut rest.counts;
        // 0 before the first exit.
        counts.isa = counts.isa.max(interval.counts.isa);
        counts.unfinished = interval.counts.unfinished;
        counts.left_kvm = counts.left_kvm.saturating_add(interval.counts.left_kvm);
        rest
    }

    /// All intervals as one; `None` if there was none.
    pub fn sum(self) -> Option<ExitInterval> {
        let mut sum = self.rest?;
        let counts = &mut sum.counts;
        counts.reasons = self.reasons.into_values().collect();
        counts.accesses = self.accesses.into_values().collect();
        counts.functions = self.functions.into_values().collect();
        counts.processes = self.processes.into_values().collect();
        counts.threads = self.threads.into_values().collect();
        counts.waits = self.waits.into_values().collect();
        counts.interrupts = self.interrupts.into_values().collect();
        Some(sum)
    }
}

/// Adds entries to those with the same keys by `sum`, as long as there are at most so many. Returns how many exits had no room.
fn add<K: Ord, T: Clone>(
    (all, most): (&mut BTreeMap<K, T>, usize),
    more: &[T],
    key: impl Fn(&T) -> (K, Exits),
    sum: impl Fn(&mut T, &T),
) -> u64 {
    let mut lost = 0_u64;
    for one in more {
        let has_room = all.len() < most;
        let (key, exits) = key(one);
        match all.entry(key) {
            Entry::Occupied(mut known) => sum(known.get_mut(), one),
            Entry::Vacant(new) if has_room => {
                new.insert(one.clone());
            }
            Entry::Vacant(_) => lost = lost.saturating_add(exits.count),
        }
    }
    lost
}
