//! The tasks of docs/contributing/page-tasks.md, done on the page in a browser.

use serde_json::{Value, json};

use crate::shared::pages::{FEW, count, row};
use crate::shared::used::Used;

const TABLE: &str = include_str!("../../docs/contributing/page-tasks.md");
/// The function that tasks are about.
const FUNCTION: &str = "copy_page";

/// The rows of the table: the task, the steps that it takes in the Firefox Profiler, and on the page.
fn rows() -> Vec<(&'static str, u64, u64)> {
    let rows = TABLE.lines().filter(|line| line.starts_with("| "));
    let rows = rows.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let name = cells[0].split(':').next().unwrap();
        Some((name, cells[2].parse().ok()?, cells[4].parse().ok()?))
    });
    rows.flatten().collect()
}

/// The stacks that are shown after a task, by the names of their functions, and their ticks.
fn stacks(said: &Value, task: &str) -> Vec<(Vec<String>, u64)> {
    let stacks = said[task]["stacks"].as_array().unwrap().iter();
    let names = |stack: &Value| serde_json::from_value(stack["names"].clone()).unwrap();
    stacks
        .map(|stack| (names(stack), count(&stack["ticks"])))
        .collect()
}

#[test]
fn ten_tasks_take_no_more_steps_than_in_the_firefox_profiler() {
    let used = Used::walked("guide", FEW);
    let (said, report) = (&used.said, used.report(&[]));
    let rows = rows();
    assert_eq!(rows.len(), 10);
    for (task, firefox, ours) in rows {
        assert_eq!(said[task]["steps"], ours, "{task}: {said}");
        assert!(ours <= firefox, "{task}");
    }
    let total = |task: &str| count(&said[task]["total"]);
    let all = count(&report["samples"]);
    let function = count(&row(&report, "functions", FUNCTION)["total"]);
    let kernel = count(&row(&report, "modules", "[kernel]")["total"]);
    let is_with = |task: &str, is_wanted: &dyn Fn(&[String]) -> bool| {
        let stacks = stacks(said, task);
        assert!(!stacks.is_empty(), "{task}: {said}");
        stacks.iter().all(|(names, _)| is_wanted(names))
    };
    let has = |names: &[String]| names.iter().any(|name| name == FUNCTION);

    assert_eq!(total("Search filter"), function);
    assert!(is_with("Search filter", &has));
    for task in ["Implementation filter", "Focus on category"] {
        assert_eq!(total(task), kernel);
        // Functions of programs have no names here.
        assert!(is_with(task, &|names| {
            !names.is_empty() && names.iter().all(|name| !name.starts_with("0x"))
        }));
    }
    assert_eq!(total("Invert call stack"), all);
    let own = stacks(said, "Invert call stack").into_iter();
    let own = own.filter(|(names, _)| names.first().is_some_and(|name| name == FUNCTION));
    let own: u64 = own.map(|(_, ticks)| ticks).sum();
    assert_eq!(own, count(&row(&report, "functions", FUNCTION)["self"]));
    assert_eq!(total("Merge"), all);
    assert!(is_with("Merge", &|names| !has(names)));
    assert_eq!(total("Focus"), function);
    assert!(is_with("Focus", &|names| names[0] == FUNCTION));
    assert_eq!(total("Collapse"), all);
    assert!(is_with("Collapse", &|names| !has(names)));
    assert_eq!(total("Drop"), all - function);
    let time = said["Range selection"]["state"]["time"].as_str().unwrap();
    let part = used.report(&["--time", time]);
    assert_eq!(total("Range selection"), count(&part["samples"]));
    let tid = &said["Thread selection"]["state"]["tid"];
    let thread = (report["threads"].as_array().unwrap().iter())
        .find(|thread| json!(thread["tid"].to_string()) == *tid);
    assert_eq!(
        total("Thread selection"),
        count(&thread.unwrap()["samples"])
    );
}
