//! The waits of the guest's tasks by looks from outside, compared with the guest's own `/proc/PID/stat`, `wchan` and `stack`. KASLR is
//! on.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use kvmprof_recording::file::{Recording, Unobserved};
use kvmprof_recording::tasks::{TaskLook, TaskStack};
use kvmprof_report::profile::Symbols;
use kvmprof_tests::linux::{Finished, Scenario, debian, guest_builder, guest_program, once};
use kvmprof_tests::{make_raw, run_command, share};

const WAITS: u64 = 0x1000_0000;
const SUCCESS: u8 = 0;
/// The drivers of the guest's disk.
const MODULES: [&str; 2] = ["virtio_mmio", "virtio_blk"];
/// Bytes of the file system that has the disk's image.
const BACKING: u64 = 16 << 20;
/// The waiters that sleep uninterruptibly: for a child, for the disk, and for a mutex that one of those holds.
const STUCK: [&str; 4] = ["on-vfork", "on-disk", "on-rescan", "on-lock"];
/// Minimum share of right looks.
const LEAST: f64 = 0.99;

/// The guest's data of a waiting task.
#[derive(Debug, Default)]
struct GuestWait {
    tid: i32,
    state: char,
    /// The function in which it waits, from wchan.
    waits_in: String,
    /// The functions of its stack, innermost first.
    stack: Vec<String>,
}

kvmprof_tests::in_each_kernel! {
    a_recording_of_one_process_has_its_tasks
    looks_start_with_the_recording
    states_and_stacks_agree_with_the_guest
    the_lab_reports_its_own_looks
    running_tasks_are_on_a_vcpu
}

/// Recordings with looks: `guest.kvmprof` of the whole time, `late.kvmprof` once all wait, and `pipe.kvmprof` of one process.
pub fn run(series: &str) -> Finished {
    once(&format!("tasks-{series}"), || {
        let waits = guest_program("waits.c", WAITS, &[]);
        let words = if series == "6.12" { "pti=on" } else { "" };
        let kernel = debian(series);
        let guest = guest_builder(include_str!("init.sh"), &[("waits", &waits)])
            .modules(&kernel, &MODULES)
            .build();
        Scenario::new()
            .module("loop")
            .module("crc32c_generic")
            .unpacked_kernel("vmlinuz", &kernel)
            .file("words", words.as_bytes().to_vec())
            .file("guest.cpio", guest.unwrap())
            .file("backing.img", file_system())
            .run(include_str!("driver.sh"))
    })
}

/// An empty ext4 file system.
fn file_system() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let image = make_raw(folder.path(), "backing.img", BACKING);
    let mut command = Command::new("/sbin/mke2fs");
    command.args(["-q", "-t", "ext4"]).arg(&image.path);
    let made = run_command(&mut command);
    assert_eq!(made.status, 0, "{}", made.stderr);
    std::fs::read(&image.path).unwrap()
}

/// The guest's data of its waiters, by name.
fn truth(run: &Finished) -> BTreeMap<String, GuestWait> {
    let mut all: BTreeMap<String, GuestWait> = BTreeMap::new();
    let console = std::fs::read_to_string(run.path("guest.console")).unwrap();
    for line in console.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["truth", name, tid, state, waits_in] => {
                let truth = all.entry(name.to_owned()).or_default();
                truth.tid = tid.parse().unwrap();
                truth.state = state.parse().unwrap();
                truth.waits_in = waits_in.to_owned();
            }
            ["frame", name, function] => {
                let truth = all.entry(name.to_owned()).or_default();
                truth.stack.push(one_name(function));
            }
            _ => {}
        }
    }
    assert_eq!(all.len(), 7, "{all:?}");
    all
}

/// A system call's function without arguments has two names.
fn one_name(function: &str) -> String {
    function.replace("__do_sys_", "__x64_sys_")
}

/// The looks of a recording, and its symbols.
fn looks(run: &Finished, name: &str) -> (Vec<TaskLook>, Symbols) {
    let recording = Recording::open(&run.path(name)).unwrap();
    let mut looks = Vec::new();
    let contents = recording.looks(&Unobserved, |look| looks.push(look.clone()));
    let contents = contents.unwrap();
    println!("{name}: {} looks", looks.len());
    for look in looks.iter().step_by(looks.len() / 4 + 1) {
        let (tasks, us) = (look.tasks.len(), look.duration / 1000);
        println!("  {tasks} tasks, {us} us, complete: {}", look.is_complete);
    }
    (looks, Symbols::parse(&contents.symbols))
}

fn states_and_stacks_agree_with_the_guest(run: &Finished) {
    assert_eq!(run.status("guest"), SUCCESS, "{}", run.text("guest.stderr"));
    let (looks, symbols) = looks(run, "late.kvmprof");
    assert!(looks.len() >= 100);
    for (name, truth) in truth(run) {
        println!("{name}: {truth:?}");
        let is_stuck = STUCK.contains(&name.as_str());
        assert_eq!(truth.state, if is_stuck { 'D' } else { 'S' });
        assert_eq!(truth.stack.first(), Some(&truth.waits_in));
        if name == "on-lock" {
            // 6.1, where the compiler has split a part of it off, and 6.12.
            let opens = ["blkdev_get_by_dev", "bdev_open"];
            assert!(opens.iter().any(|open| truth.waits_in.starts_with(open)));
        }
        let (mut right, mut wrong) = (0, BTreeSet::new());
        for look in &looks {
            let task = look.tasks.iter().find(|task| task.tid == truth.tid);
            let Some(task) = task else {
                println!("  not seen at {}", look.time);
                continue;
            };
            assert!(task.comm.starts_with(name.as_bytes()));
            let scheduler = match task.stack {
                TaskStack::Known { scheduler, .. } => scheduler.into(),
                _ => usize::MAX,
            };
            let frames = look.frames_of(task.stack).iter().skip(scheduler);
            let names: Vec<String> = frames
                .map(|frame| one_name(symbols.find(*frame).unwrap_or("?")))
                .collect();
            let is_right = task.state.letter() == truth.state && names == truth.stack;
            right += u64::from(is_right);
            if !is_right && wrong.insert((task.state, names.clone())) {
                println!("  {} {:?} {names:?}", task.state.letter(), task.stack);
            }
        }
        let part = share(right, looks.len() as u64);
        assert!(part >= LEAST, "{name}: {right} of {}", looks.len());
    }
}

/// The guest is busy on one vCPU at least, with `dd`, which never waits.
fn running_tasks_are_on_a_vcpu(run: &Finished) {
    let (looks, _) = looks(run, "late.kvmprof");
    let complete = looks.iter().filter(|look| look.is_complete).count();
    assert!(share(complete as u64, looks.len() as u64) >= LEAST);
    let mut seen = 0;
    for look in &looks {
        let running = look.tasks.iter().filter(|task| task.is_on_vcpu);
        assert!(running.clone().all(|task| task.vcpu < 2));
        seen += u64::from(running.clone().any(|task| task.comm.starts_with(b"dd\0")));
    }
    let part = share(seen, looks.len() as u64);
    println!("dd is on a vCPU in {part} of the looks");
    assert!(part >= 0.5);
}

fn looks_start_with_the_recording(run: &Finished) {
    let (looks, _) = looks(run, "guest.kvmprof");
    let (first, last) = (looks.first().unwrap(), looks.last().unwrap());
    let init = |look: &TaskLook| look.tasks.iter().any(|task| task.tid == 1);
    assert!(init(last));
    assert!(first.tasks.len() < last.tasks.len());
    assert!(looks.is_sorted_by_key(|look| look.time));
}

fn a_recording_of_one_process_has_its_tasks(run: &Finished) {
    let (looks, _) = looks(run, "pipe.kvmprof");
    assert!(!looks.is_empty());
    let waiter = truth(run)["on-pipe"].tid;
    let mut tasks = looks.iter().flat_map(|look| &look.tasks);
    assert!(tasks.all(|task| task.pid == waiter));
    // It doesn't show the activity of the vCPUs.
    let report = run.json("pipe.json");
    assert_eq!(report["looks"], looks.len());
    assert_eq!(report["vcpus"].as_array().map(Vec::len), Some(0));
}

fn the_lab_reports_its_own_looks(run: &Finished) {
    println!("{}", run.text("late.report"));
    let report = run.json("late.json");
    let (looks, _) = looks(run, "late.kvmprof");
    assert_eq!(report["looks"], looks.len());
    let rows = report["waits"].as_array().unwrap();
    for truth in truth(run).values() {
        let found = rows.iter().find(|row| {
            row["functions"][0] == *truth.waits_in && row["state"] == truth.state.to_string()
        });
        let seen = found.unwrap_or_else(|| panic!("{truth:?}"))["seen"].as_u64();
        assert!(share(seen.unwrap(), looks.len() as u64) >= LEAST);
    }
    let svg = run.text("late.svg");
    assert!(svg.contains("on-vfork-") && svg.contains("uninterruptible"));
}
