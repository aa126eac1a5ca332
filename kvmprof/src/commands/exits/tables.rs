//! The tables of `kvmprof exits`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use kvmprof_attach::exits::{Exits, OfReason};
use kvmprof_cli::table::{Align, percent, write_table};

use super::{Part, names};

/// Writes what was counted.
pub fn write(part: &Part<'_>, output: &mut dyn Write) -> io::Result<()> {
    let (mut all, mut halts) = (Exits::default(), Exits::default());
    for one in &part.counts.reasons {
        let sum = match part.names.is_halt(one.reason) {
            true => &mut halts,
            false => &mut all,
        };
        sum.add(one.exits);
    }
    write_reasons(part, output)?;
    write_accesses(part, output)?;
    write_functions(part, output)?;
    if part.vcpus > 1 {
        write_vcpus(part, output)?;
    }
    let available = part.time.as_nanos().saturating_mul(part.vcpus as u128);
    let available = u64::try_from(available).unwrap_or(u64::MAX);
    writeln!(
        output,
        "{} exits of {} vCPUs in {:.3} s took {} of their time; halts: {}, {}",
        all.count,
        part.vcpus,
        part.time.as_secs_f64(),
        percent(all.time, available),
        halts.count,
        percent(halts.time, available)
    )?;
    write_remarks(part, output)
}

/// What the numbers lack.
fn write_remarks(part: &Part<'_>, output: &mut dyn Write) -> io::Result<()> {
    let counts = part.counts;
    if counts.unfinished > 0 {
        let count = counts.unfinished;
        writeln!(output, "vCPUs whose exit isn't over, and not counted yet: {count}")?;
    }
    let lost = counts.lost;
    for (count, what) in [
        (lost.threads, "too many threads of vCPUs"),
        (lost.reasons, "too many reasons"),
        (lost.accesses, "only by access: too many places"),
        (lost.functions, "only by instruction: too many addresses"),
    ] {
        if count > 0 {
            writeln!(output, "Exits that aren't counted, {what}: {count}")?;
        }
    }
    if !part.missing.is_empty() {
        let names = part.missing.join(", ");
        writeln!(output, "The host's KVM lacks these tracepoints: {names}")?;
    }
    Ok(())
}

/// A table by reason, of all vCPUs together, the halts last.
fn write_reasons(part: &Part<'_>, output: &mut dyn Write) -> io::Result<()> {
    let mut reasons: BTreeMap<u32, OfReason> = BTreeMap::new();
    for one in &part.counts.reasons {
        let sum = reasons.entry(one.reason).or_default();
        sum.reason = one.reason;
        sum.exits.add(one.exits);
        sum.left.add(one.left);
        sum.longest = sum.longest.max(one.longest);
        sum.histogram.add(&one.histogram);
    }
    let mut reasons: Vec<OfReason> = reasons.into_values().collect();
    reasons.retain(|one| one.exits.count > 0);
    let is_halt = |one: &OfReason| part.names.is_halt(one.reason);
    reasons.sort_by_key(|one| (is_halt(one), Reverse(part.sort.key(one.exits))));
    let percentile = |one: &OfReason, percent| {
        let time = one.histogram.percentile(percent);
        time.map_or_else(|| "-".to_owned(), |time| duration(time.min(one.longest)))
    };
    let rows = reasons.iter().take(part.rows).map(|one| {
        [
            part.names.name(one.reason),
            one.exits.count.to_string(),
            rate(one.exits.count, part.time),
            duration(one.exits.time),
            percentile(one, 50),
            percentile(one, 99),
            duration(one.longest),
            share(one.left.count, one.exits.count),
        ]
    });
    let headings = [
        ("REASON", Align::Left),
        ("COUNT", Align::Right),
        ("A SEC", Align::Right),
        ("TIME", Align::Right),
        ("MEDIAN", Align::Right),
        ("P99", Align::Right),
        ("LONGEST", Align::Right),
        ("VMM", Align::Right),
    ];
    write_part(output, &headings, &rows.collect::<Vec<_>>())
}

fn write_accesses(part: &Part<'_>, output: &mut dyn Write) -> io::Result<()> {
    let rows = part.counts.accesses.iter();
    let rows = rows.map(|one| (one.exits, names::access(one), one.reason));
    write_places(part, output, "ACCESS", rows.collect())
}

fn write_functions(part: &Part<'_>, output: &mut dyn Write) -> io::Result<()> {
    let rows = part.counts.functions.iter();
    let rows = rows.map(|one| (one.exits, format!("{:#x}", one.address), one.reason));
    write_places(part, output, "INSTRUCTION", rows.collect())
}

/// A table of exits, what they are of, and their reason.
fn write_places(
    part: &Part<'_>,
    output: &mut dyn Write,
    heading: &str,
    mut places: Vec<(Exits, String, u32)>,
) -> io::Result<()> {
    places.retain(|(exits, ..)| exits.count > 0);
    places.sort_by_key(|(exits, _, reason)| {
        let is_halt = part.names.is_halt(*reason);
        (is_halt, Reverse(part.sort.key(*exits)))
    });
    let rows = places.into_iter().take(part.rows);
    let rows = rows.map(|(exits, place, reason)| {
        [
            place,
            part.names.name(reason),
            exits.count.to_string(),
            rate(exits.count, part.time),
            duration(exits.time),
            duration(exits.time.checked_div(exits.count).unwrap_or_default()),
        ]
    });
    let headings = [
        (heading, Align::Left),
        ("REASON", Align::Left),
        ("COUNT", Align::Right),
        ("A SEC", Align::Right),
        ("TIME", Align::Right),
        ("MEAN", Align::Right),
    ];
    write_part(output, &headings, &rows.collect::<Vec<_>>())
}

fn write_vcpus(part: &Part<'_>, output: &mut dyn Write) -> io::Result<()> {
    let mut vcpus: BTreeMap<u32, [Exits; 2]> = BTreeMap::new();
    for one in &part.counts.reasons {
        let sums = vcpus.entry(one.vcpu).or_default();
        let is_halt = part.names.is_halt(one.reason);
        sums[usize::from(is_halt)].add(one.exits);
    }
    let rows = vcpus.into_iter().map(|(vcpu, [exits, halts])| {
        [
            vcpu.to_string(),
            exits.count.to_string(),
            rate(exits.count, part.time),
            duration(exits.time),
            halts.count.to_string(),
            duration(halts.time),
        ]
    });
    let headings = [
        ("VCPU", Align::Right),
        ("COUNT", Align::Right),
        ("A SEC", Align::Right),
        ("TIME", Align::Right),
        ("HALTS", Align::Right),
        ("HALTED", Align::Right),
    ];
    write_part(output, &headings, &rows.collect::<Vec<_>>())
}

/// Writes a table and an empty line, unless the table is empty.
fn write_part<const N: usize>(
    output: &mut dyn Write,
    headings: &[(&str, Align); N],
    rows: &[[String; N]],
) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    write_table(output, headings, rows)?;
    writeln!(output)
}

/// `ns` with a unit, in at most 6 characters up to 11 days.
#[expect(clippy::cast_precision_loss, reason = "it is shown with few digits")]
fn duration(ns: u64) -> String {
    for (unit, length) in [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1000)] {
        if ns >= length {
            let value = ns as f64 / length as f64;
            let decimals = usize::from(value < 99.95);
            return format!("{value:.decimals$}{unit}");
        }
    }
    format!("{ns}ns")
}

#[expect(clippy::cast_precision_loss, reason = "it is shown without decimals")]
fn rate(count: u64, time: Duration) -> String {
    format!("{:.0}", count as f64 / time.as_secs_f64().max(f64::MIN_POSITIVE))
}

/// `part` of `whole` in percent, without decimals.
fn share(part: u64, whole: u64) -> String {
    let percent = u128::from(part) * 100 / u128::from(whole.max(1));
    format!("{percent} %")
}
