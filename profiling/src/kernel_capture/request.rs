//! Requests for a capture, in the words of 8 bytes in which they go to the process that opens its files.

use kvmprof_attach::{Slot, Slots};
use kvmprof_introspection::ProcessPlaces;
use kvmprof_recording::StackParts;
use vm_memory::GuestAddress;

use super::capture::{Contents, Period, VcpuThreadId};
use super::places_words::{decode_places, encode_places, flag, length, optional};

/// What one capture needs.
#[derive(Clone, Debug)]
pub(super) struct CaptureRequest {
    /// The descriptor of the guest's VM.
    pub vm: i32,
    pub takes_host_stacks: bool,
    pub thread: VcpuThreadId,
    pub period: Period,
    pub stacks: StackParts,
    pub slots: Slots,
    pub places: Option<ProcessPlaces>,
}

impl CaptureRequest {
    /// The contents of samples.
    pub fn contents(&self) -> Contents<'_> {
        Contents {
            places: self.places.as_ref(),
            stacks: self.stacks,
        }
    }

    /// The request in bytes.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, period) = match self.period {
            Period::RunTime(time) => (0, time),
            Period::Exits(exits) => (1, exits),
            Period::Faults(faults) => (2, faults),
        };
        let mut words = vec![
            number(self.vm),
            self.takes_host_stacks.into(),
            number(self.thread.descriptor),
            number(self.thread.tid),
            kind,
            period,
            u64::from(self.stacks.kernel) | u64::from(self.stacks.user) << 1,
            self.slots.iter().count() as u64,
        ];
        for slot in self.slots.iter() {
            let access = slot.is_read_only.into();
            words.extend([slot.address.0, slot.bytes, slot.host_address, access]);
        }
        words.push(self.places.is_some().into());
        if let Some(places) = &self.places {
            encode_places(places, &mut words);
        }
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// The request in `bytes`; `None` for what kvmprof doesn't ask for.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let words = &mut words;
        let vm = small(words)?;
        let takes_host_stacks = flag(words)?;
        let thread = VcpuThreadId {
            descriptor: small(words)?,
            tid: small(words)?,
        };
        let period = match (words.next()?, words.next()?) {
            (0, time) => Period::RunTime(time),
            (1, exits) => Period::Exits(exits),
            (2, faults) => Period::Faults(faults),
            _ => return None,
        };
        let parts = words.next().filter(|parts| *parts < 4)?;
        let stacks = StackParts {
            kernel: parts & 1 == 1,
            user: parts & 2 == 2,
        };
        let slots: Option<Vec<Slot>> = (0..length(words)?)
            .map(|_| {
                Some(Slot {
                    address: GuestAddress(words.next()?),
                    bytes: words.next().filter(|bytes| *bytes > 0)?,
                    host_address: words.next()?,
                    is_read_only: flag(words)?,
                    // It makes no difference to programs.
                    logs_writes: false,
                    backing: kvmprof_attach::Backing::default(),
                })
            })
            .collect();
        let slots = slots?;
        let is_plain = |slot: &Slot| {
            let ends =
                [slot.address.0, slot.host_address].map(|begin| begin.checked_add(slot.bytes));
            ends.iter().all(Option::is_some)
        };
        let slots = Slots::new(&slots).filter(|_| slots.iter().all(is_plain))?;
        let places = optional(words, decode_places)?;
        let is_whole = rest.is_empty() && words.next().is_none();
        is_whole.then_some(Self {
            vm,
            takes_host_stacks,
            thread,
            period,
            stacks,
            slots,
            places,
        })
    }
}

/// What the request in `bytes` is written as; `None` for what kvmprof doesn't ask for.
#[cfg(feature = "testing")]
pub fn rewritten_request(bytes: &[u8]) -> Option<Vec<u8>> {
    CaptureRequest::decode(bytes).map(|request| request.encode())
}

/// A descriptor or a thread as a word.
fn number(number: i32) -> u64 {
    number.unsigned_abs().into()
}

fn small(words: &mut impl Iterator<Item = u64>) -> Option<i32> {
    i32::try_from(words.next()?).ok()
}

#[cfg(test)]
mod tests {
    use kvmprof_introspection::{
        LinearMap, TaskMemory, TaskPointer, ValueAt, ValueKind, ValuePlace,
    };

    use super::*;

    fn request() -> CaptureRequest {
        let slot = |address, host_address, is_read_only| Slot {
            address: GuestAddress(address),
            bytes: 1 << 20,
            host_address,
            is_read_only,
            logs_writes: false,
            backing: kvmprof_attach::Backing::default(),
        };
        let value = |kind, at| ValuePlace { kind, at, width: 4 };
        let places = ProcessPlaces {
            task: Some(TaskPointer {
                memory: Some(TaskMemory {
                    mm: 0x900,
                    page_tables: 0x78,
                    stack: Some(0x20),
                    direct_map: 0xffff_8880_0000_0000,
                }),
                at: GuestAddress(0x1000),
                maps: vec![LinearMap {
                    address: 0xffff_8880_0000_0000,
                    physical: GuestAddress(0),
                    bytes: 1 << 20,
                }],
            }),
            values: vec![
                value(ValueKind::Pid, ValueAt::Task(0x500)),
                value(ValueKind::Interrupts(7), ValueAt::Physical(GuestAddress(8))),
                value(ValueKind::PreemptCount(0xff00, 0xff), ValueAt::Task(9)),
            ],
            interrupt_stack: Some(GuestAddress(0x2000)),
            is_linux: true,
        };
        let first = slot(0, 0x7f00_0000_0000, false);
        let slots = [first, slot(1 << 32, 0x7e00_0000_0000, true)];
        CaptureRequest {
            vm: 11,
            takes_host_stacks: true,
            thread: VcpuThreadId {
                descriptor: 12,
                tid: 1234,
            },
            period: Period::RunTime(1_000_000),
            stacks: StackParts {
                kernel: true,
                user: false,
            },
            slots: Slots::new(&slots).unwrap(),
            places: Some(places),
        }
    }

    #[test]
    fn requests_decode_to_what_was_encoded() {
        let without = CaptureRequest {
            places: None,
            period: Period::Exits(97),
            ..request()
        };
        let of_faults = CaptureRequest {
            period: Period::Faults(1),
            ..request()
        };
        for whole in [request(), without, of_faults] {
            let decoded = CaptureRequest::decode(&whole.encode()).unwrap();
            assert_eq!(format!("{decoded:?}"), format!("{whole:?}"));
        }
    }

    #[test]
    fn requests_that_kvmprof_never_makes_are_refused() {
        let bytes = request().encode();
        for length in 0..bytes.len() {
            let refused = CaptureRequest::decode(&bytes[..length]).is_none();
            assert!(refused, "{length}");
        }
        assert!(CaptureRequest::decode(&[&*bytes, &[0; 8]].concat()).is_none());
        // Each word with all its bits set: a flag, a length, a kind, a width, a descriptor, an end that wraps.
        let refused = (0..bytes.len() / 8).filter(|word| {
            let mut bytes = bytes.clone();
            bytes[word * 8..][..8].fill(0xff);
            CaptureRequest::decode(&bytes).is_none()
        });
        assert!(refused.count() >= 20);
    }
}
