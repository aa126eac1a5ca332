//! Counts of the ticks without records of their own.

use kvmprof_abi::pcs::{Format, MERGE_TICKS, Msample, Record, kind};

use super::buffers::Buffers;
use kvmprof_recording::Mode;

/// The types of merged records, in the order of output.
const KINDS: [u8; 4] = [kind::IDLE, kind::MKERNEL, kind::MKERNELI, kind::MUSER];

/// The merged counts of a guest: one set per vCPU, or one for all in the classic format.
#[derive(Debug)]
pub(super) struct Merges {
    sets: Vec<Counts>,
}

/// Counts that are output together.
#[derive(Debug)]
struct Counts {
    cpu: u16,
    /// Ticks between two outputs.
    period: u64,
    /// Ticks since the last output; below `period`.
    phase: u64,
    /// In the order of [`KINDS`].
    counts: [u64; KINDS.len()],
}

impl Merges {
    pub(super) fn new(format: Format, vcpus: u16) -> Self {
        let sets = match format {
            Format::Native => (0..vcpus.max(1))
                .map(|cpu| Counts::new(cpu, MERGE_TICKS))
                .collect(),
            Format::Classic => vec![Counts::new(0, MERGE_TICKS * u64::from(vcpus.max(1)))],
        };
        Self { sets }
    }

    /// Counts one tick. [`Merges::pass`] advances the time.
    pub(super) fn count(&mut self, vcpu: u16, mode: Mode) {
        if let Some(set) = self.set(vcpu) {
            set.add(mode, 1);
        }
    }

    /// Advances by `ticks`, which are counted separately.
    pub(super) fn pass(&mut self, vcpu: u16, ticks: u64, buffers: &mut Buffers) {
        if let Some(set) = self.set(vcpu)
            && set.advance(ticks)
        {
            set.flush(buffers);
        }
    }

    /// Counts idle ticks and advances by them. Outputs at most as many records as there is room for.
    pub(super) fn idle(&mut self, vcpu: u16, mut ticks: u64, buffers: &mut Buffers) {
        let Some(set) = self.set(vcpu) else {
            return;
        };
        while ticks > 0 && buffers.has_room() {
            let step = ticks.min(set.period - set.phase);
            set.add(Mode::Idle, step);
            if set.advance(step) {
                set.flush(buffers);
            }
            ticks -= step;
        }
        set.add(Mode::Idle, ticks);
        set.advance(ticks);
    }

    /// Outputs all counts early; false if there wasn't room for all.
    pub(super) fn flush(&mut self, buffers: &mut Buffers) -> bool {
        self.sets.iter_mut().all(|set| set.flush(buffers))
    }

    /// True when every count is zero.
    pub(super) fn is_empty(&self) -> bool {
        self.sets.iter().all(|set| set.counts == [0; KINDS.len()])
    }

    /// The counts for ticks of `vcpu`. An unknown vCPU counts as the last.
    fn set(&mut self, vcpu: u16) -> Option<&mut Counts> {
        let last = self.sets.len().checked_sub(1)?;
        self.sets.get_mut(usize::from(vcpu).min(last))
    }
}

impl Counts {
    fn new(cpu: u16, period: u64) -> Self {
        Self {
            cpu,
            period,
            phase: 0,
            counts: [0; KINDS.len()],
        }
    }

    fn add(&mut self, mode: Mode, ticks: u64) {
        let [idle, kernel, interrupt, user] = &mut self.counts;
        *match mode {
            Mode::Idle => idle,
            Mode::Kernel => kernel,
            Mode::Interrupt => interrupt,
            Mode::User => user,
        } += ticks;
    }

    /// Advances by `ticks`; true if the counts are due.
    fn advance(&mut self, ticks: u64) -> bool {
        let due = ticks >= self.period - self.phase;
        // Each is reduced first, so that the sum can't overflow.
        self.phase = (self.phase + ticks % self.period) % self.period;
        due
    }

    fn flush(&mut self, buffers: &mut Buffers) -> bool {
        let most = buffers.format().max_merged();
        for (kind, left) in KINDS.into_iter().zip(&mut self.counts) {
            while *left > 0 {
                let count = u32::try_from(*left).unwrap_or(u32::MAX).min(most);
                let cpu = self.cpu;
                if !buffers.put(&Record::Merged(Msample { kind, cpu, count })) {
                    return false;
                }
                *left -= u64::from(count);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(buffers: &mut Buffers) -> Vec<Msample> {
        buffers.seal();
        let mut out = Vec::new();
        while buffers.read_first(usize::MAX, &mut out).bytes > 0 {}
        let format = buffers.format();
        let records = out
            .chunks_exact(1024)
            .flat_map(|block| block[format.header_size()..].chunks_exact(format.record_size()));
        let decoded = records.filter_map(|bytes| match Record::decode(format, bytes) {
            Some(Record::Merged(merged)) => Some(merged),
            _ => None,
        });
        decoded.collect()
    }

    #[test]
    fn a_long_idle_time_takes_bounded_memory_and_loses_nothing() {
        let mut merges = Merges::new(Format::Native, 1);
        let mut buffers = Buffers::default();
        merges.idle(0, 1 << 60, &mut buffers);
        assert!(!buffers.has_room());
        let first = read_all(&mut buffers);
        assert_eq!(first.len(), 3 * 63);
        assert!(first.iter().all(|record| record.count == 100));
        // The accumulated count needs more records than fit at a time: each holds at most 2^31 - 1.
        let mut total: u64 = first.iter().map(|record| u64::from(record.count)).sum();
        for _ in 0..4 {
            assert!(!merges.flush(&mut buffers));
            let records = read_all(&mut buffers);
            assert!(records.iter().all(|record| record.count == 0x7fff_ffff));
            total += records
                .iter()
                .map(|record| u64::from(record.count))
                .sum::<u64>();
        }
        assert_eq!(total + merges.sets[0].counts[0], 1 << 60);
    }

    #[test]
    fn the_largest_advance_keeps_the_phase() {
        let mut counts = Counts::new(0, 100);
        assert!(!counts.advance(99));
        assert!(counts.advance(u64::MAX));
        assert_eq!(counts.phase, (99 + u64::MAX % 100) % 100);
    }
}
