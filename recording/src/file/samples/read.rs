//! Reads blocks of samples.

use std::ops::Range;

use super::{Thread, record};
use crate::file::details::DetailsReader;
use crate::file::varint::Numbers;
use crate::{DEFAULT_STACK_FRAMES, MAX_STACK_FRAMES, Mode, Sample, StackEnd, StackSummary, Ticks};

/// Reads a block, without details: hands each run of ticks and the frames of its sample's stack to `each`. `None` when the
/// block is invalid. What came before the fault has been delivered.
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

/// As [`decode`], with the `details` of its samples, the contents of a block of their own; none if they are empty. `each` also gets the numbers of the
/// sample's thread and stack, in block number 0.
pub fn decode_with(
    bytes: &[u8],
    details: &[u8],
    mut each: impl FnMut(&Ticks, &[u64], BlockNumbers),
) -> Option<()> {
    let mut decoder = Decoder::new(bytes);
    let mut completer = Completer::new(details)?;
    while let Some(record) = decoder.next()? {
        completer.hand_over(&record, &decoder.tables, &mut each)?;
    }
    Some(())
}

/// Ticks as they are in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Record {
    /// Those without a sample, of this vCPU.
    Gap {
        vcpu: u16,
        idle: u64,
        stolen: u64,
        lost: u64,
    },
    /// Those of processes that weren't requested.
    Ungathered { vcpu: u16, ticks: u64 },
    /// One with a sample.
    Sample {
        time: u64,
        /// The distance from the stack's first frame.
        pc: u64,
        vcpu: u16,
        mode: Mode,
        cpl: u8,
        ipl: u8,
        thread: u32,
        stack: u32,
    },
}

/// What the samples of a block refer to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Tables {
    threads: Vec<Thread>,
    stacks: Vec<(StackSummary, Range<usize>)>,
    /// The frames of all stacks, one after the other.
    frames: Vec<u64>,
}

/// A decoded block of samples, up to its first fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedBlock {
    tables: Tables,
    records: Vec<Record>,
    is_valid: bool,
}

impl DecodedBlock {
    /// Decodes the block with these contents. It can take ten times their size.
    pub fn new(bytes: &[u8]) -> Self {
        let mut decoder = Decoder::new(bytes);
        let mut records = Vec::new();
        let is_valid = loop {
            match decoder.next() {
                Some(Some(record)) => records.push(record),
                end => break end.is_some(),
            }
        };
        Self {
            tables: decoder.tables,
            records,
            is_valid,
        }
    }

    /// As [`decode_with`].
    pub fn read(
        &self,
        details: &[u8],
        mut each: impl FnMut(&Ticks, &[u64], BlockNumbers),
    ) -> Option<()> {
        let mut completer = Completer::new(details)?;
        for record in &self.records {
            completer.hand_over(record, &self.tables, &mut each)?;
        }
        self.is_valid.then_some(())
    }
}

/// Reads the records of a block.
struct Decoder<'a> {
    numbers: Numbers<'a>,
    tables: Tables,
    time: u64,
}

impl<'a> Decoder<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self {
            numbers: Numbers(bytes),
            tables: Tables::default(),
            time: 0,
        }
    }

    /// The next ticks: `None` where the block is invalid, and `Some(None)` at its end.
    fn next(&mut self) -> Option<Option<Record>> {
        let Self {
            numbers, tables, ..
        } = self;
        while !numbers.is_empty() {
            match numbers.byte()? {
                record::GAP => {
                    return Some(Some(Record::Gap {
                        vcpu: numbers.next_as()?,
                        idle: numbers.next()?,
                        stolen: numbers.next()?,
                        lost: numbers.next()?,
                    }));
                }
                record::UNGATHERED => {
                    return Some(Some(Record::Ungathered {
                        vcpu: numbers.next_as()?,
                        ticks: numbers.next()?,
                    }));
                }
                record::THREAD => tables.threads.push(decode_thread(numbers)?),
                kind @ (record::STACK | record::STACK_WITH_HOST | record::DEEP_STACK) => {
                    let stack = decode_stack(numbers, kind, &mut tables.frames)?;
                    tables.stacks.push(stack);
                }
                record::SAMPLE => return self.sample().map(Some),
                _ => return None,
            }
        }
        Some(None)
    }

    fn sample(&mut self) -> Option<Record> {
        let numbers = &mut self.numbers;
        let vcpu = numbers.next_as()?;
        self.time = self.time.wrapping_add_signed(numbers.next_signed()?);
        let mode = mode(numbers.byte()?)?;
        let (cpl, ipl) = (numbers.byte()?, numbers.byte()?);
        let (thread, stack) = (numbers.next_as()?, numbers.next_as()?);
        // It refers to what came before it.
        let is_known = self.tables.threads.len() > thread as usize
            && self.tables.stacks.len() > stack as usize;
        let pc = self.numbers.next_signed()?.cast_unsigned();
        is_known.then_some(Record::Sample {
            time: self.time,
            pc,
            vcpu,
            mode,
            cpl,
            ipl,
            thread,
            stack,
        })
    }
}

/// Makes ticks of records, in their order.
struct Completer<'a> {
    details: DetailsReader<'a>,
    samples: u64,
}

impl<'a> Completer<'a> {
    /// With the details in a block with these contents. `None` if their first record is invalid.
    fn new(details: &'a [u8]) -> Option<Self> {
        Some(Self {
            details: DetailsReader::new(details)?,
            samples: 0,
        })
    }

    /// Hands over the ticks of the next record, whose block has these tables. `None` if its details are invalid.
    fn hand_over(
        &mut self,
        record: &Record,
        tables: &Tables,
        each: &mut impl FnMut(&Ticks, &[u64], BlockNumbers),
    ) -> Option<()> {
        let mut ticks = Ticks::default();
        match *record {
            Record::Gap {
                vcpu,
                idle,
                stolen,
                lost,
            } => {
                (ticks.vcpu, ticks.idle, ticks.stolen, ticks.lost) = (vcpu, idle, stolen, lost);
                each(&ticks, &[], BlockNumbers::default());
            }
            Record::Ungathered {
                vcpu,
                ticks: ungathered,
            } => {
                (ticks.vcpu, ticks.ungathered) = (vcpu, ungathered);
                each(&ticks, &[], BlockNumbers::default());
            }
            Record::Sample {
                time,
                pc,
                vcpu,
                mode,
                cpl,
                ipl,
                thread,
                stack,
            } => {
                let of = tables.threads.get(thread as usize)?;
                let (summary, place) = tables.stacks.get(stack as usize)?;
                let frames = tables.frames.get(place.clone())?;
                let first = frames.first().copied().unwrap_or_default();
                let mut sample = Sample {
                    time,
                    pc: pc.wrapping_add(first),
                    pid: of.pid,
                    tid: of.tid,
                    process_group: -1,
                    vcpu,
                    cpl,
                    ipl,
                    mode,
                    comm: of.comm,
                    address_space: of.address_space,
                    stack: *summary,
                    ..Sample::default()
                };
                self.details.complete(self.samples, &mut sample)?;
                self.samples += 1;
                (ticks.vcpu, ticks.sample) = (vcpu, Some(sample));
                let numbers = BlockNumbers {
                    block: 0,
                    thread,
                    stack,
                };
                each(&ticks, frames, numbers);
            }
        }
        Some(())
    }
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

/// The mode with this number.
pub(super) fn mode(number: u8) -> Option<Mode> {
    Mode::ALL.get(usize::from(number)).copied()
}

/// The end of a part of a stack with this number.
pub(super) fn end(number: u8) -> Option<StackEnd> {
    StackEnd::ALL.get(usize::from(number)).copied()
}
