//! Uses the page's filters, lanes and search in a browser: they agree with `kvmprof report` for the same ticks.

use std::path::Path;

use crate::labels;
use crate::shared::pages::{USUAL, count, row};
use crate::shared::read::{counted, profile};
use crate::shared::recordings::Written;
use crate::shared::used::Used;
use crate::shared::walk;
use kvmprof_recording::Mode;
use kvmprof_report::html::{Counts, comparison_page};
use kvmprof_report::profile::Profile;
use serde_json::{Value, json};

/// A recording of processes with these pids, names and ticks; their threads have the same ids.
fn of_processes(folder: &Path, name: &str, processes: &[(i32, &str, u64)]) -> (Profile, Counts) {
    let path = folder.join(name);
    let mut written = Written::with_symbols("ffffffff81000000 T f\n");
    for (pid, name, ticks) in processes {
        let process = (*pid, name.as_bytes());
        written.samples(*ticks, process, Mode::User, (&[], &[0x40_1000]));
    }
    written.write(&path);
    counted(&path, &[])
}

/// A pid of one program and later of another one is two processes.
#[test]
fn compared_processes_of_one_pid_are_chosen_apart() {
    let used = Used::of_page("ids", |folder| {
        let before = [(32, "a", 3), (33, "b", 4)];
        let (before, one) = of_processes(folder, "before", &before);
        let after = [(32, "b", 5), (33, "c", 6)];
        let (after, other) = of_processes(folder, "after", &after);
        comparison_page(before, after, vec![one, other], "A test")
    });
    // Also the text of the outermost frame: the selected ticks of each recording.
    let row = |name: &str, [before, after]: [u64; 2], shares: &str| {
        let selected = format!("{before} ticks selected before, {after} ticks after.");
        json!([name, selected, format!("all: {shares}")])
    };
    let gone = "100.0 % before, 0.0 % after (-100.0 %)";
    let same = "100.0 % before, 100.0 % after (+0.0 %)";
    let new = "0.0 % before, 100.0 % after (+100.0 %)";
    let (a, b) = (row("a", [3, 0], gone), row("b", [4, 5], same));
    let expected = json!([a, b, row("c", [0, 6], new)]);
    assert_eq!([&used.said["pid"], &used.said["tid"]], [&expected; 2]);
}

/// The report's row for a lane of this kind, by the lane's name.
fn row_of<'a>(report: &'a Value, kind: &str, name: &str) -> Option<&'a Value> {
    let (table, id) = match kind {
        "vcpu" => ("vcpus", "vcpu"),
        "process" => ("processes", "pid"),
        _ => ("threads", "tid"),
    };
    let (shown, number) = name.rsplit_once(' ').unwrap();
    let number: Value = number.parse().unwrap();
    let rows = report[table].as_array().unwrap();
    rows.iter().find(|row| {
        let is_named = row["name"] == shown || ["vCPU", "[unknown]", "[idle]"].contains(&shown);
        is_named && row[id] == number
    })
}

/// Each kind of ticks that a lane has in `report`, by its name on the page; of vCPUs those without a sample, too.
fn parts(used: &Used, report: &Value, kind: &str, name: &str, time: &str) -> Vec<(String, u64)> {
    let row = row_of(report, kind, name);
    let part = |mode: Mode| {
        let ticks = row.map_or(0, |row| count(&row[mode.name()]));
        (mode.name().to_owned(), ticks)
    };
    let mut parts = Mode::ALL.map(part).to_vec();
    if let Some(vcpu) = name.strip_prefix("vCPU ") {
        let vcpu = format!("--vcpu={vcpu}");
        let account = &used.report(&[&vcpu, "--time", time])["account"];
        for (part, name) in [
            ("stolen", "stolen"),
            ("lost", "lost"),
            ("others", "ungathered"),
        ] {
            parts.push((part.to_owned(), count(&account[name])));
        }
    }
    parts.retain(|(_, ticks)| *ticks > 0);
    parts
}

/// The pointer's text for each lane agrees with the report of that time, and so do the heights of the areas.
#[test]
fn lanes_have_the_ticks_of_the_report() {
    let used = Used::walked("lanes", USUAL);
    let all = used.report(&[]);
    let scale = used.text("scale");
    let begin = "A full lane of a vCPU is all of its ticks, that of a process or thread ";
    let percent = scale.strip_prefix(begin).unwrap();
    let (percent, rest) = percent.split_once(" %").unwrap();
    assert_eq!(rest, " of all vCPUs' ticks.");
    let scale = percent.parse::<f64>().unwrap() / 100.0;
    let rows = used.said["rows"].as_array().unwrap();
    let lanes = ["vcpu", "process", "thread"].map(|kind| {
        let scale = if kind == "vcpu" { 1.0 } else { scale };
        let rows = rows.iter().filter(|row| row["kind"] == kind);
        rows.map(|row| check_lane(&used, &all, row, scale)).count()
    });
    // Idle isn't a process, and one that has one thread has no lane for it.
    let processes = all["processes"].as_array().unwrap().len() - 1;
    assert_eq!(lanes[..2], [2, processes]);
    assert!(lanes[2] > processes && processes > 2, "{lanes:?}");
}

/// Checks a lane, whose full height is this share of all ticks.
fn check_lane(used: &Used, all: &Value, row: &Value, scale: f64) {
    let text = |name: &str| row[name].as_str().unwrap();
    let kind = text("kind");
    let (name, _) = text("label").split_once(": ").unwrap();
    let sum = |parts: &[(String, u64)]| parts.iter().map(|(_, ticks)| ticks).sum::<u64>();
    let whole = sum(&parts(used, all, kind, name, ":"));
    assert_eq!(text("label"), format!("{name}: {whole} ticks over time"));
    let time = text("time");
    let bin = used.report(&["--time", time]);
    let parts = parts(used, &bin, kind, name, time);
    assert!(!parts.is_empty(), "{row}");
    let whole = match kind {
        "vcpu" => sum(&parts),
        _ => count(&bin["account"]["ticks"]),
    };
    let share = |ticks: u64| 100.0 * ticks as f64 / whole as f64;
    let value = |(part, ticks): &(_, _)| format!("{part} {ticks} ({:.1} %)", share(*ticks));
    let values: Vec<String> = parts.iter().map(value).collect();
    let (_, shown) = text("values").split_once(" s: ").unwrap();
    assert_eq!(shown, values.join(", "), "{name} {time}");
    let areas: Vec<(String, f64)> = serde_json::from_value(row["areas"].clone()).unwrap();
    assert_eq!(areas.len(), parts.len(), "{row}");
    for ((part, ticks), (class, height)) in parts.iter().zip(areas) {
        let expected = share(*ticks) / scale;
        // The scale and heights are rounded to a tenth.
        let near = (height - expected).abs() < 0.3 + 0.01 * expected;
        assert!(*part == class && near, "{expected}: {row}");
    }
}

/// Filters of the page that combine select what those of the report do.
#[test]
fn filters_combine_as_those_of_the_report() {
    let used = Used::walked("combined", USUAL);
    let said = &used.said;
    let options = [
        ("vcpu", "--vcpu=1"),
        ("mode", "--mode=kernel"),
        ("regex", "--grep=(?i)^(copy|walk)_"),
    ];
    let all = used.report(&[]);
    let mut before = count(&all["samples"]);
    for (index, (name, _)) in options.iter().enumerate() {
        let words: Vec<&str> = options[..=index].iter().map(|(_, word)| *word).collect();
        let report = used.report(&words);
        assert_eq!(said[name]["total"], report["samples"], "{name}");
        let command = format!("kvmprof report FILE {}", words.join(" "));
        let command = command.replace("grep=(?i)^(copy|walk)_", "grep '(?i)^(copy|walk)_'");
        assert_eq!(said[name]["command"], command);
        // Each filter leaves less.
        assert!((1..before).contains(&count(&report["samples"])), "{name}");
        before = count(&report["samples"]);
    }
    // Those by module, and by required functions of stacks.
    let kernel = &row(&all, "modules", "[kernel]")["total"];
    assert!(count(kernel) < count(&all["samples"]));
    assert_eq!(
        [&said["module"]["total"], &said["itsModule"]["total"]],
        [kernel; 2]
    );
    let copying = &row(&all, "functions", "copy_page")["total"];
    assert!(count(copying) < count(kernel));
    assert_eq!(said["onlyWith"]["total"], *copying);
    // Those with one of both, and those with each, imply those with both.
    let either = count(&used.report(&["--grep=^(copy_page|walk_tree)$"])["samples"]);
    let walking = &row(&all, "functions", "walk_tree")["total"];
    let both = count(copying) + count(walking) - either;
    assert_eq!(said["withBoth"]["total"], both);
    assert!(0 < both && both < count(copying));
    let chips = json!(["module [kernel]", "only copy_page", "only walk_tree"]);
    assert_eq!(said["chips"], chips);
    for step in ["module", "onlyWith", "withBoth", "withoutOne"] {
        let command = said[step]["command"].as_str().unwrap();
        let printed = used.printed(command);
        assert_eq!(said[step]["total"], printed["samples"], "{command}");
    }
    assert_eq!(
        count(&said["withBoth"]["total"]) + count(&said["withoutOne"]["total"]),
        count(walking)
    );
}

/// The filter and the groups of the graph agree with the report for each label, also for a process that had two.
#[test]
fn labels_are_those_of_the_report() {
    let used = Used::of_recording("labelled", labels::write);
    let report = used.report(&[]);
    let rows = report["labels"][labels::KEY].as_array().unwrap().iter();
    let group = |row: &Value| {
        let value = row["value"].as_str().unwrap_or("[none]");
        (format!("{}={value}", labels::KEY), count(&row["samples"]))
    };
    let mut groups: Vec<(String, u64)> = rows.map(group).collect();
    assert_eq!(groups.len(), 4);
    groups.sort();
    let samples = count(&report["samples"]);
    let frames = groups.iter().map(|(label, ticks)| {
        let percent = 100.0 * *ticks as f64 / samples as f64;
        format!("{label}: {ticks} ticks, {percent:.1} %")
    });
    let mut shown: Vec<String> = serde_json::from_value(used.said["groups"].clone()).unwrap();
    shown.sort();
    assert_eq!(shown, frames.collect::<Vec<_>>());
    let known = groups
        .iter()
        .filter(|(label, _)| !label.ends_with("[none]"));
    let known = known.map(|(label, ticks)| {
        let command = format!("kvmprof report FILE --label '{label}'");
        json!([label, ticks, command])
    });
    assert_eq!(used.said["chosen"], Value::Array(known.collect()));
    // A thread whose process had two labels is one row.
    let [shown, threads] = [&used.said, &report].map(|all| all["threads"].as_array().unwrap());
    assert_eq!(shown.len(), threads.len());
    assert_eq!(used.said["only"]["total"], groups[0].1);
    assert_eq!(used.said["byLane"], used.said["only"]);
    let mut lanes: Vec<String> = serde_json::from_value(used.said["lanes"].clone()).unwrap();
    // Idle ticks have no label and no lane.
    lanes.retain(|lane| !lane.contains("[none]"));
    lanes.sort();
    let known = groups
        .iter()
        .filter(|(label, _)| !label.ends_with("[none]"));
    let expected = known.map(|(label, ticks)| format!("{label}: {ticks} ticks over time"));
    assert_eq!(lanes, expected.collect::<Vec<_>>());
    assert_eq!(used.said["ofNone"], 0);
}

/// One recording at two times: the page's command names both, also for a part of them.
#[test]
fn two_times_of_a_recording_are_compared() {
    let used = Used::of_page("times", |folder| {
        let path = folder.join("recording");
        walk::write(&path, 20, USUAL);
        let sides = ["--time=0.5:1.5", "--time=2:3"].map(|time| counted(&path, &[time]));
        let [(before, one), (after, other)] = sides;
        comparison_page(before, after, vec![one, other], "A test")
    });
    let path = used.folder.path().join("recording");
    let totals = |times: [&str; 2]| {
        let [before, after] = times.map(|time| profile(&path, &["--time", time]).samples());
        format!("{before} ticks selected before, {after} ticks after.")
    };
    assert_eq!(used.text("whole"), totals(["0.5:1.5", "2:3"]));
    let command = "kvmprof diff recording --json --time 0.500:1.500 --time 2.000:3.000";
    assert_eq!(used.text("wholeCommand"), command);
    let command = used.text("partCommand");
    let words: Vec<&str> = command.split(" --time ").collect();
    let ["kvmprof diff recording --json", before, after] = words[..] else {
        panic!("{command}");
    };
    assert_eq!(used.text("part"), totals([before, after]), "{command}");
    // A quarter of a second off each end, to the nearest edge of a bin.
    let edges = |time: &str, begin: f64| {
        let (from, to) = time.split_once(':').unwrap();
        [from, to].map(|edge| edge.parse::<f64>().unwrap() - begin)
    };
    let (before, after) = (edges(before, 0.5), edges(after, 2.0));
    for ((before, after), wanted) in before.into_iter().zip(after).zip([0.25, 0.75]) {
        assert!((before - after).abs() < 1e-6, "{command}");
        assert!((before - wanted).abs() < 0.011, "{command}");
    }
}

/// Typed text is searched for after a short time without a key, or by Enter; nothing else is recomputed.
#[test]
fn a_search_selects_nothing() {
    let used = Used::walked("search", USUAL);
    let said = &used.said;
    assert_eq!(said["typed"], "");
    let found = said["found"].as_array().unwrap();
    assert_eq!(found.len(), 1, "{said}");
    let all = used.report(&[]);
    let found = found[0].as_str().unwrap();
    let total = format!("({} ticks)", row(&all, "functions", "copy_page")["total"]);
    assert!(found.ends_with(&total), "{found}: {total}");
    assert_eq!(said["entered"], "walk_tree");
    assert_eq!(said["isSame"], true);
    assert!(count(&said["hits"]) > 0);
    assert_eq!(said["rows"], json!(["walk_tree"]));
}

/// Its sums are those of its text, with or without Enter; text typed without a pause is one step.
#[test]
fn a_function_that_is_typed_is_a_filter() {
    let used = Used::walked("typed", USUAL);
    let said = &used.said;
    assert!(used.text("total").starts_with("0 ticks selected"), "{said}");
    assert_eq!(said["back"], said["all"]);
    // The lane's own ticks are gone, and its text for the bin has changed.
    let has_ticks = |text| {
        let mut names = Mode::ALL.map(Mode::name).into_iter();
        names.any(|mode| used.text(text).contains(mode))
    };
    assert!(has_ticks("before") && !has_ticks("values"), "{said}");
    assert_eq!(said["again"], said["before"]);
}

/// Keys show the same as the pointer.
#[test]
fn keys_reach_values_and_intervals() {
    let used = Used::walked("reached", USUAL);
    let said = &used.said;
    let edges: Vec<String> = serde_json::from_value(said["edges"].clone()).unwrap();
    let first = format!("vCPU 0, {} to {}: ", edges[0], edges[1]);
    assert!(used.text("first").starts_with(&first), "{said}");
    let last = format!("vCPU 1, {} to {}: ", edges[2], edges[3]);
    assert!(used.text("last").starts_with(&last), "{said}");
    let intervals = said["intervals"].as_array().unwrap();
    let mut shown = 0;
    for (cell, with) in said["titles"].as_array().unwrap().iter().zip(intervals) {
        let [text, title] = [0, 1].map(|part| cell[part].as_str().unwrap());
        let about = "95 % confidence, if ticks are independent of each other: ";
        let interval = title.strip_prefix(about);
        let expected = interval.map(|interval| format!("{text}, {interval}"));
        shown += usize::from(interval.is_some());
        assert_eq!(*with, expected.unwrap_or_else(|| text.to_owned()));
    }
    assert_eq!(shown, 2, "{said}");
}

#[test]
fn odd_names_and_patterns_are_escaped() {
    let used = Used::of_recording("odd", |path| {
        let mut written = Written::with_symbols("1000 T operator||\n2000 T f\n3000 T _end\n");
        let process = (7, b"worker".as_slice());
        for (ticks, address) in [(3, 0x1010), (4, 0x2010)] {
            written.samples(ticks, process, Mode::Kernel, (&[address], &[]));
        }
        written.write(path);
    });
    let said = &used.said;
    assert_eq!(said["chip"], "only operator||");
    for (step, total) in [("only", "3 ticks selected"), ("module", "0 ticks selected")] {
        assert!(used.text(step).starts_with(total), "{said}");
    }
    // Patterns that the command doesn't support aren't passed to it.
    let without = "kvmprof report FILE    # without the other filters";
    let with = "kvmprof report FILE --grep '(?i)^operator.+$'";
    assert_eq!(said["commands"], json!([with, without, without]));
}
