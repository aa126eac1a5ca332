//! Faults of guest memory in recordings: `kvmprof report --faults`, and the list of pages of `kvmprof export`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use kvmprof_cli::command_line::{Console, ExitStatus};
use kvmprof_cli::table::{Align, percent, write_table};
use kvmprof_cli::text::write_json;
use kvmprof_report::budget::OutputBudget;
use kvmprof_report::faults::{FaultRow, FaultWatcher, Faults, TouchedPages};
use kvmprof_report::profile::{Profile, SCHEMA, print_accounts};
use serde_json::{Value, json};

use super::output_limit::within;
use super::{InputArguments, OutputLimit};
use crate::commands::exits::duration;

/// The faults of one recording.
struct OfRecording {
    file: String,
    profile: Profile,
    faults: Faults,
    pages: TouchedPages,
}

/// How `kvmprof report --faults` shows them.
pub struct Shown {
    /// The most rows of a table.
    pub rows: usize,
    /// As a document.
    pub json: bool,
}

/// Shows the faults of the recordings at `paths`, and how many pages they have in common with the first one.
///
/// # Errors
/// A recording can't be read or has no faults, or the output can't be written.
pub fn show(
    input: &InputArguments,
    paths: &[PathBuf],
    limit: OutputLimit,
    shown: &Shown,
    console: &mut Console<'_>,
) -> anyhow::Result<ExitStatus> {
    let mut all: Vec<OfRecording> = Vec::new();
    let mut length = 0;
    for path in paths {
        let (profile, watcher) = read(input, path, console)?;
        length = profile.length().saturating_add(length);
        let budget = limit.budget(profile.length());
        all.push(OfRecording {
            file: path.display().to_string(),
            faults: Faults::new(&profile, &watcher, shown.rows, &budget)?,
            pages: watcher.into_pages(),
            profile,
        });
    }
    let budget: OutputBudget = limit.budget(length);
    within(&budget, console, |out| {
        if shown.json {
            return write_json(out, document(&all));
        }
        for recording in &all {
            if all.len() > 1 {
                writeln!(out, "{}:", kvmprof_report::text::visible(&recording.file))?;
            }
            print_accounts(&recording.profile, out)?;
            print(&recording.faults, out)?;
        }
        print_overlap(&all, out)
    })
}

/// All pages that were touched while the recording at `path` was made.
///
/// # Errors
/// The recording can't be read, or doesn't have all of them.
pub fn all_pages(
    input: &InputArguments,
    path: &Path,
    console: &mut Console<'_>,
) -> anyhow::Result<TouchedPages> {
    let (profile, watcher) = read(input, path, console)?;
    let period = profile.contents.info.event.map(|event| event.period());
    if period != Some(1) {
        bail!(
            "{} has only some of the pages: record with --event page-faults:1",
            path.display()
        );
    }
    let pages = watcher.into_pages();
    let lost = (profile.account().lost).saturating_add(pages.left_out());
    if lost > 0 {
        console.say(format_args!("the list may lack the pages of {lost} faults"));
    }
    Ok(pages)
}

fn read(
    input: &InputArguments,
    path: &Path,
    console: &mut Console<'_>,
) -> anyhow::Result<(Profile, FaultWatcher)> {
    let mut watcher = FaultWatcher::default();
    let profile = input.open_with(path, console, &mut watcher)?.profile;
    if watcher.is_empty() {
        return Err(anyhow!(
            "{} has no faults of guest memory: record a guest by its name or its VMM's pid with --event page-faults:1",
            path.display()
        ));
    }
    Ok((profile, watcher))
}

fn document(all: &[OfRecording]) -> Value {
    let recordings = all.iter().map(|one| {
        json!({ "file": one.file, "account": one.profile.contents.account, "faults": one.faults })
    });
    let mut document =
        json!({ "schema": SCHEMA, "recordings": recordings.collect::<Vec<Value>>() });
    if let [first, others @ ..] = all
        && !others.is_empty()
    {
        let overlap = others.iter().map(|other| {
            let common = first.pages.common(&other.pages);
            json!({ "file": other.file, "pages": other.pages.count(), "common": common })
        });
        document["overlap"] = overlap.collect();
    }
    document
}

fn print(faults: &Faults, out: &mut dyn Write) -> io::Result<()> {
    for (heading, rows) in [
        ("KIND", &faults.kinds),
        ("PROCESS", &faults.processes),
        ("CONTAINER", &faults.containers),
        ("FUNCTION", &faults.functions),
        ("MEMORY", &faults.places),
    ] {
        print_rows(heading, rows, out)?;
    }
    let curve = faults.curve.iter();
    let curve = curve.map(|point| [duration(point.time_ns), point.pages.to_string()]);
    let curve: Vec<[String; 2]> = curve.collect();
    if !curve.is_empty() {
        writeln!(out)?;
        let headings = [("AFTER", Align::Right), ("PAGES TOUCHED", Align::Right)];
        write_table(out, &headings, &curve)?;
    }
    if faults.pages_left_out > 0 {
        let count = faults.pages_left_out;
        writeln!(
            out,
            "Faults whose pages aren't counted, too many different ones: {count}"
        )?;
    }
    Ok(())
}

/// The table of kinds has their names alone.
fn print_rows(heading: &str, rows: &[FaultRow], out: &mut dyn Write) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let is_of_kinds = heading == "KIND";
    let cells = rows.iter().map(|row| {
        let mean = row.time_ns.checked_div(row.count).unwrap_or_default();
        let kind = (!is_of_kinds).then(|| row.kind.to_owned());
        let numbers = [
            row.count.to_string(),
            duration(row.time_ns),
            duration(mean),
            duration(row.longest_ns),
        ];
        let names = [row.name.clone()].into_iter().chain(kind);
        names.chain(numbers).collect::<Vec<String>>()
    });
    let cells: Vec<Vec<String>> = cells.collect();
    let mut headings = vec![(heading, Align::Left)];
    headings.extend((!is_of_kinds).then_some(("KIND", Align::Left)));
    headings.extend(["COUNT", "TIME", "MEAN", "LONGEST"].map(|name| (name, Align::Right)));
    writeln!(out)?;
    write_table(out, &headings, &cells)
}

fn print_overlap(all: &[OfRecording], out: &mut dyn Write) -> io::Result<()> {
    let [first, others @ ..] = all else {
        return Ok(());
    };
    if others.is_empty() {
        return Ok(());
    }
    let rows = all.iter().map(|one| {
        let common = first.pages.common(&one.pages);
        [
            one.file.clone(),
            one.pages.count().to_string(),
            common.to_string(),
            percent(common, one.pages.count()),
        ]
    });
    let headings = [
        ("RECORDING", Align::Left),
        ("PAGES TOUCHED", Align::Right),
        ("ALSO IN THE FIRST", Align::Right),
        ("SHARE", Align::Right),
    ];
    writeln!(out)?;
    write_table(out, &headings, &rows.collect::<Vec<_>>())
}
