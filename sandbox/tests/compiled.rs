//! Compares the compiler of filters with another one, rust-vmm's seccompiler: both filters decide the same for every call, with the
//! arguments of a table and others.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

#[path = "../build/calls.rs"]
mod calls;
#[path = "../build/compile.rs"]
mod compile;
#[path = "../build/leaving.rs"]
mod leaving;
#[path = "../build/tables.rs"]
mod tables;
#[path = "../src/thread.rs"]
mod thread;

use std::collections::{BTreeMap, BTreeSet};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use calls::{Condition, Refusal};
use compile::Instruction;
use thread::{OWN_PROCESS, Thread};

/// Numbers of calls that are tried: more than there are, and those of x32.
const CALLS: u32 = 600;
const X32: u32 = 0x4000_0000;
const X86_64: u32 = 0xc000_003e;
const I386: u32 = 0x4000_0003;

/// The filter that seccompiler makes from a table.
fn reference(thread: Thread) -> Vec<Instruction> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for it in thread.allowed() {
        let is_new = !rules.contains_key(&it.call);
        let known = rules.entry(it.call).or_default();
        if it.if_any.is_empty() {
            known.clear();
        } else if is_new || !known.is_empty() {
            known.extend(it.if_any.iter().map(rule));
        }
    }
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Trap,
        SeccompAction::Allow,
        TargetArch::x86_64,
    );
    let program: BpfProgram = filter.unwrap().try_into().unwrap();
    let instruction = |it: &seccompiler::sock_filter| Instruction {
        code: it.code,
        jt: it.jt,
        jf: it.jf,
        k: it.k,
    };
    program.iter().map(instruction).collect()
}

fn rule(condition: &Condition) -> SeccompRule {
    let condition = SeccompCondition::new(
        condition.argument,
        SeccompCmpArgLen::Dword,
        SeccompCmpOp::MaskedEq(condition.mask),
        condition.value,
    );
    SeccompRule::new(vec![condition.unwrap()]).unwrap()
}

/// Runs a filter as the kernel does, and counts its steps.
fn run(program: &[Instruction], architecture: u32, call: u32, arguments: [u64; 6]) -> (u32, usize) {
    let mut data = [0; 64];
    data[..4].copy_from_slice(&call.to_le_bytes());
    data[4..8].copy_from_slice(&architecture.to_le_bytes());
    for (place, argument) in data[16..].chunks_mut(8).zip(arguments) {
        place.copy_from_slice(&argument.to_le_bytes());
    }
    let (mut at, mut accumulator) = (0, 0);
    for steps in 1.. {
        let it = program[at];
        at += 1;
        let mut branch = |taken| at += usize::from(if taken { it.jt } else { it.jf });
        match it.code {
            compile::LOAD => {
                let place = it.k as usize;
                accumulator = u32::from_le_bytes(data[place..place + 4].try_into().unwrap());
            }
            compile::AND => accumulator &= it.k,
            compile::JUMP => at += it.k as usize,
            compile::IF_EQUAL => branch(accumulator == it.k),
            compile::IF_AT_LEAST => branch(accumulator >= it.k),
            compile::RETURN => return (it.k, steps),
            code => panic!("there is an instruction {code:#x}"),
        }
    }
    unreachable!("filters end")
}

/// If a filter has the process's own pid, it is inserted at installation: no other value may equal its placeholder.
#[test]
fn only_signal_calls_compare_the_own_pid() {
    let is_signal = |call| [libc::SYS_kill, libc::SYS_tgkill].contains(&call);
    for thread in Thread::ALL {
        for it in thread.allowed() {
            let has = |condition: &Condition| {
                [condition.mask, condition.value].contains(&OWN_PROCESS.into())
            };
            let compares = it.if_any.iter().any(has);
            assert_eq!(compares, is_signal(it.call), "{thread:?} {it:?}");
        }
        let filter = compile::allow_only(thread.allowed());
        let found: Vec<_> = filter.iter().filter(|it| it.k == OWN_PROCESS).collect();
        assert_eq!(found.len(), 2, "{thread:?}");
        assert!(found.iter().all(|it| it.code == compile::IF_EQUAL));
    }
}

#[test]
fn filters_agree_with_those_of_another_compiler() {
    for thread in Thread::ALL {
        let (ours, theirs) = (compile::allow_only(thread.allowed()), reference(thread));
        let conditions = || thread.allowed().flat_map(|it| it.if_any);
        let mut values: BTreeSet<u64> = [0, 1, 2, 0xae80, u64::MAX].into();
        values.extend(conditions().map(|it| it.value));
        values.extend(conditions().map(|it| it.mask));
        values.extend(conditions().map(|it| it.value | 1 << 16));
        let both = |architecture, call, arguments| {
            let what = (thread, architecture, call, arguments);
            let ours = run(&ours, architecture, call, arguments);
            let theirs = run(&theirs, architecture, call, arguments);
            // seccompiler ends the process for another architecture; here it is treated as an unknown call.
            let expected = match architecture {
                X86_64 => theirs.0,
                _ => libc::SECCOMP_RET_TRAP,
            };
            assert_eq!(ours.0, expected, "{what:?}");
            ours.1
        };
        let mut longest = 0;
        for call in (0..CALLS).chain((0..CALLS).map(|call| X32 | call)) {
            both(I386, call, [0; 6]);
            for value in &values {
                for argument in 0..3 {
                    let mut arguments = [0; 6];
                    arguments[argument] = *value;
                    longest = longest.max(both(X86_64, call, arguments));
                }
            }
        }
        assert!(longest < 60, "{thread:?} takes {longest} steps");
        assert!(ours.len() < theirs.len(), "{thread:?}");
    }
}

/// What seccompiler can't make: calls with different errors, and calls of other ABIs that fail.
#[test]
fn a_program_without_guests_is_refused_what_its_table_says() {
    let filter = compile::refuse_only(leaving::REFUSED.iter());
    let fails = |error: i32| libc::SECCOMP_RET_ERRNO | error.unsigned_abs();
    let values = [0, libc::CLONE_THREAD as u64, libc::TIOCSTI, u64::MAX];
    for call in 0..CALLS {
        let entry = leaving::REFUSED.iter().find(|it| it.call == call.into());
        for value in values {
            let arguments = [value; 6];
            let holds = |it: &Condition| value & it.mask == it.value & it.mask;
            let is_refused = |when: &Refusal| match when {
                Refusal::Always => true,
                Refusal::If(conditions) => conditions.iter().any(holds),
                Refusal::Unless(conditions) => !conditions.iter().any(holds),
            };
            let expected = match entry {
                Some(it) if is_refused(&it.when) => fails(it.error),
                _ => libc::SECCOMP_RET_ALLOW,
            };
            let what = (call, value);
            let found = run(&filter, X86_64, call, arguments).0;
            assert_eq!(found, expected, "{what:?}");
            let of_x32 = run(&filter, X86_64, X32 | call, arguments).0;
            assert_eq!(of_x32, fails(libc::EPERM), "{what:?}");
            let foreign = run(&filter, I386, call, arguments).0;
            assert_eq!(foreign, libc::SECCOMP_RET_KILL_PROCESS, "{what:?}");
        }
    }
}

macro_rules! rights {
    ($($(#[$doc:meta])* $name:ident [$($table:ident)*] [$($right:ident)*],)*) => {
        /// Kinds of threads by name, and the rights that they keep.
        const RIGHTS: &[(Thread, &str, &[&str])] =
            &[$((Thread::$name, stringify!($name), &[$(stringify!($right)),*])),*];
    };
}
thread::for_each_thread!(rights);

/// The page's table of what an attacker has says of each kind of thread how many calls it may make, and with which rights.
#[test]
fn the_page_says_what_each_thread_has() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/sandbox.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rows: Vec<String> = page
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    for (thread, name, rights) in RIGHTS {
        let calls: BTreeSet<i64> = thread.allowed().map(|it| it.call).collect();
        let mut row = format!(" {name} {}", calls.len());
        for right in *rights {
            row += &format!(", CAP_{right}");
        }
        let is_there = rows.iter().any(|it| it.ends_with(&row));
        assert!(is_there, "no row of the page ends with {row:?}");
    }
}
