//! Uses the page as a tool in a browser: its window, the call tree, the timeline, chips, and what is found.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use crate::shared::pages::{FEW, USUAL, count, row};
use crate::shared::recordings::Written;
use crate::shared::used::Used;
use crate::shared::walk;
use kvmprof_recording::Mode;
use kvmprof_recording::file::{PauseInfo, ProcessLabels, ResetInfo};
use serde_json::{Value, json};

/// At any size only panes scroll, and the outermost frames are there without scrolling; idle ticks are left out until they are wanted.
#[test]
fn the_window_is_filled_at_any_size() {
    let used = Used::walked("first", USUAL);
    let said = &used.said;
    let all = used.report(&[]);
    let busy = "--mode=user,kernel,interrupt";
    let busy_samples = &used.report(&[busy])["samples"];
    assert!(count(busy_samples) < count(&all["samples"]));
    assert_eq!(said["total"], *busy_samples);
    assert_eq!(said["command"], format!("kvmprof report FILE {busy}"));
    assert_eq!([&said["all"], &said["kept"]], [&all["samples"]; 2]);
    let windows = said["windows"].as_array().unwrap();
    assert_eq!(windows.len(), 8);
    for window in windows {
        let number = |value: &Value| value.as_f64().unwrap();
        assert_eq!(window["scrolls"], false, "{window}");
        assert_eq!(window["below"], 0.0, "{window}");
        let [width, height] = [0, 1].map(|side| number(&window["size"][side]));
        let bar = if width < 640.0 { 90.0 } else { 41.0 };
        assert!(number(&window["bar"]) <= bar, "{window}");
        let [top, bottom, wide] = [0, 1, 2].map(|side| number(&window["root"][side]));
        assert!(top < height / 2.0 && bottom <= top + 20.0, "{window}");
        assert!(wide > width / 2.0, "{window}");
        assert!(number(&window["pane"]) > height / 4.0, "{window}");
    }
    let [light, dark] = [0, 1].map(|theme| &windows[theme]["background"]);
    assert_ne!(light, dark);
}

/// Its totals and self ticks are those of the report, by function.
#[test]
fn the_call_tree_has_the_ticks_of_the_report() {
    let used = Used::walked("callTree", FEW);
    let said = &used.said;
    let all = used.report(&[]);
    let rows =
        |name: &str| -> Vec<Vec<String>> { serde_json::from_value(said[name].clone()).unwrap() };
    let tree = rows("all");
    assert_eq!(tree[0][1], all["samples"].to_string());
    // Level, total, share, self, share, name, module.
    let number = |text: &str| text.parse::<u64>().unwrap_or_default();
    for function in all["functions"].as_array().unwrap() {
        let name = function["name"].as_str().unwrap();
        let own = tree
            .iter()
            .filter(|row| row[5].ends_with(name) && row[6] == function["module"]);
        let own: u64 = own.map(|row| number(&row[3])).sum();
        assert_eq!(own, count(&function["self"]), "{name}");
    }
    // Rows are below their callers, and each has at least the ticks of what it calls.
    let mut callers: Vec<u64> = Vec::new();
    for row in &tree {
        let level = usize::try_from(number(&row[0])).unwrap() - 1;
        callers.truncate(level);
        assert_eq!(callers.len(), level, "{row:?}");
        let total = number(&row[1]);
        let is_in_caller = callers.last().is_none_or(|caller| *caller >= total);
        assert!(is_in_caller, "{row:?}");
        callers.push(total);
    }
    let heaviest = used.text("heaviest");
    assert!(!heaviest.starts_with("all:"), "{said}");
    let chosen = said["chosen"].as_array().unwrap();
    assert!(chosen.contains(&json!(heaviest)), "{said}");
    assert_eq!(said["kept"], said["heaviest"]);
    assert_eq!(said["closed"], 1);
    // The largest row that nothing calls.
    let row = tree.iter().find(|row| row[0] == "2").unwrap();
    let name = row[5].trim_start_matches(['▾', '▸']);
    let label = format!("{name}: {} ticks, {}", row[1], row[2]);
    assert_eq!(said["entered"], label);
    let ticks = format!("{} ticks, {}", row[1], row[2]);
    assert_eq!([&said["tip"][0], &said["tip"][1]], [name, &ticks], "{said}");
    // Functions with their self ticks come first.
    let inverted = rows("inverted");
    let first = &all["functions"][0];
    let (name, own) = (first["name"].as_str().unwrap(), first["self"].to_string());
    let mut outer = inverted.iter().filter(|row| row[0] == "2");
    assert!(outer.any(|row| row[1] == own && row[5].ends_with(name)));
}

/// Drags select, edges move, Escape clears, the wheel zooms around the pointer.
#[test]
fn the_timeline_selects_and_zooms() {
    let used = Used::walked("timeline", USUAL);
    let said = &used.said;
    let bins = |step: &str, which: usize| -> [f64; 2] {
        serde_json::from_value(said[step][which].clone()).unwrap()
    };
    let all = said["dragged"][2].as_f64().unwrap();
    let near = |[begin, end]: [f64; 2], [from, to]: [f64; 2]| {
        (begin / all - from).abs() < 0.01 && (end / all - to).abs() < 0.01
    };
    assert!(near(bins("dragged", 0), [0.25, 0.5]), "{said}");
    assert!(near(bins("moved", 0), [0.25, 0.75]), "{said}");
    assert_eq!(bins("escaped", 0), [0.0, all]);
    // Escape in the middle of a drag gives it up.
    assert_eq!(said["given"], said["escaped"][0]);
    assert!(used.text("label").ends_with(" s"), "{said}");
    let marked = said["marked"].as_f64().unwrap();
    assert!((marked - 0.25).abs() < 0.01, "{said}");
    let [begin, end]: [f64; 2] = serde_json::from_value(said["zoomed"].clone()).unwrap();
    assert!(end - begin < all / 2.0, "{said}");
    assert!(((begin + end) / 2.0 / all - 0.5).abs() < 0.02, "{said}");
    let view = format!("{begin} 0 {} 100", end - begin);
    assert_eq!(used.text("view"), view);
    // Round times, in order.
    let axis: Vec<String> = serde_json::from_value(said["axis"].clone()).unwrap();
    let seconds = |time: &String| time.strip_suffix(" s").unwrap().parse().unwrap();
    let axis: Vec<f64> = axis.iter().map(seconds).collect();
    assert!(axis.len() > 3 && axis.is_sorted(), "{axis:?}");
    let step = axis[1] - axis[0];
    let digit = step / 10_f64.powf(step.log10().floor());
    let mut rounds = [1.0, 2.0, 5.0, 10.0].iter();
    assert!(rounds.any(|round| (digit - round).abs() < 0.01), "{axis:?}");
    assert!(count(&said["opened"]) > 1, "{said}");
    assert!(used.text("tip").starts_with("walker"), "{said}");
}

/// A chip includes, excludes, and both are undone; the totals are those of the report.
#[test]
fn chips_include_and_exclude() {
    let used = Used::walked("chips", USUAL);
    let said = &used.said;
    let total = |step: &str| count(&said[step]["total"]);
    let process = used.report(&["--pid", used.text("pid")]);
    assert_eq!(total("only"), count(&process["samples"]));
    assert_eq!(total("only") + total("without"), count(&said["all"]));
    assert_eq!(said["undone"], said["only"]);
    let [only, without] = ["only", "without"].map(|step| said[step]["names"][0].as_str().unwrap());
    assert_eq!(without, format!("not {only}"));
    let command = |step: &str| said[step]["command"].as_str().unwrap();
    for step in ["only", "without", "module", "notModule"] {
        let printed = used.printed(command(step));
        assert_eq!(total(step), count(&printed["samples"]), "{said}");
    }
    let modes = "--mode=user,interrupt,idle";
    assert_eq!(total("mode"), count(&used.report(&[modes])["samples"]));
    assert_eq!(command("mode"), format!("kvmprof report FILE {modes}"));
    let all = used.report(&[]);
    let kernel = &row(&all, "modules", "[kernel]")["total"];
    assert_eq!(total("module"), count(kernel));
    assert_eq!(total("module") + total("notModule"), count(&said["all"]));
}

/// Each is a key and a button, and a step that is undone; the ticks are those of the report.
#[test]
fn stacks_are_transformed() {
    let used = Used::walked("transforms", FEW);
    let said = &used.said;
    let report = used.report(&[]);
    let with_it = &used.report(&["--grep=^copy_page$"])["samples"];
    let functions = |step: &str| -> Vec<Vec<String>> {
        serde_json::from_value(said[step]["functions"].clone()).unwrap()
    };
    let named = |step: &str, name: &str| functions(step).into_iter().find(|row| row[0] == name);
    let all = &said["all"];
    assert_eq!(named("all", "copy_page").unwrap()[3], with_it.to_string());
    // Merged: no ticks are gone, and no other function's total has changed.
    assert_eq!(said["merged"]["chips"], json!(["merged copy_page"]));
    assert_eq!(said["merged"]["total"], all["total"]);
    assert_eq!(
        [&said["reloaded"], &said["frames"]],
        [&said["merged"], &json!(0)]
    );
    let totals = |step: &str| -> BTreeMap<String, String> {
        let rows = functions(step).into_iter();
        let rows = rows.filter(|row| row[0] != "copy_page");
        rows.map(|row| (row[0].clone(), row[3].clone())).collect()
    };
    assert_eq!(totals("merged"), totals("all"));
    assert_eq!(functions("merged").len() + 1, functions("all").len());
    assert_eq!(said["undone"], *all);
    for step in [
        "merged",
        "focused",
        "dropped",
        "subtree",
        "callees",
        "within",
        "collapsed",
    ] {
        let command = said[step]["command"].as_str().unwrap();
        let printed = used.printed(command);
        assert_eq!(said[step]["total"], printed["samples"], "{command}");
        let rows = printed["functions"].as_array().unwrap().iter();
        let printed = rows.map(|row| {
            let text = |name: &str| {
                row[name]
                    .as_str()
                    .map_or(row[name].to_string(), str::to_owned)
            };
            ["name", "self", "total"].map(text)
        });
        let shown = functions(step).into_iter();
        let shown = shown.map(|row| [0, 1, 3].map(|column: usize| row[column].clone()));
        let [printed, shown]: [BTreeSet<[String; 3]>; 2] = [printed.collect(), shown.collect()];
        assert_eq!(printed, shown, "{command}");
    }
    // On it, and without it.
    assert_eq!(said["focused"]["total"], *with_it);
    let outermost = said["outermost"].as_array().unwrap();
    assert!(!outermost.is_empty() && outermost.iter().all(|name| name == "copy_page"));
    assert_eq!(
        count(&said["dropped"]["total"]) + count(with_it),
        count(&all["total"])
    );
    // Of one process, whose stacks begin as those of others may: all of these are there.
    let subtree = &said["subtree"];
    assert_eq!(subtree["chips"], json!(["subtree of copy_page"]));
    let frame = used.text("frame").split(' ').nth(1).unwrap();
    assert!(count(&subtree["total"]) >= frame.parse().unwrap(), "{said}");
    assert!(count(&subtree["total"]) <= count(with_it), "{said}");
    let kernel = row(&report, "modules", "[kernel]");
    let collapsed = named("collapsed", "[kernel]").unwrap();
    let [own, total] = ["self", "total"].map(|name| kernel[name].to_string());
    assert_eq!([&collapsed[1], &collapsed[3]], [&own, &total]);
    assert_eq!(said["violations"], json!([]));
}

/// All but what is found steps back, and Enter goes round through it.
#[test]
fn what_is_found_is_gone_through() {
    let used = Used::walked("hits", USUAL);
    let said = &used.said;
    let hits = count(&said["hits"]);
    assert!(hits > 2, "{said}");
    let found = format!("{hits}, found in ");
    assert!(used.text("found").starts_with(&found), "{said}");
    let at = |place: u64| format!("{place} of {hits}");
    assert_eq!(said["gone"], json!([at(1), at(2), at(1), at(hits)]));
    assert_eq!(said["colours"], 1, "{said}");
    assert_eq!(said["details"], "copy_page");
    let copying = used.report(&["--grep=copy_", "--mode=user,kernel,interrupt"]);
    assert_eq!(said["filtered"], copying["samples"]);
}

#[test]
fn tips_and_keys_are_there() {
    let used = Used::walked("tips", USUAL);
    let said = &used.said;
    let (name, counts) = used.text("label").split_once(": ").unwrap();
    assert_eq!(said["tip"][0], name);
    let tip = said["tip"][1].as_str().unwrap();
    assert!(counts.starts_with(tip), "{said}");
    for name in ["hidden", "inside", "help", "closed"] {
        assert_eq!(said[name], true, "{name}: {said}");
    }
    let tabs = "Flame graph,Call tree,Stack chart,Functions,Modules,Processes,Threads,vCPUs";
    let tabs: Vec<&str> = tabs.split(',').collect();
    assert_eq!(said["tabs"], json!(tabs));
    assert_eq!(said["side"], false);
    assert_eq!(said["focused"], "function");
}

/// Time goes to the right: functions are as wide as they took, in the order in which they did; of each time that which took most is there.
#[test]
fn the_stack_chart_is_in_the_order_of_time() {
    let (outer, one, other) = (0x40_9000, 0x40_1000, 0x40_2000);
    let used = Used::of_recording("chart", |path| {
        let mut written = Written::with_symbols("ffffffff81000000 T f\n");
        let worker = (7, b"worker".as_slice());
        for (ticks, function) in [(100, one), (200, other), (100, one)] {
            written.samples(ticks, worker, Mode::User, (&[], &[function, outer]));
        }
        written.write(path);
    });
    let said = &used.said;
    let frames = |step: &str| -> Vec<(String, u64, u64, f64, f64)> {
        serde_json::from_value(said[step].clone()).unwrap()
    };
    // A bin may have ticks of both of its neighbours.
    let check = |step: &str, expected: &[(&str, u64, u64, f64, f64)]| {
        let shown = frames(step);
        assert_eq!(shown.len(), expected.len(), "{step}: {said}");
        for (shown, expected) in shown.iter().zip(expected) {
            assert_eq!((shown.0.as_str(), shown.1), (expected.0, expected.1));
            assert!(shown.2.abs_diff(expected.2) < 5, "{step}: {said}");
            for (shown, expected) in [(shown.3, expected.3), (shown.4, expected.4)] {
                assert!((shown - expected).abs() < 0.02, "{step}: {said}");
            }
        }
    };
    let (outer, one, other) = ("0x409000", "0x401000", "0x402000");
    check(
        "all",
        &[
            ("vCPU 0", 0, 400, 0.0, 1.0),
            (outer, 1, 400, 0.0, 1.0),
            (one, 2, 100, 0.0, 0.25),
            (other, 2, 200, 0.25, 0.5),
            (one, 2, 100, 0.75, 0.25),
        ],
    );
    assert_eq!(frames("half").last().unwrap().0, other, "{said}");
    assert_eq!(frames("half").len(), 4, "{said}");
    assert_eq!(said["beside"], other);
    let details = said["details"][1].as_str().unwrap();
    let ending = " in this time, of the way that most took";
    assert!(details.ends_with(ending), "{said}");
    let columns = used.text("columns");
    assert!(
        columns.starts_with("Ticks over time, 0.000 s to "),
        "{said}"
    );
    let zoomed = [("vCPU 0", 0), (outer, 1), (other, 2)];
    check(
        "zoomed",
        &zoomed.map(|(name, level)| (name, level, 200, 0.0, 1.0)),
    );
    assert_eq!(said["by"], json!(["vCPU", "thread"]));
    let lane = |name: &str, kind: &str| json!([[format!("Stacks of {name} over time"), kind]]);
    assert_eq!(said["vcpus"], lane("vCPU 0", "vcpu"));
    assert_eq!(said["threads"], lane("worker 7", "thread"));
    let action = json!("Only this thread");
    assert!(
        said["actions"].as_array().unwrap().contains(&action),
        "{said}"
    );
}

/// Restarts are lines at their times, of those in the time that is shown; pauses are parts of lanes, and another program of a
/// process is a line in its lane.
#[test]
fn restarts_pauses_and_execs_are_marked() {
    let used = Used::of_recording("marks", |path| {
        walk::write(path, 20, USUAL);
        let mut file = std::fs::File::options().append(true).open(path).unwrap();
        let at = |after: u64| walk::BEGAN + after * 1_000_000_000;
        for time in [4, 8].map(at) {
            let reset = ResetInfo { time }.to_block();
            file.write_all(&reset.unwrap()).unwrap();
        }
        for (time, paused) in [(at(2), true), (at(3), false), (at(9), true)] {
            let pause = PauseInfo { time, paused }.to_block();
            file.write_all(&pause.unwrap()).unwrap();
        }
        for (time, executable) in [(at(1), "/bin/sh"), (at(5), "/bin/<cat>")] {
            let labels = [("started", "1.0"), ("executable", executable)];
            let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
            let labels = ProcessLabels {
                pid: 31,
                time,
                labels: labels.into(),
            };
            file.write_all(&labels.to_block().unwrap()).unwrap();
        }
    });
    let said = &used.said;
    let places = said["places"].as_array().unwrap();
    assert_eq!(places.len(), 2, "{said}");
    for (place, expected) in places.iter().zip([4e9, 8e9]) {
        let [time, height] = ["time", "height"].map(|name| place[name].as_f64().unwrap());
        assert!((time - expected).abs() < 5e7 && height > 0.9, "{said}");
    }
    let title = |seconds: &str| format!("The guest restarted at {seconds} s");
    assert_eq!(said["titles"], json!([title("4.000"), title("8.000")]));
    assert_eq!(said["rest"], 1);
    let lanes = said["lanes"].as_array().unwrap();
    assert!(lanes.len() > 1, "{said}");
    let check = |found: &Value, expected: &[f64]| {
        let found: Vec<f64> = serde_json::from_value(found.clone()).unwrap();
        assert_eq!(found.len(), expected.len(), "{said}");
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 5e7, "{said}");
        }
    };
    for lane in lanes {
        assert_eq!(lane["pauses"], 2, "{said}");
        // The last one has no end before the recording's.
        check(&lane["paused"], &[2e9, 3e9, 9e9]);
        let is_it = lane["kind"] == "process" && lane["name"].as_str().unwrap().ends_with(" 31");
        check(&lane["executed"], if is_it { &[5e9] } else { &[] });
        assert_eq!(lane["execs"], i32::from(is_it), "{said}");
    }
}
