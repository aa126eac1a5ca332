//! The page's exits, used in a browser: they are those of `kvmprof report --exits`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use kvmprof_recording::exits::{Counts, ExitInterval, Exits, Histogram, OfReason, ReasonName};
use kvmprof_recording::file::{Recording, Unobserved};
use kvmprof_recording::{Mode, Sample, StackEnd, StackSummary, comm_of};
use kvmprof_report::exits;
use serde_json::{Value, json};

use crate::shared::read::selection;
use crate::shared::recordings::Written;
use crate::shared::used::Used;

/// The start of recordings, in ns.
const BEGAN: u64 = 5_000_000_000;
const MS: u64 = 1_000_000;
const CODE: u64 = 0xffff_ffff_8100_0000;
/// The address that stands for a reason of exits.
const REASON: u64 = 0xfe00_0000_0000_0000;
const SYMBOLS: &str =
    "ffffffff81000000 T outb\nffffffff81001000 T _end\n\nfe00000000000000 t io\t[host:exit]\n";
/// The reasons of exits: number, name, and whether they are halts.
const REASONS: [(u32, &str, bool); 3] = [(30, "io", false), (48, "npf", false), (12, "hlt", true)];

/// The exits of a vCPU for a reason: so many in this class of the histogram.
fn of_reason(reason: u32, vcpu: u32, count: u64, class: usize) -> OfReason {
    let time = count * Histogram::begin(class);
    let classes = (0..Histogram::CLASSES).map(|one| if one == class { count } else { 0 });
    OfReason {
        reason,
        vcpu,
        exits: Exits { count, time },
        longest: Histogram::begin(class) + 1,
        left: Exits {
            count: count / 2,
            time: time / 2,
        },
        histogram: Histogram::new(classes),
    }
}

/// An interval of a tenth of a second: its port writes become slower from one to the next.
fn interval(number: u64) -> ExitInterval {
    let slower = usize::try_from(number).unwrap();
    let names = REASONS.map(|(reason, name, is_halt)| {
        let name = name.to_owned();
        (reason, ReasonName { name, is_halt })
    });
    ExitInterval {
        begin: BEGAN + number * 100 * MS,
        end: BEGAN + (number + 1) * 100 * MS,
        vcpus: 2,
        names: names.into(),
        counts: Counts {
            reasons: vec![
                of_reason(30, 0, 40 + number, 80 + slower),
                of_reason(30, 1, 3, 90),
                of_reason(48, 1, 7, 70),
                of_reason(12, 0, 1, 200),
            ],
            ..Counts::default()
        },
        ..ExitInterval::default()
    }
}

/// Samples of the clock, some of which have a reason of an exit below them, and the exits of four intervals, the last of which ends after the last tick.
fn write(path: &Path) {
    let mut written = Written::with_symbols(SYMBOLS);
    written.samples(300, (7, b"worker"), Mode::Kernel, (&[CODE], &[]));
    for number in 0..50_u16 {
        let sample = Sample {
            time: BEGAN + 301 * MS + u64::from(number) * MS,
            vcpu: number % 2,
            pid: 7,
            tid: 7,
            comm: comm_of("worker"),
            mode: Mode::Kernel,
            pc: CODE,
            stack: StackSummary {
                kernel: 1,
                user: 0,
                host: 1,
                kernel_end: StackEnd::Complete,
                user_end: StackEnd::Absent,
            },
            ..Sample::default()
        };
        written.push(&sample.into(), &[CODE, REASON]);
    }
    written.write(path);
    let mut file = std::fs::File::options().append(true).open(path).unwrap();
    for number in 0..4 {
        file.write_all(&interval(number).to_block().unwrap())
            .unwrap();
    }
}

/// What the report has for these options, in the order of the page: those of vCPU 1 alone if `is_one` is set.
fn reported(used: &Used, options: &[&str], is_one: bool) -> Vec<Value> {
    let recording = Recording::open(&used.folder.path().join("recording")).unwrap();
    let time = selection(options).time;
    let (sum, _) = exits::sum(&recording, &time, &Unobserved).unwrap();
    let sum = sum.unwrap();
    let mut rows: BTreeMap<u32, OfReason> = BTreeMap::new();
    for one in sum
        .counts
        .reasons
        .iter()
        .filter(|one| !is_one || one.vcpu == 1)
    {
        let row = rows.entry(one.reason).or_default();
        row.reason = one.reason;
        row.exits.add(one.exits);
        row.left.add(one.left);
        row.longest = row.longest.max(one.longest);
        row.histogram.add(&one.histogram);
    }
    let mut rows: Vec<OfReason> = rows.into_values().collect();
    rows.sort_by_key(|row| (sum.is_halt(row.reason), std::cmp::Reverse(row.exits.time)));
    let rows = rows.iter().map(|row| {
        let percentile = |percent| row.histogram.percentile(percent).unwrap().min(row.longest);
        json!([
            sum.reason(row.reason),
            row.exits.count,
            row.exits.time,
            percentile(50),
            percentile(99),
            row.longest,
            row.left.count,
        ])
    });
    rows.collect()
}

#[test]
fn exits_are_those_of_the_report() {
    let used = Used::of_recording("exits", write);
    let said = &used.said;
    let same = |step: &str, options: &[&str], is_one| {
        let reported = reported(&used, options, is_one);
        assert!(!reported.is_empty());
        assert_eq!(said[step]["rows"], json!(reported), "{step}");
    };
    same("all", &[], false);
    assert_eq!(said["all"]["command"], "kvmprof report --exits FILE");
    let table = said["all"]["table"].as_array().unwrap();
    assert_eq!(table.len(), REASONS.len());
    // The halts take most of the time.
    assert_eq!((&table[0][0], &table[0][3]), (&json!("hlt"), &json!("4")));
    assert_eq!(said["violations"], json!([]));
    // One for each reason but halts.
    assert_eq!(said["areas"], 2);
    // Of port writes, which take the most time; then of halts.
    assert_eq!(said["all"]["bars"].as_array().unwrap().len(), 5);
    let reason = |step: &str| said[step]["reason"].as_str().unwrap().to_owned();
    assert!(reason("all").starts_with("io: 178 exits, "), "{said}");
    assert!(reason("halts").starts_with("hlt: 4 exits, "), "{said}");
    assert_eq!(said["halts"]["bars"].as_array().unwrap().len(), 1);
    // 50 samples with the mean time of port writes.
    let frames = said["frames"].as_array().unwrap();
    let io = frames
        .iter()
        .find(|frame| frame.as_str().unwrap().starts_with("io: "));
    assert!(
        io.is_some_and(|io| io
            .as_str()
            .unwrap()
            .ends_with(" of the sampled exits, 100.0 %")),
        "{frames:?}"
    );
    assert_eq!(frames.len(), 3, "{frames:?}");
    let time = said["time"]["state"].as_str().unwrap();
    same("time", &["--time", time], false);
    assert_ne!(said["time"]["rows"], said["all"]["rows"]);
    let command = format!("kvmprof report --exits FILE --time {time}");
    assert_eq!(said["time"]["command"], command);
    same("vcpu", &["--time", time], true);
}
