use std::collections::BTreeMap;
use std::path::Path;

use kvmprof_recording::Mode;
use kvmprof_recording::file::{Recording, RecordingInfo};

use super::*;
use crate::budget::OutputBudget;
use crate::graph::marked;
use crate::profile::{Levels, Process, Profile, SortBy, by_label, folded, functions};

const INFO: fn() -> RecordingInfo = || RecordingInfo {
    hz: 19,
    vcpus: 1,
    ..RecordingInfo::default()
};

type Names = &'static [&'static str];

/// Rows of all kinds: a kernel module under a program, misleading names, halted vCPUs, no stack.
fn rows() -> Vec<Row<'static>> {
    use Mode::{Idle, Interrupt, Kernel, User};
    let none: (Names, Names) = (&[], &[]);
    let work: (Names, Names) = (&["work", "main"], &["prog", "prog"]);
    let read: (Names, Names) = (
        &["ext4_read", "<T as X>::go", "read", "main"],
        &["[ext4]", "[kernel]", "libc.so.6", "prog"],
    );
    // Another function of the same name.
    let main: (Names, Names) = (&["main", "0x7f00"], &["other", "[anon]"]);
    let halt: (Names, Names) = (&["halt", "do_idle"], &["[kernel]", "[kernel]"]);
    let handle: (Names, Names) = (&["handle", "work"], &["[kernel]", "prog"]);
    let rows = [
        ("db", "db", User, work, 5),
        ("db", "a thread whose name is long", User, work, 2),
        ("db", "db", Kernel, read, 7),
        ("web;\u{1f980}", "w", User, main, 3),
        ("idle", "idle", Idle, none, 11),
        ("idle", "idle", Idle, halt, 4),
        ("db", "db", Interrupt, handle, 6),
        ("other", "other", User, none, 9),
        ("other", "other", Kernel, none, 8),
    ];
    let row = |(process, thread, mode, (functions, modules), ticks)| Row {
        process,
        thread,
        mode,
        functions,
        modules,
        labels: &[],
        ticks,
    };
    rows.map(row).into()
}

fn profile() -> Profile {
    let mut sums = RowSums::new(1 << 20);
    for row in rows() {
        sums.add(&row).unwrap();
    }
    sums.into_profile(&INFO())
}

/// The recording of the rows twice, in two stretches of 10 s.
fn recording() -> Vec<u8> {
    let mut writer = RowsWriter::new(Vec::new(), &INFO(), None).unwrap();
    for begin in [5_000_000_000, 15_000_000_000] {
        for row in rows() {
            writer.add(&row, begin, 10_000_000_000).unwrap();
        }
    }
    let (bytes, account) = writer.finish().unwrap();
    assert!(account.balances() && account.ticks == 110, "{account}");
    bytes
}

#[test]
fn rows_are_drawn_under_their_names() {
    let profile = profile();
    let account = profile.account();
    assert_eq!((account.ticks, account.samples, account.idle), (55, 44, 11));
    assert_eq!(profile.samples(), 55);
    let mut lines = folded(&profile, &OutputBudget::new(1 << 20)).unwrap();
    lines.sort();
    assert_eq!(
        lines,
        [
            "db-1;main;read;<T as X>::go_[k];ext4_read_[k] 7",
            "db-1;main;work 7",
            "db-1;work;handle_[k] 6",
            "idle-0;[halted] 11",
            "idle-0;do_idle_[k];halt_[k] 4",
            "other-5;[no stack] 9",
            "other-5;[no stack]_[k] 8",
            "web:🦀-3;0x7f00;main 3",
        ]
    );
    let marked = marked(&profile, &Levels::default(), &OutputBudget::new(1 << 20)).unwrap();
    assert_eq!(marked.len(), 8);
    let functions = functions(&profile, SortBy::Own);
    for (name, module, own) in [
        ("ext4_read", "[ext4]", 7),
        ("main", "other", 3),
        ("main", "prog", 0),
        ("0x7f00", "[anon]", 0),
    ] {
        let mut functions = functions.iter();
        let found = functions.find(|row| (&*row.name, &*row.module) == (name, module));
        assert_eq!(found.unwrap().own, own, "{name}");
    }
}

#[test]
fn a_recording_of_rows_agrees_with_the_profile() {
    let recording = Recording::from_bytes(Path::new("rows"), recording()).unwrap();
    let read = Profile::from_recording(&recording, &[]).unwrap();
    let lines = |profile: &Profile| -> BTreeMap<String, u64> {
        let lines = folded(profile, &OutputBudget::new(1 << 20)).unwrap();
        let lines = lines.iter().map(|line| line.rsplit_once(' ').unwrap());
        lines
            // The kernel's symbols of a recording have no spaces.
            .map(|(stack, count)| (stack.replace('\u{a0}', " "), count.parse().unwrap()))
            .collect()
    };
    let twice = lines(&profile()).into_iter();
    let twice: BTreeMap<String, u64> = twice.map(|(line, count)| (line, count * 2)).collect();
    assert_eq!(lines(&read), twice);
    assert_eq!(read.contents.closed, Some(read.account()));
    assert_eq!(read.processes[&1].name, "db");
    let mut times = Vec::new();
    let read = recording.read(|ticks, _| times.extend(ticks.sample.map(|sample| sample.time)));
    read.unwrap();
    assert!(times.is_sorted() && times.len() == 88);
    assert_eq!(times.partition_point(|time| *time < 15_000_000_000), 44);
    assert!(times[0] >= 5_000_000_000 && times[87] < 25_000_000_000);
}

#[test]
fn many_ticks_of_one_stack_stay_readable() {
    let mut writer = RowsWriter::new(Vec::new(), &INFO(), None).unwrap();
    let row = Row {
        ticks: 2_000_000,
        ..rows()[0]
    };
    writer.add(&row, 0, 60_000_000_000).unwrap();
    let (bytes, _) = writer.finish().unwrap();
    let recording = Recording::from_bytes(Path::new("rows"), bytes).unwrap();
    let read = Profile::from_recording(&recording, &[]).unwrap();
    assert_eq!(read.account().samples, 2_000_000);
}

#[test]
fn excessive_input_is_refused() {
    let mut writer = RowsWriter::new(Vec::new(), &INFO(), None).unwrap();
    let row = Row {
        ticks: u64::MAX,
        ..rows()[0]
    };
    let error = writer.add(&row, 0, 1).unwrap_err();
    assert!(matches!(error, RowsError::TooManyTicks));
    let mut sums = RowSums::new(110);
    sums.add(&row).unwrap();
    let error = sums.add(&row).unwrap_err();
    assert!(matches!(error, RowsError::TooManyStacks(110)), "{error}");
    let long = "x".repeat(1 << 20);
    let mut sums = RowSums::new(u64::MAX);
    let result = (0..100).try_for_each(|number| {
        let name = format!("{number}{long}");
        sums.add(&Row {
            functions: &[&name],
            ..rows()[0]
        })
    });
    assert!(matches!(result, Err(RowsError::TooManyNames)));
}

#[test]
fn deep_stacks_and_damaged_rows_cause_no_panic() {
    let names = vec!["f"; 2000];
    let mut sums = RowSums::new(1 << 20);
    for mode in Mode::ALL {
        let row = Row {
            process: "",
            thread: "",
            mode,
            functions: &names,
            modules: &[],
            ticks: 1,
            ..rows()[0]
        };
        sums.add(&row).unwrap();
    }
    let profile = sums.into_profile(&INFO());
    assert_eq!(profile.samples(), 4);
    assert!(profile.stacks().all(|stack| stack.is_cut_short));
}

/// Rows of one process with other labels, of an idle process with them, and of halted vCPUs.
fn labelled() -> Vec<Row<'static>> {
    let own: Row<'static> = rows()[0];
    let idle = rows()[5];
    let sets: [(&'static [(&str, &str)], u64); 4] = [
        (&[("user", "0"), ("zone", "north")], 1),
        (&[("user", "1000"), ("zone", "north")], 2),
        (&[("user", "0"), ("zone", "so\nuth")], 4),
        (&[], 8),
    ];
    let labelled = sets.into_iter().flat_map(|(labels, ticks)| {
        let with = |row| Row {
            labels,
            ticks,
            ..row
        };
        [own, idle].map(with)
    });
    let halted = Row {
        labels: &[("zone", "north")],
        ..rows()[4]
    };
    labelled.chain([halted]).collect()
}

/// The values with ticks in this mode, by name.
fn by_value(profile: &Profile, key: &str, mode: Mode) -> Vec<(String, u64)> {
    let rows = by_label(profile, key).into_iter();
    let rows = rows.map(|row| (row.shown_value().to_owned(), row.modes[mode.index()]));
    let mut rows: Vec<_> = rows.filter(|(_, ticks)| *ticks > 0).collect();
    rows.sort();
    rows
}

fn owned((value, ticks): (&str, u64)) -> (String, u64) {
    (value.to_owned(), ticks)
}

#[test]
fn rows_have_the_labels_of_their_processes() {
    let mut sums = RowSums::new(1 << 20);
    let mut writer = RowsWriter::new(Vec::new(), &INFO(), None).unwrap();
    for row in labelled() {
        sums.add(&row).unwrap();
        writer.add(&row, 5_000_000_000, 10_000_000_000).unwrap();
    }
    let (bytes, account) = writer.finish().unwrap();
    assert_eq!(account.ticks, 41);
    let recording = Recording::from_bytes(Path::new("rows"), bytes).unwrap();
    let profile = sums.into_profile(&INFO());
    let read = Profile::from_recording(&recording, &[]).unwrap();
    for profile in [&profile, &read] {
        let zones = [("[none]", 8), ("north", 3), ("so\u{fffd}uth", 4)];
        assert_eq!(by_value(profile, "zone", Mode::User), zones.map(owned));
        let users = [("0", 5), ("1000", 2), ("[none]", 8)];
        assert_eq!(by_value(profile, "user", Mode::User), users.map(owned));
        assert_eq!(profile.samples(), 41);
    }
    // Halted vCPUs have no process.
    let halted = owned(("[none]", 8 + 11));
    assert!(by_value(&profile, "zone", Mode::Idle).contains(&halted));
    let halted = owned(("[none]", 15 + 11));
    assert_eq!(by_value(&read, "zone", Mode::Idle), [halted]);
    let pids = |profile: &Profile| {
        let named = |process: &&Process| process.name == "db";
        profile.processes.values().filter(named).count()
    };
    // Labels belong to a process in a recording.
    assert_eq!((pids(&profile), pids(&read)), (1, 4));
    let by = Levels::named(["user", "thread"]).unwrap();
    let lines = marked(&profile, &by, &OutputBudget::new(1 << 20)).unwrap();
    let is_it = |line: &String| line.starts_with("user=1000;thread=") && line.ends_with("work 2");
    assert!(lines.iter().any(is_it), "{lines:?}");
}

#[test]
fn labels_are_names_too() {
    let values: Vec<String> = (0..500_000).map(|number| number.to_string()).collect();
    let mut sums = RowSums::new(u64::MAX);
    let result = values.iter().try_for_each(|value| {
        sums.add(&Row {
            labels: &[("container", value)],
            ..rows()[0]
        })
    });
    assert!(matches!(result, Err(RowsError::TooManyNames)));
}
