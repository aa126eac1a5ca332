//! Names of code that has no permanent file: of a module that replaces another one, and of code that programs make.

use std::collections::BTreeMap;

use crate::named::{NamedSample, read};

use super::run;

/// Each works for its own processes, while the other one is unloaded.
pub const MODULES: [&str; 2] = ["brd", "null_blk"];

/// The processes that worked with each module, and the addresses at which it was.
#[derive(Debug, Default)]
struct ModuleRuns {
    processes: BTreeMap<i32, String>,
    places: BTreeMap<String, Vec<String>>,
}

fn said() -> ModuleRuns {
    let mut said = ModuleRuns::default();
    for line in run().console("modules").text().lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["place", module, place] => {
                let places = said.places.entry((*module).to_owned()).or_default();
                places.push((*place).to_owned());
            }
            ["process", module, pid] => {
                let pid = pid.parse().unwrap();
                said.processes.insert(pid, (*module).to_owned());
            }
            _ => {}
        }
    }
    said
}

#[test]
fn a_module_is_not_named_after_its_successor() {
    let said = said();
    let [first, second] = MODULES.map(|module| &said.places[module]);
    let shared = first.iter().filter(|place| second.contains(place)).count();
    println!("{shared} of {} times in the other's place", first.len());
    assert!(shared > 0, "{said:?}");
    let (_, seen) = read(&run(), "modules.kvmprof");
    let is_in = |seen: &NamedSample, module: &str| {
        let module = format!("[{module}]");
        seen.kernel.iter().any(|frame| frame.module == module)
    };
    let mut named = BTreeMap::new();
    for seen in &seen {
        let Some(own) = said.processes.get(&seen.sample.pid) else {
            continue;
        };
        for module in MODULES {
            let is_named = is_in(seen, module);
            assert!(!is_named || module == own, "of {own}: {seen:?}");
            *named.entry(module).or_insert(0) += u32::from(is_named);
        }
    }
    println!("samples with each module's functions: {named:?}");
    assert!(named.values().all(|count| *count >= 10), "{named:?}");
}

#[test]
fn generated_code_has_the_names_in_the_perf_map_of_its_own_process() {
    let (contents, seen) = read(&run(), "guest.kvmprof");
    for (comm, is_own) in [("generates", false), ("own_generates", true)] {
        let mut mappings = contents.mappings.iter();
        let mappings = mappings.find(|mappings| mappings.name == comm).unwrap();
        let pid = mappings.pid;
        let expected = if is_own {
            format!("/proc/{pid}/root/tmp/perf-1.map")
        } else {
            format!("/tmp/perf-{pid}.map")
        };
        assert_eq!(mappings.perf_map, expected);
        // The lines have the pid that the process knows.
        let own = if is_own { 1 } else { pid };
        let names = ["dye", "weave"].map(|name| format!("{name}@{own}"));
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for seen in seen.iter().filter(|seen| seen.is_of(comm)) {
            let innermost = seen.user.first();
            let Some(frame) = innermost.filter(|frame| frame.module == "[anon]") else {
                continue;
            };
            let name = names.iter().find(|name| **name == frame.function);
            assert!(
                name.is_some() || frame.function.starts_with("0x"),
                "{seen:?}"
            );
            *counts.entry(name.map_or("", String::as_str)).or_default() += 1;
        }
        println!("samples of the code of {comm}: {counts:?}");
        let all: u64 = counts.values().sum();
        let unnamed = counts.remove("").unwrap_or(0);
        assert!(
            unnamed * 10 <= all && counts.len() == 2,
            "{unnamed} of {all}"
        );
    }
}
