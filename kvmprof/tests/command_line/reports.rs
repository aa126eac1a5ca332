//! Tables, documents and comparisons of recordings.

use super::{FAILURE, Folder, USAGE, recordings};
use kvmprof_recording::Mode;

#[test]
fn recordings_are_counted_together() {
    let folder = Folder::new();
    let document = folder.document(&["report", "before", "after"]);
    // 140 samples and idle ticks in one, 200 in the other.
    assert_eq!(document["samples"], 340);
    assert_eq!(document["recordings"][1]["file"], "after");
    assert_eq!(document["recordings"][1]["account"]["ticks"], 206);
    assert_eq!(document["account"]["ticks"], 146 + 206);
    let copy = document["functions"].as_array().unwrap().iter();
    let copy = copy.filter(|row| row["name"] == "copy_page");
    assert_eq!(
        copy.map(|row| row["self"].clone()).collect::<Vec<_>>(),
        [100]
    );
    for words in [
        &["flamegraph", "before", "after", "-o", "-"][..],
        &["html", "before", "after", "-o", "-"],
    ] {
        folder.run(words).assert_success();
    }
    std::fs::hard_link(folder.path("before"), folder.path("same")).unwrap();
    for same in ["before", "same"] {
        let ran = folder.run(&["report", "before", same]);
        ran.assert_refused(FAILURE, &[&format!("{same} is named twice"), "count twice"]);
    }
    folder
        .run(&["report", "-", "-"])
        .assert_refused(FAILURE, &["named twice"]);
    let ran = folder.run(&["report", "before", "after", "--pid", "99"]);
    ran.assert_refused(FAILURE, &["Nothing in before after matches --pid"]);
    let ran = folder.run(&["report"]);
    ran.assert_refused(FAILURE, &["Cannot read out.kvmprof"]);
}

#[test]
fn changes_have_a_document_and_a_page() {
    let folder = Folder::new();
    let document = folder.document(&["diff", "before", "after", "--top", "1"]);
    assert_eq!(document["before"]["samples"], 140);
    assert_eq!(document["after"]["samples"], 200);
    let first = &document["functions"][0];
    assert_eq!(
        (&first["name"], &first["before"]["samples"]),
        (&"copy_page".into(), &20.into())
    );
    assert_eq!(first["after"]["samples"], 80);
    // It runs once in each, for all of its ticks.
    assert_eq!(first["significant"], false);
    assert!(first["p"].as_f64().unwrap() > 0.05);
    assert_eq!(
        document["rows_left_out"],
        document["compared"].as_u64().unwrap() - 1
    );
    let page = folder.run(&[
        "diff", "before", "after", "--html", "-", "--title", "Slower",
    ]);
    page.assert_success();
    assert!(page.stdout.contains("<h1>Slower</h1>") && page.stdout.contains("\"comparison\":true"));
    for options in [
        &["--output", "x", "--html", "y"][..],
        &["--html", "y", "--json"],
        &["--force"],
    ] {
        let ran = folder.run(&[&["diff", "before", "after"], options].concat());
        ran.assert_refused(USAGE, &[]);
    }
    let ran = folder.run(&["diff", "before", "after", "--html", "after", "--force"]);
    ran.assert_refused(FAILURE, &["after is the recording that is read"]);
}

#[test]
fn two_times_of_a_recording_are_compared() {
    let folder = Folder::new();
    // The worker is first in user mode for 60 ms, then in the kernel.
    let compare = |output: &[&str]| {
        let times = ["diff", "before", "--time", ":0.06", "--time", "0.06:0.08"];
        let ran = folder.run(&[&times, output].concat());
        ran.assert_success();
        ran
    };
    let document = compare(&["--json"]).document();
    assert_eq!(document["before"]["time"]["end"], 0.06);
    assert_eq!(document["after"]["time"]["begin"], 0.06);
    let samples = |side: &str| document[side]["samples"].as_u64().unwrap();
    assert!(
        samples("before") >= 59 && samples("after") >= 19,
        "{document}"
    );
    let functions = document["functions"].as_array().unwrap();
    let copy = functions
        .iter()
        .find(|row| row["name"] == "copy_page")
        .unwrap();
    assert_eq!(copy["before"]["samples"], 0);
    assert!(copy["change"]["value"].as_f64().unwrap() > 0.9);
    assert!(
        compare(&["--html", "-"])
            .stdout
            .contains("<h1>before 0.06:0.08 against before :0.06</h1>")
    );
    for options in [
        &["before"][..],
        &["before", "--time", "0:1"],
        &[
            "before", "after", "--time", "0:1", "--time", "0:1", "--time", "0:1",
        ],
    ] {
        let ran = folder.run(&[&["diff"], options].concat());
        ran.assert_refused(USAGE, &["--time"]);
    }
    let ran = folder.run(&["diff", "-", "--time", "0:1", "--time", "1:2"]);
    ran.assert_refused(USAGE, &["standard input"]);
}

#[test]
fn a_json_document_has_the_tables_that_were_asked_for() {
    let folder = Folder::new();
    let document = |options: &[&str]| folder.document(&[&["report", "before"], options].concat());
    let tables = [
        "modes",
        "vcpus",
        "processes",
        "threads",
        "modules",
        "functions",
        "lines",
    ];
    let all = document(&[]);
    assert_eq!(all["schema"], 1);
    assert!(tables.iter().all(|table| !all[table].is_null()), "{all}");
    assert_eq!(all["modes"]["user"], 60);
    assert_eq!(all["rows_left_out"]["functions"], 0);
    let some = document(&["--by", "mode", "--by", "function", "--top", "2"]);
    for table in tables {
        let is_there = ["modes", "functions"].contains(&table);
        assert_eq!(some.get(table).is_some(), is_there, "{table}: {some}");
    }
    assert_eq!(some["functions"].as_array().unwrap().len(), 2);
    // A program gets all of them without --top.
    let functions = all["functions"].as_array().unwrap().len();
    assert_eq!(some["rows_left_out"]["functions"], functions - 2);
    // Levels, of which threads need more than the sums by stack.
    let levels = document(&["--by", "thread,mode,function", "--by", "vcpu"]);
    assert!(levels.get("functions").is_none() && levels["vcpus"].is_array());
    let threads = levels["levels"][0]["rows"].as_array().unwrap();
    let worker = threads.iter().find(|row| row["name"] == "worker").unwrap();
    let modes = worker["rows"].as_array().unwrap();
    let user = modes.iter().find(|row| row["mode"] == "user").unwrap();
    assert_eq!(
        (&user["self"], &user["rows"][0]["self"]),
        (&60.into(), &60.into())
    );
    let ran = folder.run(&["flamegraph", "before", "--by", "thread", "-o", "-"]);
    ran.assert_success();
    assert!(ran.stdout.contains("<title>thread=worker-7 ("), "{ran:?}");
    let ran = folder.run(&["flamegraph", "before", "--by", "function", "-o", "-"]);
    ran.assert_refused(USAGE, &["function is of the frames"]);
}

#[test]
fn json_is_complete_and_tables_are_short() {
    const FUNCTIONS: u64 = 30;
    let folder = Folder::new();
    let address = |number| 0xffff_ffff_8100_0000 + number * 0x100;
    let symbols: String = (0..=FUNCTIONS)
        .map(|number| format!("{:x} T function_{number}\n", address(number)))
        .collect();
    let mut written = recordings::Written::with_symbols(&symbols);
    for number in 0..FUNCTIONS {
        let frames: &[u64] = &[address(number)];
        written.samples(2, (7, &b"worker"[..]), Mode::Kernel, (frames, &[]));
    }
    written.write(&folder.path("many"));
    let rows = |words: &[&str]| {
        let document = folder.document(words);
        document["functions"].as_array().unwrap().len() as u64
    };
    for words in [&["report", "many"][..], &["diff", "many", "many"]] {
        let rows = |more: &[&str]| rows(&[words, more].concat());
        assert_eq!(rows(&[]), FUNCTIONS, "{words:?}");
        assert_eq!(rows(&["--top", "20"]), 20, "{words:?}");
        let table = folder.run(words).stdout.matches("function_").count();
        assert!(table <= 20, "{words:?}: {table}");
    }
}
