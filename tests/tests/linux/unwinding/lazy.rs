//! Stacks through the dynamic linker, which binds a library's functions at their first call, and through a stub without unwind information.

use kvmprof_recording::StackEnd;

use crate::named::{NamedFrame, NamedSample, read};

use super::run;

const LINKER: &str = "ld-linux-x86-64.so.2";
/// Percentage of the stacks that must be complete. Each time that the library is loaded or unloaded, stacks are truncated until kvmprof has
/// the tables of the new mappings.
const WHILE_MAPPINGS_CHANGE: usize = 25;

fn seen() -> Vec<NamedSample> {
    let (_, mut seen) = read(&run(), "guest.kvmprof");
    seen.retain(|seen| seen.is_of("lazy") && !seen.user.is_empty());
    seen
}

fn functions(frames: &[NamedFrame]) -> Vec<&str> {
    frames.iter().map(|frame| frame.function.as_str()).collect()
}

/// Checks that `callers` are the first of `frames`, which follow the function that `seen` is searched for. A truncated stack may lack some.
/// Returns whether all are there.
fn leads_to(seen: &NamedSample, frames: &[NamedFrame], callers: &[&str]) -> bool {
    let found = functions(frames);
    let is_whole = found.starts_with(callers);
    let is_cut = seen.sample.stack.user_end != StackEnd::Complete && callers.starts_with(&found);
    assert!(is_whole || is_cut, "{seen:?}");
    is_whole && seen.sample.stack.user_end == StackEnd::Complete
}

fn check(what: &str, whole: usize, all: usize) {
    println!("{what}: {whole} of {all} are whole");
    assert!(all >= 10, "{what}: {all} samples");
    assert!(whole * 100 >= all * WHILE_MAPPINGS_CHANGE, "{what}");
}

#[test]
fn lazy_binding_leads_to_the_caller() {
    let seen = seen();
    let (mut whole, mut all, mut bound) = (0, 0, 0);
    for seen in seen.iter().filter(|seen| seen.user[0].module == LINKER) {
        all += 1;
        let outside = seen.user.iter().position(|frame| frame.module != LINKER);
        let Some(outside) = outside else {
            assert_ne!(seen.sample.stack.user_end, StackEnd::Complete, "{seen:?}");
            continue;
        };
        if seen.user[outside].function == "calls_each" {
            let callers = ["binds", "once", "main"];
            bound += usize::from(leads_to(seen, &seen.user[outside + 1..], &callers));
        }
        // The C library calls it, too, to load the library.
        whole += usize::from(seen.user.iter().any(|frame| frame.module == "lazy"));
    }
    check("the dynamic linker", whole, all);
    println!("of these {bound} bind a function");
    assert!(bound >= 10, "{bound} bind a function");
}

#[test]
fn a_stub_without_tables_leads_to_its_caller() {
    let callers = ["through_stub", "stubbed", "once", "main"];
    let seen = seen();
    let in_stub = seen
        .iter()
        .filter(|seen| seen.user[0].function == "nothing@plt");
    let (mut whole, mut all) = (0, 0);
    for seen in in_stub {
        all += 1;
        whole += usize::from(leads_to(seen, &seen.user[1..], &callers));
    }
    check("nothing@plt", whole, all);
}
