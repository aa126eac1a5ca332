//! Recordings of Debian's kernels: stacks in the kernel and across its entry, names, the account. KASLR
//! is on.
//!
//! Each kernel is booted once; each check of its recording is a test.

mod users;

use kvmprof_recording::file::Contents;
use kvmprof_recording::{Mode, Sample, StackEnd};
use kvmprof_report::profile::Symbols;
use kvmprof_tests::linux::{
    Finished, Scenario, debian, guest_builder, guest_program, once, print_losses, shared_program,
};
use kvmprof_tests::{share, standard_error};
use users::Users;

const CALLS: u64 = 0x1000_0000;
const PLAIN: u64 = 0x2000_0000;
const AFTER: u64 = 0x3000_0000;
const THREADS: u64 = 0x4000_0000;
const TWISTED: u64 = 0x5000_0000;
const SHARES: u64 = 0x6000_0000;
const SUCCESS: u8 = 0;

/// A sample, and the names of its frames, innermost first.
#[derive(Debug)]
pub struct NamedSample {
    pub sample: Sample,
    pub frames: Vec<String>,
    /// The file of the innermost frame in user mode, if it is known.
    file: String,
}

impl NamedSample {
    /// The name of its thread.
    pub fn name(&self) -> String {
        let name = self.sample.comm.split(|byte| *byte == 0).next().unwrap();
        String::from_utf8_lossy(name).into_owned()
    }

    /// Whether `function` is on its stack.
    pub fn has(&self, function: &str) -> bool {
        self.frames.iter().any(|frame| frame == function)
    }
}

/// A guest that was recorded.
struct Run {
    finished: Finished,
}

kvmprof_tests::in_each_kernel! {
    described or not:
    a_late_recorder_has_the_programs
    an_exec_changes_the_functions
    stacks_of_interrupted_programs_reach_main
    stacks_cross_interrupts
    the_guest_ends_and_all_ticks_are_accounted
    the_lab_reads_its_own_recording
    shares_agree_with_the_programs_counts
    the_programs_have_their_names
    stacks_of_kernel_threads_reach_their_start
    stacks_of_system_calls_reach_their_entry
    threads_are_distinguished
    twisted_stacks_are_marked
    user_stacks_of_a_shared_program_are_whole
    user_stacks_with_frame_pointers_are_whole
    user_stacks_without_frame_pointers_are_whole
}

/// A guest with that series of kernels.
fn run(series: &str, is_described: bool) -> Run {
    // The newer one has page tables of their own for user mode.
    let words = if series == "6.12" { "pti=on" } else { "" };
    let finished = once(&format!("record-{series}-{is_described}"), || {
        boot(series, is_described, words)
    });
    Run { finished }
}

/// Boots it with more words on its command line.
fn boot(series: &str, is_described: bool, words: &str) -> Finished {
    let calls = guest_program("calls.c", CALLS, &["-fno-omit-frame-pointer"]);
    let build = |address| guest_program("calls.c", address, &["-O2", "-fomit-frame-pointer"]);
    let plain = build(PLAIN);
    // Only frame pointers unwind it.
    let options = ["-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables"];
    let twisted = guest_program("twisted.c", TWISTED, &options);
    let programs = [
        ("calls", &calls),
        ("plain", &plain.stripped()),
        ("after", &build(AFTER)),
        ("threads", &guest_program("threads.c", THREADS, &[])),
        ("twisted", &twisted),
        ("shares", &guest_program("shares.c", SHARES, &[])),
    ];
    let shared = shared_program("calls.c", &["-O2", "-fomit-frame-pointer"]);
    let mut init = guest_builder(include_str!("init.sh"), &programs);
    init = init.contents("/bin/shared", 0o755, shared.file);
    for (place, library) in shared.libraries {
        init = init.add(library, place);
    }
    Scenario::new()
        .kernel_described_or_not("vmlinuz", &debian(series), is_described)
        .file("words", words.as_bytes().to_vec())
        .file("plain", plain.file)
        .file("guest.cpio", init.build().unwrap())
        .run(include_str!("driver.sh"))
}

impl Run {
    /// The samples of the recording from the first instruction on.
    fn seen(&self) -> Vec<NamedSample> {
        read(&self.finished, "guest.kvmprof").1
    }
}

fn the_guest_ends_and_all_ticks_are_accounted(run: &Run) {
    let run = &run.finished;
    println!("{}", run.text("guest.status.json"));
    assert_eq!(run.status("guest"), SUCCESS, "{}", run.text("guest.stderr"));
    for name in ["guest.kvmprof", "late.kvmprof"] {
        let (contents, seen) = read(run, name);
        let account = contents.account;
        assert_eq!(contents.closed, Some(account));
        assert!(account.balances(), "{account:?}");
        assert_eq!(account.samples, seen.len() as u64);
    }
}

/// The lab's kvmprof makes a report of it, too.
fn the_lab_reads_its_own_recording(run: &Run) {
    let report = run.finished.json("guest.report.json");
    let functions = report["functions"].as_array().unwrap();
    let processes = report["processes"].as_array().unwrap();
    println!("{} functions, {processes:?}", functions.len());
    for name in ["dd", "calls"] {
        assert!(processes.iter().any(|row| row["name"] == name), "{name}");
    }
    assert!(functions.iter().any(|row| row["name"] == "do_syscall_64"));
}

/// A recording's contents, and all samples.
pub fn read(run: &Finished, name: &str) -> (Contents, Vec<NamedSample>) {
    let (contents, samples) = run.recording(name);
    let account = contents.account;
    print_losses(name, account.ticks, account.stolen, account.lost);
    let kernel = Symbols::parse(&contents.symbols);
    let users = Users::new(&contents);
    let seen = samples.into_iter().map(|(sample, frames)| {
        let name = |address: &u64| match kernel.find(*address) {
            Some(name) => name.to_owned(),
            None => users.function(&sample, *address),
        };
        let user = frames.get(usize::from(sample.stack.kernel));
        NamedSample {
            frames: frames.iter().map(name).collect(),
            file: user.map_or_else(String::new, |address| users.file(&sample, *address)),
            sample,
        }
    });
    let seen = seen.collect();
    (contents, seen)
}

/// Prints how many of `seen` are right, and a few that aren't; at least `percent` have to be.
pub fn most(
    what: &str,
    seen: &[&NamedSample],
    percent: usize,
    good: impl Fn(&NamedSample) -> bool,
) {
    let bad: Vec<_> = seen.iter().filter(|seen| !good(seen)).collect();
    println!("{what}: {} of {}", seen.len() - bad.len(), seen.len());
    for seen in bad.iter().take(8) {
        println!(
            "  {:?} {:?} {:?}",
            seen.sample.mode, seen.sample.stack, seen.frames
        );
    }
    assert!(seen.len() >= 50, "{what}: only {} samples", seen.len());
    assert!(
        (seen.len() - bad.len()) * 100 >= seen.len() * percent,
        "{what}"
    );
}

/// The samples in user mode of the program that is linked to `start`.
pub fn in_program(seen: &[NamedSample], start: u64) -> Vec<&NamedSample> {
    let text = start..start + 0x100_0000;
    let is_in = |sample: &Sample| sample.mode == Mode::User && text.contains(&sample.pc);
    seen.iter().filter(|seen| is_in(&seen.sample)).collect()
}

/// The samples in user mode of the program that is linked to `start` are of the process `pid`, and have its name.
pub fn check_process(what: &str, seen: &[NamedSample], name: &str, start: u64, pid: i32) {
    let what = format!("{what}: user samples of {name}, which is {pid}");
    most(&what, &in_program(seen, start), 99, |seen| {
        seen.sample.pid == pid && seen.sample.tid == pid && seen.name() == name
    });
}

/// The kernel's stacks of dd, which does nothing but system calls, are whole.
pub fn check_calls_of_dd(what: &str, seen: &[NamedSample]) {
    let is_its = |seen: &&NamedSample| seen.name() == "dd" && seen.sample.mode == Mode::Kernel;
    let kernel: Vec<&NamedSample> = seen.iter().filter(is_its).collect();
    most(&format!("{what}: whole stacks"), &kernel, 95, |seen| {
        seen.sample.stack.kernel_end == StackEnd::Complete
    });
    let is_of_call = |frame: &String| frame == "do_syscall_64" || frame.contains("entry_SYS");
    most(&format!("{what}: system calls"), &kernel, 90, |seen| {
        seen.frames.iter().any(is_of_call)
    });
}

/// Stacks of `calls` reach main by frame pointers: inner, middle, outer and main.
pub fn check_frame_pointers(what: &str, seen: &[NamedSample], start: u64) {
    let what = format!("{what}: user stacks of calls");
    most(&what, &in_program(seen, start), 90, |seen| {
        seen.frames.len() >= 4
    });
}

/// The kernel's stacks of a process that does nothing but system calls.
fn stacks_of_system_calls_reach_their_entry(run: &Run) {
    let seen = run.seen();
    // Interrupts came from user mode, or belong to other work.
    let kernel: Vec<&NamedSample> = seen
        .iter()
        .filter(|seen| seen.name() == "dd" && seen.sample.mode == Mode::Kernel)
        .filter(|seen| !seen.frames.iter().any(|frame| frame.starts_with("asm_")))
        .collect();
    most("dd's system calls", &kernel, 95, |seen| {
        // The last is a label in the first one's code.
        let entries = [
            "entry_SYSCALL_64",
            "do_syscall_64",
            "syscall_return_via_sysret",
        ];
        let is_entry = |frame: &String| entries.iter().any(|entry| frame.starts_with(entry));
        seen.frames.iter().any(is_entry)
    });
    most("dd's whole kernel stacks", &kernel, 95, |seen| {
        seen.sample.stack.kernel_end == StackEnd::Complete
    });
}

fn user_stacks_with_frame_pointers_are_whole(run: &Run) {
    check_user_stacks(&run.seen(), "calls");
}

fn user_stacks_without_frame_pointers_are_whole(run: &Run) {
    check_user_stacks(&run.seen(), "plain");
}

fn user_stacks_of_a_shared_program_are_whole(run: &Run) {
    check_user_stacks(&run.seen(), "shared");
}

/// The user's stacks of a program, with or without frame pointers.
fn check_user_stacks(seen: &[NamedSample], program: &str) {
    let user: Vec<&NamedSample> = seen
        .iter()
        .filter(|seen| {
            seen.name() == program && seen.frames.first().is_some_and(|frame| frame == "inner")
        })
        .collect();
    most(&format!("user stacks of {program}"), &user, 95, |seen| {
        seen.frames.get(1..4) == Some(&["middle", "outer", "main"].map(str::to_owned))
    });
    most(&format!("whole stacks of {program}"), &user, 95, |seen| {
        seen.sample.stack.user_end == StackEnd::Complete
    });
}

/// Interrupted code of programs unwinds to the programs' start.
fn stacks_of_interrupted_programs_reach_main(run: &Run) {
    let seen = run.seen();
    let interrupted: Vec<&NamedSample> = seen
        .iter()
        .filter(|seen| ["/bin/calls", "/bin/plain", "/bin/shared"].contains(&seen.file.as_str()))
        .filter(|seen| seen.sample.mode == Mode::Interrupt)
        .collect();
    let through = interrupted.iter().filter(|seen| seen.has("main")).count();
    let all = interrupted.len();
    println!("interrupts of programs: {through} of {all} lead to main");
    // A few are from before a program's file was read.
    assert!(through * 10 >= all * 8 && through > 0);
}

/// Stacks in interrupts show what was interrupted.
fn stacks_cross_interrupts(run: &Run) {
    let seen = run.seen();
    let is_entry = |frame: &String| {
        frame.starts_with("asm_sysvec") || frame.starts_with("asm_common_interrupt")
    };
    let crossed = seen
        .iter()
        .filter(|seen| seen.name() == "dd" && seen.sample.mode == Mode::Interrupt)
        .filter(|seen| seen.frames.iter().any(is_entry) && seen.has("do_syscall_64"))
        .count();
    println!("interrupts of dd's system calls: {crossed}");
    assert!(crossed > 0);
}

/// Stacks of the kernel's own threads end at their start.
fn stacks_of_kernel_threads_reach_their_start(run: &Run) {
    let seen = run.seen();
    let own: Vec<&NamedSample> = seen
        .iter()
        .filter(|seen| seen.sample.tid > 0 && seen.has("kthread"))
        .collect();
    let whole = own.iter().filter(|seen| {
        seen.has("ret_from_fork") && seen.sample.stack.kernel_end == StackEnd::Complete
    });
    let (whole, all) = (whole.count(), own.len());
    println!("kernel threads: {whole} of {all} end at their beginning");
    assert!(all > 0 && whole * 100 >= all * 95);
}

fn the_programs_have_their_names(run: &Run) {
    check_binaries(&read(&run.finished, "guest.kvmprof").0);
}

/// A recorder that starts late gets the earlier processes.
fn a_late_recorder_has_the_programs(run: &Run) {
    check_binaries(&read(&run.finished, "late.kvmprof").0);
}

/// Every program has its path and functions, and the kernel its build id.
fn check_binaries(contents: &Contents) {
    let binary = |file: &str| {
        let mut all = contents.binaries.iter();
        let found = all.find(|binary| binary.info.file == file);
        found.unwrap_or_else(|| panic!("{file} isn't there"))
    };
    // The host has the symbols stripped from plain, and another program with the name of calls.
    for (program, source) in [
        ("/bin/calls", "page cache"),
        ("/bin/plain", "sysroot"),
        ("/bin/after", "page cache"),
    ] {
        let binary = binary(program);
        for function in ["inner", "middle", "outer", "main"] {
            assert!(binary.functions().any(|(_, _, name)| name == function));
        }
        assert_eq!(binary.info.source, source);
        assert!(!binary.info.build_id.is_empty(), "{program}");
    }
    binary("/bin/busybox");
    for (library, function) in [
        ("/lib64/ld-linux-x86-64.so.2", "_dl_"),
        ("/lib/x86_64-linux-gnu/libc.so.6", "getppid"),
    ] {
        let mut names = binary(library).functions().map(|(_, _, name)| name);
        assert!(names.any(|name| name.starts_with(function)), "{library}");
    }
    assert_eq!(binary("[vdso]").info.source, "guest memory");
    let kernel = contents.kernel.as_ref().unwrap();
    assert!(contents.info.kernel.ends_with("vmlinuz"));
    assert!(kernel.release.starts_with("6."), "{kernel:?}");
    assert_eq!(kernel.build_id.len(), 40, "{kernel:?}");
}

/// Both threads of a process are in its file, each in a function of its own.
fn threads_are_distinguished(run: &Run) {
    let seen = run.seen();
    for function in ["spin_first", "spin_second"] {
        let of_thread: Vec<&NamedSample> = seen
            .iter()
            .filter(|seen| seen.frames.first().is_some_and(|frame| frame == function))
            .collect();
        assert!(of_thread.len() >= 20, "{function}: {}", of_thread.len());
        let tid = of_thread[0].sample.tid;
        for seen in of_thread {
            assert_eq!((seen.file.as_str(), seen.sample.tid), ("/bin/threads", tid));
        }
    }
}

/// A process that executes another file has that one's functions from then on.
fn an_exec_changes_the_functions(run: &Run) {
    let seen = run.seen();
    let later = seen.iter().find(|seen| seen.file == "/bin/after").unwrap();
    let process: Vec<&NamedSample> = seen
        .iter()
        .filter(|seen| seen.sample.pid == later.sample.pid && seen.sample.mode == Mode::User)
        .collect();
    let of = |file| process.iter().filter(|seen| seen.file == file).count();
    let (before, after, all) = (of("/bin/busybox"), of("/bin/after"), process.len());
    println!("{before} samples before exec, {after} after it, of {all}");
    assert!(before > 0 && after > 0 && (before + after) * 100 >= all * 95);
    let mut process = process.iter();
    assert!(process.any(|seen| seen.has("inner") && seen.has("main")));
}

/// A program's functions have the shares of its samples that they have of the turns that it counted.
fn shares_agree_with_the_programs_counts(run: &Run) {
    let seen = run.seen();
    let console = run.finished.console("guest");
    let turns = ["light", "heavy"].map(|function| {
        let turns = console.after(&format!("turns {function} "));
        turns.parse::<u64>().unwrap()
    });
    let samples = ["light", "heavy"].map(|function| {
        let of_function = |seen: &&NamedSample| {
            let [inner, outer] = [0, 1].map(|frame| seen.frames.get(frame).map(String::as_str));
            seen.file == "/bin/shares" && inner == Some(function) && outer == Some("main")
        };
        seen.iter().filter(of_function).count() as u64
    });
    let all = samples[0] + samples[1];
    let expected = share(turns[0], turns[0] + turns[1]);
    let observed = share(samples[0], all);
    println!("light: {expected:.3} of its turns, {observed:.3} of {all} samples");
    assert!(all >= 80, "{all} samples");
    let bound = 4.0 * standard_error(expected, all) + 0.02;
    assert!((expected - observed).abs() < bound);
}

/// Frame pointers to arbitrary addresses give stacks that are marked, and bounded.
fn twisted_stacks_are_marked(run: &Run) {
    let seen = run.seen();
    let twisted: Vec<&NamedSample> = seen
        .iter()
        .filter(|seen| seen.name() == "twisted" && seen.sample.mode == Mode::User)
        .collect();
    let ended = |end| {
        let mut with_end = twisted.clone();
        with_end.retain(|seen| seen.sample.stack.user_end == end);
        with_end.len()
    };
    let (broken, truncated) = (ended(StackEnd::Broken), ended(StackEnd::Truncated));
    let all = twisted.len();
    println!("twisted: {broken} broken and {truncated} truncated of {all}");
    assert!(broken > 0);
    assert!(broken + truncated + ended(StackEnd::Complete) == all);
    assert!((broken + truncated) * 100 >= all * 90);
}
