//! Tests prf against a plain model, which handles one tick at a time, with random tables, ticks and requests.

use std::collections::BTreeMap;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::prf::{ALL_VCPUS, PRF_GETSTATUS, PRF_SETSTATE};
use kvmprof_devices::profiling::Prf;
use kvmprof_recording::{ConsumerLedger, Mode, Sample, Ticks};
use proptest::prelude::*;

const VCPUS: u16 = 2;
const MINORS: [u16; 3] = [0, 1, ALL_VCPUS];
const MAX: usize = 40;

#[derive(Clone, Debug)]
enum Step {
    Feed(Ticks),
    Write { minor: u16, bytes: Vec<u8> },
    Set { minor: u16, on: bool },
    Rate(u32),
}

#[derive(Clone, Debug, Default)]
struct Minor {
    /// Addresses, and counters with user mode's and idle's at the end.
    table: Option<(Vec<u64>, Vec<u64>)>,
    on: bool,
    ledger: ConsumerLedger,
}

#[derive(Debug, Default)]
struct Model {
    minors: BTreeMap<u16, Minor>,
    hz: u32,
    ticks: [u64; VCPUS as usize],
}

/// The kind of one tick.
#[derive(Clone, Copy)]
enum TickKind {
    Idle,
    Stolen,
    Lost,
    Sampled(Sample),
}

impl Model {
    fn minor(&mut self, minor: u16) -> &mut Minor {
        self.minors.entry(minor).or_default()
    }

    fn write(&mut self, minor: u16, bytes: &[u8]) -> Result<usize, Errno> {
        if bytes.len() / 8 > MAX {
            return Err(Errno::ENOSPC);
        }
        if bytes.len() < 24 || !bytes.len().is_multiple_of(8) {
            return Err(Errno::E2BIG);
        }
        let this = self.minor(minor);
        if this.on {
            return Err(Errno::EBUSY);
        }
        let mut addresses = Vec::new();
        for word in bytes.chunks(8) {
            let address = u64::from_le_bytes(word.try_into().unwrap());
            if addresses.last().is_some_and(|last| *last > address) {
                this.table = None;
                return Err(Errno::EINVAL);
            }
            addresses.push(address);
        }
        let counters = vec![0; addresses.len() + 2];
        this.table = Some((addresses, counters));
        Ok(bytes.len())
    }

    fn set(&mut self, minor: u16, on: bool) -> Result<(), Errno> {
        let countable = self.hz > 0 && self.hz.is_multiple_of(100);
        let this = self.minor(minor);
        if this.table.is_none() || this.on == on {
            return Ok(());
        }
        if on && !countable {
            return Err(Errno::EINVAL);
        }
        if on {
            this.ledger = ConsumerLedger::default();
        }
        this.on = on;
        Ok(())
    }

    fn feed(&mut self, ticks: &Ticks) {
        let fates = [
            (ticks.idle, TickKind::Idle),
            (ticks.stolen, TickKind::Stolen),
            (ticks.lost, TickKind::Lost),
        ];
        for (count, fate) in fates {
            for _ in 0..count {
                self.tick(ticks.vcpu, fate);
            }
        }
        if let Some(sample) = ticks.sample {
            self.tick(ticks.vcpu, TickKind::Sampled(sample));
        }
    }

    fn tick(&mut self, vcpu: u16, fate: TickKind) {
        let passed = &mut self.ticks[usize::from(vcpu)];
        *passed += 1;
        let counts = passed.is_multiple_of(u64::from((self.hz / 100).max(1)));
        for minor in [vcpu, ALL_VCPUS] {
            let this = self.minor(minor);
            let Some((addresses, counters)) = this.table.as_mut().filter(|_| this.on) else {
                continue;
            };
            let ledger = &mut this.ledger;
            ledger.ticks += 1;
            let (user, idle) = (addresses.len(), addresses.len() + 1);
            let at = match fate {
                _ if !counts => {
                    ledger.ungathered += 1;
                    continue;
                }
                TickKind::Stolen => {
                    ledger.stolen += 1;
                    continue;
                }
                TickKind::Lost => {
                    ledger.lost += 1;
                    continue;
                }
                TickKind::Idle => idle,
                TickKind::Sampled(sample) => match sample.mode {
                    Mode::Idle => idle,
                    Mode::User => user,
                    Mode::Kernel | Mode::Interrupt => addresses
                        .iter()
                        .rposition(|address| sample.pc >= *address)
                        .unwrap_or(0),
                },
            };
            ledger.recorded += 1;
            counters[at] += 1;
        }
    }

    fn read(&self, minor: u16) -> Result<Vec<u8>, Errno> {
        let table = self
            .minors
            .get(&minor)
            .and_then(|minor| minor.table.as_ref());
        let (addresses, counters) = table.ok_or(Errno::ENXIO)?;
        let words = addresses.iter().chain(counters);
        Ok(words.flat_map(|word| word.to_le_bytes()).collect())
    }
}

fn minors() -> impl Strategy<Value = u16> {
    proptest::sample::select(&MINORS[..])
}

fn ticks() -> impl Strategy<Value = Ticks> {
    let modes = [
        Mode::User,
        Mode::Kernel,
        Mode::Kernel,
        Mode::Interrupt,
        Mode::Idle,
    ];
    let pc = prop_oneof![9 => 0..60_u64, 1 => Just(u64::MAX)];
    let sample = (proptest::sample::select(modes.to_vec()), pc);
    let count = || prop_oneof![2 => Just(0), 1 => 0..35_u64];
    let counts = (count(), count(), count());
    (0..VCPUS, counts, proptest::option::weighted(0.9, sample)).prop_map(
        |(vcpu, (idle, stolen, lost), sample)| Ticks {
            vcpu,
            idle,
            stolen,
            lost,
            ungathered: 0,
            sample: sample.map(|(mode, pc)| Sample {
                vcpu,
                mode,
                pc,
                ..Sample::default()
            }),
        },
    )
}

/// A table of addresses, or as many bytes.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let some = proptest::collection::vec(0..50_u64, 0..MAX + 3);
    // Few random lists ascend.
    let table = (some, proptest::bool::weighted(0.9)).prop_map(|(mut addresses, ascending)| {
        if ascending {
            addresses.sort_unstable();
        }
        addresses.iter().flat_map(|a| a.to_le_bytes()).collect()
    });
    prop_oneof![2 => table, 1 => (0..400_usize).prop_map(|length| vec![7; length])]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => ticks().prop_map(Step::Feed),
        3 => (minors(), bytes()).prop_map(|(minor, bytes)| Step::Write { minor, bytes }),
        4 => (minors(), proptest::bool::weighted(0.8)).prop_map(|(minor, on)| Step::Set { minor, on }),
        1 => proptest::sample::select(vec![0, 50, 100, 250, 300, 1000]).prop_map(Step::Rate),
    ];
    proptest::collection::vec(step, 1..80)
}

struct Pair {
    prf: Prf,
    model: Model,
}

impl Pair {
    fn new(hz: u32) -> Self {
        let mut pair = Self {
            prf: Prf::new(VCPUS, MAX),
            model: Model::default(),
        };
        pair.step(&Step::Rate(hz));
        pair
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Feed(ticks) => {
                self.prf.feed(ticks);
                self.model.feed(ticks);
            }
            Step::Write { minor, bytes } => {
                let written = self.prf.write(*minor, bytes);
                assert_eq!(written, self.model.write(*minor, bytes));
            }
            Step::Set { minor, on } => {
                let set = self.prf.ioctl(*minor, PRF_SETSTATE, i64::from(*on));
                assert_eq!(set.map(|_| ()), self.model.set(*minor, *on));
            }
            Step::Rate(hz) if !self.prf.wants_ticks() => {
                self.prf.set_hz(*hz);
                if self.model.hz != *hz {
                    self.model.hz = *hz;
                    self.model.ticks = [0; VCPUS as usize];
                }
            }
            Step::Rate(_) => {}
        }
        self.compare();
    }

    fn compare(&mut self) {
        let mut reports = self.prf.reports().collect::<Vec<_>>().into_iter();
        for minor in MINORS {
            let expected = self.model.minor(minor).clone();
            let reply = self.prf.ioctl(minor, PRF_GETSTATUS, 0).unwrap();
            let bits = u8::from(expected.on) + 2 * u8::from(expected.table.is_some());
            assert_eq!(reply.data, [bits, 0, 0, 0]);
            let mut bytes = Vec::new();
            let read = self.prf.read(minor, usize::MAX, &mut bytes);
            assert_eq!(read.map(|_| bytes), self.model.read(minor));
            if let Some((addresses, _)) = expected.table {
                let report = reports.next().unwrap();
                assert_eq!((report.minor, report.on), (minor, expected.on));
                assert_eq!(report.addresses, addresses.len());
                assert_eq!(report.ledger, expected.ledger);
                assert!(report.ledger.balances());
            }
        }
        assert_eq!(reports.next(), None);
        let on = self.model.minors.values().any(|minor| minor.on);
        assert_eq!(self.prf.wants_ticks(), on);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_device_agrees_with_the_model(
        hz in proptest::sample::select(vec![100, 300, 1000]),
        steps in steps(),
    ) {
        let mut pair = Pair::new(hz);
        for step in &steps {
            pair.step(step);
        }
    }
}
