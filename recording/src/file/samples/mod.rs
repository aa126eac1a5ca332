//! Blocks of samples. Each stands for itself: what its samples refer to is in the same block.

mod read;

use std::collections::HashMap;

use crate::{COMM_LENGTH, DEFAULT_STACK_FRAMES, Sample, StackSummary, Ticks};

use super::details::DetailsEncoder;
use super::times::TimesEncoder;
use super::varint::{push, push_comm, push_frames, push_signed};
use super::{Block, Kind};

pub use read::{BlockNumbers, DecodedBlock, decode, decode_with};

/// The size at which a block is full, in bytes: some thousand samples.
const FULL: usize = 64 << 10;

/// The records of a block, by their first byte.
mod record {
    /// Ticks without a sample: vCPU, idle, stolen, lost.
    pub const GAP: u8 = 0;
    /// The next thread: pid, tid, address space, length of its name, its name.
    pub const THREAD: u8 = 1;
    /// The next stack: frames in the kernel, in user mode, how each part ends, and the frames, each by its
    /// distance from the one before.
    pub const STACK: u8 = 2;
    /// A sample: vCPU, time since the last one, mode, CPL, IPL, thread, stack, distance of the program counter from
    /// the stack's first frame.
    pub const SAMPLE: u8 = 3;
    /// Ticks of processes that weren't asked for: vCPU, how many.
    pub const UNGATHERED: u8 = 4;
    /// The next stack, as [`STACK`], with the number of the host's frames before them.
    pub const STACK_WITH_HOST: u8 = 5;
    /// The next stack, of more than [`DEFAULT_STACK_FRAMES`](crate::DEFAULT_STACK_FRAMES) frames: frames in the kernel, in user mode, of the
    /// host, how each part ends, and the frames.
    pub const DEEP_STACK: u8 = 6;
}

/// One block of samples, still unpacked, and the ticks that it accounts for.
#[derive(Clone, Debug, Default)]
pub struct SampleBlock {
    /// The records.
    pub bytes: Vec<u8>,
    /// Details of some of its samples, as a block of its own that precedes it; empty if there are none.
    pub details: Vec<u8>,
    /// The times of its ticks, as a block of its own that precedes both.
    pub times: Vec<u8>,
    /// The number of samples.
    pub samples: u64,
    /// The number of idle ticks.
    pub idle: u64,
    /// The number of stolen ticks.
    pub stolen: u64,
    /// The number of lost ticks.
    pub lost: u64,
    /// The number of ticks of processes that weren't requested.
    pub ungathered: u64,
}

impl SampleBlock {
    /// The blocks of its times and of its details, if it has any, and the block itself. `None` when one would be too long.
    pub fn to_blocks(&self) -> Option<Vec<u8>> {
        let mut bytes = Block::encode(Kind::Times, &self.times)?;
        if !self.details.is_empty() {
            bytes.extend(Block::encode(Kind::Details, &self.details)?);
        }
        bytes.extend(Block::encode(Kind::Samples, &self.bytes)?);
        Some(bytes)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Thread {
    pid: i32,
    tid: i32,
    address_space: u64,
    comm: [u8; COMM_LENGTH],
}

/// Puts samples into blocks.
#[derive(Debug, Default)]
pub struct SamplesEncoder {
    block: SampleBlock,
    details: DetailsEncoder,
    times: TimesEncoder,
    threads: HashMap<Thread, u64>,
    stacks: HashMap<Vec<u64>, u64>,
    // A stack's summary and frames, by which it is looked up.
    key: Vec<u64>,
    time: u64,
}

impl SamplesEncoder {
    /// Adds `ticks`, and the frames of their sample's stack.
    pub fn push(&mut self, ticks: &Ticks, frames: &[u64]) {
        self.times.push(ticks);
        let bytes = &mut self.block.bytes;
        if ticks.ungathered > 0 {
            bytes.push(record::UNGATHERED);
            push(bytes, ticks.vcpu.into());
            push(bytes, ticks.ungathered);
            self.block.ungathered += ticks.ungathered;
        }
        if ticks.idle + ticks.stolen + ticks.lost > 0 {
            bytes.push(record::GAP);
            push(bytes, ticks.vcpu.into());
            for count in [ticks.idle, ticks.stolen, ticks.lost] {
                push(bytes, count);
            }
            self.block.idle += ticks.idle;
            self.block.stolen += ticks.stolen;
            self.block.lost += ticks.lost;
        }
        if let Some(sample) = &ticks.sample {
            self.push_sample(sample, frames);
        }
    }

    fn push_sample(&mut self, sample: &Sample, frames: &[u64]) {
        let thread = self.thread(sample);
        // A reader takes the number of frames from the summary.
        let (summary, frames) = if frames.len() == sample.stack.frames() {
            (sample.stack, frames)
        } else {
            (sample.stack.dropped(), [].as_slice())
        };
        let stack = self.stack(summary, frames);
        let first = frames.first().copied().unwrap_or_default();
        let bytes = &mut self.block.bytes;
        bytes.push(record::SAMPLE);
        push(bytes, sample.vcpu.into());
        push_signed(bytes, sample.time.wrapping_sub(self.time).cast_signed());
        bytes.extend([sample.mode as u8, sample.cpl, sample.ipl]);
        push(bytes, thread);
        push(bytes, stack);
        push_signed(bytes, sample.pc.wrapping_sub(first).cast_signed());
        self.time = sample.time;
        self.details.push(self.block.samples, sample);
        self.block.samples += 1;
    }

    fn thread(&mut self, sample: &Sample) -> u64 {
        let thread = Thread {
            pid: sample.pid,
            tid: sample.tid,
            address_space: sample.address_space,
            comm: sample.comm,
        };
        let next = self.threads.len() as u64;
        *self.threads.entry(thread).or_insert_with(|| {
            let bytes = &mut self.block.bytes;
            bytes.push(record::THREAD);
            push_signed(bytes, thread.pid.into());
            push_signed(bytes, thread.tid.into());
            push(bytes, thread.address_space);
            push_comm(bytes, &thread.comm);
            next
        })
    }

    fn stack(&mut self, summary: StackSummary, frames: &[u64]) -> u64 {
        let counts = [summary.kernel, summary.user, summary.host];
        let ends = [summary.kernel_end as u8, summary.user_end as u8];
        self.key.clear();
        let head = u64::from(u16::from_le_bytes(ends));
        let head = (counts.iter()).fold(head, |head, count| head << 16 | u64::from(*count));
        self.key.push(head);
        self.key.extend(frames);
        if let Some(index) = self.stacks.get(&self.key) {
            return *index;
        }
        let bytes = &mut self.block.bytes;
        match counts.map(u8::try_from) {
            [Ok(kernel), Ok(user), Ok(host)] if frames.len() <= DEFAULT_STACK_FRAMES => {
                bytes.push(if host == 0 {
                    record::STACK
                } else {
                    record::STACK_WITH_HOST
                });
                bytes.extend([kernel, user]);
                bytes.extend(ends);
                bytes.extend((host > 0).then_some(host));
            }
            _ => {
                bytes.push(record::DEEP_STACK);
                for count in counts {
                    push(bytes, count.into());
                }
                bytes.extend(ends);
            }
        }
        push_frames(bytes, frames);
        let index = self.stacks.len() as u64;
        self.stacks.insert(self.key.clone(), index);
        index
    }

    /// True when the block should be taken.
    pub fn is_full(&self) -> bool {
        self.block.bytes.len() >= FULL
    }

    /// True when there is nothing to take.
    pub fn is_empty(&self) -> bool {
        self.block.bytes.is_empty()
    }

    /// Takes the block. Later ticks go into the next one.
    pub fn take(&mut self) -> SampleBlock {
        self.threads.clear();
        self.stacks.clear();
        self.time = 0;
        self.block.details = self.details.take();
        self.block.times = self.times.take();
        std::mem::take(&mut self.block)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::read::{end, mode};
    use super::*;
    use crate::{MAX_STACK_FRAMES, StackEnd, comm_of};

    /// Stacks of usual depth, and some that need their own record.
    fn frames() -> impl Strategy<Value = Vec<u64>> {
        prop_oneof![
            8 => prop::collection::vec(any::<u64>(), 0..8),
            1 => prop::collection::vec(any::<u64>(), 120..=MAX_STACK_FRAMES),
        ]
    }

    fn ticks() -> impl Strategy<Value = (Ticks, Vec<u64>)> {
        let numbers = any::<(u64, u64, i32, i32, u64)>();
        let sample = (numbers, 0..4_u8, 0..6_u8, frames(), 0..9_usize).prop_map(
            |((time, pc, pid, tid, address_space), mode_of, end_of, frames, name)| {
                let kernel = frames.len() / 2;
                let host = (frames.len() - kernel) / 3;
                let [kernel, user, host] = [kernel, frames.len() - kernel - host, host]
                    .map(|frames| u16::try_from(frames).unwrap());
                let sample = Sample {
                    time,
                    pc,
                    pid,
                    tid,
                    address_space,
                    comm: comm_of(&"n".repeat(name)),
                    process_group: -1,
                    vcpu: 3,
                    cpl: 3,
                    ipl: 7,
                    mode: mode(mode_of).unwrap(),
                    stack: StackSummary {
                        kernel,
                        user,
                        host,
                        kernel_end: end(end_of).unwrap(),
                        user_end: StackEnd::Complete,
                    },
                    ..Sample::default()
                };
                (sample, frames)
            },
        );
        (any::<[u32; 4]>(), prop::option::of(sample)).prop_map(|(gap, sample)| {
            let [idle, stolen, lost, ungathered] = gap.map(u64::from);
            let (sample, frames) = sample.unzip();
            let ticks = Ticks {
                vcpu: 3,
                idle,
                stolen,
                lost,
                ungathered,
                sample,
            };
            (ticks, frames.unwrap_or_default())
        })
    }

    proptest! {
        #[test]
        fn samples_round_trip(all in prop::collection::vec(ticks(), 0..40)) {
            let mut encoder = SamplesEncoder::default();
            for (ticks, frames) in &all {
                encoder.push(ticks, frames);
            }
            let block = encoder.take();
            let (mut samples, mut gaps) = (Vec::new(), [0; 4]);
            decode(&block.bytes, |ticks, frames| {
                samples.extend(ticks.sample.map(|sample| (sample, frames.to_vec())));
                for (sum, count) in gaps.iter_mut().zip([ticks.idle, ticks.stolen, ticks.lost, ticks.ungathered]) {
                    *sum += count;
                }
            }).unwrap();
            let expected: Vec<_> = all.iter().filter_map(|(ticks, frames)| Some((ticks.sample?, frames.clone()))).collect();
            prop_assert_eq!(samples.len() as u64, block.samples);
            prop_assert_eq!(samples, expected);
            let sum = |part: fn(&Ticks) -> u64| all.iter().map(|(ticks, _)| part(ticks)).sum::<u64>();
            prop_assert_eq!(gaps, [block.idle, block.stolen, block.lost, block.ungathered]);
            prop_assert_eq!(gaps, [sum(|t| t.idle), sum(|t| t.stolen), sum(|t| t.lost), sum(|t| t.ungathered)]);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            decode(&bytes, |ticks, frames| {
                assert_eq!(ticks.sample.map_or(0, |sample| sample.stack.frames()), frames.len());
            });
        }
    }

    #[test]
    fn a_stack_without_its_frames_is_marked_as_dropped() {
        let stack = StackSummary {
            kernel: 3,
            kernel_end: StackEnd::Complete,
            ..StackSummary::default()
        };
        let sample = Sample {
            stack,
            ..Sample::default()
        };
        let mut encoder = SamplesEncoder::default();
        encoder.push(&sample.into(), &[1, 2]);
        decode(&encoder.take().bytes, |ticks, frames| {
            assert_eq!(ticks.sample.unwrap().stack, stack.dropped());
            assert!(frames.is_empty());
        })
        .unwrap();
    }

    #[test]
    fn repetitions_take_little_space() {
        let frames = [0xffff_ffff_8112_3456, 0xffff_ffff_8134_5678];
        let mut sample = Sample {
            time: 10_000_000,
            pc: frames[0],
            ..Sample::default()
        };
        sample.stack.kernel = 2;
        let ticks = sample.into();
        let mut encoder = SamplesEncoder::default();
        encoder.push(&ticks, &frames);
        let first = encoder.block.bytes.len();
        encoder.push(&ticks, &frames);
        assert_eq!(encoder.block.bytes.len() - first, 9);
    }
}
