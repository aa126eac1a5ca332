//! Tests of blocks of exits.

use proptest::prelude::*;

use super::*;
use crate::exits::ExitSums;

fn exits(count: u64, time: u64) -> Exits {
    Exits { count, time }
}

fn of_function(address: u64, time: u64) -> OfFunction {
    OfFunction {
        reason: 30,
        process: None,
        address,
        exits: exits(2, time),
    }
}

/// An interval with an entry of each kind.
fn interval() -> ExitInterval {
    let counts = Counts {
        isa: 1,
        reasons: vec![OfReason {
            reason: 1 << 31 | 30,
            vcpu: 3,
            exits: exits(7, 9000),
            longest: 5000,
            left: exits(1, 5000),
            histogram: Histogram::new((0..Histogram::CLASSES).map(|class| class as u64 % 3)),
        }],
        accesses: vec![OfAccess {
            reason: 30,
            kind: AccessKind::PortWrite,
            place: 0x3f8,
            exits: exits(5, 4000),
        }],
        functions: vec![of_function(u64::MAX, 7)],
        processes: vec![OfProcess {
            reason: 30,
            process: Some(i32::MIN),
            name: *b"sixteen bytes ok",
            exits: exits(4, 3),
        }],
        threads: vec![OfThread {
            thread: 100,
            vcpu: 3,
            waits: Exits::default(),
            migrations: 12,
        }],
        waits: vec![OfWait {
            thread: 100,
            other_thread: 201,
            other_process: 200,
            name: *b"qemu\0\0\0\0\0\0\0\0\0\0\0\0",
            turns: exits(2, 88),
        }],
        interrupts: vec![OfInterrupt {
            thread: 100,
            kind: InterruptKind::Softirq,
            number: 3,
            time: exits(1, 9),
        }],
        unfinished: 2,
        lost: Lost {
            slots: 6,
            interrupts: u64::MAX,
            ..Lost::default()
        },
        left_kvm: 11,
    };
    let name = ReasonName {
        name: "IO_INSTRUCTION (failed entry)".to_owned(),
        is_halt: true,
    };
    let guest = |process, name: Option<&str>| HostGuest {
        process,
        name: name.map(str::to_owned),
        program: "qemu".to_owned(),
        vcpus: [process + 1].into(),
        is_counted: name.is_none(),
    };
    ExitInterval {
        begin: 5_000_000_000,
        end: 6_000_000_001,
        vcpus: 4,
        knows_processes: true,
        names: [(1 << 31 | 30, name)].into(),
        softirqs: [(3, "NET_RX".to_owned())].into(),
        containers: [(i32::MIN, "4f1d".to_owned()), (7, String::new())].into(),
        guests: vec![guest(200, Some("db")), guest(99, None)],
        host: HostTimes {
            throttled: exits(3, 40_000_000),
            stolen: 70_000_000,
            processors: 16,
        },
        missing: vec!["kvm_hypercall".to_owned()],
        counts,
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode(&bytes);
    }

    /// One byte of a valid block is another one.
    #[test]
    fn damaged_blocks_are_read_or_refused(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = encode(&interval());
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Some(read) = decode(&bytes) {
            let mut sums = ExitSums::default();
            sums.add(&read);
            sums.add(&read);
            prop_assert!(sums.sum().is_some());
        }
    }
}

#[test]
fn intervals_round_trip() {
    for interval in [interval(), ExitInterval::default()] {
        let bytes = encode(&interval);
        assert_eq!(decode(&bytes), Some(interval));
        let is_refused = |end| decode(&bytes[..end]).is_none();
        assert!((0..bytes.len()).all(is_refused));
        assert_eq!(decode(&[&bytes[..], &[0]].concat()), None);
    }
}

#[test]
fn what_a_block_has_no_room_for_is_lost() {
    let mut full = interval();
    let most = MAX_ENTRIES as u64;
    full.counts.functions = (0..most + 5).map(|at| of_function(at, at)).collect();
    full.counts.functions.push(OfFunction {
        exits: exits(0, 0),
        ..of_function(77, 0)
    });
    full.missing = vec!["é".repeat(MAX_NAME)];
    let read = decode(&encode(&full)).unwrap();
    let functions = &read.counts.functions;
    assert_eq!(functions.len(), MAX_ENTRIES);
    assert_eq!(functions[0], of_function(most + 4, most + 4));
    assert!(functions.iter().all(|one| one.address >= 5));
    assert_eq!(read.counts.lost.functions, 10);
    assert_eq!(read.missing, ["é".repeat(MAX_NAME / 2)]);
}

#[test]
fn a_block_with_too_many_histograms_is_refused() {
    let mut bytes = encode(&ExitInterval::default());
    // The last seven numbers are those of the tables' entries.
    bytes.truncate(bytes.len() - 7);
    push(&mut bytes, MAX_REASONS as u64 + 1);
    bytes.extend([0; (MAX_REASONS + 1) * 8 + 6]);
    assert_eq!(decode(&bytes), None);
}
