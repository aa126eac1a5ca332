//! The changes from one recording to another.

use std::collections::HashMap;
use std::io::{self, Write};

use inferno::differential::{Options, from_readers};
use puruspe::erfc;
use serde_json::{Value, json};

use crate::graph::with_torn_edges;
use crate::profile::{Function, Profile, Share, SortBy, folded, functions, selection_document};
use crate::room::Room;
use crate::statistics::correct_for_many;
use crate::text::visible;

/// The function that stands for all addresses without a name, which aren't comparable between runs.
const ADDRESS: &str = "0x...";

/// A function: its name, its module, whether it is a kernel function.
type Key = (String, String, bool);

/// The change of a function's share of all ticks.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Its name.
    pub name: String,
    /// `[kernel]`, a module, or a file.
    pub module: String,
    /// Whether it is a kernel function.
    pub is_kernel: bool,
    /// Its samples before and after.
    pub samples: [u64; 2],
    /// Its share before.
    pub before: Share,
    /// Its share after.
    pub after: Share,
    /// The difference of the shares, -1 to 1.
    pub change: f64,
    /// The lower end of its 95 % confidence interval (Newcombe's hybrid score interval, method 10 in Statistics
    /// in Medicine 17, 1998).
    pub low: f64,
    /// The upper end.
    pub high: f64,
    /// The probability of such a change, or a larger one, by chance alone: that of the widest interval that doesn't contain 0.
    /// [`changes`] corrects it for the number of functions compared (Holm).
    pub p: f64,
}

/// The difference of two shares and its interval of `z` standard errors.
fn difference(before: Share, after: Share) -> (f64, f64, f64) {
    let change = after.value - before.value;
    let down = (after.value - after.low).hypot(before.high - before.value);
    let up = (after.high - after.value).hypot(before.value - before.low);
    (change, (change - down).max(-1.0), (change + up).min(1.0))
}

/// The probability of a difference by chance alone.
fn probability(samples: [u64; 2], wholes: [u64; 2]) -> f64 {
    let contains_0 = |z: f64| {
        let [before, after] = [0, 1].map(|side| Share::within(samples[side], wholes[side], z));
        let (_, low, high) = difference(before, after);
        low <= 0.0 && high >= 0.0
    };
    let (mut inside, mut outside) = (FARTHEST, 0.0);
    if contains_0(outside) {
        return 1.0;
    }
    for _ in 0..STEPS {
        let middle = (inside + outside) / 2.0;
        if contains_0(middle) {
            inside = middle;
        } else {
            outside = middle;
        }
    }
    erfc(outside / std::f64::consts::SQRT_2)
}

/// The maximum of standard errors, and the number of steps until they are known to 1e-10.
const FARTHEST: f64 = 40.0;
const STEPS: u32 = 40;

/// The probability below which a change counts as significant.
pub const SIGNIFICANT: f64 = 0.05;

impl Change {
    fn new((name, module, is_kernel): Key, samples: [u64; 2], wholes: [u64; 2]) -> Self {
        let [before, after] = [0, 1].map(|side| Share::new(samples[side], wholes[side]));
        let (change, low, high) = difference(before, after);
        Self {
            name,
            module,
            is_kernel,
            samples,
            before,
            after,
            change,
            low,
            high,
            p: probability(samples, wholes),
        }
    }

    /// Whether it is significant. If `p` is corrected, this is false for all functions in 95 of 100 comparisons in which none changed.
    pub fn is_significant(&self) -> bool {
        self.p < SIGNIFICANT
    }
}

/// The changes of all functions between `before` and `after`, by self or total samples; the biggest changes first.
pub fn changes(before: &Profile, after: &Profile, sort: SortBy) -> Vec<Change> {
    let mut counts: HashMap<Key, [u64; 2]> = HashMap::new();
    for (index, profile) in [before, after].into_iter().enumerate() {
        for function in functions(profile, sort) {
            let count = match sort {
                SortBy::Own => function.own,
                SortBy::Total => function.total,
            };
            let sum = &mut counts.entry(key(function)).or_default()[index];
            *sum = sum.saturating_add(count);
        }
    }
    let wholes = [before.samples(), after.samples()];
    let mut changes: Vec<Change> = counts
        .into_iter()
        .filter(|(_, counts)| *counts != [0, 0])
        .map(|(key, counts)| {
            // An address without a name may be on a stack more than once.
            let counts = [0, 1].map(|side| counts[side].min(wholes[side]));
            Change::new(key, counts, wholes)
        })
        .collect();
    changes.sort_by(|left, right| {
        right
            .change
            .abs()
            .total_cmp(&left.change.abs())
            .then_with(|| left.name.cmp(&right.name))
            .then_with(|| left.module.cmp(&right.module))
            .then_with(|| left.is_kernel.cmp(&right.is_kernel))
    });
    let mut p: Vec<f64> = changes.iter().map(|change| change.p).collect();
    correct_for_many(&mut p);
    for (change, p) in changes.iter_mut().zip(p) {
        change.p = p;
    }
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
    let side = |share: Share, samples: u64| json!({ "samples": samples, "share": share.value });
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

/// The name of a function in comparisons.
pub(crate) fn comparable_name(name: &str) -> &str {
    if name.starts_with("0x") {
        ADDRESS
    } else {
        name
    }
}

fn key(function: Function) -> Key {
    let name = comparable_name(&function.name).to_owned();
    (name, function.module, function.is_kernel)
}

/// Folded stacks with two counts, `before`'s scaled to as many samples as `after` has, for a differential [`Graph`](crate::graph::Graph).
///
/// # Errors
/// They don't fit into `room` ([`TooMuch`](crate::room::TooMuch) as the error's source); errors of inferno.
pub fn folded_changes(before: &Profile, after: &Profile, room: &Room) -> io::Result<Vec<String>> {
    let options = Options {
        normalize: true,
        strip_hex: true,
    };
    let text = |profile| -> io::Result<String> {
        let lines = folded(profile, room)?;
        let lines = lines.iter().map(|line| without_pid(line) + "\n");
        Ok(lines.collect())
    };
    let (before, after) = (text(before)?, text(after)?);
    let mut both = Vec::new();
    from_readers(options, before.as_bytes(), after.as_bytes(), &mut both)?;
    Ok(with_torn_edges(String::from_utf8_lossy(&both).lines()))
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
    writeln!(out)?;
    let (bold, plain) = if colours {
        ("\x1b[1m", "\x1b[0m")
    } else {
        ("", "")
    };
    writeln!(
        out,
        "{bold}   BEFORE    AFTER   CHANGE    95 %              {:<43}  MODULE{plain}",
        "FUNCTION"
    )?;
    for change in changes.iter().take(top) {
        print_change(change, colours, out)?;
    }
    if changes.len() > top {
        let more = changes.len() - top;
        writeln!(out, "  and {more} other functions (--top shows more)")?;
    }
    if changes
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
        change.before.value * 100.0,
        change.after.value * 100.0,
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
    fn the_difference_of_two_shares_has_an_interval() {
        // Newcombe 1998, table II, contrast (a): 56/70 - 48/80 is 0.0524 to 0.3339.
        let key = || ("f".to_owned(), "[kernel]".to_owned(), true);
        let change = Change::new(key(), [48, 56], [80, 70]);
        assert!((change.low - 0.0524).abs() < 1e-4, "{change:?}");
        assert!((change.high - 0.3339).abs() < 1e-4, "{change:?}");
        assert!(change.is_significant());
        let back = Change::new(key(), [56, 48], [70, 80]);
        assert!((back.high + change.low).abs() < 1e-9);
        assert!(back.is_significant() && (back.p - change.p).abs() < 1e-9);
        let same = Change::new(key(), [10, 12], [100, 100]);
        assert!(!same.is_significant());
        assert_eq!(Change::new(key(), [10, 10], [100, 100]).p, 1.0);
    }

    #[test]
    fn a_probability_of_5_in_100_has_an_interval_that_ends_at_0() {
        for (samples, wholes) in [
            ([48, 56], [80, 70]),
            ([0, 9], [90, 110]),
            ([3, 1], [7, 900]),
        ] {
            let p = probability(samples, wholes);
            // Of one comparison, the interval of 95 % says the same.
            let [before, after] = [0, 1].map(|side| Share::new(samples[side], wholes[side]));
            let (_, low, high) = difference(before, after);
            assert_eq!(p < 0.05, low > 0.0 || high < 0.0, "{p}: {low} to {high}");
        }
        // The test of two proportions by their common variance has z = 2.65 and p = 0.0080.
        let p = probability([48, 56], [80, 70]);
        assert!((0.006..0.012).contains(&p), "{p}");
        assert_eq!(probability([0, 900_000], [1_000_000, 1_000_000]), 0.0);
    }

    #[test]
    fn processes_are_known_by_their_names() {
        assert_eq!(without_pid("sh-12;a b 3"), "sh;a b 3");
        assert_eq!(without_pid("a-b-12;c 3"), "a-b;c 3");
        assert_eq!(without_pid("a--1;c 3"), "a;c 3");
        assert_eq!(without_pid("pid-12;c 3"), "pid-12;c 3");
        assert_eq!(without_pid("[idle];c 3"), "[idle];c 3");
    }
}
