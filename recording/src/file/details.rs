//! Blocks of details of samples: properties that only some samples have. Each belongs to the block of samples that follows it.

use std::collections::BTreeMap;

use crate::{FaultKind, LockOwner, LockWait, MemoryFault, Preemption, Sample};

use super::varint::{Numbers, push, push_comm, push_flags, push_signed};

/// The records of a block, by their first byte. Each begins with the distance of its sample from that of the record before.
mod record {
    /// Preemption on the sample's vCPU, from this sample on: a byte.
    pub const PREEMPTION: u8 = 1;
    /// A lock that the sample waits for: its address, flags, its owner.
    pub const LOCK: u8 = 2;
    /// The id of the sample's thread in its innermost pid namespace, from this sample on; 0 if it has none.
    pub const INNER_TID: u8 = 3;
    /// The fault of guest memory that the sample is: its kind, a byte; where its memory slot begins, and 1, 0 without a slot; how far behind that its address
    /// is; its time in ns.
    pub const FAULT: u8 = 4;
}

/// In a lock's flags: its owner follows.
const HAS_OWNER: u8 = 1;
/// In a lock's flags: the vCPU that the owner is on follows.
const OWNER_RUNS: u8 = 2;

/// Makes the block of details of a block of samples.
#[derive(Debug, Default)]
pub struct DetailsEncoder {
    bytes: Vec<u8>,
    /// The number of the sample that the last record is about.
    last: u64,
    preemption: BTreeMap<u16, Preemption>,
    /// By pid and tid; those that have one.
    inner_tids: BTreeMap<(i32, i32), i32>,
}

impl DetailsEncoder {
    /// Adds the details of `sample`, the block's sample number `index`, from 0.
    pub fn push(&mut self, index: u64, sample: &Sample) {
        let known = self.preemption.get(&sample.vcpu).copied();
        if sample.preemption != known.unwrap_or_default() {
            self.preemption.insert(sample.vcpu, sample.preemption);
            self.begin(record::PREEMPTION, index);
            self.bytes.push(sample.preemption as u8);
        }
        if let Some(lock) = &sample.lock {
            self.begin(record::LOCK, index);
            push_lock(&mut self.bytes, lock);
        }
        if let Some(fault) = &sample.fault {
            self.begin(record::FAULT, index);
            push_fault(&mut self.bytes, fault);
        }
        let thread = (sample.pid, sample.tid);
        if sample.inner_tid != self.inner_tids.get(&thread).copied() {
            match sample.inner_tid {
                Some(own) => self.inner_tids.insert(thread, own),
                None => self.inner_tids.remove(&thread),
            };
            self.begin(record::INNER_TID, index);
            push(&mut self.bytes, sample.inner_tid.map_or(0, number_of));
        }
    }

    fn begin(&mut self, record: u8, index: u64) {
        self.bytes.push(record);
        push(&mut self.bytes, index.wrapping_sub(self.last));
        self.last = index;
    }

    /// The block, still unpacked; empty if its samples have no details. Later samples go into the next block.
    pub fn take(&mut self) -> Vec<u8> {
        self.last = 0;
        self.preemption.clear();
        self.inner_tids.clear();
        std::mem::take(&mut self.bytes)
    }
}

/// The number of a thread's id, which is over 0.
fn number_of(tid: i32) -> u64 {
    u64::try_from(tid).unwrap_or_default()
}

fn push_lock(bytes: &mut Vec<u8>, lock: &LockWait) {
    push(bytes, lock.address);
    let vcpu = lock.owner.and_then(|owner| owner.vcpu);
    let flags = [
        (lock.owner.is_some(), HAS_OWNER),
        (vcpu.is_some(), OWNER_RUNS),
    ];
    push_flags(bytes, flags);
    if let Some(owner) = &lock.owner {
        push_signed(bytes, owner.pid.into());
        push_signed(bytes, owner.tid.into());
        push_comm(bytes, &owner.comm);
    }
    if let Some(vcpu) = vcpu {
        push(bytes, vcpu.into());
    }
}

fn push_fault(bytes: &mut Vec<u8>, fault: &MemoryFault) {
    bytes.push(fault.kind as u8);
    push(bytes, fault.slot.map_or(0, |slot| slot.saturating_add(1)));
    let begin = fault.slot.unwrap_or_default();
    push(bytes, fault.address.wrapping_sub(begin));
    push(bytes, fault.time);
}

/// The contents of a record.
#[derive(Clone, Copy, Debug)]
enum Detail {
    Preemption(Preemption),
    Lock(LockWait),
    Fault(MemoryFault),
    InnerTid(Option<i32>),
}

/// Gives samples their details, in the order of their block.
#[derive(Debug)]
pub struct DetailsReader<'a> {
    numbers: Numbers<'a>,
    /// The next record, and the number of its sample.
    next: Option<(u64, Detail)>,
    preemption: BTreeMap<u16, Preemption>,
    inner_tids: BTreeMap<(i32, i32), i32>,
}

impl<'a> DetailsReader<'a> {
    /// A reader of the block with these contents. `None` when the first record is invalid.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = Self {
            numbers: Numbers(bytes),
            next: None,
            preemption: BTreeMap::new(),
            inner_tids: BTreeMap::new(),
        };
        reader.advance(0)?;
        Some(reader)
    }

    /// Adds its details to `sample`, number `index` from 0. The caller passes samples in their order. `None` when the block is invalid.
    pub fn complete(&mut self, index: u64, sample: &mut Sample) -> Option<()> {
        let thread = (sample.pid, sample.tid);
        while let Some((number, detail)) = self.next
            && number == index
        {
            match detail {
                Detail::Preemption(preemption) => {
                    self.preemption.insert(sample.vcpu, preemption);
                }
                Detail::Lock(lock) => sample.lock = Some(lock),
                Detail::Fault(fault) => sample.fault = Some(fault),
                Detail::InnerTid(Some(own)) => _ = self.inner_tids.insert(thread, own),
                Detail::InnerTid(None) => _ = self.inner_tids.remove(&thread),
            }
            self.advance(number)?;
        }
        if let Some(preemption) = self.preemption.get(&sample.vcpu) {
            sample.preemption = *preemption;
        }
        sample.inner_tid = self.inner_tids.get(&thread).copied();
        Some(())
    }

    fn advance(&mut self, last: u64) -> Option<()> {
        self.next = None;
        if self.numbers.is_empty() {
            return Some(());
        }
        let kind = self.numbers.byte()?;
        let index = last.checked_add(self.numbers.next()?)?;
        let detail = match kind {
            record::PREEMPTION => {
                let number = usize::from(self.numbers.byte()?);
                Detail::Preemption(*Preemption::ALL.get(number)?)
            }
            record::LOCK => Detail::Lock(decode_lock(&mut self.numbers)?),
            record::FAULT => Detail::Fault(decode_fault(&mut self.numbers)?),
            record::INNER_TID => {
                let own: i32 = self.numbers.next_as()?;
                Detail::InnerTid(Some(own).filter(|own| *own > 0))
            }
            _ => return None,
        };
        self.next = Some((index, detail));
        Some(())
    }
}

fn decode_fault(numbers: &mut Numbers<'_>) -> Option<MemoryFault> {
    let kind = FaultKind::from_number(numbers.byte()?);
    let slot = numbers.next()?.checked_sub(1);
    let within = numbers.next()?;
    Some(MemoryFault {
        address: slot.unwrap_or_default().wrapping_add(within),
        slot,
        kind,
        time: numbers.next()?,
    })
}

fn decode_lock(numbers: &mut Numbers<'_>) -> Option<LockWait> {
    let address = numbers.next()?;
    let flags = numbers.byte()?;
    let mut lock = LockWait {
        address,
        owner: None,
    };
    if flags & HAS_OWNER != 0 {
        let (pid, tid) = (numbers.pid()?, numbers.pid()?);
        let comm = numbers.comm()?;
        let vcpu = match flags & OWNER_RUNS {
            0 => None,
            _ => Some(numbers.next_as()?),
        };
        lock.owner = Some(LockOwner {
            pid,
            tid,
            comm,
            vcpu,
        });
    }
    Some(lock)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::comm_of;

    fn samples() -> impl Strategy<Value = Vec<Sample>> {
        let owner = (any::<(i32, i32)>(), 0..9_usize, any::<Option<u16>>());
        let owner = owner.prop_map(|((pid, tid), length, vcpu)| LockOwner {
            pid,
            tid,
            comm: comm_of(&"n".repeat(length)),
            vcpu,
        });
        let lock = (any::<u64>(), prop::option::of(owner));
        let lock = lock.prop_map(|(address, owner)| LockWait { address, owner });
        let kind = prop::sample::select(FaultKind::ALL.to_vec());
        let slot = prop::option::of(0..u64::MAX);
        let fault = (any::<u64>(), slot, kind, any::<u64>());
        let fault = fault.prop_map(|(address, slot, kind, time)| MemoryFault {
            address,
            slot,
            kind,
            time,
        });
        let found = (prop::option::of(lock), prop::option::of(fault));
        let preemption = prop::sample::select(Preemption::ALL.to_vec());
        let thread = (0..3_i32, 0..2_i32, prop::option::of(1..4_i32));
        let sample = (0..3_u16, preemption, found, thread);
        let sample =
            sample.prop_map(
                |(vcpu, preemption, (lock, fault), (pid, tid, inner_tid))| Sample {
                    vcpu,
                    pid,
                    tid,
                    preemption,
                    lock,
                    fault,
                    inner_tid,
                    ..Sample::default()
                },
            );
        prop::collection::vec(sample, 0..40)
    }

    proptest! {
        #[test]
        fn details_round_trip(samples in samples()) {
            let mut encoder = DetailsEncoder::default();
            for (index, sample) in samples.iter().enumerate() {
                encoder.push(index as u64, sample);
            }
            let bytes = encoder.take();
            let mut reader = DetailsReader::new(&bytes).unwrap();
            for (index, sample) in samples.iter().enumerate() {
                let Sample { vcpu, pid, tid, .. } = *sample;
                let mut read = Sample { vcpu, pid, tid, ..Sample::default() };
                reader.complete(index as u64, &mut read).unwrap();
                prop_assert_eq!(&read, sample);
            }
            prop_assert!(reader.next.is_none() && reader.numbers.is_empty());
        }
    }

    #[test]
    fn samples_without_details_take_no_space() {
        let mut encoder = DetailsEncoder::default();
        (0..9).for_each(|index| encoder.push(index, &Sample::default()));
        assert!(encoder.take().is_empty());
    }
}
