//! Tables with levels: each row of a group has the samples that a selection of the group alone leaves, and nothing is lost or counted twice.

use std::collections::BTreeMap;
use std::path::Path;

use clap::Parser;
use kvmprof_recording::Mode;
use kvmprof_recording::file::{Recording, Unobserved};
use kvmprof_report::budget::OutputBudget;
use kvmprof_report::graph::{GraphArguments, marked};
use kvmprof_report::profile::{
    Levels, Profile, SortBy, TableArguments, TableStyle, ThreadCounts, functions, print,
};
use serde_json::Value;

use crate::labels::{KEY, is_mark, recording};
use crate::shared::pages::count;
use crate::shared::read::{opened, profile, selection};

#[derive(Debug, Parser)]
struct CommandLine {
    #[command(flatten)]
    tables: TableArguments,
}

#[derive(Debug, Parser)]
struct PictureLine {
    #[command(flatten)]
    _graph: GraphArguments,
}

fn tables(options: &[&str]) -> TableArguments {
    let words = ["report"].iter().chain(options);
    CommandLine::parse_from(words).tables
}

/// The profile of what `options` select, with the samples of each stack by thread and vCPU.
fn with_parts(path: &Path, options: &[&str]) -> Profile {
    let (recording, resolver) = opened(path);
    let mut parts = ThreadCounts::new(None);
    let selection = selection(options);
    let read = Profile::read_with(&recording, selection, resolver, &Unobserved, &mut parts);
    let mut profile = read.unwrap();
    profile.set_parts(vec![parts]).unwrap();
    profile
}

/// The rows by the levels `by`, and how many there are more.
fn rows(profile: &Profile, by: &str, top: usize) -> Value {
    let arguments = tables(&["--by", by]);
    let budget = OutputBudget::new(u64::MAX);
    let document = arguments.document(profile, &[], &budget, top).unwrap();
    let [table] = document["levels"].as_array().unwrap().as_slice() else {
        panic!("{document}");
    };
    assert_eq!(table["by"], by.split(',').collect::<Value>());
    table.clone()
}

/// The rows of `table` and all rows below them, each with the identities of those that it is in and of itself.
fn flat<'a>(table: &'a Value, outer: &[String], all: &mut Vec<(Vec<String>, &'a Value)>) {
    for row in table["rows"].as_array().into_iter().flatten() {
        let members = ["value", "pid", "tid", "mode", "vcpu", "name", "module"];
        let words = members.map(|member| row[member].to_string());
        let path = [outer, &[words.join(" ")]].concat();
        all.push((path.clone(), row));
        flat(row, &path, all);
    }
}

#[test]
fn rows_of_a_group_are_those_of_its_selection() {
    let (_folder, path) = recording();
    let whole = with_parts(&path, &[]);
    for (by, member, option) in [
        (KEY, "value", format!("--label={KEY}=")),
        ("vcpu", "vcpu", "--vcpu=".to_owned()),
        ("process", "pid", "--pid=".to_owned()),
        ("mode", "mode", "--mode=".to_owned()),
    ] {
        let table = rows(&whole, &format!("{by},function"), usize::MAX);
        let groups = table["rows"].as_array().unwrap();
        let mut compared = 0;
        for group in groups.iter().filter(|group| !group[member].is_null()) {
            let value = group[member].to_string();
            let option = format!("{option}{}", value.trim_matches('"'));
            let selected = profile(&path, &[&option]);
            assert_eq!(group["self"], selected.samples(), "{option}");
            assert_eq!(group["total"], selected.samples(), "{option}");
            let row = |name: &Value, module: &Value, own, total| {
                (format!("{name} {module}"), (own, total))
            };
            let found = group["rows"].as_array().unwrap().iter();
            let found = found.map(|one| {
                let (own, total) = (count(&one["self"]), count(&one["total"]));
                row(&one["name"], &one["module"], own, total)
            });
            let expected = functions(&selected, SortBy::Own).into_iter();
            let expected =
                expected.map(|one| row(&one.name.into(), &one.module.into(), one.own, one.total));
            let found: BTreeMap<String, (u64, u64)> = found.collect();
            assert_eq!(found, expected.collect(), "{option}");
            compared += found.len();
        }
        assert!(groups.len() > 1 && compared > 20, "{by}: {compared}");
    }
}

/// Samples by thread, vCPU and mode, as the recording has them; idle ticks without a sample are of thread 0.
fn counted(path: &Path) -> BTreeMap<(i64, u64, &'static str), u64> {
    let mut counts = BTreeMap::new();
    let read = Recording::open(path).unwrap().read(|ticks, _| {
        let mut add = |tid: i32, mode: Mode, ticks_of_it: u64| {
            if ticks_of_it > 0 {
                let key = (tid.into(), ticks.vcpu.into(), mode.name());
                *counts.entry(key).or_default() += ticks_of_it;
            }
        };
        add(0, Mode::Idle, ticks.idle);
        if let Some(sample) = &ticks.sample {
            add(sample.tid, sample.mode, 1);
        }
    });
    read.unwrap();
    counts
}

#[test]
fn threads_and_vcpus_are_levels_too() {
    let (_folder, path) = recording();
    let table = rows(&with_parts(&path, &[]), "thread,vcpu,mode", usize::MAX);
    let mut found = BTreeMap::new();
    for thread in table["rows"].as_array().unwrap() {
        for vcpu in thread["rows"].as_array().unwrap() {
            for mode in vcpu["rows"].as_array().unwrap() {
                let key = (thread["tid"].as_i64().unwrap(), count(&vcpu["vcpu"]));
                let name = Mode::ALL.map(Mode::name);
                let name = name.into_iter().find(|name| mode["mode"] == *name);
                let name = name.unwrap();
                assert_eq!(mode["samples"], mode[name]);
                found.insert((key.0, key.1, name), count(&mode["samples"]));
            }
        }
    }
    assert_eq!(found, counted(&path));
    assert!(found.len() > 30);
}

#[test]
fn no_level_loses_a_sample() {
    let (_folder, path) = recording();
    let whole = with_parts(&path, &[]);
    let by = format!("module,mode,{KEY},thread,function,line,vcpu,process");
    let table = rows(&whole, &by, usize::MAX);
    let sum = |rows: &Value, member: &str| -> u64 {
        let rows = rows["rows"].as_array().unwrap().iter();
        rows.map(|row| count(&row[member])).sum()
    };
    assert_eq!(sum(&table, "self"), whole.samples());
    let mut all = Vec::new();
    flat(&table, &[], &mut all);
    assert!(all.len() > 1000);
    for (place, row) in all {
        assert!(count(&row["self"]) <= count(&row["total"]), "{place:?}");
        if row.get("rows").is_some() {
            assert_eq!(sum(row, "self"), count(&row["self"]), "{place:?}");
            assert!(sum(row, "total") >= count(&row["total"]), "{place:?}");
        }
    }
    let by_label = rows(&whole, &format!("{KEY},mode"), usize::MAX);
    let values = by_label["rows"].as_array().unwrap().iter();
    let values = values.map(|row| row["value"].as_str());
    let table_of_label = kvmprof_report::profile::by_label(&whole, KEY);
    let others = table_of_label.iter().map(|row| row.value.as_deref());
    assert_eq!(values.collect::<Vec<_>>(), others.collect::<Vec<_>>());
    // The groups of a frame and of its process are the same ones in either order.
    let leaves = |by: &str, place: [usize; 2]| -> BTreeMap<[String; 2], [u64; 2]> {
        let table = rows(&whole, by, usize::MAX);
        let mut all = Vec::new();
        flat(&table, &[], &mut all);
        let leaves = all.into_iter().filter(|(path, _)| path.len() == 2);
        let leaves = leaves.map(|(path, row)| {
            let counts = ["self", "total"].map(|member| count(&row[member]));
            (place.map(|index| path[index].clone()), counts)
        });
        leaves.collect()
    };
    assert_eq!(
        leaves("function,process", [0, 1]),
        leaves("process,function", [1, 0])
    );
}

#[test]
fn a_short_table_says_what_it_leaves_out() {
    let (_folder, path) = recording();
    let whole = with_parts(&path, &[]);
    let table = rows(&whole, &format!("{KEY},function"), 2);
    let groups = table["rows"].as_array().unwrap();
    let all = rows(&whole, &format!("{KEY},function"), usize::MAX);
    let left_out = all["rows"].as_array().unwrap().len() - 2;
    assert_eq!(
        (groups.len(), count(&table["rows_left_out"])),
        (2, left_out as u64)
    );
    let printed = |budget: u64| {
        let mut out = Vec::new();
        let layout = tables(&["--by", &format!("{KEY},function")]).layout(2, TableStyle::default());
        let budget = OutputBudget::new(budget);
        print(&whole, &layout, &[], &budget, &mut out).map(|()| String::from_utf8(out).unwrap())
    };
    let text = printed(u64::MAX).unwrap();
    assert!(text.contains("  A KEY > FUNCTION\n"), "{text}");
    let group = groups[0]["value"].as_str().unwrap_or("[none]");
    let own = &groups[0]["self"];
    let line = text
        .lines()
        .find(|line| line.ends_with(&format!("  {KEY}={group}")));
    assert!(
        line.unwrap()
            .starts_with(&format!("  {own:>7}  ", own = count(own))),
        "{text}"
    );
    // What is shown of a group and what is left out add up to it.
    let shown = groups[0]["rows"].as_array().unwrap().iter();
    let rest = count(own) - shown.map(|row| count(&row["self"])).sum::<u64>();
    assert!(
        text.contains(&format!("others with {rest} samples (--top shows more)")),
        "{text}"
    );
    let refused = printed(1 << 11).unwrap_err().to_string();
    assert!(refused.contains("--output-limit"), "{refused}");
}

#[test]
fn pictures_have_the_same_groups() {
    let (_folder, path) = recording();
    let whole = with_parts(&path, &[]);
    let lines = |by: &[&str]| -> BTreeMap<String, u64> {
        let by = Levels::named(by.iter().copied()).unwrap();
        let lines = marked(&whole, &by, &OutputBudget::new(u64::MAX)).unwrap();
        let mut sums = BTreeMap::new();
        for line in &lines {
            let (stack, ticks) = line.rsplit_once(' ').unwrap();
            let first = stack.split(';').next().unwrap().replace(is_mark, "");
            *sums.entry(first).or_default() += ticks.parse::<u64>().unwrap();
        }
        sums
    };
    let vcpus = whole.all_vcpus().into_iter();
    let vcpus = vcpus.map(|(vcpu, modes)| (format!("vcpu={vcpu}"), modes.iter().sum()));
    assert_eq!(lines(&["vcpu", "process"]), vcpus.collect());
    let threads = whole.all_threads().into_iter();
    let threads = threads.map(|(_, thread)| {
        let samples: u64 = thread.modes.iter().sum();
        (format!("thread={}", thread.label()), samples)
    });
    assert_eq!(lines(&["thread", KEY]), threads.collect());
    // A process that isn't innermost is no second time below.
    let processes = lines(&["process", KEY]);
    assert_eq!(processes.values().sum::<u64>(), whole.samples());
    let by = Levels::named(["process", KEY]).unwrap();
    for line in marked(&whole, &by, &OutputBudget::new(u64::MAX)).unwrap() {
        let frames: Vec<&str> = line.split(';').collect();
        assert!(
            !frames[2..].iter().any(|name| name.starts_with("walker")),
            "{line}"
        );
    }
}

#[test]
fn wrong_levels_are_refused() {
    let many: Vec<String> = (0..17).map(|number| number.to_string()).collect();
    for (by, why) in [
        ("vcpu,user,vcpu", "vcpu is named twice"),
        (many.join(",").as_str(), "16 levels at most"),
    ] {
        let words = ["report", "--by", by];
        for refused in [
            CommandLine::try_parse_from(words).map(|_| ()),
            PictureLine::try_parse_from(words).map(|_| ()),
        ] {
            let refused = refused.unwrap_err().to_string();
            assert!(
                refused.contains(why) && refused.contains("--by"),
                "{refused}"
            );
        }
    }
    let refused = PictureLine::try_parse_from(["flamegraph", "--by", "pod,function"]);
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("function is of the frames on a stack"),
        "{refused}"
    );
}
