//! The counts of each process.

use std::io::{self, Write};

use anyhow::Context;
use kvmprof_abi::errno::Errno;
use kvmprof_abi::pmc::PMC_ACCOUNT;
use kvmprof_abi::wire::device;
use kvmprof_cli::command_line::usage;
use kvmprof_cli::table::{Align, write_table};
use kvmprof_client::{Connection, RemoteDevice};
use kvmprof_recording::counters::{Counters, ProcessCounters};

use super::MAX_COUNTERS;

/// The default counters, if the host has them.
const USUAL: [&str; 8] = [
    "cpu-time",
    "exits",
    "halts",
    "page-faults",
    "port-reads",
    "port-writes",
    "mmio-reads",
    "mmio-writes",
];

/// The numbers of the counters with these names; the default counters without names.
///
/// # Errors
/// There is no counter with a name, or the host lacks it.
pub fn choose(counters: &Counters, names: &[String]) -> anyhow::Result<Vec<usize>> {
    let find = |name: &str| {
        let mut all = counters.counters.iter();
        all.position(|counter| counter.name == name)
    };
    if names.is_empty() {
        let usual = USUAL.into_iter().filter_map(find);
        let is_there = |index: &usize| {
            let counter = counters.counters.get(*index);
            counter.is_some_and(|counter| counter.missing.is_none())
        };
        return Ok(usual.filter(is_there).collect());
    }
    let mut chosen = Vec::new();
    for name in names {
        let index = find(name).ok_or_else(|| {
            usage(format_args!(
                "There is no counter '{name}': kvmprof pmc list shows their names"
            ))
        })?;
        let counter = counters.counters.get(index);
        if let Some(why) = counter.and_then(|counter| counter.missing.as_ref()) {
            anyhow::bail!("The host has no counter {name}: {why}");
        }
        if !chosen.contains(&index) {
            chosen.push(index);
        }
    }
    Ok(chosen)
}

/// The counters of all processes, counted from now on.
pub struct Account(RemoteDevice);

impl Account {
    /// Starts to count the counters with these numbers.
    ///
    /// # Errors
    /// The guest has ended, or its release doesn't support this.
    pub fn begin(connection: &Connection, counters: &[usize]) -> anyhow::Result<Self> {
        let device = connection.open(device::PMC, 0)?;
        let bits = counters.iter().fold(0_i64, |bits, index| bits | 1 << index);
        if let Err(error) = device.ioctl(PMC_ACCOUNT, bits) {
            let words = match error.errno() {
                Some(Errno::ENXIO) => "The guest has ended",
                _ => {
                    "The guest's processes cannot be counted: use the kvmprof of the release that runs the guest"
                }
            };
            return Err(error).context(words);
        }
        Ok(Self(device))
    }

    /// The counts until now.
    ///
    /// # Errors
    /// The guest's kvmprof is gone.
    pub fn read(&self) -> anyhow::Result<Counters> {
        let document = self.0.read_to_end(MAX_COUNTERS)?;
        Counters::from_json(&document).context("The guest's counters cannot be read")
    }
}

/// How to show processes.
#[derive(Clone, Copy, Debug)]
pub struct Layout<'a> {
    /// The numbers of the counters; the first one determines the order.
    pub counters: &'a [usize],
    /// Maximum number of rows.
    pub rows: usize,
}

/// Writes a table of `processes`, those with the highest counts first. Times are in ms.
///
/// # Errors
/// Writing failed.
pub fn write(
    processes: &[ProcessCounters],
    all: &Counters,
    layout: Layout<'_>,
    output: &mut dyn Write,
) -> io::Result<()> {
    let count = |process: &ProcessCounters, index: usize| -> u64 {
        process.counts.get(index).copied().flatten().unwrap_or(0)
    };
    let mut shown: Vec<&ProcessCounters> = processes
        .iter()
        .filter(|process| {
            layout
                .counters
                .iter()
                .any(|index| count(process, *index) > 0)
        })
        .collect();
    shown.sort_by_key(|process| {
        let counts = layout.counters.iter().map(|index| count(process, *index));
        (std::cmp::Reverse(counts.collect::<Vec<u64>>()), process.pid)
    });
    let mut headings = vec![("PID", Align::Right), ("COMMAND", Align::Left)];
    let mut in_ms = Vec::new();
    let names: Vec<String> = layout
        .counters
        .iter()
        .filter_map(|index| all.counters.get(*index))
        .map(|counter| {
            in_ms.push(counter.unit == "ns");
            let unit = if counter.unit == "ns" { " ms" } else { "" };
            format!("{}{unit}", counter.name.to_uppercase())
        })
        .collect();
    headings.extend(names.iter().map(|name| (name.as_str(), Align::Right)));
    let row = |process: &&ProcessCounters| {
        let pid = match process.pid {
            -1 => "other".to_owned(),
            pid => pid.to_string(),
        };
        let counts = layout.counters.iter().zip(&in_ms).map(|(index, in_ms)| {
            let count = count(process, *index);
            match in_ms {
                true => format!("{}.{:03}", count / 1_000_000, count / 1000 % 1000),
                false => count.to_string(),
            }
        });
        [pid, process.comm.clone()]
            .into_iter()
            .chain(counts)
            .collect()
    };
    let rows: Vec<Vec<String>> = shown.iter().take(layout.rows).map(row).collect();
    if rows.is_empty() {
        return writeln!(output, "  Nothing was counted for a process.");
    }
    write_table(output, &headings, &rows)?;
    match shown.len().saturating_sub(layout.rows) {
        0 => Ok(()),
        more => writeln!(output, "  and {more} more (--top shows them)"),
    }
}

#[cfg(test)]
mod tests {
    use kvmprof_recording::counters::Counter;

    use super::*;

    fn counters(processes: &[(i32, &str, u64, u64)]) -> Counters {
        let counter = |name: &str, unit: &str| Counter {
            name: name.to_owned(),
            unit: unit.to_owned(),
            ..Counter::default()
        };
        let process = |(pid, comm, time, exits): &(i32, &str, u64, u64)| ProcessCounters {
            pid: *pid,
            comm: (*comm).to_owned(),
            started: 0,
            counts: vec![Some(*time), Some(*exits)],
        };
        Counters {
            time: 1,
            counters: vec![counter("cpu-time", "ns"), counter("exits", "")],
            events: Vec::new(),
            processes: Some(processes.iter().map(process).collect()),
        }
    }

    fn table(processes: &[ProcessCounters], all: &Counters, rows: usize) -> String {
        let layout = Layout {
            counters: &[0, 1],
            rows,
        };
        let mut output = Vec::new();
        write(processes, all, layout, &mut output).unwrap();
        String::from_utf8(output).unwrap()
    }

    #[test]
    fn processes_are_sorted_by_their_counts() {
        let before = counters(&[(1, "a", 1_000_000, 5)]);
        let now = counters(&[
            (1, "a", 2_500_000, 6),
            (2, "b", 9_000_000, 0),
            (3, "c", 0, 0),
        ]);
        let processes = now.since(&before).processes.unwrap();
        let expected = "  PID  COMMAND  CPU-TIME ms  EXITS\n    2  b              9.000      0\n    1  a              1.500      1\n";
        assert_eq!(table(&processes, &now, 9), expected);
        let one = table(&processes, &now, 1);
        assert!(one.ends_with("and 1 more (--top shows them)\n"), "{one}");
        assert!(table(&processes[2..], &now, 9).contains("Nothing was counted"));
    }

    #[test]
    fn counters_are_chosen_by_their_names() {
        let mut all = counters(&[]);
        assert_eq!(choose(&all, &[]).unwrap(), [0, 1]);
        all.counters[1].missing = Some("no KVM".to_owned());
        assert_eq!(choose(&all, &[]).unwrap(), [0]);
        let missing = choose(&all, &["exits".to_owned()]).unwrap_err();
        assert!(missing.to_string().contains("no KVM"));
        let unknown = choose(&all, &["x".to_owned()]).unwrap_err();
        assert!(unknown.to_string().contains("'x'"));
    }
}
