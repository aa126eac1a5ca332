//! Blocks of times. Each has the times of the ticks in the next block of samples, so that a reader of another time can skip that block.

use std::collections::BTreeMap;

use crate::{Sample, Ticks};

use super::varint::{Numbers, push};

/// Maximum number of vCPUs in a block, each of which is there once.
const MAX_VCPUS: usize = 1 << 16;
/// The byte of a vCPU that has no sample in the block, and of one that has.
const NO_SAMPLE: u8 = 0;
const SAMPLED: u8 = 1;

/// The times of the ticks of one block of samples, by vCPU. Ticks without a sample have no time of their own: they follow the vCPU's last tick
/// before them at distances of the period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockTimes {
    /// The vCPUs in the order of their numbers, each at most once.
    pub vcpus: Vec<VcpuTimes>,
}

/// The times of the ticks of one vCPU in a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VcpuTimes {
    /// The vCPU.
    pub vcpu: u16,
    /// The number of ticks without a sample, of all kinds.
    pub missed: u64,
    /// The number of these that come after the vCPU's last sample in the block; all of them if there is none.
    pub missed_last: u64,
    /// The times of its samples.
    pub samples: Option<SampleTimes>,
}

/// The times of the samples of one vCPU in a block, in ns of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleTimes {
    /// The earliest time.
    pub earliest: u64,
    /// The latest time.
    pub latest: u64,
    /// The time of the last sample in the block: the latest, unless the block isn't in the order of time.
    pub last: u64,
}

impl VcpuTimes {
    fn miss(&mut self, ticks: u64) {
        self.missed = self.missed.saturating_add(ticks);
        self.missed_last = self.missed_last.saturating_add(ticks);
    }

    fn see(&mut self, time: u64) {
        self.missed_last = 0;
        let samples = self.samples.get_or_insert(SampleTimes {
            earliest: time,
            latest: time,
            last: time,
        });
        samples.earliest = samples.earliest.min(time);
        samples.latest = samples.latest.max(time);
        samples.last = time;
    }
}

/// Makes the block of times of a block of samples.
#[derive(Debug, Default)]
pub struct TimesEncoder(BTreeMap<u16, VcpuTimes>);

impl TimesEncoder {
    /// Adds `ticks`, in the order of the block of samples.
    pub fn push(&mut self, ticks: &Ticks) {
        let missed = [ticks.ungathered, ticks.idle, ticks.stolen, ticks.lost];
        let missed = missed.into_iter().fold(0, u64::saturating_add);
        if missed > 0 {
            self.of(ticks.vcpu).miss(missed);
        }
        if let Some(Sample { vcpu, time, .. }) = ticks.sample {
            self.of(vcpu).see(time);
        }
    }

    fn of(&mut self, vcpu: u16) -> &mut VcpuTimes {
        self.0.entry(vcpu).or_insert(VcpuTimes {
            vcpu,
            ..VcpuTimes::default()
        })
    }

    /// Takes the block; empty without ticks. Later ticks go into the next one.
    pub fn take(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for times in std::mem::take(&mut self.0).into_values() {
            push(&mut bytes, times.vcpu.into());
            push(&mut bytes, times.missed);
            push(&mut bytes, times.missed_last);
            let Some(samples) = times.samples else {
                bytes.push(NO_SAMPLE);
                continue;
            };
            bytes.push(SAMPLED);
            push(&mut bytes, samples.earliest);
            push(&mut bytes, samples.latest - samples.earliest);
            push(&mut bytes, samples.latest - samples.last);
        }
        bytes
    }
}

/// Reads a block. `None` when it is invalid.
pub fn decode(bytes: &[u8]) -> Option<BlockTimes> {
    let mut numbers = Numbers(bytes);
    let mut vcpus: Vec<VcpuTimes> = Vec::new();
    while !numbers.is_empty() {
        let vcpu = numbers.next_as()?;
        let is_next = vcpus.last().is_none_or(|last| last.vcpu < vcpu);
        if !is_next || vcpus.len() == MAX_VCPUS {
            return None;
        }
        let (missed, missed_last) = (numbers.next()?, numbers.next()?);
        let samples = match numbers.byte()? {
            NO_SAMPLE => None,
            SAMPLED => {
                let earliest = numbers.next()?;
                let latest = earliest.checked_add(numbers.next()?)?;
                let last = latest.checked_sub(numbers.next()?)?;
                Some(SampleTimes {
                    earliest,
                    latest,
                    last,
                })
            }
            _ => return None,
        };
        vcpus.push(VcpuTimes {
            vcpu,
            missed,
            missed_last,
            samples,
        });
    }
    Some(BlockTimes { vcpus })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_follow_from_the_ticks() {
        let sampled = |lost, time| Ticks {
            lost,
            ..Ticks::from(Sample {
                vcpu: 1,
                time,
                ..Sample::default()
            })
        };
        let idle = |vcpu, idle| Ticks {
            vcpu,
            idle,
            ..Ticks::default()
        };
        let mut encoder = TimesEncoder::default();
        for ticks in [
            sampled(2, 500),
            sampled(0, 900),
            sampled(1, 700),
            idle(1, 4),
            idle(0, 9),
        ] {
            encoder.push(&ticks);
        }
        let times = decode(&encoder.take()).unwrap();
        let first = VcpuTimes {
            vcpu: 0,
            missed: 9,
            missed_last: 9,
            samples: None,
        };
        let second = VcpuTimes {
            vcpu: 1,
            missed: 7,
            missed_last: 4,
            samples: Some(SampleTimes {
                earliest: 500,
                latest: 900,
                last: 700,
            }),
        };
        assert_eq!(times.vcpus, [first, second]);
        assert!(encoder.take().is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(times) = decode(&bytes) {
                prop_assert!(times.vcpus.is_sorted_by(|one, next| one.vcpu < next.vcpu));
            }
        }
    }
}
