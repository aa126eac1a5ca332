//! Reads blocks of samples.

use std::ops::Range;

use super::{Thread, record};
use crate::file::details::DetailsReader;
use crate::file::varint::Numbers;
use crate::{DEFAULT_STACK_FRAMES, MAX_STACK_FRAMES, Mode, Sample, StackEnd, StackSummary, Ticks};

/// Reads a block, without details: hands each run of ticks and the frames of its sample's stack to `each`. `None` when the
/// block is invalid. What came before the fault has been handed over.
pub fn decode(bytes: &[u8], mut each: impl FnMut(&Ticks, &[u64])) -> Option<()> {
    decode_with(bytes, &[], |ticks, frames, _| each(ticks, frames))
}

/// The numbers of a sample's thread and stack in its block. Samples of the same block with equal numbers have the same thread, or the same stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockNumbers {
    /// The number of the block in its recording, from 1.
    pub block: u64,
    /// The thread.
    pub thread: u32,
    /// The stack.
    pub stack: u32,
}

/// The same with the `details` of its samples, the contents of a block of their own; none if they are empty. `each` also gets the numbers of the sample's
/// thread and stack, in block number 0.
pub fn decode_with(
    bytes: &[u8],
    details: &[u8],
    mut each: impl FnMut(&Ticks, &[u64], BlockNumbers),
) -> Option<()> {
    let mut numbers = Numbers(bytes);
    let mut details = DetailsReader::new(details)?;
    let mut samples = 0;
    let mut threads = Vec::new();
    let mut stacks: Vec<(StackSummary, Range<usize>)> = Vec::new();
    // Those of all stacks, one after the other.
    let mut frames = Vec::new();
    let mut time = 0_u64;
    while !numbers.is_empty() {
        match numbers.byte()? {
            record::GAP => {
                let ticks = Ticks {
                    vcpu: numbers.next_as()?,
                    idle: numbers.next()?,
                    stolen: numbers.next()?,
                    lost: numbers.next()?,
                    ..Ticks::default()
                };
                each(&ticks, &[], BlockNumbers::default());
            }
            record::UNGATHERED => {
                let ticks = Ticks {
                    vcpu: numbers.next_as()?,
                    ungathered: numbers.next()?,
                    ..Ticks::default()
                };
                each(&ticks, &[], BlockNumbers::default());
            }
            record::THREAD => threads.push(decode_thread(&mut numbers)?),
            kind @ (record::STACK | record::STACK_WITH_HOST | record::DEEP_STACK) => {
                stacks.push(decode_stack(&mut numbers, kind, &mut frames)?);
            }
            record::SAMPLE => {
                let (mut sample, own) = decode_sample(&mut numbers)?;
                time = time.wrapping_add(sample.time);
                let thread: &Thread = threads.get(own.thread as usize)?;
                let (summary, place) = stacks.get(own.stack as usize)?;
                let frames = frames.get(place.clone())?;
                let first = frames.first().copied().unwrap_or_default();
                sample.time = time;
                sample.pc = sample.pc.wrapping_add(first);
                sample.pid = thread.pid;
                sample.tid = thread.tid;
                sample.address_space = thread.address_space;
                sample.comm = thread.comm;
                sample.stack = *summary;
                details.complete(samples, &mut sample)?;
                samples += 1;
                let ticks = Ticks {
                    vcpu: sample.vcpu,
                    sample: Some(sample),
                    ..Ticks::default()
                };
                each(&ticks, frames, own);
            }
            _ => return None,
        }
    }
    Some(())
}

fn decode_thread(numbers: &mut Numbers<'_>) -> Option<Thread> {
    Some(Thread {
        pid: numbers.pid()?,
        tid: numbers.pid()?,
        address_space: numbers.next()?,
        comm: numbers.comm()?,
    })
}

/// The stack of a record of this `kind`, and where its frames are in `frames`, to which they are added.
fn decode_stack(
    numbers: &mut Numbers<'_>,
    kind: u8,
    frames: &mut Vec<u64>,
) -> Option<(StackSummary, Range<usize>)> {
    let is_deep = kind == record::DEEP_STACK;
    let mut summary = StackSummary::default();
    if is_deep {
        for count in [&mut summary.kernel, &mut summary.user, &mut summary.host] {
            *count = numbers.next_as()?;
        }
    } else {
        (summary.kernel, summary.user) = (numbers.byte()?.into(), numbers.byte()?.into());
    }
    summary.kernel_end = end(numbers.byte()?)?;
    summary.user_end = end(numbers.byte()?)?;
    if kind == record::STACK_WITH_HOST {
        summary.host = numbers.byte()?.into();
    }
    let most = match is_deep {
        true => MAX_STACK_FRAMES,
        false => DEFAULT_STACK_FRAMES,
    };
    if summary.frames() > most {
        return None;
    }
    let begin = frames.len();
    numbers.frames(summary.frames(), frames)?;
    Some((summary, begin..frames.len()))
}

/// A sample and the numbers of its thread and stack. Its time and program counter are still differences.
fn decode_sample(numbers: &mut Numbers<'_>) -> Option<(Sample, BlockNumbers)> {
    let vcpu = numbers.next_as()?;
    let time = numbers.next_signed()?.cast_unsigned();
    let mode = mode(numbers.byte()?)?;
    let (cpl, ipl) = (numbers.byte()?, numbers.byte()?);
    let own = BlockNumbers {
        block: 0,
        thread: numbers.next_as()?,
        stack: numbers.next_as()?,
    };
    let sample = Sample {
        time,
        pc: numbers.next_signed()?.cast_unsigned(),
        process_group: -1,
        vcpu,
        cpl,
        ipl,
        mode,
        ..Sample::default()
    };
    Some((sample, own))
}

/// The mode with this number.
pub(super) fn mode(number: u8) -> Option<Mode> {
    Mode::ALL.get(usize::from(number)).copied()
}

/// The end of a part of a stack with this number.
pub(super) fn end(number: u8) -> Option<StackEnd> {
    StackEnd::ALL.get(usize::from(number)).copied()
}
