//! Names and stacks of BPF programs, which the kernel compiles while the guest runs.

use std::collections::{BTreeMap, BTreeSet};

use kvmprof_recording::StackEnd;
use kvmprof_tests::linux::{Program, guest_program};

use crate::named::{NamedSample, read};

use super::run;

/// Where the program is that loads them.
const PLACE: u64 = 0x6000_0000;
/// The names of the programs, one of which comes after the other, and what their only subprogram is called.
const NAMES: [&str; 2] = ["weave", "dye"];
const SUBPROGRAM: &str = "F";
/// The module in which the kernel lists them.
const MODULE: &str = "[bpf]";
/// Percentage of the stacks through them that are whole. The first ones are taken before kvmprof has read the list.
const WHOLE: usize = 80;

/// The program that loads them.
pub fn program() -> Program {
    guest_program("compiles.c", PLACE, &["-O2"])
}

/// What the guest has said: the processes with the names of their programs, and what /proc/kallsyms had while they ran.
fn said() -> (BTreeMap<i32, String>, BTreeSet<String>) {
    let (mut processes, mut symbols) = (BTreeMap::new(), BTreeSet::new());
    for line in run().console("modules").text().lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["compiled", name, pid] => {
                processes.insert(pid.parse().unwrap(), (*name).to_owned());
            }
            ["listed", name, MODULE] => {
                symbols.insert((*name).to_owned());
            }
            _ => {}
        }
    }
    (processes, symbols)
}

/// The name in that of a symbol, `bpf_prog_TAG_NAME`.
fn name_of(symbol: &str) -> &str {
    let rest = symbol.strip_prefix("bpf_prog_").unwrap();
    rest.split_once('_').unwrap().1
}

#[test]
fn bpf_programs_have_names_and_callers() {
    let (processes, symbols) = said();
    let (_, seen) = read(&run(), "modules.kvmprof");
    let compiled = |seen: &NamedSample| -> Vec<String> {
        let frames = seen.kernel.iter().filter(|frame| frame.module == MODULE);
        frames.map(|frame| frame.function.clone()).collect()
    };
    let mut counts = BTreeMap::new();
    let (mut all, mut whole, mut called) = (0, 0, 0);
    for seen in &seen {
        let frames = compiled(seen);
        let Some(own) = processes.get(&seen.sample.pid) else {
            assert!(frames.is_empty(), "{seen:?}");
            continue;
        };
        let Some(innermost) = frames.first() else {
            continue;
        };
        for frame in &frames {
            assert!(symbols.contains(frame), "{frame}: {symbols:?}");
            let name = name_of(frame);
            assert!(name == own || name == SUBPROGRAM, "of {own}: {seen:?}");
        }
        all += 1;
        *counts.entry(own.as_str()).or_insert(0) += 1;
        called += usize::from(seen.kernel[0].module != MODULE);
        if seen.sample.stack.kernel_end != StackEnd::Complete {
            continue;
        }
        whole += 1;
        // The subprogram's caller, and the caller of that.
        let names: Vec<&str> = frames.iter().map(|frame| name_of(frame)).collect();
        let is_outside = name_of(innermost) == own;
        assert!(is_outside || names == [SUBPROGRAM, own], "{seen:?}");
        let outermost = seen.kernel.iter().rposition(|frame| frame.module == MODULE);
        let callers = seen.kernel[outermost.unwrap() + 1..].iter();
        let callers: Vec<&str> = callers.map(|frame| frame.function.as_str()).collect();
        assert!(callers.contains(&"bpf_prog_test_run_skb"), "{seen:?}");
        assert!(callers.contains(&"__sys_bpf"), "{seen:?}");
    }
    println!("{counts:?}; {called} in what they call; {whole} of {all} whole");
    assert!(
        NAMES
            .iter()
            .all(|name| counts.get(name).is_some_and(|count| *count >= 10)),
        "{counts:?}"
    );
    assert!(called >= 10, "{called}");
    assert!(100 * whole >= WHOLE * all, "{whole} of {all}");
}
