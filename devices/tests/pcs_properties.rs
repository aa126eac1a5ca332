//! Tests the device against a plain model with random ticks, reads and ioctls.

use crate::support::model::{BSIZE, Model, VCPUS};
use crate::support::{blocks, words};
use kvmprof_abi::pcs::{
    BUF_INCR, Format, PCS_FLUSH, PCS_SETFORMAT, PCS_STOP, PROF_ALL, PROF_GROUP, PROF_KERNEL,
    PROF_LIST,
};
use kvmprof_devices::profiling::Pcs;
use kvmprof_recording::{Mode, Sample, Ticks};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Feed { ticks: Ticks, times: usize },
    Read(usize),
    Kernel,
    All,
    Group(i32),
    List(Vec<i32>),
    MoreBuffers(i64),
    Flush,
}

fn modes() -> impl Strategy<Value = Mode> {
    prop_oneof![
        4 => Just(Mode::User),
        2 => Just(Mode::Kernel),
        1 => Just(Mode::Interrupt),
        1 => Just(Mode::Idle),
    ]
}

fn ticks() -> impl Strategy<Value = Ticks> {
    let sample = (modes(), -1..4_i32, -1..3_i32, 0..16_u8);
    let counts = (
        prop_oneof![3 => Just(0), 1 => 0..700_u64],
        0..4_u64,
        0..4_u64,
    );
    (0..VCPUS, counts, proptest::option::weighted(0.9, sample)).prop_map(
        |(vcpu, (idle, stolen, lost), sample)| Ticks {
            vcpu,
            idle,
            stolen,
            lost,
            ungathered: 0,
            sample: sample.map(|(mode, pid, process_group, ipl)| Sample {
                vcpu,
                mode,
                pid,
                process_group,
                ipl,
                pc: u64::MAX - u64::from(ipl),
                ..Sample::default()
            }),
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (ticks(), 1..90_usize).prop_map(|(ticks, times)| Step::Feed { ticks, times }),
        5 => prop_oneof![0..40_usize, 0..3000_usize].prop_map(Step::Read),
        1 => Just(Step::Kernel),
        1 => Just(Step::All),
        1 => (-1..3_i32).prop_map(Step::Group),
        2 => proptest::collection::vec(1..4_i32, 0..7).prop_map(Step::List),
        1 => proptest::collection::vec(-1..4_i32, 0..7).prop_map(Step::List),
        1 => (-1..5_i64).prop_map(Step::MoreBuffers),
        1 => Just(Step::Flush),
    ];
    proptest::collection::vec(step, 1..80)
}

/// The device and its model.
struct Pair {
    pcs: Pcs,
    model: Model,
    bytes: Vec<u8>,
}

impl Pair {
    fn new(format: Format) -> Self {
        let mut pcs = Pcs::new(VCPUS);
        pcs.open(100).unwrap();
        pcs.ioctl(PCS_SETFORMAT, format.number().into(), &[])
            .unwrap();
        Self {
            pcs,
            model: Model::new(format),
            bytes: Vec::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Feed { ticks, times } => {
                for _ in 0..*times {
                    self.pcs.feed(ticks);
                    self.model.feed(ticks);
                    self.compare();
                }
            }
            Step::Read(limit) => self.read(*limit),
            Step::Kernel => {
                self.pcs.ioctl(PROF_KERNEL, 0, &[]).unwrap();
                self.model.kernel = true;
                self.model.gathering = true;
            }
            Step::All => {
                self.pcs.ioctl(PROF_ALL, 0, &[]).unwrap();
                self.model.all = true;
                self.model.gathering = true;
            }
            Step::Group(group) => {
                let result = self.pcs.ioctl(PROF_GROUP, i64::from(*group), &[]);
                assert_eq!(result.is_ok(), *group >= 0, "{result:?}");
                if *group >= 0 {
                    self.model.group = Some(*group);
                    self.model.gathering = true;
                }
            }
            Step::List(list) => self.list(list),
            Step::MoreBuffers(more) => self.more_buffers(*more),
            Step::Flush => {
                self.pcs.ioctl(PCS_FLUSH, 0, &[]).unwrap();
                self.model.seal();
            }
        }
        self.compare();
    }

    fn list(&mut self, list: &[i32]) {
        let mut argument = vec![i32::try_from(list.len()).unwrap()];
        argument.extend(list);
        let result = self.pcs.ioctl(PROF_LIST, 0, &words(&argument));
        let are_processes = list.iter().all(|pid| *pid > 0);
        let is_right = (1..=5).contains(&list.len()) && are_processes;
        assert_eq!(result.is_ok(), is_right);
        if result.is_ok() {
            self.model.list = list.to_vec();
            self.model.gathering = true;
        }
    }

    fn more_buffers(&mut self, more: i64) {
        let result = self.pcs.ioctl(BUF_INCR, more, &[]);
        let total = i64::try_from(self.model.buffers).unwrap() + more;
        assert_eq!(result.is_ok(), more > 0 && total <= 10);
        if result.is_ok() {
            self.model.buffers = usize::try_from(total).unwrap();
        }
    }

    fn read(&mut self, limit: usize) {
        let before = self.bytes.len();
        let result = self.pcs.read(limit, &mut self.bytes);
        let expected = self.model.read(limit);
        assert_eq!(self.bytes.len() - before, expected);
        if expected > 0 || limit == 0 || self.model.stopped {
            assert_eq!(result, Ok(expected));
        } else {
            assert!(result.is_err());
        }
    }

    fn compare(&self) {
        let ledger = self.pcs.ledger();
        assert!(ledger.balances(), "{ledger:?}");
        assert_eq!(ledger, self.model.ledger);
        let gathers = self.model.gathering && !self.model.stopped;
        assert_eq!(self.pcs.is_gathering(), gathers);
    }

    /// Stops, reads to the end of file with reads of `limit` bytes, and compares everything.
    fn finish(mut self, limit: usize) {
        self.pcs.ioctl(PCS_STOP, 0, &[]).unwrap();
        self.model.stopped = true;
        self.model.hand_over();
        let ticks = self.pcs.ledger().ticks;
        self.pcs.feed(&Ticks {
            idle: 9,
            lost: 9,
            ..Ticks::default()
        });
        loop {
            let before = self.bytes.len();
            assert!(self.pcs.readable());
            self.read(limit);
            self.compare();
            if self.bytes.len() == before {
                break;
            }
        }
        let ledger = self.pcs.ledger();
        assert_eq!((ledger.pending, ledger.ticks), (0, ticks));
        let seen = blocks(self.model.format, BSIZE, &self.bytes);
        assert_eq!(seen.len(), self.model.handed_over.len());
        for (seen, expected) in seen.iter().zip(&self.model.handed_over) {
            assert_eq!(seen.records, expected.records);
            assert_eq!(u64::from(seen.header.lost), expected.lost);
        }
        let lost: u64 = seen.iter().map(|block| u64::from(block.header.lost)).sum();
        assert_eq!(lost, self.model.gathered_lost);
        self.pcs.close();
        assert_eq!(self.pcs.ledger(), ledger);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_device_agrees_with_the_model(
        classic: bool,
        early in 0..4_u8,
        steps in steps(),
        limit in 1..5000_usize,
    ) {
        let format = if classic { Format::Classic } else { Format::Native };
        let mut pair = Pair::new(format);
        // Most runs gather from the start.
        match early {
            0 => pair.step(&Step::All),
            1 => pair.step(&Step::List(vec![1, 2])),
            2 => pair.step(&Step::Kernel),
            _ => (),
        }
        for step in &steps {
            pair.step(step);
        }
        pair.finish(limit);
    }

    #[test]
    fn close_discards_exactly_what_was_pending(steps in steps()) {
        let mut pair = Pair::new(Format::Native);
        pair.step(&Step::All);
        for step in &steps {
            pair.step(step);
        }
        let before = pair.pcs.ledger();
        pair.pcs.close();
        let after = pair.pcs.ledger();
        prop_assert!(after.balances());
        prop_assert_eq!(after.discarded, before.pending);
        prop_assert_eq!((after.pending, after.recorded), (0, before.recorded));
    }
}

/// Losses beyond the range of one classic header go into the next ones, at last into empty buffers. Counts beyond the
/// range of one record go into several.
#[test]
fn large_numbers_are_split() {
    for format in [Format::Native, Format::Classic] {
        let mut pair = Pair::new(format);
        pair.step(&Step::List(vec![1]));
        let ticks = Ticks {
            lost: 100_000,
            idle: 150_000,
            ..Ticks::default()
        };
        pair.step(&Step::Feed { ticks, times: 1 });
        pair.finish(700);
    }
}
