//! Tests of histograms and of parts of the time.

use super::*;

#[test]
fn classes_follow_each_other() {
    let begins: Vec<u64> = (0..20).map(Histogram::begin).collect();
    let first = [
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 22,
    ];
    assert_eq!(begins, first);
    assert_eq!(Histogram::begin(Histogram::CLASSES), 1 << Histogram::MOST);
}

#[test]
fn percentiles_are_those_of_the_classes() {
    let mut histogram = Histogram::default();
    assert_eq!(histogram.percentile(50), None);
    histogram.0[5] = 98;
    histogram.0[16] = 1;
    histogram.0[19] = 1;
    assert_eq!(histogram.percentile(50), Some(5));
    assert_eq!(histogram.percentile(99), Some(17));
    assert_eq!(histogram.percentile(100), Some(23));
    let mut twice = histogram.clone();
    twice.add(&histogram);
    assert_eq!(twice.since(&histogram), histogram);
}

fn of_reason(count: u64, longest: u64, class: usize) -> OfReason {
    let mut histogram = Histogram::default();
    histogram.0[class] = count;
    OfReason {
        reason: 7,
        vcpu: 1,
        exits: Exits {
            count,
            time: count * 10,
        },
        longest,
        histogram,
        ..OfReason::default()
    }
}

#[test]
fn a_part_of_the_time_has_what_is_new() {
    let earlier = Counts {
        reasons: vec![of_reason(3, 90, 10)],
        ..Counts::default()
    };
    let mut now = earlier.clone();
    let other = OfReason {
        vcpu: 2,
        ..of_reason(1, 8, 8)
    };
    now.reasons = vec![of_reason(5, 90, 10), other.clone()];
    now.lost.functions = 4;
    now.unfinished = 1;
    let new = now.since(&earlier);
    // No exit of this part was the longest one.
    assert_eq!(new.reasons, [of_reason(2, 10, 10), other]);
    assert_eq!((new.lost.functions, new.unfinished), (4, 1));
    now.reasons[0].longest = 91;
    assert_eq!(now.since(&earlier).reasons[0].longest, 91);
    assert_eq!(now.since(&Counts::default()), now);
}

/// An interval with exits in this class of the histogram.
fn interval(begin: u64, count: u64, class: usize) -> ExitInterval {
    let process = OfProcess {
        reason: 7,
        process: Some(12),
        name: [b'a' + u8::try_from(class).unwrap(); 16],
        exits: Exits {
            count,
            time: count * 10,
        },
    };
    ExitInterval {
        begin,
        end: begin + 5,
        vcpus: 2,
        knows_processes: true,
        counts: Counts {
            isa: 2,
            reasons: vec![of_reason(count, class as u64, class)],
            processes: vec![process],
            unfinished: count,
            ..Counts::default()
        },
        ..ExitInterval::default()
    }
}

#[test]
fn sums_of_intervals_are_what_was_counted_in_all_of_them() {
    assert_eq!(ExitSums::default().sum(), None);
    let intervals = [interval(10, 3, 4), interval(15, 5, 9)];
    let mut sums = ExitSums::default();
    intervals.iter().for_each(|one| sums.add(one));
    let sum = sums.sum().unwrap();
    assert_eq!((sum.begin, sum.end, sum.time(), sum.vcpus), (10, 20, 10, 2));
    let [reason] = &sum.counts.reasons[..] else {
        panic!("{sum:?}")
    };
    let all = Exits { count: 8, time: 80 };
    assert_eq!((reason.exits, reason.longest), (all, 9));
    let classes = reason.histogram.classes();
    assert_eq!((classes[4], classes[9]), (3, 5));
    // The name is the last one.
    let [process] = &sum.counts.processes[..] else {
        panic!("{sum:?}")
    };
    assert_eq!((process.exits, process.name), (all, [b'j'; 16]));
    assert_eq!((sum.counts.isa, sum.counts.unfinished), (2, 5));
}
