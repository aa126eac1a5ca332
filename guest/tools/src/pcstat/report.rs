//! The report as text.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use kvmprof_abi::pcs::{
    BUF_INCR, Format, PCS_SETBSIZE, PCS_SETFORMAT, PCS_SETHZ, PROF_ALL, PROF_GROUP, PROF_KERNEL,
    PROF_LIST,
};
use kvmprof_abi::stream::Isample;

use super::profile::TYPES;
use super::{Profile, loss};
use kvmprof_cli::table::{Align, percent, write_table};

/// Writes the report of `profile`, with at most `top` program counters.
///
/// # Errors
/// Writing failed.
pub fn write_report(profile: &Profile, top: usize, output: &mut dyn Write) -> io::Result<()> {
    write_head(profile, output)?;
    write_ledger(profile, output)?;
    write_types(profile, output)?;
    write_processes(profile, output)?;
    write_places(profile, top, output)?;
    output.flush()
}

fn write_head(profile: &Profile, output: &mut dyn Write) -> io::Result<()> {
    let time = |time: Option<i64>| time.and_then(utc).unwrap_or_else(|| UNKNOWN.to_owned());
    let span = match (profile.span(), profile.pstat) {
        (Some(span), Some(_)) => format!("{span:.3} s"),
        (Some(span), None) => format!("{span:.0} s"),
        (None, _) => UNKNOWN.to_owned(),
    };
    writeln!(
        output,
        "Span       {span}, from {} to {}",
        time(profile.start),
        time(profile.stop)
    )?;
    let clock = match &profile.pstat {
        Some(pstat) => {
            let status = &pstat.status;
            let plural = if status.vcpus == 1 { "" } else { "s" };
            let vcpus = format!("{} vCPU{plural}", status.vcpus);
            let real = profile.real_rate();
            let in_words =
                |unit| real.map_or_else(|| UNKNOWN.to_owned(), |rate| format!("{rate:.1}{unit}"));
            match status.hz {
                0 => format!(
                    "none, an event makes the ticks: {}, {vcpus}",
                    in_words(" a second")
                ),
                hz => format!("{hz} Hz nominal, {} real, {vcpus}", in_words(" Hz")),
            }
        }
        None => UNKNOWN.to_owned(),
    };
    writeln!(output, "Clock      {clock}")?;
    let calls: Vec<String> = profile.calls.iter().map(describe_call).collect();
    writeln!(output, "Asked for  {}", calls.join(", "))?;
    let format = match profile.format {
        Format::Native => "native",
        Format::Classic => "classic",
    };
    writeln!(output, "Format     {format}")
}

const UNKNOWN: &str = "unknown";

/// A time in UTC; `None` if it is invalid.
fn utc(time: i64) -> Option<String> {
    // Years above 9999 can't be printed.
    let seconds = u64::try_from(time)
        .ok()
        .filter(|time| *time < 250_000_000_000)?;
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?;
    Some(humantime::format_rfc3339_seconds(time).to_string())
}

fn describe_call(call: &Isample) -> String {
    let [first, ..] = call.data;
    match call.command {
        PROF_KERNEL => "PROF_KERNEL".to_owned(),
        PROF_ALL => "PROF_ALL".to_owned(),
        PROF_GROUP => format!("PROF_GROUP {first}"),
        PROF_LIST => {
            let pids = call.data.iter().take_while(|pid| **pid != 0);
            let pids: Vec<String> = pids.map(i32::to_string).collect();
            format!("PROF_LIST {}", pids.join(" "))
        }
        BUF_INCR => format!("BUF_INCR {first}"),
        PCS_SETFORMAT => format!("PCS_SETFORMAT {first}"),
        PCS_SETBSIZE => format!("PCS_SETBSIZE {first}"),
        PCS_SETHZ => format!("PCS_SETHZ {first}"),
        command => format!("ioctl {command:#x}"),
    }
}

fn write_ledger(profile: &Profile, output: &mut dyn Write) -> io::Result<()> {
    let headings = [
        ("TICKS", Align::Left),
        ("COUNT", Align::Right),
        ("SHARE", Align::Right),
    ];
    writeln!(output)?;
    let rows: Vec<[String; 3]> = match &profile.pstat {
        Some(pstat) => {
            let ledger = &pstat.status.ledger;
            let shown = |(name, count): &(&str, u64)| {
                *count > 0 || !matches!(*name, "pending" | "discarded")
            };
            let fields = ledger.fields().into_iter();
            fields
                .filter(shown)
                .map(|(name, count)| {
                    let name = if name == "ticks" { "all" } else { name };
                    [
                        name.to_owned(),
                        count.to_string(),
                        percent(count, ledger.ticks),
                    ]
                })
                .collect()
        }
        None => {
            let samples = profile.tally.samples();
            let merged = profile.tally.total() - samples;
            let row = |name: &str, count: String| [name.to_owned(), count, "-".to_owned()];
            vec![
                row("recorded", samples.to_string()),
                row("merged", merged.to_string()),
                row("stolen", UNKNOWN.to_owned()),
                row("lost", UNKNOWN.to_owned()),
                row("discarded", UNKNOWN.to_owned()),
            ]
        }
    };
    write_table(output, &headings, &rows)?;
    match loss::warning(profile) {
        Some(warning) => writeln!(output, "\n  Warning: {warning}"),
        None => Ok(()),
    }
}

fn write_types(profile: &Profile, output: &mut dyn Write) -> io::Result<()> {
    let total = profile.tally.total();
    let rows: Vec<[String; 3]> = TYPES
        .into_iter()
        .map(|(kind, name)| (name, profile.tally.count(kind)))
        .filter(|(_, hits)| *hits > 0)
        .map(|(name, hits)| [name.to_owned(), hits.to_string(), percent(hits, total)])
        .collect();
    writeln!(output)?;
    if rows.is_empty() {
        return writeln!(output, "  No hits.");
    }
    let headings = [
        ("TYPE", Align::Left),
        ("HITS", Align::Right),
        ("SHARE", Align::Right),
    ];
    write_table(output, &headings, &rows)
}

fn write_processes(profile: &Profile, output: &mut dyn Write) -> io::Result<()> {
    let total = profile.tally.total();
    let rows: Vec<[String; 7]> = profile
        .ranked_processes()
        .into_iter()
        .map(|(pid, hits)| {
            [
                describe_pid(pid),
                profile.name(pid).unwrap_or("-").to_owned(),
                hits.total().to_string(),
                percent(hits.total(), total),
                hits.user.to_string(),
                hits.kernel.to_string(),
                hits.interrupt.to_string(),
            ]
        })
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let headings = [
        ("PID", Align::Right),
        ("NAME", Align::Left),
        ("HITS", Align::Right),
        ("SHARE", Align::Right),
        ("USER", Align::Right),
        ("KERNEL", Align::Right),
        ("INTERRUPT", Align::Right),
    ];
    writeln!(output)?;
    write_table(output, &headings, &rows)
}

fn describe_pid(pid: i32) -> String {
    match pid {
        -1 => UNKNOWN.to_owned(),
        pid => pid.to_string(),
    }
}

fn write_places(profile: &Profile, top: usize, output: &mut dyn Write) -> io::Result<()> {
    let total = profile.tally.total();
    let ranked = profile.ranked_program_counters(top);
    let rows: Vec<[String; 6]> = ranked
        .iter()
        .map(|(counter, hits)| {
            let pid = counter.pid.map_or_else(|| "-".to_owned(), describe_pid);
            let name = counter.pid.and_then(|pid| profile.name(pid)).unwrap_or("-");
            [
                format!("{:#018x}", counter.pc),
                hits.to_string(),
                percent(*hits, total),
                counter.mode.name().to_owned(),
                pid,
                name.to_owned(),
            ]
        })
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let headings = [
        ("PC", Align::Left),
        ("HITS", Align::Right),
        ("SHARE", Align::Right),
        ("MODE", Align::Left),
        ("PID", Align::Right),
        ("NAME", Align::Left),
    ];
    writeln!(output)?;
    write_table(output, &headings, &rows)?;
    let others = profile.program_counters.len() - ranked.len();
    if others > 0 {
        let plural = if others == 1 { "" } else { "s" };
        writeln!(
            output,
            "  and {others} other program counter{plural} (--top shows more)"
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_times_are_not_printed() {
        assert_eq!(utc(0).as_deref(), Some("1970-01-01T00:00:00Z"));
        assert_eq!(utc(1_700_000_000).as_deref(), Some("2023-11-14T22:13:20Z"));
        assert_eq!(utc(-1), None);
        assert_eq!(utc(i64::MAX), None);
        assert!(utc(249_999_999_999).is_some());
    }
}
