//! Boots as text tables.

use std::fmt::Write;

use kvmprof_report::boot::{ComparedRow, Estimate, Row, Summary};
use kvmprof_report::text::visible;

const NS_PER_MS: f64 = 1e6;
const NS_PER_S: f64 = 1e9;
/// The lowest part of ticks without a sample that causes a warning.
const TOO_MANY_UNSEEN: f64 = 0.1;
/// Changes with a lower probability of chance than this are marked.
const SIGNIFICANT: f64 = 0.05;

/// The phases and the longest `top` initcalls.
pub fn of_summary(summary: &Summary, top: usize) -> String {
    let mut text = head("", summary);
    let _ = writeln!(
        text,
        "{:>10} {:>19} {:>19}  PHASE",
        "MS",
        interval_title(summary),
        "AT S"
    );
    for row in &summary.phases {
        add_row(&mut text, row, &time_of(row));
    }
    // They need the kernel's image.
    let has_bounds = summary.calls.iter().any(|row| row.bounds_ns.is_some());
    let title = if has_bounds { "SURELY BETWEEN" } else { "" };
    let _ = writeln!(
        text,
        "\n{:>10} {:>19}{}  INITCALL (LEVEL, OR MODULE)",
        "MS",
        interval_title(summary),
        third(title)
    );
    for row in summary.calls.iter().take(top) {
        let bounds = has_bounds.then(|| bounds_of(row).unwrap_or_else(|| "-".to_owned()));
        add_row(&mut text, row, &bounds.unwrap_or_default());
    }
    add_rest(&mut text, summary.calls.len(), top);
    text
}

/// The changes of the phases, and the `top` largest changes of initcalls.
pub fn of_comparison(
    before: &Summary,
    after: &Summary,
    phases: &[ComparedRow],
    calls: &[ComparedRow],
    top: usize,
) -> String {
    let mut text = head("before: ", before) + &head("after: ", after);
    let mut add = |title: &str, rows: &[ComparedRow], top: usize| {
        let _ = writeln!(
            text,
            "\n{:>10} {:>10} {:>10} {:>7}  {title}",
            "BEFORE MS", "AFTER MS", "CHANGE", "P"
        );
        for row in rows.iter().take(top) {
            add_change(&mut text, row);
        }
        add_rest(&mut text, rows.len(), top);
    };
    add("PHASE", phases, phases.len());
    add("INITCALL (LEVEL, OR MODULE)", calls, top);
    text.push_str(
        "\n* marks changes that aren't chance, with 95 % confidence for all of them together\n",
    );
    text
}

#[expect(clippy::cast_precision_loss, reason = "shown with one decimal place")]
fn head(what: &str, summary: &Summary) -> String {
    let boots = match summary.boots {
        1 => "1 boot".to_owned(),
        count => format!("{count} boots"),
    };
    let mut head = format!(
        "{what}{boots}, {:.1} ms from the first instruction to the end, a sample each {:.1} ms\n",
        summary.whole.mean_ns / NS_PER_MS,
        summary.tick_ns as f64 / NS_PER_MS
    );
    if summary.unseen > TOO_MANY_UNSEEN {
        let _ = writeln!(
            head,
            "{:.0} % of the ticks were lost or stolen: times are less exact; a lower --hz, or a host that has less to do, gives better ones",
            summary.unseen * 100.0
        );
    }
    head
}

/// A single boot has no interval.
fn interval_title(summary: &Summary) -> &'static str {
    match summary.boots {
        1 => "",
        _ => "95 %",
    }
}

/// The time of a phase, in seconds from the first instruction on, as an argument of --time. The mean of several boots.
fn time_of(row: &Row) -> String {
    let begin = Estimate::new(&row.begins_ns, 0).mean_ns;
    let end = begin + row.time.mean_ns;
    format!("{:.4}:{:.4}", begin / NS_PER_S, end / NS_PER_S)
}

/// The bounds between which an initcall's time certainly is, if they are known.
#[expect(clippy::cast_precision_loss, reason = "shown with one decimal place")]
fn bounds_of(row: &Row) -> Option<String> {
    let bounds = row.bounds_ns;
    bounds.map(|(least, most)| range(least as f64, most as f64))
}

/// The third column, which isn't there if it is empty.
fn third(text: &str) -> String {
    match text {
        "" => String::new(),
        text => format!(" {text:>19}"),
    }
}

fn range(low: f64, high: f64) -> String {
    format!("{:.1}-{:.1}", low / NS_PER_MS, high / NS_PER_MS)
}

/// Adds a row with `more` in its third column, if that is there.
fn add_row(text: &mut String, row: &Row, more: &str) {
    let _ = writeln!(
        text,
        "{:>10.1} {:>19}{}  {}",
        row.time.mean_ns / NS_PER_MS,
        row.time
            .interval_ns
            .map(|(low, high)| range(low, high))
            .unwrap_or_default(),
        third(more),
        name(&row.name, &row.level)
    );
}

fn add_change(text: &mut String, row: &ComparedRow) {
    let p = row.comparison.p;
    let mark = if p.is_some_and(|p| p < SIGNIFICANT) {
        '*'
    } else {
        ' '
    };
    let p = p.map_or_else(|| "-".to_owned(), |p| format!("{p:.3}"));
    let _ = writeln!(
        text,
        "{:>10.1} {:>10.1} {:>+10.1} {p:>7}{mark} {}",
        row.before.mean_ns / NS_PER_MS,
        row.after.mean_ns / NS_PER_MS,
        row.comparison.change_ns / NS_PER_MS,
        name(&row.name, &row.level)
    );
}

fn name(name: &str, level: &str) -> String {
    let name = visible(name);
    match level {
        "" => name.to_string(),
        level => format!("{name} ({})", visible(level)),
    }
}

fn add_rest(text: &mut String, rows: usize, top: usize) {
    if rows > top {
        let _ = writeln!(text, "... {} more (--top)", rows - top);
    }
}

#[cfg(test)]
mod tests {
    use kvmprof_report::boot::{Boot, Call, CallKind, Levels};

    use super::*;

    const MS: u64 = 1_000_000;

    fn boot() -> Boot {
        let call = |function: &str| Call {
            function: function.to_owned(),
            kind: CallKind::Initcall,
            began_ns: MS,
            time_ns: 5 * MS,
            at_least_ns: 4 * MS,
            at_most_ns: 6 * MS,
            samples: 5,
        };
        Boot {
            phases: [
                (0, 0),
                (0, MS),
                (MS, 9 * MS),
                (9 * MS, 9 * MS),
                (9 * MS, 20 * MS),
            ],
            calls: vec![call("one"), call("other")],
            longest_unseen_ns: 2 * MS,
            tick_ns: MS,
            unseen: 0.0,
        }
    }

    #[test]
    fn bounds_have_a_column_if_any_are_known() {
        let names = ["__initcall__kmod_m__1_1_one6"];
        let levels = Levels::from_symbols(names.into_iter());
        let with = of_summary(&Summary::new(&[boot()], &levels), 20);
        let (_, calls) = with.split_once("\n\n").unwrap();
        let lines: Vec<&str> = calls.lines().collect();
        assert!(lines[0].contains("SURELY BETWEEN  INITCALL"), "{with}");
        assert!(lines[1].ends_with("4.0-6.0  one (6)"), "{with}");
        assert!(lines[2].ends_with("-  other"), "{with}");
        let without = of_summary(&Summary::new(&[boot()], &Levels::default()), 20);
        assert!(!without.contains("SURELY BETWEEN"), "{without}");
        let (_, calls) = without.split_once("\n\n").unwrap();
        let line = calls.lines().nth(1).unwrap();
        assert_eq!(line, format!("{:>10}{:>20}  one", "5.0", ""));
    }

    #[test]
    fn equal_boots_have_no_mark() {
        let levels = Levels::default();
        let mut later = boot();
        // It was between two ticks, and a tick isn't a change.
        later.calls[0].time_ns += MS;
        let [before, after] = [boot(), later].map(|boot| vec![boot; 3]);
        let [before, after] = [before, after].map(|boots| Summary::new(&boots, &levels));
        let (phases, calls) = kvmprof_report::boot::compare(&before, &after);
        let text = of_comparison(&before, &after, &phases, &calls, 20);
        assert_eq!(text.matches('*').count(), 1, "{text}");
    }
}
