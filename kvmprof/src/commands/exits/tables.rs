//! The tables of `kvmprof exits`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use kvmprof_attach::exits::{Exits, OfReason};
use kvmprof_cli::table::{Align, percent, write_table};

use super::{Part, names};

/// Maximum number of characters of a function's name in the table.
const MAX_NAME: usize = 28;

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
        writeln!(
            output,
            "vCPUs whose exit isn't over, and not counted yet: {count}"
        )?;
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

/// By function, and by instruction where the function isn't known.
fn write_functions(part: &Part<'_>, output: &mut dyn Write) -> io::Result<()> {
    let mut rows: BTreeMap<(String, u32), Exits> = BTreeMap::new();
    for one in &part.counts.functions {
        let function = part.symbols.and_then(|symbols| symbols.find(one.address));
        let name = function.map_or_else(|| format!("{:#x}", one.address), str::to_owned);
        rows.entry((name, one.reason)).or_default().add(one.exits);
    }
    let rows = rows.into_iter();
    let rows = rows.map(|((name, reason), exits)| (exits, shortened(name), reason));
    write_places(part, output, "FUNCTION", rows.collect())
}

/// A function's name with at most [`MAX_NAME`] characters, so that the table fits into a terminal.
fn shortened(name: String) -> String {
    if name.chars().count() <= MAX_NAME {
        return name;
    }
    let kept: String = name.chars().take(MAX_NAME - 1).collect();
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
    format!(
        "{:.0}",
        count as f64 / time.as_secs_f64().max(f64::MIN_POSITIVE)
    )
}

/// `part` of `whole` in percent, without decimals.
fn share(part: u64, whole: u64) -> String {
    let percent = u128::from(part) * 100 / u128::from(whole.max(1));
    format!("{percent} %")
}

#[cfg(test)]
mod tests {
    use kvmprof_attach::exits::{AccessKind, Counts, Lost, OfAccess, OfFunction, ReasonNames};
    use kvmprof_report::profile::Symbols;

    use super::super::Sort;
    use super::*;

    fn counts() -> Counts {
        let exits = |count, time| Exits { count, time };
        let reason = |reason, vcpu, all| OfReason {
            reason,
            vcpu,
            exits: all,
            longest: 7_777_777,
            left: exits(1, 10),
            ..OfReason::default()
        };
        let function = |address| OfFunction {
            reason: 0x7b,
            address,
            exits: exits(10, 9_000),
        };
        Counts {
            reasons: vec![
                reason(0x7b, 0, exits(123_456, 999_999_999)),
                reason(0x7b, 1, exits(4, 1_000)),
            ],
            accesses: vec![OfAccess {
                reason: 0x7b,
                kind: AccessKind::MsrWrite,
                place: 0x6e0,
                exits: exits(2, 100),
            }],
            functions: vec![function(0x1004), function(0x1008), function(0x9000)],
            unfinished: 1,
            lost: Lost {
                functions: 3,
                ..Lost::default()
            },
            ..Counts::default()
        }
    }

    #[test]
    fn tables_have_all_that_was_counted() {
        let part = Part {
            counts: &counts(),
            names: &ReasonNames::default(),
            symbols: Some(&Symbols::parse(
                "0000000000001000 t native_write_msr\n0000000000001100 ? [end]\n",
            )),
            vcpus: 2,
            time: Duration::from_secs(2),
            missing: &["kvm_hypercall"],
            sort: Sort::Time,
            rows: 20,
        };
        let mut output = Vec::new();
        write(&part, &mut output).unwrap();
        let text = String::from_utf8(output).unwrap();
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = text.lines().map(words).collect();
        for expected in [
            "0x7b 123460 61730 1.0s - - 7.8ms 0 %",
            "write MSR TSC_DEADLINE 0x7b 2 1 100ns 50ns",
            "native_write_msr 0x7b 20 10 18.0us 900ns",
            "0x9000 0x7b 10 5 9.0us 900ns",
            "1 4 2 1.0us 0 0ns",
            "123460 exits of 2 vCPUs in 2.000 s took 25.0 % of their time; halts: 0, 0.0 %",
            "vCPUs whose exit isn't over, and not counted yet: 1",
            "Exits that aren't counted, only by instruction: too many addresses: 3",
            "The host's KVM lacks these tracepoints: kvm_hypercall",
        ] {
            assert!(
                lines.iter().any(|line| line == expected),
                "{expected}: {text}"
            );
        }
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }

    #[test]
    fn long_names_are_shortened() {
        assert_eq!(shortened("x".repeat(28)), "x".repeat(28));
        assert_eq!(shortened("é".repeat(29)), "é".repeat(27) + "…");
    }

    #[test]
    fn durations_are_short() {
        for (ns, expected) in [
            (0, "0ns"),
            (999, "999ns"),
            (1_234, "1.2us"),
            (99_949, "99.9us"),
            (99_950, "100us"),
            (12_000_000, "12.0ms"),
            (86_400_000_000_000, "86400s"),
        ] {
            assert_eq!(duration(ns), expected);
        }
    }
}
