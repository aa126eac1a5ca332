//! One guest of each kind, sampled by the thread clock: the demo guest, and a Debian kernel, from the host and from within.

use kvmprof_lab::Kernel;
use kvmprof_recording::{Mode, StackEnd};
use kvmprof_tests::demo_row;
use kvmprof_tests::linux::{
    Finished, Scenario, debian, guest_builder, guest_program, kernel_knowledge, once,
};

use crate::guest_side::{MODULES, ZEROING, process, profile_share, report_of};
use crate::record::{NamedSample, most, read};

/// The link address of the workload.
const CALLS: u64 = 0x1000_0000;

/// The functions of [`ZEROING`] and their successors, as a System.map. The guest's kernel is at its link-time addresses.
fn namelist(kernel: &Kernel) -> String {
    let knowledge = kernel_knowledge(kernel);
    let symbols = knowledge.linux().unwrap().symbols();
    let functions: Vec<_> = symbols.functions().collect();
    let is_wanted = |(_, _, name): &(u64, char, &str)| ZEROING.contains(name);
    let pairs = functions.windows(2).filter(|pair| is_wanted(&pair[0]));
    pairs
        .flatten()
        .map(|(address, kind, name)| format!("{address:016x} {kind} {name}\n"))
        .collect()
}

fn run() -> Finished {
    once("vmx-smoke", || {
        let kernel = debian("6.12");
        let calls = guest_program("calls.c", CALLS, &["-fno-omit-frame-pointer"]);
        let pcsd = kvmprof_lab::build_program_of("kvmprof-agent", "pcsd").unwrap();
        let tools = kvmprof_lab::build_program("kvmprof-tools").unwrap();
        let guest = guest_builder(include_str!("init.sh"), &[("calls", &calls)])
            .contents("/namelist", 0o644, namelist(&kernel))
            .add(pcsd, "/bin/pcsd")
            .add(tools, "/bin/kvmprof-tools")
            .modules(&kernel, &MODULES);
        Scenario::vmx()
            .unpacked_kernel("vmlinuz", &kernel)
            .file("guest.cpio", guest.build().unwrap())
            .run(include_str!("smoke.sh"))
    })
}

/// Each sample is of a part of the guest: a program counter in a process's own code has its pid, and one with interrupts off is one of the kernel.
#[test]
fn each_sample_of_the_demo_guest_is_in_its_row() {
    let (contents, samples) = run().recording("demo.kvmprof");
    assert!(contents.account.balances() && samples.len() >= 200);
    let mut rows = [0; kvmprof_demo_guest::ROWS];
    for (sample, _) in &samples {
        rows[demo_row(sample)] += 1;
    }
    println!("{rows:?}, {:?}", contents.account);
    let of = |mode| {
        samples
            .iter()
            .filter(|(sample, _)| sample.mode == mode)
            .count()
    };
    assert!(of(Mode::User) >= 50 && of(Mode::Kernel) >= 10 && of(Mode::Interrupt) > 0);
}

#[test]
fn the_account_balances_and_the_guest_ends_without_errors() {
    let run = run();
    assert_eq!(run.status("guest"), 0, "{}", run.text("guest.stderr"));
    assert_eq!(run.status_document("guest.json").clock.source, "thread");
    let (contents, seen) = read(&run, "guest.kvmprof");
    assert_eq!(contents.closed, Some(contents.account));
    assert!(contents.account.balances());
    assert_eq!(contents.account.samples, seen.len() as u64);
    // With jitter a tick may come while the one before is sampled.
    assert!(contents.account.lost * 20 <= contents.account.samples);
}

#[test]
fn user_code_has_its_process_and_its_callers() {
    let run = run();
    let calls = run.console("guest").number("calls is ");
    let (_, seen) = read(&run, "guest.kvmprof");
    let text = CALLS..CALLS + 0x100_0000;
    let of_calls: Vec<&NamedSample> = seen
        .iter()
        .filter(|seen| seen.sample.mode == Mode::User && text.contains(&seen.sample.pc))
        .collect();
    most("calls have their pid", &of_calls, 100, |seen| {
        seen.sample.pid == calls
    });
    let inner: Vec<&NamedSample> = of_calls
        .into_iter()
        .filter(|seen| seen.frames.first().is_some_and(|frame| frame == "inner"))
        .collect();
    most("calls' stacks lead to main", &inner, 95, |seen| {
        seen.frames.get(1..4) == Some(&["middle", "outer", "main"].map(str::to_owned))
    });
}

#[test]
fn kernel_code_has_its_process_and_its_callers() {
    let run = run();
    let copy = run.console("guest").number("copy is ");
    let (_, seen) = read(&run, "guest.kvmprof");
    let reading: Vec<&NamedSample> = seen
        .iter()
        .filter(|seen| seen.sample.mode == Mode::Kernel && seen.has("vfs_read"))
        .collect();
    most("reads are dd's", &reading, 95, |seen| {
        seen.sample.pid == copy && seen.name() == "dd"
    });
    most("stacks are whole", &reading, 95, |seen| {
        seen.has("entry_SYSCALL_64_after_hwframe")
            && seen.sample.stack.kernel_end == StackEnd::Complete
    });
}

#[test]
fn the_guest_profiles_itself() {
    let console = run().console("guest");
    let report = report_of(&console, "picture ");
    for (name, kind) in [("calls is ", 1), ("copy is ", 2)] {
        let of_process = process(&report, console.number(name));
        assert!(
            of_process[0] > 0.1 && of_process[kind] > 0.7,
            "{name}: {of_process:?} of {report}"
        );
    }
    let zeroing = profile_share(&console, &ZEROING);
    assert!(zeroing > 20.0, "{zeroing}");
}
