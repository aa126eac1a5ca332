//! Dumps of Debian's kernel in guests of kvmprof and of QEMU, which crash(8) and drgn read. KASLR is on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kvmprof_tests::linux::{Finished, Scenario, debian, guest_init, guest_program, once};
use kvmprof_tests::{Ran, not_run, run_command};

/// The guests: the second one ran on while it was dumped.
const GUESTS: [&str; 2] = ["own", "qemu"];
const ONE: u64 = 0x1000_0000;
/// The only series whose debug symbols and whose reader, crash 8.0.2, are both in Debian 12.
const SERIES: &str = "6.1";

fn run() -> Finished {
    once("dump", || {
        let kernel = debian(SERIES);
        let one = guest_program("spin.c", ONE, &[]);
        Scenario::new()
            .memory(4096)
            .kernel("vmlinuz", &kernel)
            .file(
                "guest.cpio",
                guest_init(include_str!("init.sh"), &[("one", &one)]),
            )
            .qemu()
            .run(include_str!("driver.sh"))
    })
}

/// The kernel with its debug symbols; `None`, with a note, if they can't be had.
fn vmlinux() -> Option<PathBuf> {
    match kvmprof_lab::debug_symbols(&debian(SERIES)) {
        Ok(path) => Some(path),
        Err(error) => {
            not_run(&format!("the kernel's debug symbols can't be had: {error}"));
            None
        }
    }
}

const CRASH: &str = "/usr/bin/crash";

/// What the guest itself has printed behind this word.
fn said(run: &Finished, guest: &str, word: &str) -> String {
    run.console(guest).after(&format!("{word} ")).to_owned()
}

/// Runs a reader, with these lines as its input.
fn read(command: &mut Command, input: &str) -> Ran {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), input).unwrap();
    let output = command
        .stdin(std::fs::File::open(file.path()).unwrap())
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .output();
    output.unwrap().into()
}

#[test]
fn guests_are_dumped_and_go_on() {
    let run = run();
    for guest in GUESTS {
        let said = run.text(&format!("{guest}.dump"));
        assert_eq!(
            run.text(&format!("{guest}.dump.status")).trim(),
            "0",
            "{said}"
        );
        // Neither VMCOREINFO nor registers nor memory are missing.
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains(" of memory, "), "{said}");
        assert_eq!(run.status(guest), 0);
    }
}

/// The tasks, a structure, and the stacks of tasks that don't run. Those that run are on vCPUs that were stopped one after the other in the second guest.
#[test]
fn drgn_reads_tasks_stacks_and_structures() {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/drgn/bin/python3");
    if !python.exists() {
        return not_run("drgn isn't in target/drgn: tests/run --all installs it");
    }
    let (run, Some(vmlinux)) = (run(), vmlinux()) else {
        return;
    };
    for guest in GUESTS {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/linux/dump/read.py");
        let core = run.path(&format!("{guest}.core"));
        let ran = run_command(Command::new(&python).args([&script, &core, &vmlinux]));
        assert_eq!(ran.status, 0, "{ran:?}");
        let lines: Vec<Vec<&str>> = ran
            .stdout
            .lines()
            .map(|it| it.split(' ').collect())
            .collect();
        let of = |word: &'static str| lines.iter().filter(move |line| line[0] == word);
        for word in ["release", "cpus"] {
            assert_eq!(of(word).next().unwrap()[1], said(&run, guest, word));
        }
        let tasks: BTreeMap<&str, &str> = of("task").map(|line| (line[1], line[2])).collect();
        for name in ["one", "sleep", "init"] {
            let pid = said(&run, guest, &format!("pid {name}"));
            assert_eq!(tasks.get(pid.as_str()), Some(&name), "{tasks:?}");
        }
        assert!(tasks.len() > 20, "{tasks:?}");
        let mut running = of("running").filter(|line| line[3] == "one");
        let pc: u64 = running.next().unwrap()[4].parse().unwrap();
        // The second guest may have been in the kernel when its registers were read.
        assert!(guest != "own" || pc >= 1 << 63 || (ONE..ONE + (1 << 24)).contains(&pc));
        let stacks: Vec<_> = of("stack").collect();
        let whole = stacks.iter().filter(|line| {
            let last = line.last().unwrap();
            line.contains(&"__schedule")
                && (last.contains("entry_SYSCALL")
                    || last.starts_with("ret_from_fork")
                    || last.starts_with("0x")
                    || *last == "?")
        });
        let (whole, all) = (whole.count(), stacks.len());
        println!("{guest}: {whole} of {all} stacks are whole");
        assert!(all > 20 && whole * 100 >= all * 95, "{}", ran.stdout);
        let sleeper = said(&run, guest, "pid sleep");
        let stack = stacks.iter().find(|line| line[1] == sleeper).unwrap();
        assert!(
            stack.iter().any(|name| name.contains("nanosleep")),
            "{stack:?}"
        );
    }
}

/// crash 8.0.2, which Debian 12 has, lists only those tasks of such a kernel that run, also in a dump of QEMU's own: 8.0.4 knows `struct pid` as it is now.
#[test]
fn crash_reads_tasks_stacks_and_structures() {
    if !Path::new(CRASH).exists() {
        return not_run("crash isn't installed: tests/run --all installs it");
    }
    let (run, Some(vmlinux)) = (run(), vmlinux()) else {
        return;
    };
    let lists_all = crash_version() >= vec![8, 0, 4];
    for guest in GUESTS {
        let core = run.path(&format!("{guest}.core"));
        let pid = |name: &str| said(&run, guest, &format!("pid {name}"));
        let names: &[&str] = match lists_all {
            true => &["one", "sleep", "init"],
            false => &["one"],
        };
        let (one, sleeper) = (pid("one"), pid("sleep"));
        let of_sleeper = match lists_all {
            true => format!("bt {sleeper}\n"),
            false => String::new(),
        };
        // The stacks of the idle tasks, one of which runs.
        let commands = format!(
            "sys\nps\nbt 0\ntask -R comm,tgid {one}\np init_uts_ns.name.release\n{of_sleeper}quit\n"
        );
        let mut command = Command::new(CRASH);
        command.args(["-s", "--no_scroll"]).args([&vmlinux, &core]);
        let ran = read(&mut command, &commands);
        println!("{}{}", ran.stdout, ran.stderr);
        assert_eq!(ran.status, 0);
        let has = |what: &str| assert!(ran.stdout.contains(what), "{guest}: no {what}");
        let release = said(&run, guest, "release");
        has(&format!("RELEASE: {release}"));
        has(&format!("\"{release}"));
        has(&format!("tgid = {one}"));
        for name in names {
            let pid = pid(name);
            let is_task = |line: &str| {
                let words: Vec<&str> = line.trim_start_matches('>').split_whitespace().collect();
                words.first() == Some(&pid.as_str()) && words.last() == Some(name)
            };
            assert!(ran.stdout.lines().any(is_task), "{guest}: no {name}");
        }
        has("cpu_startup_entry");
        if lists_all {
            has("nanosleep");
        }
    }
}

/// The version that crash says it has, as numbers.
fn crash_version() -> Vec<u32> {
    let said = run_command(Command::new(CRASH).arg("--version")).stdout;
    let words = said.lines().find_map(|line| line.strip_prefix("crash "));
    let numbers = words.unwrap_or_default().trim().split(['.', '-', '+']);
    numbers.map_while(|number| number.parse().ok()).collect()
}
