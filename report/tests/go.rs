//! Programs of Go without symbols and debug information have the lines and inlined functions that their debug information has.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use crate::shared::compiled::Guest;
use crate::shared::read::profile_with;
use kvmprof_recording::elf::{self, ParsedBinary};
use kvmprof_report::profile::Profile;
use kvmprof_report::symbolize::{CodeAddress, Sources};

/// Besides these functions, a program has Go's whole runtime.
const SOURCE: &str = "\
package main

type number interface{ ~int | ~float64 }

func twice[T number](n T) T {
\treturn n + n
}

func add(sum, n int) int {
\treturn sum + twice(n)
}

//go:noinline
func work(values map[string]int) int {
\tsum := 0
\tfor _, n := range values {
\t\tsum = add(sum, n)
\t}
\treturn sum
}

func main() {
\tprintln(work(map[string]int{\"weave\": 3, \"spin\": 4}))
}
";

/// A guest with the program, and its profile with the program in the sysroot.
struct Built {
    guest: Guest,
    profile: Profile,
}

impl Built {
    /// The program, built with these options.
    fn new(options: &[&str]) -> Self {
        let guest = Guest::new();
        let source = guest.folder.path().join("work.go");
        fs::write(&source, SOURCE).unwrap();
        let status = Command::new("go")
            .args(["build", "-trimpath", "-o"])
            .arg(guest.program_file())
            .args(options)
            .arg(&source)
            .env("CGO_ENABLED", "0")
            .status();
        assert!(status.expect("go: tests/run --all installs it").success());
        let program = elf::parse(&fs::read(guest.program_file()).unwrap()).unwrap();
        let guest = Guest { program, ..guest };
        let mut mappings = guest.mappings(Some(1));
        let mapping = &mut mappings.mappings[0];
        mapping.end = mapping.begin + guest.program.segments[0].length;
        let blocks = [
            mappings.to_block().unwrap(),
            guest.info("").to_block(&guest.program.functions).unwrap(),
        ];
        let pc = guest.mapped(guest.address("main.work"));
        let path = guest.recording(&[(&[], &[pc])], &blocks);
        let sources = Sources {
            sysroot: Some(guest.root()),
            ..Sources::default()
        };
        let profile = profile_with(&path, &sources);
        Self { guest, profile }
    }

    /// The functions at address `address` of the file, innermost first, each with its file and line.
    fn at(&self, address: u64) -> Vec<(String, Option<(String, u32)>)> {
        let first = self.profile.frames(&self.profile.stacks[0]).next().unwrap();
        let resolved = self.profile.resolver.resolve(CodeAddress {
            address: self.guest.mapped(address),
            ..first.asked()
        });
        let frames = resolved.frames.iter().map(|frame| {
            let source = frame.source.as_ref();
            let source = source.map(|source| (source.file.to_string(), source.line));
            (bare(&frame.function).to_owned(), source)
        });
        frames.collect()
    }

    fn program(&self) -> &ParsedBinary {
        &self.guest.program
    }
}

/// Without the suffix for the calling convention of assembly code, and without types in brackets: Go's table has `[...]` there.
fn bare(name: &str) -> &str {
    let name = name.trim_end_matches(".abi0");
    name.split_once('[').map_or(name, |(name, _)| name)
}

#[test]
fn lines_and_inlined_functions_of_go_need_no_debug_information() {
    for mode in ["exe", "pie"] {
        let options = ["-buildmode", mode];
        let debugged = Built::new(&options);
        let stripped = Built::new(&[&options[..], &["-ldflags", "-s -w"]].concat());
        let (mut same, mut inlined) = (0, 0);
        let mut others: BTreeMap<String, u64> = BTreeMap::new();
        for function in &stripped.program().functions {
            for address in function.address..function.address + function.length {
                let (expected, found) = (debugged.at(address), stripped.at(address));
                if expected == found {
                    same += 1;
                    inlined += u64::from(found.len() > 1);
                } else {
                    *others.entry(format!("{expected:?} {found:?}")).or_default() += 1;
                }
            }
        }
        println!("{mode}: {same} addresses are the same, {inlined} of them inlined");
        for (other, count) in &others {
            println!("{count} {other}");
        }
        assert!(others.is_empty());
    }
}
