//! Uses the page in a browser: it agrees with `kvmprof report`.

use std::path::Path;

use crate::shared::compiled::{Guest, SOURCE};
use crate::shared::pages::{FEW, USUAL, count, row};
use crate::shared::read::counted;
use crate::shared::used::Used;
use crate::shared::walk;
use kvmprof_recording::Sysroot;
use kvmprof_recording::file::{Recording, Unobserved};
use kvmprof_report::diff::{self, changes};
use kvmprof_report::html::{BesideTicks, Counts, comparison_page, page};
use kvmprof_report::profile::{Profile, Selection, SortBy};
use kvmprof_report::symbolize::{Resolver, SourceTexts, Sources};
use serde_json::{Value, json};

/// The texts in these columns of the rows of a table, in any order.
fn columns<C: serde_json::value::Index>(table: &Value, columns: &[C]) -> Vec<Vec<String>> {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let row = |row: &Value| columns.iter().map(|column| text(&row[column])).collect();
    let mut rows: Vec<Vec<String>> = table.as_array().unwrap().iter().map(row).collect();
    rows.sort();
    rows
}

#[test]
fn totals_are_those_of_the_report() {
    let used = Used::walked("totals", USUAL);
    let total = |name: &str| used.said[name]["total"].clone();
    let all = used.report(&[]);
    assert_eq!(total("whole"), all["samples"]);
    // The drag was over one second, give or take half a bin at each end.
    let time = used.text("time");
    assert_eq!(time, "1.000:2.000");
    let second = used.report(&["--time", time]);
    assert_eq!(total("second"), second["samples"]);
    let report = used.report(&["--time", time, "--pid=32"]);
    assert_eq!(total("process"), report["samples"]);
    assert!(count(&report["samples"]) > 0 && report["samples"] != second["samples"]);
    assert_eq!(total("inverted"), report["samples"]);
    let command = format!("kvmprof report FILE --time {time} --pid=32");
    assert_eq!(used.text("command"), command);

    let functions = (&["name", "self", "total", "module"][..], &[0, 1, 3, 5][..]);
    let modules = (&["name", "self", "total"][..], &[0, 1, 3][..]);
    let modes = &["samples", "user", "kernel", "interrupt", "idle"][..];
    let modes = (modes, &[1, 3, 4, 5, 6][..]);
    for (table, shown, (names, numbers)) in [
        ("functions", "functions", functions),
        ("modules", "modules", modules),
        ("processes", "processs", modes),
        ("vcpus", "vcpus", modes),
    ] {
        let expected = columns(&report[table], names);
        assert_eq!(columns(&used.said[shown], numbers), expected, "{table}");
    }

    // The inverted graph begins with the functions' self ticks; each tick counts once in what is found.
    let name = used.text("searched");
    let function = row(&report, "functions", name);
    let label = format!("{name}: {} ticks, ", function["self"]);
    let innermost = used.said["innermost"].as_array().unwrap();
    let has = |label: &Value, begin: &str| label.as_str().unwrap().starts_with(begin);
    assert!(
        innermost.iter().any(|found| has(found, &label)),
        "{label}: {innermost:?}"
    );
    let found = format!("({} ticks)", function["total"]);
    assert!(used.text("found").ends_with(&found), "{}", used.said);
    assert!(used.said["hits"].as_u64().unwrap() > 1);
}

#[test]
fn back_undoes_each_step() {
    let used = Used::walked("back", USUAL);
    let said = &used.said;
    assert_ne!(said["kernel"]["total"], said["before"]["total"]);
    let steps = said["steps"].as_array().unwrap();
    assert!(steps[0]["zoom"].is_string() && steps[0]["pid"].is_null());
    assert!(steps[1]["zoom"].is_null());
    assert_eq!(steps[1]["mode"], "kernel");
    assert_eq!(steps[1]["total"], said["kernel"]["total"]);
    assert!(steps[2]["mode"].is_null());
    assert_eq!(steps[2]["total"], said["before"]["total"]);
    // The address alone restores the view.
    assert_eq!(said["reloaded"], said["kernel"]);
}

#[test]
fn the_keyboard_is_sufficient() {
    let used = Used::walked("keys", USUAL);
    let said = &used.said;
    assert!(used.text("process").starts_with("walker"), "{said}");
    assert_ne!(said["outermost"], said["process"]);
    assert!(used.text("zoom").contains('.'), "{said}");
    assert!(used.text("still").starts_with("all: "), "{said}");
    assert_eq!(said["details"], "Zoom in");
    let name = used.text("hidden").split('|').next().unwrap();
    let report = used.report(&[]);
    let hidden = &row(&report, "functions", name)["total"];
    let without = count(&report["samples"]) - count(hidden);
    assert_eq!(said["without"]["total"], without);
    assert!(used.text("time").ends_with(':'), "{said}");
    assert_eq!(said["search"], "search");
}

#[test]
fn functions_have_callers_and_callees() {
    let used = Used::walked("sandwich", USUAL);
    let said = &used.said;
    let report = used.report(&[]);
    let first = &report["functions"][0];
    let name = first["name"].as_str().unwrap();
    let about = format!("{name}: {} ticks, ", first["total"]);
    for place in ["about", "callers", "callees"] {
        assert!(used.text(place).starts_with(&about), "{about}: {said}");
    }
    let total = format!("{} ticks, ", first["total"]);
    assert!(used.text("total").starts_with(&total), "{said}");
    assert!(count(&said["cut"]) > 0);
    assert!(count(&said["folded"]) < count(&said["frames"]));
    let matched = count(&said["matched"]["total"]);
    assert!((1..count(&report["samples"])).contains(&matched));
    let copied: Vec<&str> = used.text("copied").lines().collect();
    assert_eq!(copied.len(), 2);
    let callers = said["calledBy"].as_array().unwrap();
    assert!(callers.contains(&json!(copied[0])), "{said}");
}

/// Reads the recording of a walk with this seed, and counts it for a page.
fn read_walk(folder: &Path, seed: u64, options: &[&str]) -> (Profile, Counts) {
    let path = folder.join(seed.to_string());
    walk::write(&path, seed, 300 * seed);
    counted(&path, options)
}

#[test]
fn recordings_of_a_page_are_distinguished() {
    let used = Used::of_page("merged", |folder| {
        let all = [4, 5].map(|seed| read_walk(folder, seed, &[]));
        let (profiles, counts): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        let profile = Profile::merge(profiles).unwrap();
        let seen = counts
            .into_iter()
            .map(|counts| (counts, BesideTicks::default()));
        page(&profile, seen.collect(), "A test", &SourceTexts::default())
    });
    let folder = tempfile::tempdir().unwrap();
    let [(one, _), (other, _)] = [4, 5].map(|seed| read_walk(folder.path(), seed, &[]));
    let said = &used.said;
    assert_eq!(said["whole"]["total"], one.samples() + other.samples());
    assert_eq!(said["process"]["total"], other.processes[&32].samples());
    assert_ne!(one.processes[&32].samples(), other.processes[&32].samples());
    let mut threads = other.threads.iter();
    let thread = threads.find(|thread| (thread.pid, thread.tid) == (32, 232));
    let thread: u64 = thread.unwrap().modes.iter().sum();
    assert_eq!(said["thread"]["total"], thread);
    assert_eq!(said["command"], "kvmprof report 5 --pid=32");
    let rows = said["processes"].as_array().unwrap();
    assert_eq!(rows.len(), one.processes.len() + other.processes.len());
}

/// The columns of the page for a row of `kvmprof diff --json`.
fn change_columns(row: &Value) -> Vec<String> {
    let percent = |value: &Value| format!("{:.1}", 100.0 * value.as_f64().unwrap());
    let side = |name: &str| {
        let side = &row[name];
        format!("{} ({} %)", side["samples"], percent(&side["share"]))
    };
    let p = row["p"].as_f64().unwrap();
    let confidence = match p {
        _ if p >= 0.05 => "may be chance".to_owned(),
        _ if p < 0.001 => "p < 0.001".to_owned(),
        _ => format!("p {p:.3}"),
    };
    vec![confidence, side("before"), side("after")]
}

#[test]
fn a_comparison_agrees_with_diff() {
    let made =
        |folder: &Path, options: &[&str]| [7, 9].map(|seed| read_walk(folder, seed, options));
    let used = Used::of_page("compare", |folder| {
        let [(before, one), (after, other)] = made(folder, &[]);
        comparison_page(before, after, vec![one, other], "A test")
    });
    let folder = tempfile::tempdir().unwrap();
    let [(before, one), (after, other)] = made(folder.path(), &[]);
    let said = &used.said;
    let totals = |before: &Profile, after: &Profile| {
        let (before, after) = (before.samples(), after.samples());
        format!("{before} ticks selected before, {after} ticks after.")
    };
    assert_eq!(used.text("total"), totals(&before, &after));
    assert_eq!(used.text("command"), "kvmprof diff 7 9 --json");
    let lanes = [("before", before.samples()), ("after", after.samples())];
    assert_eq!(said["lanes"], json!(lanes), "{said}");
    assert_eq!(said["lengths"].as_array().unwrap().len(), 2);
    let is_chance = |frame: &Value| frame[1].as_str().unwrap().contains("chance");
    let frames = said["merged"].as_array().unwrap();
    assert!(frames.iter().any(is_chance), "{frames:?}");
    for (sort, columns) in [(SortBy::Own, [2, 3, 4]), (SortBy::Total, [6, 7, 8])] {
        let changes = changes((&before, Some(&one)), (&after, Some(&other)), sort);
        let report = diff::document(&changes, [&before, &after], sort, usize::MAX);
        // The report sums the totals of addresses without a name, which may be on one stack.
        let is_named = |name: &str| sort == SortBy::Own || name != "0x...";
        let of_report = report["functions"].as_array().unwrap().iter();
        let of_report = of_report.filter(|row| is_named(row["name"].as_str().unwrap()));
        let mut compared = 0;
        for row in of_report {
            let mut rows = said["functions"].as_array().unwrap().iter();
            let kind = ["user", "kernel"][usize::from(row["kernel"] == true)];
            let key = [&row["name"], &row["module"], &kind.into()];
            let found = rows.find(|found| [&found[0], &found[9], &found[10]] == key);
            let found = found.unwrap_or_else(|| panic!("{row}"));
            let shown = columns.map(|column| found[column].as_str().unwrap());
            assert_eq!(shown[..], change_columns(row)[..], "{row}");
            compared += 1;
        }
        assert!(compared > 5);
    }
    let [(before, _), (after, _)] = made(folder.path(), &["--mode=kernel"]);
    assert_eq!(used.text("kernel"), totals(&before, &after));
    let command = "kvmprof diff 7 9 --json --mode=kernel";
    assert_eq!(used.text("kernelCommand"), command);
    assert!(used.text("about").contains(" before, "), "{said}");
    assert_eq!(said["legend"], 12);
    assert_eq!(said["violations"], Value::Array(Vec::new()));
}

/// Functions that were only before are drawn, and marked; colours are those of the total share.
#[test]
fn vanished_functions_are_drawn() {
    let used = Used::of_page("compare", |folder| {
        let modes = ["--mode=user,kernel", "--mode=user"];
        let [(before, one), (after, other)] = modes.map(|mode| read_walk(folder, 6, &[mode]));
        comparison_page(before, after, vec![one, other], "A test")
    });
    let frames = used.said["merged"].as_array().unwrap();
    let of = |name: &str| {
        let begins = |frame: &&Value| frame[0].as_str().unwrap().starts_with(name);
        let frame = frames.iter().find(begins);
        let frame = frame.unwrap_or_else(|| panic!("no {name}: {frames:?}"));
        let [label, class] = [0, 1].map(|part| frame[part].as_str().unwrap());
        (label, class, count(&frame[2]))
    };
    let (label, class, width) = of("entry: ");
    assert!(label.contains(", 0.0 % after (-"), "{label}");
    assert!(class.contains("less") && class.contains("gone"), "{class}");
    assert!(!class.contains("chance"), "{class}");
    assert!(width > 5);
    let (_, class, _) = of("0x...: ");
    assert!(!class.contains("gone") && !class.contains("new"), "{class}");
}

#[test]
fn the_page_is_accessible() {
    let used = Used::walked("access", FEW);
    let none = Value::Array(Vec::new());
    assert_eq!(used.said["violations"], none, "{}", used.said);
    assert_eq!(used.said["wide"], none);
}

/// The page of a guest's program that is built here, with its files if they are to be `there`: the innermost frame is in code inlined into `outer`.
fn page_with_code(guest: &Guest, there: bool) -> String {
    let (path, _) = guest.named_recording();
    let recording = Recording::open(&path).unwrap();
    let sources = Sources {
        sysroot: there.then(|| guest.root()),
        ..Sources::default()
    };
    let resolver = Resolver::new(&recording.contents().unwrap(), &sources).unwrap();
    let mut seen = <(Counts, BesideTicks)>::default();
    let selection = Selection::default();
    let profile = Profile::read_with(&recording, selection, resolver, &Unobserved, &mut seen);
    let texts = SourceTexts::new(vec![Sysroot::open(Path::new("/")).unwrap()]);
    page(&profile.unwrap(), vec![seen], "A test", &texts)
}

#[test]
fn functions_have_their_code() {
    let guest = Guest::new();
    let used = Used::of_page("code", |_| page_with_code(&guest, true));
    let said = &used.said;
    assert_eq!(
        used.text("note"),
        "1 tick found the processor in outer, in all that the page has: filters don't change these."
    );
    // The lines of the function itself: inlined code counts for the line that calls it.
    let source = said["source"].as_array().unwrap();
    let lines: Vec<&str> = SOURCE.lines().collect();
    for (index, row) in source.iter().enumerate() {
        let (number, text) = (row[0].as_str().unwrap(), row[3].as_str().unwrap());
        let number: usize = number.parse().unwrap();
        // From three lines before the first one.
        assert_eq!((number, text), (index + 2, lines[index + 1]), "{said}");
    }
    let ticks = |rows: &Value| -> Vec<(String, String)> {
        let rows = rows.as_array().unwrap().iter();
        let rows = rows.filter(|row| row[1] != "");
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        rows.map(|row| (text(&row[0]), text(&row[2]))).collect()
    };
    let of_line_5 = [("5".to_owned(), "100.0 %".to_owned())];
    assert_eq!(ticks(&said["source"]), of_line_5, "{said}");
    let instructions = said["instructions"].as_array().unwrap();
    let outer = guest.address("outer");
    assert_eq!(instructions[0][0], format!("{outer:#x}"));
    let [(address, _)] = &ticks(&said["instructions"])[..] else {
        panic!("{said}");
    };
    // The sampled address, or the instruction that contains it.
    let address = u64::from_str_radix(&address[2..], 16).unwrap();
    assert!((outer + 1..=outer + 8).contains(&address), "{address:#x}");
    let has = |column: usize, text: &str| {
        let mut cells = instructions.iter().map(|row| row[column].as_str().unwrap());
        cells.any(|cell| cell.contains(text))
    };
    for (column, text) in [(3, "imul"), (3, "ret"), (4, "work.c:2")] {
        assert!(has(column, text), "{text}: {said}");
    }
    let details: Vec<(String, String)> = serde_json::from_value(said["details"].clone()).unwrap();
    let source = guest.folder.path().join("work.c");
    for (term, expected) in [
        ("function of", "user".to_owned()),
        ("module", "work".to_owned()),
        ("build id", "0badc0de".to_owned()),
        // The frame's one sample is where `inner` is inlined, which line 5 does.
        ("addresses", format!("{:#x}", outer + 8)),
        ("source", format!("{}:5", source.display())),
    ] {
        assert!(
            details.contains(&(term.to_owned(), expected)),
            "{term}: {said}"
        );
    }
    assert_eq!(said["violations"], Value::Array(Vec::new()));
}

#[test]
fn without_the_guests_files_there_is_no_code() {
    let guest = Guest::new();
    let page = page_with_code(&guest, false);
    assert!(page.contains("\"code\":[]"));
    let page = page_with_code(&guest, true);
    assert!(page.contains("imul") && page.contains("total += x * total;"));
}
