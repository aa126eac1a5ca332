//! Functions whose return addresses the kernel has replaced, for a return probe and for the function graph tracer.

use kvmprof_recording::StackEnd;
use kvmprof_tests::linux::{Program, guest_builder, guest_program};
use object::{Object, ObjectSegment, ObjectSymbol};

use super::{HEADLESS_OPTIONS, WITH_RULES, check as check_user, from_main, run, stacks_of};

/// What the kernel calls copies of its code for hooks (`FTRACE_TRAMPOLINE_SYM`, `include/linux/ftrace.h`).
const TRAMPOLINE: &str = "ftrace_trampoline";
/// Where the program is whose function has a return probe.
const PROBED: u64 = 0x5000_0000;

/// That program.
pub fn program() -> Program {
    guest_program("calls.c", PROBED, &HEADLESS_OPTIONS)
}

/// What a guest's first process does that sets the hooks, then does `more`, and says at the end whether they were there.
pub fn with_hooks(more: &str) -> String {
    let program = program();
    let file = object::File::parse(&*program.file).unwrap();
    let inner = file.symbol_by_name("inner").unwrap().address();
    let offset = file.segments().find_map(|segment| {
        let within = inner.checked_sub(segment.address())?;
        (within < segment.size()).then(|| segment.file_range().0 + within)
    });
    let probe = format!("probe=/bin/probed:{:#x}\n", offset.unwrap());
    [
        &probe,
        include_str!("hooks.sh"),
        more,
        include_str!("end.sh"),
    ]
    .concat()
}

/// The initial RAM disk of the guest that has nothing but hooks.
pub fn initrd() -> Vec<u8> {
    let builder = guest_builder(&with_hooks(""), &[("probed", &program())]);
    builder.build().unwrap()
}

/// Checks the stacks of `dd` in `guest`.
fn check(guest: &str) {
    let finished = run();
    let console = finished.console(guest);
    let hooks = console.after("hooks: ");
    assert!(
        hooks.contains(" vfs_read; function_graph of ksys_read"),
        "{hooks}"
    );
    assert!(console.number("traced: ") > 0, "nothing was traced");
    assert_eq!(console.after("hooks at the end: "), "function_graph");
    let seen = stacks_of(&format!("{guest}.kvmprof"));
    let dd = || seen.iter().filter(|seen| seen.comm == "dd");
    let expected: [(&str, &[&str]); 2] = [
        ("vfs_read", &["ksys_read"]),
        (
            "ksys_read",
            &["__x64_sys_read", "x64_sys_call", "do_syscall_64"],
        ),
    ];
    for (function, callers) in expected {
        let mut found = 0;
        for seen in dd() {
            let Some(place) = seen.kernel.iter().position(|name| name == function) else {
                continue;
            };
            match seen.kernel.get(place + 1) {
                Some(caller) => {
                    assert!(callers.contains(&caller.as_str()), "{:?}", seen.kernel);
                    found += 1;
                }
                None => assert_ne!(seen.ends[0], StackEnd::Complete, "{:?}", seen.kernel),
            }
        }
        println!("{function}: {found} callers");
        assert!(found >= 10, "{function}");
    }
    // What the return probe's handler is called by: a copy of the kernel's own trampoline, at the start of the traced function.
    let mut called = 0;
    for seen in dd() {
        let Some(place) = seen.kernel.iter().position(|name| name == TRAMPOLINE) else {
            continue;
        };
        let function = seen.kernel.get(place + 1).map(String::as_str);
        assert!(
            matches!(function, Some("vfs_read" | "ksys_read") | None),
            "{:?}",
            seen.kernel
        );
        called += usize::from(function.is_some() && seen.ends[0] == StackEnd::Complete);
    }
    println!("whole stacks through trampolines: {called}");
    assert!(called >= 10, "{called}");
    // The functions before the trampolines in 6.12, to which the trampolines seem to return.
    let invented = ["ftrace_stub_direct_tramp", "trace_clock_x86_tsc"];
    for seen in dd() {
        assert!(
            !seen
                .kernel
                .iter()
                .skip(1)
                .any(|name| invented.contains(&name.as_str())),
            "{:?}",
            seen.kernel
        );
    }
}

/// Checks the stacks of the program whose function `inner` has a return probe.
fn check_program(guest: &str) {
    let hits = run().console(guest).number("hits: ");
    assert!(hits > 0, "the probe was never hit");
    let seen = stacks_of(&format!("{guest}.kvmprof"));
    let callers = from_main(&["inner", "middle", "outer"]);
    check_user(&seen, "probed", &callers, WITH_RULES);
}

#[test]
fn replaced_return_addresses_of_the_kernel_lead_to_the_true_caller() {
    check("guest");
}

#[test]
fn replaced_return_addresses_of_an_older_kernel_lead_to_the_true_caller() {
    check("older");
}

#[test]
fn replaced_return_addresses_of_programs_lead_to_the_true_caller() {
    check_program("guest");
}

#[test]
fn replaced_return_addresses_of_programs_in_an_older_kernel_lead_to_the_true_caller() {
    check_program("older");
}
