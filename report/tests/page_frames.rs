//! Uses the page's frames in a browser: their places, their links to the tables, and touch in place of a mouse.

use crate::shared::pages::count;
use crate::shared::recordings::Written;
use crate::shared::used::Used;
use kvmprof_recording::{Mode, StackEnd};
use serde_json::{Value, json};

/// Innermost first.
const STACK: [u64; 2] = [0x40_1234, 0x40_1000];
const WORKER: (i32, &[u8]) = (7, b"worker");

/// A task with the page of what `write` writes.
fn used(task: &str, write: impl Fn(&mut Written)) -> Used {
    Used::of_recording(task, |path| {
        let mut written = Written::with_symbols("ffffffff81000000 T f\n");
        write(&mut written);
        written.write(path);
    })
}

/// In both orientations, a function is one frame below its caller, with its truncated ticks.
#[test]
fn a_function_that_is_cut_short_at_times_is_one_frame() {
    let used = used("cut", |written| {
        written.samples(3, WORKER, Mode::User, (&[], &STACK));
        written.user_parts_end(StackEnd::Broken);
        written.samples(2, WORKER, Mode::User, (&[], &STACK));
        written.samples(5, WORKER, Mode::User, (&[], &STACK[..1]));
    });
    let said = &used.said;
    let all = json!(["all: 10 ticks, 100.0 %", false]);
    let worker = json!(["worker 7: 10 ticks, 100.0 %", false]);
    let part = json!(["worker 7: 5 ticks, 50.0 %", false]);
    let outer = json!([
        "0x401000: 5 ticks, 50.0 %, callers of 2 ticks missing",
        true
    ]);
    let whole = json!(["0x401234: 5 ticks, 50.0 %", false]);
    let cut = json!([
        "0x401234: 5 ticks, 50.0 %, callers of 5 ticks missing",
        true
    ]);
    let inner = json!([
        "0x401234: 10 ticks, 100.0 %, callers of 5 ticks missing",
        true
    ]);
    assert_eq!(said["flame"], json!([all, worker, outer, cut, whole]));
    assert_eq!(said["inverted"], json!([all, worker, inner, outer]));
    // Above the stacks that end with it, and above the others.
    assert_eq!(said["callers"], json!([inner, outer, part, part]));
    assert_eq!(
        used.text("details"),
        "missing in 2 of its 5 ticks: their stacks are cut short"
    );
}

/// Two processes: one with a few functions, and one with more than a table shows at first.
fn with_many_functions(written: &mut Written) {
    written.samples(300, WORKER, Mode::User, (&[], &STACK));
    written.samples(200, WORKER, Mode::User, (&[], &STACK[1..]));
    for number in 0..100_u64 {
        let stack = [0x50_0000 + 16 * number, STACK[1]];
        let ticks = if number < 99 { 12 } else { 5 };
        written.samples(ticks, (8, b"other"), Mode::User, (&[], &stack));
    }
}

/// A function that is selected by its row is marked in the graph, and one that is selected by its frame in the table.
#[test]
fn rows_and_frames_are_linked() {
    let used = used("linked", with_many_functions);
    let said = &used.said;
    let frames = |step: &str| -> Vec<&str> {
        let frames = said[step]["frames"].as_array().unwrap().iter();
        let labels = frames.map(|frame| frame.as_str().unwrap().split_once(", ").unwrap().0);
        labels.collect()
    };
    // In each process.
    let outer = &["0x401000: 1193 ticks", "0x401000: 500 ticks"][..];
    let inner = &["0x401234: 300 ticks"][..];
    for (step, marked, rows) in [
        ("none", &[][..], &[][..]),
        ("byRow", outer, &["0x401000"]),
        ("byFrame", inner, &["0x401234"]),
        ("beyond", &["0x500630: 5 ticks"], &["0x500630"]),
        ("process", &[], &["other 8"]),
        ("module", inner, &["[user]"]),
        ("filtered", inner, &["0x401234"]),
        ("inverted", inner, &["0x401234"]),
    ] {
        assert_eq!(frames(step), marked, "{step}");
        assert_eq!(said[step]["rows"], json!(rows), "{step}");
        assert!(
            step == "none" || said[step]["visible"] == true,
            "{step}: {said}"
        );
    }
    // As the root of both graphs.
    let both = said["sandwich"].as_array().unwrap().iter();
    let both: Vec<&str> = both.map(|frame| frame.as_str().unwrap()).collect();
    assert_eq!(both, ["0x401234: 300 ticks, 100.0 %"; 2]);
}

/// Touch has the same effect as a mouse.
#[test]
fn touch_is_sufficient() {
    let used = used("touch", with_many_functions);
    let said = &used.said;
    assert!(count(&said["touches"]) > 0, "{said}");
    assert!(used.text("zoom").starts_with('g'), "{said}");
    assert_eq!(said["details"], "worker 7");
    assert_eq!(said["byRow"]["rows"], json!(["0x401000"]));
    assert_eq!(said["process"], "8");
    let [begin, end, all]: [u64; 3] = serde_json::from_value(said["bins"].clone()).unwrap();
    assert!(0 < begin && begin < end && end < all, "{said}");
    let [second, before] = ["second", "before"].map(|step| count(&said[step]["total"]));
    assert!((1..before).contains(&second), "{said}");
    // Two fingers select nothing, and three times as far apart they show a third.
    let pinched = &said["pinched"];
    assert_eq!(pinched["selected"], json!([begin, end]));
    let [from, to]: [u64; 2] = serde_json::from_value(pinched["shown"].clone()).unwrap();
    assert!((3 * (to - from)).abs_diff(all) <= 3, "{said}");
    assert!((from + to).abs_diff(all) <= 3, "{said}");
}

/// The labels of the frames of a level, from left to right.
fn ordered(frames: &Value, level: u64) -> Vec<String> {
    let mut frames: Vec<(i64, String)> = (frames.as_array().unwrap().iter())
        .filter(|frame| frame[1] == level)
        .map(|frame| {
            let label = frame[0].as_str().unwrap().to_owned();
            (frame[2].as_i64().unwrap(), label)
        })
        .collect();
    frames.sort();
    frames.into_iter().map(|(_, label)| label).collect()
}

/// The heights of the levels of frames, from the outermost one in.
fn heights(frames: &Value) -> Vec<i64> {
    let rows = frames.as_array().unwrap().iter();
    let mut levels: Vec<(u64, i64)> = rows
        .map(|frame| (count(&frame[1]), frame[3].as_i64().unwrap()))
        .collect();
    levels.sort_unstable();
    levels.dedup();
    levels.into_iter().map(|(_, y)| y).collect()
}

#[test]
fn views_and_orders_draw_the_same_frames_elsewhere() {
    let used = used("views", |written| {
        for (ticks, function) in [(15, 0x40_3000), (10, 0x40_1000), (20, 0x40_2000)] {
            written.samples(ticks, WORKER, Mode::User, (&[], &[function, 0x40_9000]));
        }
    });
    let said = &used.said;
    let one = "0x401000: 10 ticks, 22.2 %";
    let two = "0x402000: 20 ticks, 44.4 %";
    let three = "0x403000: 15 ticks, 33.3 %";
    for (name, expected) in [
        ("flame", [two, three, one]),
        ("time", [three, one, two]),
        ("name", [one, two, three]),
    ] {
        assert_eq!(ordered(&said[name], 4), expected, "{name}");
    }
    let (flame, icicle) = (heights(&said["flame"]), heights(&said["icicle"]));
    assert_eq!((flame.len(), icicle.len()), (4, 4), "{said}");
    assert!(flame.is_sorted_by(|outer, inner| outer > inner), "{said}");
    assert!(icicle.is_sorted_by(|outer, inner| outer < inner), "{said}");
    assert_eq!(ordered(&said["icicle"], 4), ordered(&said["name"], 4));
    assert_eq!(ordered(&said["thread"], 2), ["worker 7: 45 ticks, 100.0 %"]);
    assert_eq!(ordered(&said["thread"], 4), ordered(&said["icicle"], 4));
}

/// A message appears if there is more than a page draws.
#[test]
fn omitted_frames_are_mentioned() {
    let used = used("crowded", |written| {
        for (pid, number) in (100..).zip(0..60_u64) {
            let first = 0x40_0000 + 0x1_0000 * number;
            let stack: Vec<u64> = (0..120).map(|frame| first + 16 * frame).collect();
            written.samples(1, (pid, b"many"), Mode::User, (&[], &stack));
        }
    });
    let said = &used.said;
    let crowd = "Only the outermost 6000 frames are drawn: zoom in to see the others.";
    assert_eq!(said["whole"], crowd);
    assert_eq!(said["frames"], 6000);
    assert_eq!(said["zoomed"], "");
    for (step, shown) in [("few", 12), ("more", 48), ("all", 60)] {
        let text = said[step][0].as_str().unwrap();
        let is_said = text.ends_with(&format!(" The busiest {shown} of 60 processes."));
        assert_eq!(is_said, shown < 60, "{text}");
        assert_eq!(said[step][1], shown);
    }
}

/// A function with a rare callee that calls as deep as it calls rarely, and a process whose frames are too narrow for their names.
fn with_narrow_frames(written: &mut Written) {
    let usual = [0x40_2000, STACK[1]];
    let deep = (0..40).map(|frame| 0x60_0000 + 16 * frame);
    let deep: Vec<u64> = deep.chain(usual).collect();
    written.samples(3000, WORKER, Mode::User, (&[], &STACK));
    written.samples(987, WORKER, Mode::User, (&[], &usual));
    written.samples(1, WORKER, Mode::User, (&[], &deep));
    let small = [0x40_3010, 0x40_3000];
    written.samples(12, (9, b"small"), Mode::User, (&[], &small));
}

/// However high the graph becomes, the clicked frame stays under the pointer, and shares are those of the whole graph.
#[test]
fn clicked_frames_keep_their_place() {
    let used = used("zoom", with_narrow_frames);
    let said = &used.said;
    let steps = said["steps"].as_array().unwrap();
    for step in steps {
        let place = |when: &str| step[when].as_f64().unwrap();
        assert!((place("before") - place("after")).abs() < 0.5, "{step}");
        assert_eq!(step["zoomed"], step["name"], "{step}");
        assert_eq!(step["chosen"], step["name"], "{step}");
    }
    let rows = |step: usize| [0, 1].map(|when| count(&steps[step]["rows"][when]));
    // Frames that were too narrow before are drawn.
    assert_eq!(rows(0), [4, 44], "{said}");

    let narrow = steps.last().unwrap();
    assert_eq!(narrow["name"], "0x403010");
    assert!(narrow["width"].as_f64().unwrap() < 10.0, "{narrow}");
    let label = |name: &str| format!("{name}: 12 ticks, 0.3 %");
    let [small, outer, inner] = ["small 9", "0x403000", "0x403010"].map(label);
    let all = "all: 4000 ticks, 100.0 %";
    assert_eq!(said["labels"], json!([all, small, outer, inner]));
    let details = "12 ticks, 0.3 % of what is selected (0.2 to 0.5 %)";
    assert_eq!(said["details"], details);

    // Frames that are too narrow to be drawn are found.
    assert_eq!(said["found"], "found in 0.0 % (1 tick)");
    let hits = ["hits", "zoomedHits"].map(|step| count(&said[step]));
    assert_eq!(hits, [0, 40]);
}
