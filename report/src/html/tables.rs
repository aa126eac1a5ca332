//! The page's tables.

use std::collections::HashSet;
use std::fmt::Write;
use std::time::{Duration, SystemTime};

use crate::profile::{Function, Process, Profile, Share, SortBy, functions};
use crate::text::escape;

/// Maximum number of rows of a table.
const ROWS: usize = 1000;

/// The processes of `profile`, those with the most samples first.
pub fn processes(profile: &Profile) -> String {
    let whole = profile.samples();
    let mut rows: Vec<(&i32, &Process)> = profile.processes.iter().collect();
    rows.sort_by_key(|(pid, process)| (u64::MAX - process.samples(), **pid));
    let mut out = head(&[
        "pid",
        "name",
        "ticks",
        "share",
        "95 %",
        "user",
        "kernel",
        "interrupt",
        "idle",
    ]);
    for (pid, process) in rows.iter().take(ROWS) {
        let name = process.shown_name(**pid);
        let _ = write!(out, "<tr>{}{}", number((**pid).into()), text(name));
        shares(&mut out, process.samples(), whole);
        for count in process.modes {
            out.push_str(&number(count.into()));
        }
        out.push_str("</tr>\n");
    }
    end(&mut out, rows.len().min(ROWS), rows.len(), "processes");
    out
}

/// The functions of `profile`, those with the most self samples first.
pub fn functions_table(profile: &Profile) -> String {
    let whole = profile.samples();
    let all = functions(profile, SortBy::Own);
    let by_total = functions(profile, SortBy::Total);
    let largest: HashSet<(&str, &str, bool)> = by_total.iter().take(ROWS / 2).map(key).collect();
    let mut out = head(&[
        "self", "share", "95 %", "total", "share", "function", "module", "in",
    ]);
    let rows = all.iter().enumerate();
    let rows = rows.filter(|(rank, row)| *rank < ROWS / 2 || largest.contains(&key(row)));
    let mut shown = 0;
    for (_, function) in rows {
        shown += 1;
        out.push_str("<tr>");
        shares(&mut out, function.own, whole);
        let total = Share::new(function.total.min(whole), whole);
        let _ = write!(
            out,
            "{}{}{}{}<td>{}</td></tr>",
            number(function.total.into()),
            percent(total.value),
            text(&function.name),
            text(&function.module),
            if function.is_kernel { "kernel" } else { "user" }
        );
        out.push('\n');
    }
    end(&mut out, shown, all.len(), "functions");
    out
}

fn key(function: &Function) -> (&str, &str, bool) {
    (&function.name, &function.module, function.is_kernel)
}

/// The table of the recording's properties.
pub fn info(profile: &Profile) -> String {
    let info = &profile.contents.info;
    let began = SystemTime::UNIX_EPOCH.checked_add(Duration::from_nanos(info.began_ns));
    let began = began.map_or(String::new(), |time| {
        humantime::format_rfc3339_seconds(time).to_string()
    });
    let stacks = match (info.stacks.kernel, info.stacks.user) {
        (true, true) => "kernel, user",
        (true, false) => "kernel",
        (false, true) => "user",
        (false, false) => "none",
    };
    let phase = if info.jitter { ", random phase" } else { "" };
    let source = match info.event {
        None => ("clock", format!("{}, {} Hz{phase}", info.clock, info.hz)),
        Some(event) => ("samples", event.describe()),
    };
    let mut out = String::from("<table class=facts><tbody>\n");
    for (name, value) in [
        ("kernel", info.kernel.clone()),
        ("began", began),
        ("vCPUs", info.vcpus.to_string()),
        ("memory", format!("{} MiB", info.memory_bytes >> 20)),
        source,
        ("stacks", stacks.to_owned()),
        ("recorded by", format!("kvmprof {}", info.program)),
    ] {
        let _ = writeln!(out, "<tr><th scope=row>{name}</th>{}</tr>", text(&value));
    }
    out.push_str("</tbody></table>\n");
    out
}

/// The table of the account.
pub fn account(profile: &Profile) -> String {
    let account = profile.contents.account;
    let mut out = String::from("<table class=facts><tbody>\n");
    let ungathered = (account.ungathered > 0).then_some(("not asked for", account.ungathered));
    let rows = [
        ("samples", account.samples),
        ("idle without a sample", account.idle),
        ("stolen: the host ran something else", account.stolen),
        ("lost", account.lost),
    ];
    let all = ("all ticks", account.ticks);
    for (name, count) in rows.into_iter().chain(ungathered).chain([all]) {
        let share = percent(Share::new(count.min(account.ticks), account.ticks).value);
        let _ = writeln!(
            out,
            "<tr><th scope=row>{name}</th>{}{share}</tr>",
            number(count.into())
        );
    }
    out.push_str("</tbody></table>\n");
    out
}

fn head(names: &[&str]) -> String {
    let mut out = String::from("<div class=wide><table class=sortable><thead><tr>");
    for name in names {
        let class = match *name {
            "name" | "function" | "module" | "in" => "",
            _ => " class=n",
        };
        let _ = write!(out, "<th scope=col{class}>{name}</th>");
    }
    out.push_str("</tr></thead><tbody>\n");
    out
}

fn end(out: &mut String, shown: usize, all: usize, what: &str) {
    out.push_str("</tbody></table></div>\n");
    if shown < all {
        let _ = writeln!(
            out,
            "<p class=note>The {shown} largest of {all} {what} are shown.</p>"
        );
    }
}

fn text(text: &str) -> String {
    format!("<td class=name>{}</td>", escape(text))
}

fn number(number: i128) -> String {
    format!("<td class=n>{number}</td>")
}

fn percent(value: f64) -> String {
    format!("<td class=n>{:.1} %</td>", value * 100.0)
}

/// A count, its share as a bar, and the share's confidence interval.
fn shares(out: &mut String, count: u64, whole: u64) {
    let share = Share::new(count.min(whole), whole);
    let _ = write!(
        out,
        "{}<td class=\"n bar\" style=\"--share:{:.1}%\">{:.1} %</td><td class=n>{:.1}-{:.1}</td>",
        number(count.into()),
        share.value * 100.0,
        share.value * 100.0,
        share.low * 100.0,
        share.high * 100.0
    );
}
