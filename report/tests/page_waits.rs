//! The page's waits, used in a browser: they are those of `kvmprof report --tasks`.

use std::io::Write;
use std::path::Path;

use kvmprof_recording::file::{Block, Kind, Recording, TasksEncoder, Unobserved};
use kvmprof_recording::tasks::{Task, TaskLook, TaskStack, TaskState};
use kvmprof_recording::{Mode, StackEnd, comm_of};
use kvmprof_report::budget::OutputBudget;
use kvmprof_report::symbolize::Resolver;
use kvmprof_report::tasks::{TaskSums, document};
use serde_json::{Value, json};

use crate::shared::read::selection;
use crate::shared::recordings::Written;
use crate::shared::used::Used;

/// The start of recordings, in ns.
const BEGAN: u64 = 5_000_000_000;
const MS: u64 = 1_000_000;
const BASE: u64 = 0xffff_ffff_8100_0000;
const SYMBOLS: &str = "ffffffff81000000 T schedule\nffffffff81001000 T pipe_read\nffffffff81002000 T vfs_read\n\
    ffffffff81003000 T io_wait\nffffffff81004000 T _end\n";

/// A task by its process, name, state and stack.
type Seen = (i32, &'static str, TaskState, &'static [u64]);

fn look(time: u64, tasks: &[Seen]) -> TaskLook {
    let mut look = TaskLook {
        time,
        is_complete: true,
        ..TaskLook::default()
    };
    for (pid, name, state, frames) in tasks {
        let first = u32::try_from(look.frames.len()).unwrap();
        look.frames.extend(frames.iter().map(|frame| BASE + frame));
        let stack = TaskStack::Known {
            first,
            count: u8::try_from(frames.len()).unwrap(),
            scheduler: 1,
            end: StackEnd::Complete,
        };
        look.tasks.push(Task {
            pid: *pid,
            tid: *pid,
            comm: comm_of(name),
            state: *state,
            switches: 3,
            stack,
            ..Task::default()
        });
    }
    look
}

/// A process that runs and reads a pipe, one that only waits, for a disk and for a vCPU, and a thread of the kernel without work.
fn write(path: &Path) {
    let mut written = Written::with_symbols(SYMBOLS);
    written.info.tasks = Some(10);
    written.samples(400, (7, b"worker"), Mode::User, (&[], &[0x40_1000]));
    written.write(path);
    let mut encoder = TasksEncoder::default();
    for number in 0..20 {
        let worker = (7, "worker", TaskState::Sleeping, &[8, 0x1008, 0x2008][..]);
        let disk = match number {
            ..8 => (9, "disk", TaskState::Uninterruptible, &[9, 0x3008][..]),
            _ => (9, "disk", TaskState::Runnable, &[9][..]),
        };
        let idle = (2, "kworker", TaskState::Idle, &[9, 0x3008][..]);
        let time = BEGAN + number * 20 * MS + MS;
        encoder.push(&look(time, &[worker, disk, idle]), |_| true);
    }
    let looks = Block::encode(Kind::Tasks, &encoder.take()).unwrap();
    let mut file = std::fs::File::options().append(true).open(path).unwrap();
    file.write_all(&looks).unwrap();
}

/// The rows of the report for these options: function, seen, tasks, and for how long in ns.
fn reported(used: &Used, options: &[&str]) -> Vec<(String, String, String, u64)> {
    let recording = Recording::open(&used.folder.path().join("recording")).unwrap();
    let contents = recording.contents().unwrap();
    let resolver = Resolver::from_contents(&contents);
    let selection = selection(options);
    let sums = TaskSums::read(&recording, &contents, &selection, &Unobserved).unwrap();
    let budget = OutputBudget::new(1 << 20);
    let document = document(&sums, &resolver, usize::MAX, &budget).unwrap();
    let rows = document["waits"].as_array().unwrap().iter();
    let rows = rows.filter(|row| row["state"] != "I").map(|row| {
        let function = row["functions"][0]
            .as_str()
            .unwrap_or("(unknown)")
            .to_owned();
        let longest = row["longest_ns"].as_u64().unwrap();
        (
            function,
            row["seen"].to_string(),
            row["tasks"].to_string(),
            longest,
        )
    });
    rows.collect()
}

/// The rows of the page: function, seen, tasks.
fn shown(step: &Value) -> Vec<[&str; 3]> {
    let rows = step["rows"].as_array().unwrap().iter();
    let rows = rows.map(|row| [0, 1, 4].map(|column| row[column].as_str().unwrap()));
    rows.collect()
}

#[test]
fn waits_are_those_of_the_report() {
    let used = Used::of_recording("waits", write);
    let said = &used.said;
    let same = |step: &str, options: &[&str]| {
        let reported = reported(&used, options);
        let rows = reported.iter();
        let rows =
            rows.map(|(function, seen, tasks, _)| [function, seen, tasks].map(String::as_str));
        assert_eq!(
            shown(&said[step]),
            rows.collect::<Vec<_>>(),
            "{step}: {said}"
        );
        assert!(!reported.is_empty(), "{step}");
    };
    same("all", &[]);
    for (row, (.., longest)) in said["all"]["rows"]
        .as_array()
        .unwrap()
        .iter()
        .zip(reported(&used, &[]))
    {
        assert_eq!(row[5], format!("{} ms", longest / MS));
    }
    assert_eq!(
        said["all"]["note"],
        "40 waits in 20 looks at the guest's tasks."
    );
    assert_eq!(said["all"]["command"], "kvmprof report --tasks FILE");
    let frames = said["all"]["frames"].as_array().unwrap();
    for frame in [
        "worker 7: 20 waits, 50.0 %",
        "io_wait: 8 waits, 20.0 %",
        "uninterruptible (D): 8 waits, 20.0 %",
    ] {
        assert!(frames.contains(&json!(frame)), "{frame}: {frames:?}");
    }
    assert_eq!(said["details"][0], "20 waits, 50.0 %, 1.0 tasks per look");
    assert_eq!(
        [&said["zoomed"], &said["violations"]],
        [&json!("vfs_read"), &json!([])]
    );
    assert!(
        !said["merged"]["frames"].to_string().contains("vfs_read"),
        "{said}"
    );
    assert_eq!(said["merged"]["rows"], said["all"]["rows"]);
    let time = said["time"]["state"].as_str().unwrap();
    same("time", &["--time", time]);
    assert_ne!(said["time"]["rows"], said["all"]["rows"]);
    same("process", &["--time", time, "--pid=9"]);
    let command = format!("kvmprof report --tasks FILE --time {time} --pid=9");
    assert_eq!(said["process"]["command"], command);
    // Modes are those of ticks.
    assert_eq!(said["mode"]["rows"], said["process"]["rows"]);
    let note = said["mode"]["note"].as_str().unwrap();
    assert!(note.ends_with("Filters of labels, vCPUs and modes select ticks only."));
}
