//! Stacks of a Go program without symbols, by the table of its own runtime.

use std::path::Path;
use std::process::Command;

use kvmprof_recording::{StackEnd, elf};

use crate::named::{NamedSample, read};

use super::{WITH_RULES, run};

/// The functions from the innermost on that both goroutines have.
const SHARED: [&str; 3] = ["main.add", "main.measure", "main.repeat"];

/// The program, as distributions and container images have it.
pub fn program() -> Vec<u8> {
    built("-s -w")
}

fn built(linker_options: &str) -> Vec<u8> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("guests/calls.go");
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("goes");
    let built = Command::new("go")
        .args(["build", "-trimpath", "-ldflags", linker_options, "-o"])
        .args([&program, &source])
        .env("CGO_ENABLED", "0")
        .status();
    assert!(built.expect("go: tests/run --all installs it").success());
    std::fs::read(program).unwrap()
}

/// The functions of the sample's user part.
fn functions(seen: &NamedSample) -> Vec<&str> {
    let names = seen.user.iter().map(|frame| frame.function.as_str());
    names.collect()
}

/// Without the suffix for the calling convention of assembly code, and without types in brackets: Go's table has `[...]` there.
fn bare(name: &str) -> &str {
    let name = name.trim_end_matches(".abi0");
    name.split_once('[').map_or(name, |(name, _)| name)
}

#[test]
fn functions_without_symbols_are_those_that_symbols_name() {
    let functions = |file: &[u8]| elf::parse(file).unwrap().functions;
    let named = functions(&built(""));
    let found = functions(&program());
    let mut compared = 0;
    for function in &found {
        let symbol = named.binary_search_by_key(&function.address, |named| named.address);
        let Ok(symbol) = symbol.map(|index| &named[index]) else {
            continue;
        };
        assert_eq!(bare(&function.name), bare(&symbol.name));
        compared += 1;
    }
    println!(
        "{compared} of {} functions, {} symbols",
        found.len(),
        named.len()
    );
    assert!(compared * 100 >= named.len() * 95);
}

#[test]
fn goroutines_have_whole_stacks_without_symbols() {
    let (_, seen) = read(&run(), "guest.kvmprof");
    let in_add = seen.iter().filter(|seen| {
        seen.is_of("goes")
            && functions(seen)
                .first()
                .is_some_and(|name| *name == SHARED[0])
    });
    let in_add: Vec<_> = in_add.collect();
    let mut whole = [0; 2];
    for seen in &in_add {
        let found = functions(seen);
        if seen.sample.stack.user_end != StackEnd::Complete {
            continue;
        }
        let outer = found.strip_prefix(SHARED.as_slice()).unwrap_or(&[]);
        match outer {
            ["main.main.func1"] => whole[0] += 1,
            ["main.main", "runtime.main"] => whole[1] += 1,
            _ => panic!("{found:?}"),
        }
    }
    let all = in_add.len();
    println!("{whole:?} of {all} are whole");
    assert!(whole.iter().all(|whole| *whole >= 10));
    assert!((whole[0] + whole[1]) * 100 >= all * WITH_RULES);
}
