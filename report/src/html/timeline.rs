//! Counts of ticks in bins of time.

use std::collections::BTreeMap;

use kvmprof_recording::{IDLE_PID, Mode, Ticks};

use crate::profile::{Profile, Selection, Selector};
use kvmprof_recording::file::{FileError, Recording};

/// Maximum number of bins.
pub const BINS: usize = 480;
/// Minimum width of a bin, in ns; it is doubled until the whole time fits.
const LEAST_WIDTH: u64 = 1_000_000;
/// Minimum number of a vCPU's ticks in a bin: fewer would look like noise.
const LEAST_TICKS: u64 = 5;
/// Maximum number of vCPUs that are shown.
const MAX_VCPUS: usize = 64;
/// Maximum number of processes that are shown.
const MAX_PROCESSES: usize = 12;

/// Ticks of a bin, by kind.
pub type Bin = [u64; 7];

/// The kinds: the modes, ticks without a sample, and ticks of processes that weren't selected.
pub(super) const IDLE_TICKS: usize = Mode::Idle.index();
const STOLEN: usize = 4;
const LOST: usize = 5;
const OTHERS: usize = 6;

/// Counts over time, up to the last bin with ticks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lane {
    /// The bins, [`BINS`] of them or none.
    pub bins: Vec<Bin>,
}

impl Lane {
    fn add(&mut self, bin: usize, kind: usize, count: u64) {
        if self.bins.is_empty() {
            self.bins = vec![Bin::default(); BINS];
        }
        if let Some(bin) = self.bins.get_mut(bin) {
            bin[kind] = bin[kind].saturating_add(count);
        }
    }

    /// Merges every two bins.
    fn halve(&mut self) {
        for index in 0..self.bins.len() {
            let sum = |kind: usize| {
                let part = |bin: usize| self.bins.get(bin).map_or(0, |bin| bin[kind]);
                part(2 * index).saturating_add(part(2 * index + 1))
            };
            self.bins[index] = std::array::from_fn(sum);
        }
    }
}

/// A vCPU's ticks without a known time.
#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    since: u64,
    counts: [u64; 4],
}

/// The activity of each vCPU and of the busiest processes over time.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// The width of a bin, in ns.
    pub width: u64,
    /// The length of the recording, in ns.
    pub length: u64,
    /// The vCPUs, by number.
    pub vcpus: BTreeMap<u16, Lane>,
    /// Whether some vCPUs aren't shown.
    pub has_more_vcpus: bool,
    /// The processes with the most time in this recording, by pid, the busiest first; without idle.
    pub processes: Vec<(i32, Lane)>,
    start: u64,
    selection: Selection,
    waiting: BTreeMap<u16, Waiting>,
}

impl Timeline {
    /// Reads the selection of `profile` from `recording`. `profile` is the recording's sum.
    ///
    /// # Errors
    /// As [`Recording::read`].
    pub fn new(recording: &Recording, profile: &Profile) -> Result<Self, FileError> {
        let mut timeline = Self::empty(profile);
        let mut selector = Selector::new(&profile.contents.info, profile.selection.time);
        recording.read(|ticks, _| timeline.add(&selector.select(ticks).0))?;
        timeline.finish(profile);
        Ok(timeline)
    }

    fn empty(profile: &Profile) -> Self {
        let begin = profile.selection.time.begin.unwrap_or_default();
        let begin = u64::try_from(begin.as_nanos()).unwrap_or(u64::MAX);
        let mut busiest: Vec<(u64, i32)> = profile
            .processes
            .iter()
            .filter(|(pid, _)| **pid != IDLE_PID)
            .map(|(pid, process)| (u64::MAX - process.samples(), *pid))
            .collect();
        busiest.sort_unstable();
        busiest.truncate(MAX_PROCESSES);
        let hz = profile.contents.info.hz.into();
        let width = (LEAST_TICKS * 1_000_000_000).checked_div(hz);
        Self {
            width: width.unwrap_or_default().max(LEAST_WIDTH),
            processes: busiest
                .into_iter()
                .map(|(_, pid)| (pid, Lane::default()))
                .collect(),
            start: (profile.contents.info.began_monotonic_ns).saturating_add(begin),
            selection: profile.selection.clone(),
            ..Self::default()
        }
    }

    fn wants(&self, pid: i32) -> bool {
        self.selection.wants(pid)
    }

    fn add(&mut self, ticks: &Ticks) {
        if !self.has_room(ticks.vcpu) {
            self.has_more_vcpus = true;
            return;
        }
        let waiting = self.waiting.entry(ticks.vcpu).or_default();
        for (sum, count) in
            waiting
                .counts
                .iter_mut()
                .zip([ticks.idle, ticks.stolen, ticks.lost, ticks.ungathered])
        {
            *sum = sum.saturating_add(count);
        }
        let Some(sample) = &ticks.sample else {
            return;
        };
        let time = sample.time.saturating_sub(self.start);
        self.reach(time);
        self.spread(ticks.vcpu, time);
        let mode = sample.mode.index();
        let kind = if self.wants(sample.pid) { mode } else { OTHERS };
        let bin = self.bin(time);
        self.lane(ticks.vcpu).add(bin, kind, 1);
        let processes = &mut self.processes;
        if let Some((_, lane)) = processes.iter_mut().find(|(pid, _)| *pid == sample.pid) {
            lane.add(bin, mode, 1);
        }
    }

    fn has_room(&self, vcpu: u16) -> bool {
        self.waiting.len() < MAX_VCPUS || self.waiting.contains_key(&vcpu)
    }

    fn lane(&mut self, vcpu: u16) -> &mut Lane {
        self.vcpus.entry(vcpu).or_default()
    }

    fn bin(&self, time: u64) -> usize {
        usize::try_from(time / self.width.max(1)).unwrap_or(BINS)
    }

    /// Widens the bins until `time` is in one of them.
    fn reach(&mut self, time: u64) {
        self.length = self.length.max(time);
        while self.bin(time) >= BINS {
            self.width = self.width.saturating_mul(2);
            let processes = self.processes.iter_mut().map(|(_, lane)| lane);
            self.vcpus
                .values_mut()
                .chain(processes)
                .for_each(Lane::halve);
        }
    }

    /// Distributes the waiting ticks of `vcpu` over the time from its last sample to `time`.
    fn spread(&mut self, vcpu: u16, time: u64) {
        let waiting = self.waiting.entry(vcpu).or_default();
        let Waiting { since, counts } = *waiting;
        *waiting = Waiting {
            since: time,
            counts: [0; 4],
        };
        let (first, last) = (self.bin(since.min(time)), self.bin(time));
        let bins = (last - first + 1) as u64;
        let idle = if self.wants(IDLE_PID) {
            IDLE_TICKS
        } else {
            OTHERS
        };
        for (kind, count) in [idle, STOLEN, LOST, OTHERS].into_iter().zip(counts) {
            if count == 0 {
                continue;
            }
            for (index, bin) in (0_u64..).zip(first..=last) {
                self.lane(vcpu).add(bin, kind, portion(count, index, bins));
            }
        }
    }

    /// Distributes the ticks after the last samples. The recording's length is given by its last sample, or by the
    /// clock's ticks if they went on.
    fn finish(&mut self, profile: &Profile) {
        let info = &profile.contents.info;
        let rate = u64::from(info.hz).saturating_mul(info.vcpus.into());
        let ticks = u128::from(profile.contents.account.ticks);
        if let Some(length) = (ticks * 1_000_000_000).checked_div(rate.into()) {
            self.reach(u64::try_from(length).unwrap_or(self.length));
        }
        let vcpus: Vec<u16> = self.waiting.keys().copied().collect();
        for vcpu in vcpus {
            self.spread(vcpu, self.length);
        }
    }

    /// The number of bins within the recording.
    pub fn used(&self) -> usize {
        (self.bin(self.length) + 1).min(BINS)
    }
}

/// Part `index` of `count`, divided into `parts` that differ by one at most.
fn portion(count: u64, index: u64, parts: u64) -> u64 {
    let until = |index: u64| u128::from(count) * u128::from(index) / u128::from(parts.max(1));
    u64::try_from(until(index + 1) - until(index)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use kvmprof_recording::Sample;

    use super::*;
    use kvmprof_recording::file::RecordingInfo;

    fn sample(vcpu: u16, time: u64, pid: i32, mode: Mode) -> Ticks {
        Ticks {
            vcpu,
            sample: Some(Sample {
                vcpu,
                time,
                pid,
                mode,
                ..Sample::default()
            }),
            ..Ticks::default()
        }
    }

    fn profile() -> Profile {
        let mut profile = Profile::default();
        profile.contents.info = RecordingInfo {
            began_monotonic_ns: 1_000_000_000,
            ..RecordingInfo::default()
        };
        profile.processes.entry(7).or_default().modes[0] = 2;
        profile.processes.entry(0).or_default().modes[3] = 9;
        profile
    }

    fn sum(lane: &Lane) -> Bin {
        std::array::from_fn(|kind| {
            let bins = lane.bins.iter();
            bins.fold(0_u64, |sum, bin| sum.saturating_add(bin[kind]))
        })
    }

    #[test]
    fn bins_widen_until_all_time_fits_and_nothing_is_lost() {
        let profile = profile();
        let mut timeline = Timeline::empty(&profile);
        for second in 1..=60 {
            timeline.add(&sample(1, second * 1_000_000_000, 7, Mode::User));
        }
        timeline.finish(&profile);
        assert_eq!(timeline.length, 59_000_000_000);
        assert_eq!(timeline.width, 128_000_000);
        assert_eq!(timeline.used(), 461);
        assert_eq!(sum(&timeline.vcpus[&1]), [60, 0, 0, 0, 0, 0, 0]);
        assert_eq!(timeline.vcpus[&1].bins[460][0], 1);
        assert_eq!(timeline.processes.len(), 1);
        assert_eq!(sum(&timeline.processes[0].1)[0], 60);
    }

    #[test]
    fn ticks_without_a_sample_lie_between_samples() {
        let profile = profile();
        let mut timeline = Timeline::empty(&profile);
        timeline.add(&sample(0, 1_010_000_000, 7, Mode::Kernel));
        timeline.add(&Ticks {
            idle: 10,
            lost: 1,
            ..Ticks::default()
        });
        timeline.add(&sample(0, 1_019_500_000, 7, Mode::Kernel));
        timeline.finish(&profile);
        let bins = &timeline.vcpus[&0].bins;
        assert!(bins[..10].iter().all(|bin| *bin == Bin::default()));
        assert!(bins[10..20].iter().all(|bin| bin[IDLE_TICKS] == 1));
        assert_eq!(sum(&timeline.vcpus[&0]), [0, 2, 0, 10, 0, 1, 0]);
    }

    #[test]
    fn absurd_times_and_vcpus_are_borne() {
        let mut profile = profile();
        profile.selection = Selection::from_pids(&[3]);
        let mut timeline = Timeline::empty(&profile);
        timeline.add(&sample(0, 0, 7, Mode::User));
        timeline.add(&sample(0, u64::MAX, 7, Mode::User));
        timeline.add(&Ticks {
            idle: u64::MAX,
            stolen: u64::MAX,
            ..Ticks::default()
        });
        timeline.add(&sample(0, 5, 7, Mode::User));
        for vcpu in 0..1000 {
            timeline.add(&sample(vcpu, 5, 7, Mode::User));
        }
        timeline.finish(&profile);
        assert_eq!(timeline.vcpus.len(), MAX_VCPUS);
        assert!(timeline.has_more_vcpus);
        assert_eq!(sum(&timeline.vcpus[&0])[STOLEN], u64::MAX);
        assert_eq!(sum(&timeline.vcpus[&1]), [0, 0, 0, 0, 0, 0, 1]);
    }
}
