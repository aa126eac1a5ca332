//! Uses the page's frames in a browser: what they have in common with the tables, and fingers in place of a mouse.
#![expect(clippy::unwrap_used, reason = "tests fail by it")]

mod shared;
#[path = "shared/used.rs"]
mod used;

use std::path::Path;

use kvmprof_recording::file::Recording;
use kvmprof_recording::{Mode, StackEnd};
use kvmprof_report::html::page_of;
use serde_json::json;
use shared::Written;
use used::Used;

/// Innermost first.
const STACK: [u64; 2] = [0x40_1234, 0x40_1000];

fn written(folder: &Path, write: impl FnOnce(&mut Written)) -> String {
    let path = folder.join("recording");
    let mut written = Written::with_symbols("ffffffff81000000 T f\n");
    write(&mut written);
    written.write(&path);
    page_of(&Recording::open(&path).unwrap(), &[], "A test").unwrap()
}

/// Whichever way the frames hang, a function is one of them below its caller, with the ticks that were cut short.
#[test]
fn a_function_that_is_cut_short_at_times_is_one_frame() {
    let worker = (7, b"worker".as_slice());
    let used = Used::of_page("cut", |folder| {
        written(folder, |written| {
            written.samples(3, worker, Mode::User, (&[], &STACK));
            written.user_parts_end(StackEnd::Broken);
            written.samples(2, worker, Mode::User, (&[], &STACK));
            written.samples(5, worker, Mode::User, (&[], &STACK[..1]));
        })
    });
    let said = &used.said;
    let frame = |label: &str, is_cut: bool| json!([label, is_cut]);
    let (outer, inner) = ("0x401000", "0x401234");
    let expected = json!([
        frame("all: 10 ticks, 100.0 %", false),
        frame("worker 7: 10 ticks, 100.0 %", false),
        frame(
            &format!("{outer}: 5 ticks, 50.0 %, callers of 2 ticks missing"),
            true
        ),
        frame(
            &format!("{inner}: 5 ticks, 50.0 %, callers of 5 ticks missing"),
            true
        ),
        frame(&format!("{inner}: 5 ticks, 50.0 %"), false),
    ]);
    assert_eq!(said["flame"], expected);
    let expected = json!([
        frame("all: 10 ticks, 100.0 %", false),
        frame("worker 7: 10 ticks, 100.0 %", false),
        frame(
            &format!("{inner}: 10 ticks, 100.0 %, callers of 5 ticks missing"),
            true
        ),
        frame(
            &format!("{outer}: 5 ticks, 50.0 %, callers of 2 ticks missing"),
            true
        ),
    ]);
    assert_eq!(said["inverted"], expected);
    let expected = json!([
        frame(
            &format!("{inner}: 10 ticks, 100.0 %, callers of 5 ticks missing"),
            true
        ),
        frame(
            &format!("{outer}: 5 ticks, 50.0 %, callers of 2 ticks missing"),
            true
        ),
        // Above the stacks that end with it, and above the others.
        frame("worker 7: 5 ticks, 50.0 %", false),
        frame("worker 7: 5 ticks, 50.0 %", false),
    ]);
    assert_eq!(said["callers"], expected);
    assert_eq!(
        used.text("details"),
        "missing in 2 of its 5 ticks: their stacks are cut short"
    );
}

/// Two processes: one with a few functions, and one with more than a table shows at first.
fn with_many_functions(folder: &Path) -> String {
    written(folder, |written| {
        let worker = (7, b"worker".as_slice());
        written.samples(300, worker, Mode::User, (&[], &STACK));
        written.samples(200, worker, Mode::User, (&[], &STACK[1..]));
        for number in 0..100_u64 {
            let stack = [0x50_0000 + 16 * number, STACK[1]];
            let ticks = if number < 99 { 12 } else { 5 };
            written.samples(ticks, (8, b"other"), Mode::User, (&[], &stack));
        }
    })
}

/// A function that is chosen by its row is marked in the graph, and one that is chosen by its frame in the table.
#[test]
fn rows_and_frames_are_linked() {
    let used = Used::of_page("linked", with_many_functions);
    let said = &used.said;
    let rows = |step: &str| said[step]["rows"].clone();
    let frames = |step: &str| -> Vec<String> {
        let frames = said[step]["frames"].as_array().unwrap().iter();
        frames
            .map(|frame| {
                let label = frame.as_str().unwrap();
                label.split_once(", ").unwrap().0.to_owned()
            })
            .collect()
    };
    let none = Vec::<String>::new();
    assert_eq!((frames("none"), rows("none")), (none.clone(), json!([])));
    // In each process.
    let outer = ["0x401000: 1193 ticks", "0x401000: 500 ticks"];
    assert_eq!(frames("byRow"), outer);
    assert_eq!(rows("byRow"), json!(["0x401000"]));
    let inner = ["0x401234: 300 ticks"];
    assert_eq!(frames("byFrame"), inner);
    assert_eq!(rows("byFrame"), json!(["0x401234"]));
    assert_eq!(frames("beyond"), ["0x500630: 5 ticks"]);
    assert_eq!(rows("beyond"), json!(["0x500630"]));
    assert_eq!(
        (frames("process"), rows("process")),
        (none, json!(["other 8"]))
    );
    assert_eq!(frames("module"), inner);
    assert_eq!(rows("module"), json!(["[user]"]));
    assert_eq!(frames("filtered"), inner);
    assert_eq!(rows("filtered"), json!(["0x401234"]));
    assert_eq!(frames("inverted"), inner);
    assert_eq!(rows("inverted"), json!(["0x401234"]));
    // As the root of both graphs.
    assert_eq!(frames("sandwich"), [inner, inner].concat());
    for step in [
        "byRow", "byFrame", "beyond", "process", "module", "filtered", "inverted",
    ] {
        assert_eq!(said[step]["visible"], true, "{step}: {said}");
    }
}

/// A finger does what a mouse does.
#[test]
fn fingers_are_enough() {
    let used = Used::of_page("touch", with_many_functions);
    let said = &used.said;
    assert!(said["touches"].as_u64().unwrap() > 0, "{said}");
    assert!(used.text("zoom").starts_with('g'), "{said}");
    assert_eq!(said["details"], "worker 7");
    assert_eq!(said["byRow"]["rows"], json!(["0x401000"]));
    let bins: Vec<u64> = serde_json::from_value(said["bins"].clone()).unwrap();
    let [begin, end, all] = bins[..] else {
        panic!("{said}");
    };
    assert!(0 < begin && begin < end && end < all, "{said}");
    let total = |step: &str| said[step]["total"].as_u64().unwrap();
    assert!(
        0 < total("second") && total("second") < total("before"),
        "{said}"
    );
}
