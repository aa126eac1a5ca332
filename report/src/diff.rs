//! The changes from one recording to another.

use std::collections::HashMap;
use std::io::{self, Write};

use inferno::differential::{Options, from_readers};

use crate::profile::{Function, Profile, Share, SortBy, folded, functions};
use crate::room::Room;
use crate::text::visible;

/// Stands for all addresses without a name, which aren't comparable between runs.
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
}

impl Change {
    fn new((name, module, is_kernel): Key, before: Share, after: Share) -> Self {
        let change = after.value - before.value;
        let down = (after.value - after.low).hypot(before.high - before.value);
        let up = (after.high - after.value).hypot(before.value - before.low);
        Self {
            name,
            module,
            is_kernel,
            before,
            after,
            change,
            low: (change - down).max(-1.0),
            high: (change + up).min(1.0),
        }
    }

    /// True if the interval doesn't contain 0. For functions that didn't change this is false in 95 of 100 cases.
    pub fn is_significant(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
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
        .map(|(key, [first, second])| {
            // An address without a name may be on a stack more than once.
            let share = |count: u64, whole: u64| Share::new(count.min(whole), whole);
            Change::new(key, share(first, wholes[0]), share(second, wholes[1]))
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
    changes
}

fn key(function: Function) -> Key {
    let name = if function.name.starts_with("0x") {
        ADDRESS.to_owned()
    } else {
        function.name
    };
    (name, function.module, function.is_kernel)
}

/// Folded stacks with two counts, `before`'s scaled to as many samples as `after` has.
///
/// # Errors
/// There is no `room` for them ([`TooMuch`](crate::room::TooMuch) as the error's source); errors of inferno.
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
    let both = String::from_utf8_lossy(&both);
    let mut lines: Vec<String> = both.lines().map(str::to_owned).collect();
    lines.sort();
    Ok(lines)
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
        writeln!(out, "\n~ not significant: may be chance")?;
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
        let change = Change::new(key(), Share::new(48, 80), Share::new(56, 70));
        assert!((change.low - 0.0524).abs() < 1e-4, "{change:?}");
        assert!((change.high - 0.3339).abs() < 1e-4, "{change:?}");
        assert!(change.is_significant());
        let back = Change::new(key(), Share::new(56, 70), Share::new(48, 80));
        assert!((back.high + change.low).abs() < 1e-9);
        assert!(back.is_significant());
        let same = Change::new(key(), Share::new(10, 100), Share::new(12, 100));
        assert!(!same.is_significant());
    }

    #[test]
    fn processes_are_known_by_their_names() {
        assert_eq!(without_pid("sh-12;a b 3"), "sh;a b 3");
        assert_eq!(without_pid("a-b-12;c 3"), "a-b;c 3");
        assert_eq!(without_pid("a--1;c 3"), "a;c 3");
        assert_eq!(without_pid("pid-12;c 3"), "pid-12;c 3");
        assert_eq!(without_pid("pid--1;c 3"), "pid--1;c 3");
    }
}
