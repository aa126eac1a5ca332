//! The tables of `kvmprof exits`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};

use kvmprof_cli::table::{Align, percent, write_table};
use kvmprof_recording::exits::{Exits, HostTimes, OfReason};
use kvmprof_report::text::visible;

use super::{Part, Table, has_names, names, waits};

/// Maximum number of characters of a name in a table, and of a function's beside a process's.
pub const MAX_NAME: usize = 28;
const MAX_FUNCTION: usize = 24;

/// Writes what was counted.
pub fn write(part: &Part<'_>, output: &mut dyn Write) -> io::Result<()> {
    let is_wanted = |table| part.by.is_none_or(|by| by == table);
    if is_wanted(Table::Reason) {
        write_reasons(part, output)?;
    }
    if is_wanted(Table::Access) {
        write_accesses(part, output)?;
    }
    if is_wanted(Table::Process) {
        write_processes(part, output)?;
    }
    let has_containers = (part.interval.containers.values()).any(|container| !container.is_empty());
    if part.by == Some(Table::Container) || is_wanted(Table::Container) && has_containers {
        write_containers(part, output)?;
    }
    if is_wanted(Table::Function) {
        write_functions(part, output)?;
    }
    if part.by == Some(Table::Vcpu) || is_wanted(Table::Vcpu) && part.interval.vcpus > 1 {
        write_vcpus(part, output)?;
    }
    if is_wanted(Table::Thief) {
        waits::write(part, output)?;
    }
    write_sums(part, output)?;
    write_remarks(part, output)
}

/// The number and the time of all exits, of all waits for a processor, and of all interrupts.
fn write_sums(part: &Part<'_>, output: &mut dyn Write) -> io::Result<()> {
    let (mut all, mut halts) = (Exits::default(), Exits::default());
    let interval = part.interval;
    for one in &interval.counts.reasons {
        let sum = match interval.is_halt(one.reason) {
            true => &mut halts,
            false => &mut all,
        };
        sum.add(one.exits);
    }
    let available = interval.time().saturating_mul(interval.vcpus.into());
    writeln!(
        output,
        "{} exits of {} vCPUs in {:.3} s took {} of their time; halts: {}, {}",
        all.count,
        interval.vcpus,
        seconds(interval.time()),
        percent(all.time, available),
        halts.count,
        percent(halts.time, available)
    )?;
    let waits = waits::sum(part);
    if waits.time > 0 {
        writeln!(
            output,
            "vCPUs waited {} times for a processor, {} of their time",
            waits.count,
            percent(waits.time, available)
        )?;
    }
    let interrupts = waits::interrupts(part);
    if interrupts.time > 0 {
        writeln!(
            output,
            "{} interrupts of the host took {} of their time",
            interrupts.count,
            percent(interrupts.time, available)
        )?;
    }
    write_host(part, output)
}

/// The time that the host lacked for the VMM, or for all.
fn write_host(part: &Part<'_>, output: &mut dyn Write) -> io::Result<()> {
    let HostTimes {
        throttled,
        stolen,
        processors,
    } = part.interval.host;
    if throttled.count > 0 {
        let (count, time) = (throttled.count, duration(throttled.time));
        writeln!(
            output,
            "Control groups of the VMM had no quota left in {count} periods, for {time}"
        )?;
    }
    if stolen > 0 {
        let share = percent(
            stolen,
            part.interval.time().saturating_mul(processors.into()),
        );
        writeln!(
            output,
            "This host's {processors} processors waited for those of its own host {share} of their time"
        )?;
    }
    Ok(())
}

/// What the numbers lack.
fn write_remarks(part: &Part<'_>, output: &mut dyn Write) -> io::Result<()> {
    let counts = &part.interval.counts;
    if counts.unfinished > 0 {
        let count = counts.unfinished;
        writeln!(
            output,
            "vCPUs whose exit isn't over, and not counted yet: {count}"
        )?;
    }
    if has_names(part.by) && !part.interval.knows_processes {
        let what = match part.symbols {
            Some(_) => "The guest's processes aren't known",
            None => "The guest's kernel isn't known: exits have addresses, and no processes",
        };
        writeln!(output, "{what}")?;
    }
    let lost = counts.lost;
    for (count, what) in [
        (lost.threads, "too many threads of vCPUs"),
        (lost.reasons, "too many reasons"),
        (lost.accesses, "only by access: too many places"),
        (lost.functions, "only by instruction: too many addresses"),
        (lost.processes, "only by process: too many processes"),
    ] {
        if count > 0 {
            writeln!(output, "Exits that aren't counted, {what}: {count}")?;
        }
    }
    let lost = lost.waits.saturating_add(lost.slots);
    if lost > 0 {
        writeln!(output, "Turns of others that aren't known: {lost}")?;
    }
    let lost = counts.lost.interrupts;
    if lost > 0 {
        writeln!(
            output,
            "Interrupts that aren't counted, too many different ones: {lost}"
        )?;
    }
    if !part.interval.missing.is_empty() {
        let names: Vec<_> = part
            .interval
            .missing
            .iter()
            .map(|name| visible(name))
            .collect();
        let names = names.join(", ");
        writeln!(output, "The host's kernel lacks these tracepoints: {names}")?;
    }
    Ok(())
}

/// A table by reason, of all vCPUs together, the halts last.
fn write_reasons(part: &Part<'_>, output: &mut dyn Write) -> io::Result<()> {
    let mut reasons: BTreeMap<u32, OfReason> = BTreeMap::new();
    for one in &part.interval.counts.reasons {
        let sum = reasons.entry(one.reason).or_default();
        sum.reason = one.reason;
        sum.exits.add(one.exits);
        sum.left.add(one.left);
        sum.longest = sum.longest.max(one.longest);
        sum.histogram.add(&one.histogram);
    }
    let mut reasons: Vec<OfReason> = reasons.into_values().collect();
    reasons.retain(|one| one.exits.count > 0);
    reasons.sort_by_key(|one| sort_key(part, one.reason, one.exits));
    let percentile = |one: &OfReason, percent| {
        let time = one.histogram.percentile(percent);
        time.map_or_else(|| "-".to_owned(), |time| duration(time.min(one.longest)))
    };
    let rows = reasons.iter().take(part.rows).map(|one| {
        [
            reason_name(part, one.reason),
            one.exits.count.to_string(),
            rate(part, one.exits.count),
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
    let rows = part.interval.counts.accesses.iter();
    let rows = rows.map(|one| (one.exits, names::access(one), one.reason));
    write_places(part, output, "ACCESS", rows.collect())
}

fn write_processes(part: &Part<'_>, output: &mut dyn Write) -> io::Result<()> {
    let process_names = names::processes(&part.interval.counts);
    let label = |process: Option<i32>| {
        let name = process.and_then(|process| Some((process, process_names.get(&process)?)));
        name.map_or_else(unknown, |(process, name)| format!("{name} ({process})"))
    };
    let rows = part.interval.counts.processes.iter();
    let rows = rows.map(|one| (one.exits, label(one.process), one.reason));
    write_places(part, output, "PROCESS", rows.collect())
}

fn write_containers(part: &Part<'_>, output: &mut dyn Write) -> io::Result<()> {
    let mut rows: BTreeMap<(String, u32), Exits> = BTreeMap::new();
    for one in &part.interval.counts.processes {
        let container = names::container(part.interval, one.process);
        let label = match container {
            None => unknown(),
            Some("") => "[no container]".to_owned(),
            Some(name) => shortened(visible(name), MAX_NAME),
        };
        rows.entry((label, one.reason)).or_default().add(one.exits);
    }
    let rows = rows.into_iter();
    let rows = rows.map(|((label, reason), exits)| (exits, label, reason));
    write_places(part, output, "CONTAINER", rows.collect())
}

/// What stands for a process or a thread that isn't known.
pub fn unknown() -> String {
    "[not known]".to_owned()
}

/// By function and process, and by instruction where the function isn't known.
fn write_functions(part: &Part<'_>, output: &mut dyn Write) -> io::Result<()> {
    let process_names = names::processes(&part.interval.counts);
    let mut rows: BTreeMap<(String, String, u32), Exits> = BTreeMap::new();
    for one in &part.interval.counts.functions {
        let function = part.symbols.and_then(|symbols| symbols.find(one.address));
        let function = function.map_or_else(|| format!("{:#x}", one.address), str::to_owned);
        let process = one.process.and_then(|process| process_names.get(&process));
        let process = process.cloned().unwrap_or_else(unknown);
        let key = (function, process, one.reason);
        rows.entry(key).or_default().add(one.exits);
    }
    let rows = rows.into_iter();
    if !part.interval.knows_processes {
        let rows = rows
            .map(|((function, _, reason), exits)| (exits, shortened(function, MAX_NAME), reason));
        return write_places(part, output, "FUNCTION", rows.collect());
    }
    let mut rows: Vec<_> = rows.filter(|(_, exits)| exits.count > 0).collect();
    rows.sort_by_key(|((_, _, reason), exits)| sort_key(part, *reason, *exits));
    let rows = rows.into_iter().take(part.rows);
    let rows = rows.map(|((function, process, reason), exits)| {
        [
            shortened(function, MAX_FUNCTION),
            process,
            reason_name(part, reason),
            exits.count.to_string(),
            duration(exits.time),
            duration(exits.mean()),
        ]
    });
    let headings = [
        ("FUNCTION", Align::Left),
        ("PROCESS", Align::Left),
        ("REASON", Align::Left),
        ("COUNT", Align::Right),
        ("TIME", Align::Right),
        ("MEAN", Align::Right),
    ];
    write_part(output, &headings, &rows.collect::<Vec<_>>())
}

/// The order of rows: halts last, the others by what they are to be sorted by.
fn sort_key(part: &Part<'_>, reason: u32, exits: Exits) -> (bool, Reverse<u64>) {
    (part.interval.is_halt(reason), Reverse(part.sort.key(exits)))
}

/// A name with at most `most` characters, so that the table fits into a terminal.
pub fn shortened(name: String, most: usize) -> String {
    if name.chars().count() <= most {
        return name;
    }
    let kept: String = name.chars().take(most - 1).collect();
    kept + "…"
}

/// A table of exits, what they are of, and their reason.
fn write_places(
    part: &Part<'_>,
    output: &mut dyn Write,
    heading: &str,
    mut places: Vec<(Exits, String, u32)>,
) -> io::Result<()> {
    places.retain(|(exits, ..)| exits.count > 0);
    places.sort_by_key(|(exits, _, reason)| sort_key(part, *reason, *exits));
    let rows = places.into_iter().take(part.rows);
    let rows = rows.map(|(exits, place, reason)| {
        [
            place,
            reason_name(part, reason),
            exits.count.to_string(),
            rate(part, exits.count),
            duration(exits.time),
            duration(exits.mean()),
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
    for one in &part.interval.counts.reasons {
        let sums = vcpus.entry(one.vcpu).or_default();
        let is_halt = part.interval.is_halt(one.reason);
        sums[usize::from(is_halt)].add(one.exits);
    }
    let mut threads: BTreeMap<u32, (Exits, u64)> = BTreeMap::new();
    for thread in &part.interval.counts.threads {
        let (waits, migrations) = threads.entry(thread.vcpu).or_default();
        waits.add(thread.waits);
        *migrations = migrations.saturating_add(thread.migrations);
    }
    let of_threads = |vcpu| threads.get(&vcpu).copied().unwrap_or_default();
    let rows = vcpus.into_iter().map(|(vcpu, [exits, halts])| {
        let (waits, migrations) = of_threads(vcpu);
        [
            vcpu.to_string(),
            exits.count.to_string(),
            rate(part, exits.count),
            duration(exits.time),
            halts.count.to_string(),
            duration(halts.time),
            duration(waits.time),
            migrations.to_string(),
        ]
    });
    let headings = [
        ("VCPU", Align::Right),
        ("COUNT", Align::Right),
        ("A SEC", Align::Right),
        ("TIME", Align::Right),
        ("HALTS", Align::Right),
        ("HALTED", Align::Right),
        ("WAITED", Align::Right),
        ("MIGRATED", Align::Right),
    ];
    write_part(output, &headings, &rows.collect::<Vec<_>>())
}

/// Writes a table and an empty line, unless the table is empty.
pub fn write_part<const N: usize>(
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
pub fn duration(ns: u64) -> String {
    for (unit, length) in [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1000)] {
        if ns >= length {
            let value = ns as f64 / length as f64;
            let decimals = usize::from(value < 99.95);
            return format!("{value:.decimals$}{unit}");
        }
    }
    format!("{ns}ns")
}

/// `ns` in seconds.
#[expect(clippy::cast_precision_loss, reason = "it is shown with few digits")]
pub fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[expect(clippy::cast_precision_loss, reason = "it is shown without decimals")]
fn rate(part: &Part<'_>, count: u64) -> String {
    let time = seconds(part.interval.time());
    format!("{:.0}", count as f64 / time.max(f64::MIN_POSITIVE))
}

/// The name of a reason.
fn reason_name(part: &Part<'_>, reason: u32) -> String {
    visible(&part.interval.reason(reason))
}

/// `part` of `whole` in percent, without decimals.
fn share(part: u64, whole: u64) -> String {
    let percent = u128::from(part) * 100 / u128::from(whole.max(1));
    format!("{percent} %")
}

#[cfg(test)]
mod tests;
