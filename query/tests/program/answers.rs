//! Answers of SQL.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;

use super::{asked, file_of, fleet, guest_folder, printed, root, run_in, said};

#[test]
fn every_query_has_the_known_answer() {
    let path = root().join("packaging/kvmprof-collect/queries.sql");
    let queries = std::fs::read_to_string(path).unwrap();
    let answers = fleet().truth["answers"].as_object().unwrap();
    let mut count = 0;
    for part in queries.split("-- name: ").skip(1) {
        let (name, sql) = part.split_once('\n').unwrap();
        let sql = sql.trim().trim_end_matches(';');
        let answer = said(&["--format", "csv", "--", sql]);
        let rows: Vec<Vec<&str>> = answer
            .lines()
            .skip(1)
            .map(|line| line.split(',').collect())
            .collect();
        let truth = answers[name].as_array().unwrap();
        assert_eq!(rows.len(), truth.len(), "{name}: {rows:?}");
        for (row, truth) in rows.iter().zip(truth) {
            let number: f64 = row[1..]
                .iter()
                .find_map(|value| value.parse().ok())
                .unwrap();
            let known = truth[1].as_f64().unwrap();
            assert!(
                row[0] == truth[0] && (number - known).abs() < 1e-6,
                "{name}: {row:?}, not {truth}"
            );
        }
        count += 1;
    }
    assert_eq!((count, answers.len()), (10, 10));
    let all = asked("SELECT count(*) AS rows, sum(ticks) AS ticks FROM samples");
    assert_eq!(
        all,
        [json!({ "rows": fleet().truth["rows"], "ticks": fleet().truth["ticks"] })]
    );
}

#[test]
fn only_files_that_the_folders_leave_are_read() {
    let plan = said(&[
        "EXPLAIN SELECT count(*) FROM samples WHERE host = 'host-1' AND date > '2026-03-01' AND mode = 'user'",
    ]);
    // Of three hosts with two guests on two dates.
    for (folder, is_read) in [
        ("date=2026-03-02/host=host-1/guest=", true),
        ("date=2026-03-01/", false),
        ("host=host-0/", false),
        ("host=host-2/", false),
    ] {
        assert_eq!(plan.contains(folder), is_read, "{folder}: {plan}");
    }
    assert_eq!(
        asked("SELECT DISTINCT host FROM samples WHERE host LIKE '%-1' OR host = 'none'"),
        [json!({ "host": "host-1" })]
    );
    assert!(asked("SELECT * FROM samples WHERE guest = 'none'").is_empty());
}

#[test]
fn answers_have_the_requested_format() {
    let sql = "SELECT mode, count(DISTINCT host) AS hosts, stack[2] IS NULL AS short FROM samples WHERE mode = 'idle' GROUP BY mode, short";
    assert_eq!(said(&[sql]), "mode  hosts  short\nidle      3  true\n");
    assert_eq!(
        said(&["--format", "csv", sql]),
        "mode,hosts,short\r\nidle,3,true\r\n"
    );
    assert_eq!(
        said(&["--format", "csv", "SELECT mode FROM samples WHERE false"]),
        "mode\r\n"
    );
    let labels = asked(
        "SELECT DISTINCT labels['zone'] AS zone, labels['none'] AS none FROM samples WHERE host = 'host-0'",
    );
    assert_eq!(labels, [json!({ "zone": "north" })]);
}

#[test]
fn names_of_folders_are_decoded() {
    let folder = tempfile::tempdir().unwrap();
    let place = guest_folder(folder.path(), "a%20b", "c%2Fd%25");
    fs::copy(file_of("host-0", "db-0"), place.join("1-x.parquet")).unwrap();
    let sql = "SELECT DISTINCT host, guest FROM samples WHERE guest = 'c/d%'";
    let found = printed(run_in(folder.path(), &[sql]));
    assert_eq!(found, "host  guest\na b   c/d%\n");
}

/// Files that are being written, others' and empty ones aren't read. Links are what they lead to.
#[test]
fn only_whole_files_in_their_folders_count() {
    let folder = tempfile::tempdir().unwrap();
    let set = folder.path().join("a set");
    let place = guest_folder(&set, "a", "b");
    fs::create_dir_all(set.join("date=2026-03-01/guest=b/host=a")).unwrap();
    let copy = |path: &str| fs::copy(file_of("host-0", "db-0"), place.join(path)).unwrap();
    for path in [
        "1.parquet",
        ".2.parquet",
        "_3.parquet",
        ".4.parquet.77-0",
        "5.txt",
        "../6.parquet",
        "../../../7.parquet",
        "../../guest=b/host=a/8.parquet",
        "../../../../elsewhere.parquet",
    ] {
        copy(path);
    }
    fs::write(place.join("9.parquet"), "").unwrap();
    symlink("../../../../elsewhere.parquet", place.join("10.parquet")).unwrap();
    symlink("nowhere", place.join("11.parquet")).unwrap();
    let sql = "SELECT count(*) AS rows FROM samples";
    let counted = printed(run_in(&set, &["--format", "csv", sql]));
    let rows = asked(
        "SELECT count(*) AS rows FROM samples WHERE date = '2026-03-01' AND host = 'host-0' AND guest = 'db-0'",
    );
    let expected = format!("rows\r\n{}\r\n", rows[0]["rows"].as_u64().unwrap() * 2);
    assert_eq!(counted, expected);
}

/// What doesn't fit into memory is sorted in temporary files.
#[test]
fn more_than_fits_into_memory_is_sorted() {
    const TIMES: usize = 100;
    let sql = format!(
        "SELECT a.function, a.time, b.place FROM samples a \
         CROSS JOIN (SELECT row_number() OVER () AS place FROM samples LIMIT {TIMES}) b \
         ORDER BY a.function, a.time, b.place"
    );
    let ask = |sql: &str| said(&["--memory-limit", "16", "--format", "csv", "--", sql]);
    let plan = ask(&format!("EXPLAIN ANALYZE {sql}"));
    let spilled = plan.split("spill_count=").skip(1);
    assert!(
        spilled.into_iter().any(|count| !count.starts_with('0')),
        "{plan}"
    );
    let answer = ask(&sql);
    let rows: Vec<(&str, &str, u64)> = answer
        .lines()
        .skip(1)
        .map(|line| {
            let mut words = line.rsplitn(3, ',');
            let place = words.next().unwrap().parse().unwrap();
            let time = words.next().unwrap();
            (words.next().unwrap(), time, place)
        })
        .collect();
    let whole = usize::try_from(fleet().truth["rows"].as_u64().unwrap()).unwrap();
    assert_eq!(rows.len(), TIMES * whole);
    assert!(rows.is_sorted());
}
