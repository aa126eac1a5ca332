//! The locks that samples waited for, and the threads that owned them.

use std::collections::HashMap;

use kvmprof_recording::{LockOwner, Sample};
use serde::{Serialize, Serializer};

use super::running::{COPIES, most_frequent};
use super::stolen::StolenTicks;
use super::waits::WaitKind;
use crate::budget::{OutputBudget, TooMuch};
use crate::model::task_name;
use crate::symbolize::Symbols;
use crate::text::visible;

/// Maximum number of samples that are kept.
const MAX_KEPT: usize = 1 << 20;
/// Maximum number of different locks and owners that are kept.
const MAX_LOCKS: usize = 1 << 16;

/// A thread of the guest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct LockThread {
    /// Its process.
    pub pid: i32,
    /// Its own id.
    pub tid: i32,
    /// Its name, with characters that can't be shown replaced.
    pub name: String,
}

/// Samples that waited in a loop for the same lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LockRow {
    /// The kind of the lock.
    pub kind: WaitKind,
    /// Its guest virtual address. In JSON it is a hexadecimal string, because some readers have no 64-bit numbers.
    #[serde(serialize_with = "hexadecimal")]
    pub address: u64,
    /// The kernel's variable that contains the lock, with the offset in it, if there is one. Characters that can't be shown are replaced.
    pub variable: Option<String>,
    /// The number of samples.
    pub samples: u64,
    /// The number of samples at which the host didn't run the vCPU that the lock's owner was on.
    pub owner_stolen: u64,
    /// How many different threads owned it.
    pub owners: usize,
    /// The thread that owned it most often, if known.
    pub owner: Option<LockThread>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn hexadecimal<S: Serializer>(address: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{address:#018x}"))
}

/// A lock and a thread that owned it.
type OwnedLock = (WaitKind, u64, Option<(i32, i32, [u8; 16])>);

/// Finds the locks.
#[derive(Debug, Default)]
pub(super) struct Locks {
    numbers: HashMap<OwnedLock, u32>,
    /// The samples: number of the lock, vCPU that its owner was on, and time.
    found: Vec<(u32, Option<u16>, u64)>,
    left_out: u64,
}

#[derive(Default)]
struct Sum {
    samples: u64,
    stolen: u64,
    owners: HashMap<LockThread, u64>,
}

impl Locks {
    /// Takes `sample`, which waits for a lock of this kind. Its address may be unknown.
    pub fn take(&mut self, kind: WaitKind, sample: &Sample) {
        let Some(lock) = &sample.lock else {
            return;
        };
        let owner = lock.owner.as_ref();
        let held = (
            kind,
            lock.address,
            owner.map(|owner| (owner.pid, owner.tid, owner.comm)),
        );
        let is_full = self.found.len() >= MAX_KEPT
            || self.numbers.len() >= MAX_LOCKS && !self.numbers.contains_key(&held);
        if is_full {
            self.left_out += 1;
            return;
        }
        let next = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
        let number = *self.numbers.entry(held).or_insert(next);
        let vcpu = owner.and_then(|owner: &LockOwner| owner.vcpu);
        self.found.push((number, vcpu, sample.time));
    }

    /// How many samples were left out because of the limits.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// The `top` rows with the most samples. `kernel` has the names of variables.
    ///
    /// # Errors
    /// They don't fit into `budget`.
    pub fn rows(
        self,
        stolen: &StolenTicks,
        kernel: &Symbols,
        top: usize,
        budget: &OutputBudget,
    ) -> Result<Vec<LockRow>, TooMuch> {
        let mut held: Vec<(u32, OwnedLock)> = self
            .numbers
            .into_iter()
            .map(|(held, number)| (number, held))
            .collect();
        held.sort_unstable_by_key(|(number, _)| *number);
        let mut sums: HashMap<(WaitKind, u64), Sum> = HashMap::new();
        for (number, vcpu, time) in self.found {
            let Some((_, (kind, address, owner))) = held.get(number as usize) else {
                continue;
            };
            let sum = sums.entry((*kind, *address)).or_default();
            sum.samples += 1;
            sum.stolen += u64::from(vcpu.is_some_and(|vcpu| stolen.is_stolen(vcpu, time)));
            if let Some((pid, tid, comm)) = owner {
                let thread = LockThread {
                    pid: *pid,
                    tid: *tid,
                    name: task_name(comm),
                };
                *sum.owners.entry(thread).or_default() += 1;
            }
        }
        let rows = sums.into_iter();
        let mut rows: Vec<LockRow> = rows
            .map(|((kind, address), sum)| row(kind, address, sum))
            .collect();
        rows.sort_by_key(|row| (std::cmp::Reverse(row.samples), row.kind, row.address));
        rows.truncate(top);
        for row in &mut rows {
            let variable = kernel.variable(row.address);
            let owner = row.owner.as_ref().map(|owner| owner.name.as_str());
            budget.take_row(variable.into_iter().chain(owner), COPIES)?;
            row.variable = variable.map(visible);
        }
        Ok(rows)
    }
}

fn row(kind: WaitKind, address: u64, sum: Sum) -> LockRow {
    LockRow {
        kind,
        address,
        variable: None,
        samples: sum.samples,
        owner_stolen: sum.stolen,
        owners: sum.owners.len(),
        owner: most_frequent(sum.owners),
    }
}

#[cfg(test)]
mod tests {
    use kvmprof_recording::file::RecordingInfo;
    use kvmprof_recording::{LockWait, Ticks, comm_of};

    use super::*;
    use crate::profile::{Selected, Selection, Selector};

    fn waiting(time: u64, address: u64, tid: i32, vcpu: Option<u16>) -> Sample {
        let owner = LockOwner {
            pid: 7,
            tid,
            comm: comm_of("a\x1bb"),
            vcpu,
        };
        Sample {
            time,
            lock: Some(LockWait {
                address,
                owner: (tid != 0).then_some(owner),
            }),
            ..Sample::default()
        }
    }

    #[test]
    fn locks_have_their_owners_and_the_owners_stolen_ticks() {
        let info = RecordingInfo {
            hz: 1000,
            ..RecordingInfo::default()
        };
        let mut selector = Selector::new(&info, &Selection::default());
        let mut stolen = StolenTicks::new(0);
        // vCPU 1 loses what is between 10 and 14 ms.
        for (time, count) in [(10, 0), (14, 3)] {
            let sample = Sample {
                time: time * 1_000_000,
                vcpu: 1,
                ..Sample::default()
            };
            let ticks = Ticks {
                stolen: count,
                ..sample.into()
            };
            stolen.take(&Selected {
                spread: selector.spread(&ticks),
                sample: ticks.sample,
                stack: None,
                thread: None,
            });
        }
        let mut locks = Locks::default();
        for (time, address, tid, vcpu) in [
            (5, 0x40, 71, Some(1)),
            (12, 0x40, 71, Some(1)),
            (12, 0x40, 72, Some(2)),
            (13, 0x40, 71, None),
            (13, 0x80, 0, None),
        ] {
            let sample = waiting(time * 1_000_000, address, tid, vcpu);
            locks.take(WaitKind::Mutex, &sample);
        }
        locks.take(WaitKind::Mutex, &Sample::default());
        assert_eq!(locks.left_out(), 0);
        let kernel = Symbols::parse("40 d tasklist_\u{202e}lock+0x8\n80 t code\n");
        let budget = OutputBudget::new(u64::MAX);
        let rows = locks.rows(&stolen, &kernel, 10, &budget).unwrap();
        let row = |address, samples, owner_stolen, owners, tid| LockRow {
            kind: WaitKind::Mutex,
            address,
            variable: (address == 0x40).then(|| "tasklist_\u{fffd}lock+0x8".to_owned()),
            samples,
            owner_stolen,
            owners,
            owner: (tid != 0).then(|| LockThread {
                pid: 7,
                tid,
                name: "a?b".to_owned(),
            }),
        };
        assert_eq!(rows, [row(0x40, 4, 1, 2, 71), row(0x80, 1, 0, 0, 0)]);
        let json = serde_json::to_value(&rows[0]).unwrap();
        assert_eq!(json["address"], "0x0000000000000040");
    }
}
