//! Exits that kvmprof, the host's perf and the guest's program have counted beside each other, with each kind of processor.

use std::collections::BTreeMap;

use kvmprof_tests::linux::Finished;
use serde_json::Value;

use super::{Exits, MARGIN, PORT, WRITES, by_kvmprof, number, program};

/// What a processor calls two reasons of exits.
pub struct ReasonNames {
    /// An instruction that reads or writes a port.
    pub port: &'static str,
    pub halt: &'static str,
}

pub const SVM: ReasonNames = ReasonNames {
    port: "io",
    halt: "hlt",
};
pub const VMX: ReasonNames = ReasonNames {
    port: "IO_INSTRUCTION",
    halt: "HLT",
};

/// The same, as perf prints it: `hlt  31  0.50%  97.01%  11.20us  1000.00us  700.01us ( +-  12.00% )`.
fn by_perf(run: &Finished) -> BTreeMap<String, Exits> {
    let report = run.text("perf.report");
    println!("{report}");
    let rows = report.lines().filter_map(|line| {
        let (left, right) = line.split_once('%')?;
        let (left, _) = left.trim().rsplit_once(' ')?;
        let (name, count) = left.trim().rsplit_once(' ')?;
        let count: u64 = count.parse().ok()?;
        let mut times = right.split_whitespace().skip(1);
        let mean = times.nth(2)?.strip_suffix("us")?.parse::<f64>().ok()?;
        Some((name.trim().to_owned(), (count, mean * 1e3 * count as f64)))
    });
    rows.collect()
}

pub fn counts_are_those_of_perf(run: &Finished) {
    let document = run.json("both.json");
    let (seen, known) = (by_kvmprof(&document), by_perf(run));
    println!("{seen:?}");
    let numbers = |counts: &BTreeMap<String, Exits>| -> BTreeMap<String, u64> {
        let counts = counts.iter();
        counts
            .map(|(name, (count, _))| (name.clone(), *count))
            .collect()
    };
    assert_eq!(numbers(&seen), numbers(&known));
    assert!(seen.len() >= 4, "{seen:?}");
    for (name, (_, time)) in &known {
        println!("{name}: {} ns, perf {time} ns", seen[name].1);
    }
    // In emulation a pause between the two's looks at the clock can be as long as many exits: only all times together can be compared.
    let all = |counts: &BTreeMap<String, Exits>| counts.values().map(|(_, time)| time).sum::<f64>();
    let (ours, perfs) = (all(&seen), all(&known));
    assert!((ours - perfs).abs() <= MARGIN * perfs, "{ours} {perfs}");
    assert_eq!(document["lost"]["threads"], 0);
    assert_eq!(document["lost"]["reasons"], 0);
    // Each is in an exit, since neither runs.
    assert!(number(&document, "unfinished") <= 2);
}

/// Checks the counts of the program's writes, and of halts, of a processor with these names of reasons.
pub fn check_port_writes(run: &Finished, names: &ReasonNames) {
    let ReasonNames { port, halt } = *names;
    let document = run.json("both.json");
    let accesses = document["accesses"].as_array().unwrap();
    let of_port = accesses
        .iter()
        .filter(|row| row["kind"] == "port-write" && row["place"] == PORT);
    let of_port: Vec<&Value> = of_port.collect();
    let [row] = of_port[..] else {
        panic!("{document}")
    };
    assert_eq!(
        (&row["reason"], number(row, "count")),
        (&port.into(), WRITES)
    );
    // By one instruction.
    let text = program().text;
    let functions = document["functions"].as_array().unwrap().iter();
    let of_program = functions.filter(|row| {
        let address = row["address"].as_str().unwrap().trim_start_matches("0x");
        let address = u64::from_str_radix(address, 16).unwrap();
        row["reason"] == port && text.contains(&address)
    });
    let counts: Vec<u64> = of_program.map(|row| number(row, "count")).collect();
    assert_eq!(counts, [WRITES]);
    // All of them are handed to the VMM, as few others are.
    let reasons = document["reasons"].as_array().unwrap().iter();
    let left = |name: &str| -> u64 {
        let of = reasons.clone().filter(|row| row["reason"] == name);
        of.map(|row| number(row, "vmm_count")).sum()
    };
    println!("to the VMM: {} {port}, {} {halt}", left(port), left(halt));
    assert!(left(port) >= WRITES);
    let halts = reasons.clone().filter(|row| row["is_halt"] == true);
    assert!(halts.clone().count() > 0 && halts.clone().all(|row| row["reason"] == halt));
    assert_eq!(left(halt), 0);
}
