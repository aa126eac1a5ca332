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
    let _ = writeln!(
        text,
        "\n{:>10} {:>19} {:>19}  INITCALL (LEVEL, OR MODULE)",
        "MS",
        interval_title(summary),
        "SURELY BETWEEN"
    );
    for row in summary.calls.iter().take(top) {
        add_row(&mut text, row, &bounds_of(row));
    }
    add_rest(&mut text, summary.calls.len(), top);
    text
}

/// The changes of the phases, and the `top` largest changes of initcalls.
pub fn of_comparison(
    (before, after): (&Summary, &Summary),
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
    let begin = Estimate::new(&row.begins_ns).mean_ns;
    let end = begin + row.time.mean_ns;
    format!("{:.4}:{:.4}", begin / NS_PER_S, end / NS_PER_S)
}

/// The bounds between which an initcall's time certainly is, if they are known.
#[expect(clippy::cast_precision_loss, reason = "shown with one decimal place")]
fn bounds_of(row: &Row) -> String {
    let bounds = row.bounds_ns;
    let bounds = bounds.map(|(least, most)| range((least as f64, most as f64)));
    bounds.unwrap_or_default()
}

fn range((low, high): (f64, f64)) -> String {
    format!("{:.1}-{:.1}", low / NS_PER_MS, high / NS_PER_MS)
}

/// Adds a row with `more` in its third column.
fn add_row(text: &mut String, row: &Row, more: &str) {
    let _ = writeln!(
        text,
        "{:>10.1} {:>19} {more:>19}  {}",
        row.time.mean_ns / NS_PER_MS,
        row.time.interval_ns.map(range).unwrap_or_default(),
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
