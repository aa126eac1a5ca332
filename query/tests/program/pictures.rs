//! Tables, pictures and recordings.

use std::collections::BTreeMap;

use kvmprof_report::profile::{Profile, SortBy, by_label, functions};

use super::{asked, document, message, run, said};

/// Ticks by function and module, as SQL sums them.
fn by_function(condition: &str) -> BTreeMap<(String, String), u64> {
    let rows = asked(&format!(
        "SELECT CASE WHEN mode = 'idle' THEN '[halted]' ELSE function END AS name, CASE WHEN mode = 'idle' THEN '[idle]' ELSE module END AS place, \
         sum(ticks) AS ticks FROM samples WHERE {condition} GROUP BY name, place"
    ));
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    rows.iter()
        .map(|row| {
            (
                (text(&row["name"]), text(&row["place"])),
                row["ticks"].as_u64().unwrap(),
            )
        })
        .collect()
}

#[test]
fn a_recording_has_every_selected_tick() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.kvmprof");
    let condition = "host = 'host-2' AND date = '2026-03-02' AND seconds > 0";
    said(&["--where", condition, "--as", path.to_str().unwrap()]);
    let read = Profile::from_file(&path, &[]).unwrap();
    let found: BTreeMap<(String, String), u64> = functions(&read, SortBy::Own)
        .into_iter()
        .filter(|function| function.own > 0)
        .map(|function| ((function.name, function.module), function.own))
        .collect();
    let known = by_function(condition);
    assert_eq!(found, known);
    assert!(known.len() > 50 && read.contents.closed.is_some());
    assert_eq!(read.account().ticks, known.values().sum::<u64>());
    assert_eq!(read.contents.info.kernel, "2 guests of 1 host");
    assert_eq!(read.contents.info.hz, 19);
    assert_eq!(read.contents.kernel.as_ref().unwrap().release, "6.12.1");
}

#[test]
fn tables_and_pictures_count_the_selection() {
    let condition = "process = 'postgres' AND date = '2026-03-01'";
    let ticks: u64 = by_function(condition).values().sum();
    let top = said(&[
        "top",
        "--where",
        condition,
        "--by",
        "thread,function",
        "--top",
        "100",
    ]);
    assert!(
        top.contains(&format!("{ticks} ticks = {ticks} samples"))
            && top.contains("THREAD > FUNCTION"),
        "{top}"
    );
    assert!(
        top.contains("walwriter") && top.contains("XLogFlush") && !top.contains("nginx"),
        "{top}"
    );
    let rows = |more: &[&str]| {
        let document = document(&[&["top", "--where", "hz = 19", "--json"], more].concat());
        document["functions"].as_array().unwrap().len()
    };
    // A program gets all of them without --top.
    assert!(rows(&[]) > 20, "{}", rows(&[]));
    assert_eq!(rows(&["--top", "20"]), 20);
    let svg = said(&["flamegraph", "--where", condition, "--output", "-"]);
    for name in ["ExecScan (", "copy_page (", "do_fault (", "postgres-"] {
        assert!(svg.contains(&format!("<title>{name}")), "{name}");
    }
    assert!(svg.contains(&format!("{ticks} samples and 0 idle ticks at 19 Hz")));
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("out.html");
    let condition = format!("{condition} AND time < '2026-03-01T13:00:00'");
    said(&[
        "flamegraph",
        "--where",
        &condition,
        "--output",
        page.to_str().unwrap(),
    ]);
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("ExecScan"));
}

/// Ticks by a label of processes, as SQL sums them up.
fn by_user(condition: &str) -> BTreeMap<String, u64> {
    let rows = asked(&format!(
        "SELECT coalesce(labels['user'], '[none]') AS value, sum(ticks) AS ticks FROM samples WHERE {condition} GROUP BY value"
    ));
    let value = |row: &serde_json::Value| row["value"].as_str().unwrap().to_owned();
    let rows = rows.iter();
    rows.map(|row| (value(row), row["ticks"].as_u64().unwrap()))
        .collect()
}

#[test]
fn labels_group_and_choose_as_in_report() {
    let date = "date = '2026-03-02'";
    let known = by_user(date);
    let users: Vec<&str> = known.keys().map(String::as_str).collect();
    assert_eq!(users, ["0", "101", "102", "[none]"]);
    let document = |more: &[&str]| document(&[&["top", "--json", "--where", date], more].concat());
    let found = |document: &serde_json::Value, key: &str| -> BTreeMap<String, u64> {
        let rows = document["labels"][key].as_array().unwrap().iter();
        let value = |row: &serde_json::Value| row["value"].as_str().unwrap_or("[none]").to_owned();
        rows.map(|row| (value(row), row["samples"].as_u64().unwrap()))
            .collect()
    };
    assert_eq!(found(&document(&[]), "user"), known);
    // A label of the configuration is one, too; several have to be there.
    let chosen = document(&["--label", "zone=south", "--label", "user=101"]);
    let ticks = by_user(&format!(
        "{date} AND labels['zone'] = 'south' AND labels['user'] = '101'"
    ));
    assert_eq!(found(&chosen, "user"), ticks);
    assert_eq!(chosen["samples"].as_u64(), ticks.get("101").copied());
    let zones = found(&chosen, "zone");
    assert_eq!(zones.keys().collect::<Vec<_>>(), ["south"]);
    let table = said(&["top", "--where", date, "--by", "user"]);
    assert!(
        table.contains("  USER  ") && table.contains("  101  "),
        "{table}"
    );
    let svg = [
        "flamegraph",
        "--where",
        date,
        "--by",
        "user",
        "--output",
        "-",
    ];
    assert!(said(&svg).contains("<title>user=101 ("));
    for wrong in [
        &["top", "--by", "usr"][..],
        &["flamegraph", "--by", "usr", "--output", "-"],
    ] {
        let message = message(run(wrong), 2);
        assert!(
            message.contains("\"usr\"") && message.contains("user, zone"),
            "{message}"
        );
    }
    // No value ends the text that it is compared with.
    let message = message(run(&["top", "--label", "user=0' OR '1' = '1"]), 1);
    assert!(
        message.contains("The data set has nothing where"),
        "{message}"
    );

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.kvmprof");
    let condition = format!("{date} AND host = 'host-1'");
    said(&[
        "--where",
        &condition,
        "--label",
        "user=102",
        "--as",
        path.to_str().unwrap(),
    ]);
    let read = Profile::from_file(&path, &[]).unwrap();
    let rows = by_label(&read, "user").into_iter();
    let rows: Vec<(Option<String>, u64)> = rows
        .map(|row| (row.value, row.modes.iter().sum()))
        .collect();
    let ticks = by_user(&format!("{condition} AND labels['user'] = '102'"))["102"];
    assert_eq!(rows, [(Some("102".to_owned()), ticks)]);
}

#[test]
fn a_diff_finds_what_a_release_made_slower() {
    let sides = [
        "--where",
        "mode <> 'idle' AND kernel = '6.12.1'",
        "--where",
        "mode <> 'idle' AND kernel = '6.12.2'",
    ];
    let table = said(&[&["diff"], sides.as_slice()].concat());
    let first = table
        .lines()
        .find(|line| line.contains(" k ") || line.contains(" u "))
        .unwrap();
    assert!(
        first.contains("copy_page") && first.contains("[kernel]"),
        "{table}"
    );
    assert!(
        table.contains("after   2 guests of 1 host, mode <> 'idle' AND kernel = '6.12.2'"),
        "{table}"
    );
    let of_label = said(
        &[
            &["diff", "--label", "user=0"],
            &sides[..3],
            &["mode <> 'idle'"],
        ]
        .concat(),
    );
    let named = "6.12.1' AND labels['user'] = '0'";
    assert!(of_label.contains(named), "{of_label}");
    let svg = said(&[&["diff", "--output", "-"], sides.as_slice()].concat());
    assert!(svg.contains("<title>copy_page ("));
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("diff.html");
    let page = page.to_str().unwrap();
    said(&[&["diff", "--output", page], sides.as_slice()].concat());
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("copy_page"));
    let title = page.split_once("</title>").unwrap().0;
    assert!(title.contains("6.12.2") && title.contains("against"));
    message(run(&["diff", "--where", "true"]), 2);
}
