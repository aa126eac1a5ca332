//! What delays a guest, as far as samples show: stretches with interrupts off or preemption off, waits for locks and for other vCPUs, and time
//! during which the host ran something else.

mod locks;
mod print;
mod running;
mod stolen;
mod stretch;
mod stretches;
mod waits;

use std::sync::Arc;

use kvmprof_recording::Preemption;
use kvmprof_recording::file::RecordingInfo;
use serde::Serialize;

use crate::budget::{OutputBudget, TooMuch};
use crate::profile::{Profile, Selected, Selection, Watcher, Weight};
use crate::symbolize::{Resolver, Symbols};

pub use locks::{LockRow, LockThread};
pub use print::print;
pub use running::Running;
pub use stolen::StolenRow;
pub use stretch::StretchRow;
pub use waits::{WaitKind, WaitRow};

use locks::Locks;
use running::Names;
use stolen::StolenTicks;
use stretches::{Stretches, Switch, Times};
use waits::Waits;

/// Collects the data of [`Stalls`] while a recording is summed up. Its memory is bounded for any recording.
#[derive(Debug, Default)]
pub struct StallWatcher {
    kernel: Arc<Symbols>,
    stretches: Stretches,
    unpreempted: Stretches,
    preemption_known: u64,
    waits: Waits,
    locks: Locks,
    stolen: StolenTicks,
}

impl Watcher for StallWatcher {
    fn begin(
        &mut self,
        _: usize,
        info: &RecordingInfo,
        selection: &Selection,
        resolver: &Resolver,
    ) {
        let began = info.began_monotonic_ns;
        let times = Times {
            began,
            selected: selection.time.begin_in(began),
            period: Weight::of_tick(info).interval_ns(),
        };
        *self = Self {
            kernel: Arc::clone(&resolver.tables().kernel),
            stretches: Stretches::new(Switch::Interrupts, times),
            unpreempted: Stretches::new(Switch::Preemption, times),
            stolen: StolenTicks::new(times.selected),
            ..Self::default()
        };
    }

    fn take(&mut self, selected: &Selected) {
        self.stretches.take(selected);
        self.unpreempted.take(selected);
        self.stolen.take(selected);
        if let Some(sample) = &selected.sample {
            self.preemption_known += u64::from(sample.preemption != Preemption::Unknown);
            if let Some(kind) = self.waits.take(sample, selected.stack, &self.kernel) {
                self.locks.take(kind, sample);
            }
        }
    }
}

/// What delayed a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stalls {
    /// Whether any of the recordings says when interrupts were off. Those whose samples the host's kernel took don't.
    pub interrupts_known: bool,
    /// The longest stretches of samples with interrupts off, the longest first.
    pub interrupts_off: Vec<StretchRow>,
    /// The number of all stretches with interrupts off, also of those that are left out.
    pub stretches: u64,
    /// The number of samples with interrupts off, without those of halted vCPUs.
    pub samples_with_interrupts_off: u64,
    /// The longest stretches of samples with preemption off, the longest first.
    pub preemption_off: Vec<StretchRow>,
    /// The number of all stretches with preemption off, also of those that are left out.
    pub preemption_stretches: u64,
    /// The number of samples with preemption off, without those of halted vCPUs.
    pub samples_with_preemption_off: u64,
    /// The number of samples that say whether preemption was off. It is 0 if the guest's kernel has no preempt count.
    pub preemption_known: u64,
    /// The locks that samples waited for, with their owners, the most samples first.
    pub locks: Vec<LockRow>,
    /// The number of samples whose locks are left out because there were too many different ones.
    pub locks_left_out: u64,
    /// Samples in functions of the kernel that wait for a lock or for other vCPUs, the most samples first.
    pub waits: Vec<WaitRow>,
    /// The number of waiting samples that were not compared with stolen ticks of other vCPUs, because there were too many.
    pub waits_not_compared: u64,
    /// Ticks at which the host ran something else, by what the vCPU ran at its last sample.
    pub stolen: Vec<StolenRow>,
}

impl Stalls {
    /// The first `top` rows of each table, from what `watcher` has collected while `profile` was summed up.
    ///
    /// # Errors
    /// They don't fit into `budget`.
    pub fn new(
        profile: &Profile,
        watcher: StallWatcher,
        top: usize,
        budget: &OutputBudget,
    ) -> Result<Self, TooMuch> {
        let names = Names::new(profile);
        let StallWatcher {
            kernel,
            stretches,
            unpreempted,
            preemption_known,
            waits,
            locks,
            stolen,
            ..
        } = watcher;
        let (samples_with_preemption_off, preemption_stretches, preemption_off) =
            unpreempted.rows(&names, top, budget)?;
        let (samples_with_interrupts_off, stretches, interrupts_off) =
            stretches.rows(&names, top, budget)?;
        let mut recordings = profile.recordings();
        Ok(Self {
            interrupts_known: recordings.any(|one| one.contents.info.knows_interrupts()),
            interrupts_off,
            stretches,
            samples_with_interrupts_off,
            preemption_off,
            preemption_stretches,
            samples_with_preemption_off,
            preemption_known,
            locks_left_out: locks.left_out(),
            locks: locks.rows(&stolen, &kernel, top, budget)?,
            waits_not_compared: waits.not_compared(),
            waits: waits.rows(&stolen, &names, top, budget)?,
            stolen: stolen.rows(&names, top, budget)?,
        })
    }
}
