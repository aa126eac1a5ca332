//! Limits the work that maps of processes cause to the thread that takes them.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Area, ProcessMap};

/// The approximate work of the thread that takes a map, in ns, for comparing, packing and storing it: for the map, for
/// each of its areas, and for each byte of their names and of labels.
const COST: u64 = 20_000;
const COST_OF_AREA: u64 = 1_000;
const COST_OF_BYTE: u64 = 4;
/// Divisor for the share of that thread's time that maps may take.
const SHARE: u64 = 4;
/// Maximum work at once, in ns: enough for some hundred programs that start together.
const BURST: u64 = 20_000_000;

/// Delays maps of all vCPUs after too many of them, so that a guest that changes its mappings all the time doesn't keep
/// the thread that takes them busy. A delayed map is read at a later tick, with the mappings of that time.
#[derive(Debug, Default)]
pub struct MapBudget {
    /// The time at which the work of all maps until now is within its share, in ns of CLOCK_MONOTONIC.
    paid_until: AtomicU64,
}

impl MapBudget {
    /// Whether one more map may be passed on at `time`, in ns of CLOCK_MONOTONIC. Never waits.
    pub fn has_room(&self, time: u64) -> bool {
        let paid_until = self.paid_until.load(Ordering::Relaxed);
        paid_until <= time.saturating_add(BURST * SHARE)
    }

    /// Leaves no room at `time`.
    #[cfg(test)]
    pub fn use_up(&self, time: u64) {
        let until = time + BURST * SHARE + 1;
        self.paid_until.store(until, Ordering::Relaxed);
    }

    /// Accounts for `map`, which is passed on at `time`.
    pub fn spend(&self, time: u64, map: &ProcessMap) {
        let cost = cost(map).saturating_mul(SHARE);
        let later = |paid_until: u64| Some(paid_until.max(time).saturating_add(cost));
        // The closure never refuses an update.
        let _ = (self.paid_until).fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
    }
}

/// The approximate work that `map` causes, in ns.
fn cost(map: &ProcessMap) -> u64 {
    let area = |area: &Area| COST_OF_AREA + COST_OF_BYTE * area.name().len() as u64;
    let labels = COST_OF_BYTE * map.label_bytes() as u64;
    COST + labels + map.areas.iter().map(area).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::super::Backing;
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn map(areas: usize) -> ProcessMap {
        let area = Area {
            begin: 0,
            end: 4096,
            offset: 0,
            backing: Backing::Anonymous,
        };
        ProcessMap::new(0x1000, 1, 0, vec![area; areas])
    }

    /// The work of the maps that are passed on if each of `ticks`, in ns, finds a new map with `areas` areas.
    fn work(budget: &MapBudget, areas: usize, ticks: impl Iterator<Item = u64>) -> u64 {
        let map = map(areas);
        let passed = ticks.filter(|time| {
            let has_room = budget.has_room(*time);
            if has_room {
                budget.spend(*time, &map);
            }
            has_room
        });
        passed.count() as u64 * cost(&map)
    }

    #[test]
    fn reading_maps_stays_within_its_budget() {
        for areas in [0, 10, 2048] {
            // 16 vCPUs at 10 kHz for 4 s, some time after the start.
            let ticks = (0..16 * 40_000).map(|tick| 77 * SECOND + tick * 100_000 / 16);
            let work = work(&MapBudget::default(), areas, ticks);
            let share = 4 * SECOND / SHARE;
            assert!(work >= share, "{areas}: {work}");
            assert!(work <= share + BURST + cost(&map(areas)), "{areas}: {work}");
        }
    }

    #[test]
    fn programs_that_start_together_get_their_maps_at_once() {
        let budget = MapBudget::default();
        let started = (0..300).map(|_| SECOND);
        assert_eq!(work(&budget, 20, started), 300 * cost(&map(20)));
        // The allowance is full again after a while, and doesn't grow further.
        for time in [2 * SECOND, 100 * SECOND] {
            let at_once = work(&budget, 20, (0..10_000).map(|_| time));
            assert!((BURST..=BURST + cost(&map(20))).contains(&at_once));
        }
    }
}
