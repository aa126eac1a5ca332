//! One boot of a Debian kernel that checks that recordings, looks at tasks, reports and the guest's device nodes work. The other
//! scenarios check the details.

use kvmprof_recording::file::{Recording, Unobserved};
use kvmprof_recording::tasks::{TaskLook, TaskStack};
use kvmprof_recording::{Mode, StackEnd};
use kvmprof_report::profile::Symbols;
use kvmprof_tests::linux::{Finished, Scenario, debian, guest_builder, guest_program, once};

use super::record::{NamedSample, read};

const CALLS: u64 = 0x1000_0000;
const PLAIN: u64 = 0x2000_0000;
const PRF: u64 = 0x40_0000;
/// What the agent needs in a guest.
const MODULES: [&str; 4] = ["virtio_mmio", "virtio_console", "fuse", "cuse"];

fn run() -> Finished {
    once("smoke", || {
        let kernel = debian("6.12");
        let calls = guest_program("calls.c", CALLS, &["-fno-omit-frame-pointer"]);
        let plain = guest_program("calls.c", PLAIN, &["-O2", "-fomit-frame-pointer"]);
        let prf = guest_program("agent_prf.c", PRF, &[]);
        let programs = [("calls", &calls), ("plain", &plain), ("agent_prf", &prf)];
        let pcsd = kvmprof_lab::build_program_of("kvmprof-agent", "pcsd").unwrap();
        let guest = guest_builder(include_str!("init.sh"), &programs)
            .add(pcsd, "/bin/pcsd")
            .modules(&kernel, &MODULES)
            .build();
        Scenario::new()
            .unpacked_kernel("vmlinuz", &kernel)
            .file("guest.cpio", guest.unwrap())
            .run(include_str!("driver.sh"))
    })
}

/// Whether the stack is complete, and has the `callers` after its innermost frame.
fn is_called_by(seen: &NamedSample, callers: &[&str]) -> bool {
    let ends = seen.sample.stack;
    let frames = seen.frames.iter().skip(1).map(String::as_str);
    ends.user_end == StackEnd::Complete && frames.take(callers.len()).eq(callers.iter().copied())
}

#[test]
fn a_recording_has_processes_and_whole_stacks() {
    let run = run();
    assert_eq!(run.status("guest"), 0, "{}", run.text("guest.stderr"));
    let (contents, all) = read(&run, "guest.kvmprof");
    assert_eq!(contents.closed, Some(contents.account));
    assert!(contents.account.balances(), "{:?}", contents.account);
    for program in ["calls", "plain"] {
        let inner = all.iter().filter(|seen| {
            let is_inner = seen.frames.first().is_some_and(|frame| frame == "inner");
            seen.name() == program && is_inner
        });
        let (right, others): (Vec<&NamedSample>, Vec<&NamedSample>) =
            inner.partition(|seen| is_called_by(seen, &["middle", "outer", "main"]));
        println!("{program}: {} right, {} others", right.len(), others.len());
        // Until the program's file has been read, callers may be missing. Then the stack is marked.
        assert!(!right.is_empty());
        let is_marked = |seen: &&NamedSample| seen.sample.stack.user_end != StackEnd::Complete;
        assert!(others.iter().all(is_marked), "{:?}", others.first());
    }
    let of_calls = all.iter().filter(|seen| {
        seen.name() == "dd" && seen.sample.mode == Mode::Kernel && seen.has("do_syscall_64")
    });
    assert!(of_calls.count() > 0);
    let report = run.json("report.json");
    let processes = report["processes"].as_array().unwrap();
    for name in ["dd", "calls", "plain"] {
        assert!(processes.iter().any(|row| row["name"] == name), "{name}");
    }
    assert!(run.json("stalls.json").is_object());
}

#[test]
fn looks_show_the_waits_of_a_task() {
    let run = run();
    let console = run.console("guest");
    let words = console.after("waits ");
    let (tid, waits_in) = words.split_once(' ').unwrap();
    let tid: i32 = tid.parse().unwrap();
    let mut looks: Vec<TaskLook> = Vec::new();
    let recording = Recording::open(&run.path("guest.kvmprof")).unwrap();
    let contents = recording.looks(&Unobserved, |look| looks.push(look.clone()));
    let symbols = Symbols::parse(&contents.unwrap().symbols);
    let last = looks.iter().rev().find(|look| look.is_complete).unwrap();
    let task = last.tasks.iter().find(|task| task.tid == tid).unwrap();
    let TaskStack::Known { scheduler, .. } = task.stack else {
        panic!("{task:?}");
    };
    let frames = last.frames_of(task.stack);
    let function = symbols.find(frames[usize::from(scheduler)]);
    assert_eq!(
        (task.state.letter(), function),
        ('S', Some(waits_in.trim()))
    );
    let rows = run.json("tasks.json");
    let rows = rows["waits"].as_array().unwrap();
    let is_it = |row: &&serde_json::Value| row["functions"][0] == waits_in.trim();
    assert!(rows.iter().any(|row| is_it(&row)), "{rows:?}");
}

#[test]
fn the_guest_has_device_nodes() {
    let run = run();
    let console = run.console("guest");
    assert!(console.failed_checks().is_empty(), "{}", console.text());
    let summary = console.after("agent_prf: ");
    assert!(summary.contains(" 0 failed"), "{summary}");
}
