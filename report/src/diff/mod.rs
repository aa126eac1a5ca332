//! The changes from one recording to another.

mod blocks;
mod change;
#[cfg(test)]
mod simulated;

use std::collections::HashSet;
use std::io::{self, Write};

use inferno::differential::{Options, from_readers};
use serde_json::{Value, json};

use crate::budget::OutputBudget;
use crate::graph::{Graph, GraphError, Modules, account_of_changes, with_torn_edges};
use crate::model::Counts;
use crate::profile::{Profile, SortBy, TableStyle, folded, loss_of_one, selection_document};
use crate::statistics::correct_for_many;
use crate::text::visible;

pub(crate) use blocks::comparable_name;
use blocks::{Key, Ticks};
pub use change::{Change, SIGNIFICANT};

/// The changes of all functions between `before` and `after`, by self or total samples; the biggest changes first. Each has the counts of its ticks
/// in time, if they are known: without them it is unknown whether a change is chance.
pub fn changes(
    (before, earlier): (&Profile, Option<&Counts>),
    (after, later): (&Profile, Option<&Counts>),
    sort: SortBy,
) -> Vec<Change> {
    let ticks = [(before, earlier), (after, later)]
        .map(|(profile, counts)| Ticks::of(profile, counts, sort));
    let keys: HashSet<&Key> = ticks
        .iter()
        .flat_map(|ticks| ticks.functions.keys())
        .collect();
    let changes = keys.into_iter().filter_map(|key| {
        let found = [0, 1].map(|side: usize| {
            let found = ticks[side].functions.get(key);
            found.copied().unwrap_or_default()
        });
        let is_there = found.iter().any(|found| found.ticks > 0);
        is_there.then(|| Change::new(key.clone(), found, [&ticks[0], &ticks[1]]))
    });
    let mut changes: Vec<Change> = changes.collect();
    changes.sort_by(|left, right| {
        right
            .change
            .abs()
            .total_cmp(&left.change.abs())
            .then_with(|| left.name.cmp(&right.name))
            .then_with(|| left.module.cmp(&right.module))
            .then_with(|| left.is_kernel.cmp(&right.is_kernel))
    });
    correct_for_many(changes.iter_mut().filter_map(|change| change.p.as_mut()));
    changes
}

/// `changes` between `profiles` as a JSON document: at most `top` of them.
pub fn document(changes: &[Change], profiles: [&Profile; 2], sort: SortBy, top: usize) -> Value {
    let [before, after] = profiles.map(|profile| {
        let time = profile.selection.time;
        json!({
            "file": profile.file,
            "facts": profile.contents.info,
            "account": profile.contents.account,
            "time": {
                "begin": time.begin.map(|time| time.as_secs_f64()),
                "end": time.end.map(|time| time.as_secs_f64()),
            },
            "complete": profile.contents.closed.is_some(),
            "samples": profile.samples(),
        })
    });
    let side = |share: f64, samples: u64| json!({ "samples": samples, "share": share });
    let rows = changes.iter().take(top).map(|change| {
        json!({
            "name": change.name,
            "module": change.module,
            "kernel": change.is_kernel,
            "before": side(change.before, change.samples[0]),
            "after": side(change.after, change.samples[1]),
            "change": { "value": change.change, "low": change.low, "high": change.high },
            "p": change.p,
            "significant": change.is_significant(),
        })
    });
    json!({
        "schema": 1,
        "before": before,
        "after": after,
        "selection": selection_document(&profiles[0].selection),
        "by": match sort {
            SortBy::Own => "self",
            SortBy::Total => "total",
        },
        "compared": changes.len(),
        "functions": rows.collect::<Vec<_>>(),
        "rows_left_out": changes.len().saturating_sub(top),
    })
}

/// Folded stacks with two counts, `before`'s scaled to as many samples as `after` has, for a differential [`Graph`].
///
/// # Errors
/// They don't fit into `budget` ([`TooMuch`](crate::budget::TooMuch) as the error's source); errors of inferno.
pub fn folded_changes(
    before: &Profile,
    after: &Profile,
    budget: &OutputBudget,
) -> io::Result<Vec<String>> {
    let options = Options {
        normalize: true,
        strip_hex: true,
    };
    let text = |profile| -> io::Result<String> {
        let lines = folded(profile, budget)?;
        let lines = lines.iter().map(|line| without_pid(line) + "\n");
        Ok(lines.collect())
    };
    let (before, after) = (text(before)?, text(after)?);
    let mut both = Vec::new();
    from_readers(options, before.as_bytes(), after.as_bytes(), &mut both)?;
    Ok(with_torn_edges(String::from_utf8_lossy(&both).lines()))
}

/// The differential flame graph of two profiles under `title`, an SVG document; `icicle` is [`Graph::icicle`].
///
/// # Errors
/// There is no sample, or it takes more than `budget`.
pub fn draw(
    [before, after]: [&Profile; 2],
    title: String,
    icicle: bool,
    budget: &OutputBudget,
) -> Result<Vec<u8>, GraphError> {
    let graph = Graph {
        title,
        subtitle: account_of_changes(before, after),
        icicle,
        differential: true,
        modules: Modules::of([before, after]),
    };
    graph.draw_samples(&folded_changes(before, after, budget)?)
}

/// A folded stack with its process's name only, since pids differ between runs.
fn without_pid(line: &str) -> String {
    let (root, rest) = line.split_once(';').unwrap_or((line, ""));
    let unknown = root.strip_suffix("--1").map(|name| (name, "1"));
    match unknown.or_else(|| root.rsplit_once('-')) {
        Some((name, pid)) if name != "pid" && pid.parse::<u32>().is_ok() => {
            format!("{name};{rest}")
        }
        _ => line.to_owned(),
    }
}

/// Prints `changes` between `profiles`: at most `top` rows.
///
/// # Errors
/// Writing to `out` failed.
pub fn print(
    changes: &[Change],
    profiles: [&Profile; 2],
    top: usize,
    colours: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    for (when, profile) in ["before", "after"].into_iter().zip(profiles) {
        let account = profile.contents.account;
        writeln!(
            out,
            "{when:<6}  {}: {account}{}",
            visible(&profile.contents.info.kernel),
            match (profile.contents.unread, profile.contents.closed) {
                (0, Some(_)) => "",
                (0, None) => "; the recording was cut off",
                _ => "; reading was interrupted",
            }
        )?;
    }
    for (when, profile) in ["before", "after"].into_iter().zip(profiles) {
        if let Some(warning) = loss_of_one(profile) {
            writeln!(out, "{when}: {warning}")?;
        }
    }
    writeln!(out)?;
    let heading = format!(
        "   BEFORE    AFTER   CHANGE    95 %              {:<43}  MODULE",
        "FUNCTION"
    );
    let style = TableStyle {
        bars: false,
        colours,
    };
    writeln!(out, "{}", style.heading(&heading))?;
    for change in changes.iter().take(top) {
        print_change(change, colours, out)?;
    }
    if changes.len() > top {
        let more = changes.len() - top;
        writeln!(out, "  and {more} other functions (--top shows more)")?;
    }
    if changes.iter().any(|change| change.p.is_none()) {
        writeln!(
            out,
            "\n~ nobody knows which may be chance: the times of the ticks aren't known, or too close together. The intervals hold for ticks that are \
             independent of each other"
        )?;
    } else if changes
        .iter()
        .take(top)
        .any(|change| !change.is_significant())
    {
        let compared = changes.len();
        writeln!(
            out,
            "\n~ may be chance: {compared} functions were compared, and of so many some differ by chance alone"
        )?;
    }
    Ok(())
}

fn print_change(change: &Change, colours: bool, out: &mut dyn Write) -> io::Result<()> {
    let (colour, plain) = match (colours, change.is_significant(), change.change > 0.0) {
        (false, _, _) => ("", ""),
        (true, false, _) => ("\x1b[2m", "\x1b[0m"),
        (true, true, true) => ("\x1b[31m", "\x1b[0m"),
        (true, true, false) => ("\x1b[34m", "\x1b[0m"),
    };
    let interval = format!("{:+.1} to {:+.1}", change.low * 100.0, change.high * 100.0);
    writeln!(
        out,
        "{colour}  {:>5.1} %  {:>5.1} %  {:>+6.1}  {} {interval:<16}  {}  {:<40}  {}{plain}",
        change.before * 100.0,
        change.after * 100.0,
        change.change * 100.0,
        if change.is_significant() { ' ' } else { '~' },
        if change.is_kernel { 'k' } else { 'u' },
        visible(&change.name),
        visible(&change.module),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_known_by_their_names() {
        assert_eq!(without_pid("sh-12;a b 3"), "sh;a b 3");
        assert_eq!(without_pid("a-b-12;c 3"), "a-b;c 3");
        assert_eq!(without_pid("a--1;c 3"), "a;c 3");
        assert_eq!(without_pid("pid-12;c 3"), "pid-12;c 3");
        assert_eq!(without_pid("[idle];c 3"), "[idle];c 3");
    }
}
