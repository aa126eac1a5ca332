//! The page of a Debian guest with two vCPUs, used in a browser: its totals equal the program's.

#[path = "../../../report/tests/shared/used.rs"]
mod used;

use std::path::Path;
use std::process::Command;

use kvmprof_tests::{kvmprof, run_command};
use serde_json::Value;

use used::Used;

/// The program's output for the command that the page shows, which names the recording at `path`.
fn report(command: &str, path: &Path) -> Value {
    let words = command.strip_prefix("kvmprof report ").unwrap();
    assert!(words.starts_with(path.to_str().unwrap()), "{words}");
    let mut command = Command::new(kvmprof());
    command.arg("report");
    command.args(words.split(' ')).arg("--json");
    let ran = run_command(&mut command);
    assert_eq!((ran.status, ran.stderr.as_str()), (0, ""), "{words}");
    serde_json::from_str(&ran.stdout).unwrap()
}

/// The texts of these members of all rows of a table of the report, in any order.
fn printed(report: &Value, table: &str, names: &[&str]) -> Vec<Vec<String>> {
    let text = |value: &Value| {
        let text = value.as_str().map(str::to_owned);
        text.unwrap_or_else(|| value.to_string())
    };
    let rows = report[table].as_array().unwrap().iter();
    let rows = rows.map(|row| names.iter().map(|name| text(&row[*name])).collect());
    let mut rows: Vec<Vec<String>> = rows.collect();
    rows.sort();
    rows
}

/// The texts of these columns of all rows of a table of the page, in any order.
fn shown(used: &Used, table: &str, columns: &[usize]) -> Vec<Vec<String>> {
    let text = |row: &Value, column: usize| row[column].as_str().unwrap().to_owned();
    let rows = used.said[table].as_array().unwrap().iter();
    let rows = rows.map(|row| columns.iter().map(|column| text(row, *column)).collect());
    let mut rows: Vec<Vec<String>> = rows.collect();
    rows.sort();
    rows
}

/// The page of the recording at `path`, made in `folder`.
fn made(path: &Path, folder: &Path) -> String {
    let file = folder.join("made.html");
    let mut command = Command::new(kvmprof());
    command.arg("html").arg(path).arg("--output").arg(&file);
    let ran = run_command(&mut command);
    assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
    std::fs::read_to_string(file).unwrap()
}

#[test]
fn waits_are_those_that_the_program_prints() {
    let run = super::tasks::run("6.12");
    let recording = run.path("late.kvmprof");
    let used = Used::of_page("waiting", |folder| made(&recording, folder));
    let report = run.json("late.json");
    let states = report["states"].as_array().unwrap();
    let rows = report["waits"].as_array().unwrap().iter();
    let rows = rows.filter(|row| row["state"] != "I").map(|row| {
        let function = row["functions"][0].as_str().unwrap_or("(unknown)");
        let [seen, tasks] = ["seen", "tasks"].map(|name| row[name].to_string());
        let state = row["state"].as_str().unwrap();
        let name = states.iter().find(|one| one["state"] == state).unwrap();
        let state = format!("{} ({state})", name["name"].as_str().unwrap());
        vec![function.to_owned(), seen, tasks, state]
    });
    let mut rows: Vec<Vec<String>> = rows.collect();
    rows.sort();
    println!("{} rows", rows.len());
    assert!(rows.len() >= 7);
    assert_eq!(shown(&used, "waits", &[0, 1, 4, 6]), rows);
}

#[test]
fn totals_of_a_time_and_a_process_are_those_that_the_program_prints() {
    let run = super::stalls::run();
    let recording = run.path("guest.kvmprof");
    let used = Used::of_page("part", |folder| made(&recording, folder));
    let total = |name: &str| used.said[name]["total"].clone();
    let half = report(used.text("halfCommand"), &recording);
    assert_eq!(total("half"), half["samples"]);
    let (pid, time) = (&used.said["process"]["pid"], used.text("time"));
    let command = used.text("command");
    let expected = format!("--time {time} --pid={}", pid.as_str().unwrap());
    assert!(command.ends_with(&expected), "{command}");
    let process = report(command, &recording);
    assert_eq!(total("process"), process["samples"]);
    println!(
        "{} ticks, {} of them in {time}, {} of process {pid}",
        total("whole"),
        total("half"),
        total("process")
    );
    let count = |name: &str| total(name).as_u64().unwrap();
    assert!(count("whole") > count("half") && count("half") > count("process"));
    assert!(count("process") > 0);
    let functions = printed(&process, "functions", &["name", "self", "total", "module"]);
    assert_eq!(shown(&used, "functions", &[0, 1, 3, 5]), functions);
    let modules = printed(&process, "modules", &["name", "self", "total"]);
    assert_eq!(shown(&used, "modules", &[0, 1, 3]), modules);
    let modes = ["samples", "user", "kernel", "interrupt", "idle"];
    for (table, shown_as) in [("processes", "processs"), ("vcpus", "vcpus")] {
        let rows = printed(&process, table, &modes);
        assert_eq!(shown(&used, shown_as, &[1, 3, 4, 5, 6]), rows, "{table}");
    }
    // Both vCPUs have ticks in this time.
    assert_eq!(half["vcpus"].as_array().unwrap().len(), 2);
}
