//! Processes that constantly preempt each other: no sample of one has a function of another's program.
//!
//! While the kernel changes the page tables, the stack and the current task, these don't match.

use std::collections::BTreeMap;

use kvmprof_recording::Mode;
use kvmprof_tests::linux::{Finished, Scenario, debian, guest_init, guest_program, once};

use super::record::{NamedSample, read};

/// The common address of all programs: reading by the wrong page tables gives another one's code.
const TEXT: u64 = 0x1000_0000;
/// The programs, by the names of their processes, and the busy function of each.
const PROGRAMS: [(&str, &str); 4] = [
    ("ping", "ping_turn"),
    ("pong", "pong_turn"),
    ("storm", "storm_turn"),
    ("child", "child_turn"),
];

kvmprof_tests::in_each_kernel! {
    no_sample_has_a_function_of_another_program
}

fn run(series: &str) -> Finished {
    once(&format!("switches-{series}"), || {
        let programs = PROGRAMS.map(|(name, turn)| {
            let program = guest_program("passes.c", TEXT, &[&format!("-DTURN={turn}")]);
            (name, program)
        });
        let programs: Vec<_> = (programs.iter())
            .map(|(name, program)| (*name, program))
            .collect();
        // Page tables of their own for user mode are one more change.
        let words = if series == "6.12" { "pti=on" } else { "" };
        Scenario::new()
            .unpacked_kernel("vmlinuz", &debian(series))
            .file("words", words.as_bytes().to_vec())
            .file("guest.cpio", guest_init(include_str!("init.sh"), &programs))
            .run(include_str!("driver.sh"))
    })
}

fn no_sample_has_a_function_of_another_program(run: &Finished) {
    assert_eq!(run.status("guest"), 0, "{}", run.text("guest.stderr"));
    let (_, seen) = read(run, "guest.kvmprof");
    let mut right: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut wrong, mut in_kernel): (Vec<&NamedSample>, _) = (Vec::new(), 0);
    for seen in &seen {
        let name = seen.name();
        let Some((name, own)) = PROGRAMS.iter().find(|(other, _)| *other == name) else {
            continue;
        };
        let is_others = |frame: &&String| frame.ends_with("_turn") && *frame != own;
        // Until it executes its program, a child of the storm's has the same name.
        if seen.frames.iter().find(is_others).is_some() {
            wrong.push(seen);
        }
        *right.entry(name).or_default() += u64::from(seen.has(own));
        in_kernel += u64::from(seen.sample.mode == Mode::Kernel);
    }
    println!("{right:?}, {in_kernel} samples in the kernel");
    for seen in wrong.iter().take(10) {
        println!("{}: {:?} {:?}", seen.name(), seen.sample.mode, seen.frames);
    }
    assert!(wrong.is_empty(), "{} samples", wrong.len());
    // There were many samples that could be wrong.
    assert!(right.get("ping") > Some(&10) && right.get("pong") > Some(&10));
    assert!(right.contains_key("storm") && in_kernel > 200);
}
