//! Sums of synthetic looks.

use std::path::Path;

use kvmprof_recording::file::{Block, Kind, Recording, RecordingInfo, TasksEncoder, header};
use kvmprof_recording::tasks::{Task, TaskLook, TaskStack, TaskState};
use kvmprof_recording::{StackEnd, comm_of};

use super::*;
use crate::graph::Graph;
use crate::profile::Selection;
use kvmprof_recording::file::Unobserved;

const BASE: u64 = 0xffff_ffff_8100_0000;
const SYMBOLS: &str = "ffffffff81000000 T __schedule\nffffffff81001000 T pipe_read\nffffffff81002000 T vfs_read\n\
    ffffffff81003000 T io_wait\nffffffff81004000 T _end\n";
const SECOND: u64 = 1_000_000_000;

fn task(tid: i32, state: TaskState, switches: u64) -> Task {
    Task {
        pid: tid,
        tid,
        comm: comm_of(if tid == 1 { "init" } else { "a;b\x1b" }),
        state,
        switches,
        run_delay: Some(switches * 1000),
        ..Task::default()
    }
}

fn look(time: u64, tasks: &[(Task, &[u64])]) -> TaskLook {
    let mut look = TaskLook {
        time,
        duration: 5000,
        is_complete: true,
        ..TaskLook::default()
    };
    for (task, frames) in tasks {
        let first = u32::try_from(look.frames.len()).unwrap();
        look.frames.extend(frames.iter().map(|frame| BASE + frame));
        let stack = match frames.len() {
            0 => TaskStack::Absent,
            count => TaskStack::Known {
                first,
                count: u8::try_from(count).unwrap(),
                scheduler: 1,
                end: StackEnd::Complete,
            },
        };
        look.tasks.push(Task { stack, ..*task });
    }
    look
}

/// Three looks: one task reads a pipe all the time, another one runs, waits for its vCPU, and waits for a disk.
fn looks() -> [TaskLook; 3] {
    let reader = (task(1, TaskState::Sleeping, 5), &[8, 0x1008, 0x2008][..]);
    let running = Task {
        is_on_vcpu: true,
        ..task(2, TaskState::Runnable, 7)
    };
    let waiting = task(2, TaskState::Runnable, 8);
    let on_disk = task(2, TaskState::Uninterruptible, 10);
    [
        look(SECOND, &[reader, (running, &[])]),
        look(2 * SECOND, &[reader, (waiting, &[9])]),
        look(3 * SECOND, &[reader, (on_disk, &[9, 0x3008])]),
    ]
}

/// The sums of these looks in a recording of all processes, with two vCPUs.
fn sums(looks: &[TaskLook]) -> (TaskSums, Resolver) {
    read(&[], SYMBOLS, looks, &Selection::default())
}

/// The sums of a recording of `pids`, or of all processes if there are none.
fn read(
    pids: &[i32],
    symbols: &str,
    looks: &[TaskLook],
    selection: &Selection,
) -> (TaskSums, Resolver) {
    let mut encoder = TasksEncoder::default();
    for look in looks {
        encoder.push(look, |pid| pids.is_empty() || pids.contains(&pid));
    }
    let info = RecordingInfo {
        vcpus: 2,
        tasks: Some(10),
        pids: pids.to_vec(),
        ..RecordingInfo::default()
    };
    let symbols = Block::encode(Kind::Symbols, symbols.as_bytes()).unwrap();
    let looks = Block::encode(Kind::Tasks, &encoder.take()).unwrap();
    let bytes = [&header()[..], &info.to_block().unwrap(), &symbols, &looks].concat();
    let recording = Recording::from_bytes(Path::new("test"), bytes).unwrap();
    let contents = recording.contents().unwrap();
    let sums = TaskSums::read(&recording, &contents, selection, &Unobserved).unwrap();
    (sums, Resolver::from_contents(&contents))
}

/// What is printed of them, with so many rows.
fn printed(sums: &TaskSums, resolver: &Resolver, top: usize) -> String {
    let mut text = Vec::new();
    print(sums, resolver, top, &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn tasks_are_counted_by_state_vcpu_and_function() {
    let (sums, resolver) = sums(&looks());
    assert_eq!((sums.looks, sums.complete, sums.on_vcpu), (3, 3, 1));
    assert_eq!((sums.duration, sums.longest), (15_000, 5000));
    let states = sums
        .states
        .iter()
        .map(|(state, seen)| (state.letter(), *seen));
    assert_eq!(states.collect::<Vec<_>>(), [('R', 1), ('S', 3), ('D', 1)]);
    let queues: Vec<_> = sums.vcpus.values().copied().collect();
    let queue = |waiting, free, free_while_waiting, delay| VcpuQueue {
        waiting,
        most: waiting,
        looks: waiting,
        free,
        free_while_waiting,
        delay,
    };
    assert_eq!(queues, [queue(1, 2, 1, 3000), queue(0, 3, 1, 0)]);
    let rows = wait_rows(&sums, &resolver);
    let seen = rows.iter().map(|row| {
        let (state, functions) = (row.state.letter(), row.functions.join(" "));
        format!("{state} {functions} {} {}", row.seen, row.longest / SECOND)
    });
    let expected = ["S pipe_read vfs_read 3 2", "R  1 0", "D io_wait 1 0"];
    assert_eq!(seen.collect::<Vec<_>>(), expected);
    let delays: Vec<u64> = sums.delays.values().copied().collect();
    assert_eq!(delays, [0, 3000]);
}

#[test]
fn a_task_counts_once_in_a_function_that_it_waits_in_by_several_stacks() {
    let reader = task(1, TaskState::Sleeping, 5);
    let stacks = [&[8, 0x1008, 0x2008][..], &[8, 0x1008]];
    let looks = stacks.map(|frames| look(SECOND, &[(reader, frames)]));
    let (sums, resolver) = sums(&looks);
    let rows = wait_rows(&sums, &resolver);
    assert_eq!((rows.len(), rows[0].seen, rows[0].tasks), (1, 2, 1));
    // Each stack was seen in a look of its own.
    let runs = sums.waits.values().map(|wait| wait.runs.clone());
    let mut runs: Vec<LookRun> = runs.flatten().collect();
    runs.sort_by_key(|run| run.first);
    let run = |first| LookRun { first, count: 1 };
    assert_eq!((runs, sums.times), (vec![run(0), run(1)], vec![SECOND; 2]));
}

#[test]
fn the_flame_graph_is_of_waits_by_process_and_state() {
    let (sums, resolver) = sums(&looks());
    assert_eq!(
        folded(&sums, &resolver, &OutputBudget::new(1 << 20)).unwrap(),
        [
            "a:b?-2;runnable\u{e004} 1",
            "a:b?-2;uninterruptible\u{e004};io_wait_[k] 1",
            "init-1;sleeping\u{e004};vfs_read_[k];pipe_read_[k] 3",
        ]
    );
}

/// A truncated stack has a torn edge, and a state the colour of frames that aren't functions.
#[test]
fn the_picture_has_torn_edges_and_groups() {
    let mut cut = look(SECOND, &[(task(1, TaskState::Sleeping, 5), &[8, 0x1008])]);
    for task in &mut cut.tasks {
        if let TaskStack::Known { end, .. } = &mut task.stack {
            *end = StackEnd::Truncated;
        }
    }
    let whole = (task(1, TaskState::Sleeping, 6), &[8, 0x2008, 0x1008][..]);
    let (sums, resolver) = sums(&[cut, look(2 * SECOND, &[whole])]);
    let lines = folded(&sums, &resolver, &OutputBudget::new(1 << 20)).unwrap();
    assert_eq!(
        lines,
        [
            "init-1;sleeping\u{e004};pipe_read\u{e003}_[k] 1",
            "init-1;sleeping\u{e004};pipe_read\u{e003}_[k];vfs_read_[k] 1",
        ]
    );
    let svg = Graph::default().draw(&lines).unwrap();
    let svg = String::from_utf8(svg).unwrap();
    let colour = |title: &str| {
        let (_, frame) = svg.split_once(&format!("<title>{title}")).unwrap();
        let (_, fill) = frame.split_once("fill=\"").unwrap();
        fill.split_once('"').unwrap().0
    };
    assert_eq!(colour("pipe_read ("), "url(#cut-kernel)");
    assert_eq!(colour("sleeping ("), colour("init-1 ("));
    assert_ne!(colour("sleeping ("), colour("vfs_read ("));
}

/// One look of a small file became a gigabyte of text.
#[test]
fn the_flame_graph_ends_where_its_budget_does() {
    let stack = [0x1008; 60];
    let all: Vec<(Task, &[u64])> = (1..=500)
        .map(|tid| (task(tid, TaskState::Sleeping, 5), &stack[..]))
        .collect();
    let (name, end) = ("x".repeat(4000), BASE + 0x4000);
    let symbols = format!("{BASE:x} T {name}\n{end:x} T _end\n");
    let looks = [look(SECOND, &all)];
    let (sums, resolver) = read(&[], &symbols, &looks, &Selection::default());
    // 500 stacks of 59 names would be 118 MB.
    let budget = 8 << 20;
    let refused = folded(&sums, &resolver, &OutputBudget::new(budget));
    assert_eq!(refused, Err(TooMuch(budget)));
    // All of one stack: its names are stored once.
    let rows = wait_rows(&sums, &resolver);
    let [row] = &rows[..] else {
        panic!("{} rows", rows.len());
    };
    assert_eq!((row.tasks, row.functions.len()), (500, 59));
    let is_first = |name| Arc::ptr_eq(name, &row.functions[0]);
    assert!(row.functions.iter().all(is_first));
}

/// A task that calls execve(2) stays the same: it hasn't run since, and its delay continues.
#[test]
fn a_renamed_task_is_the_same_task() {
    let renamed = |(time, switches, name)| {
        let task = Task {
            comm: comm_of(name),
            ..task(3, TaskState::Sleeping, switches)
        };
        look(time * SECOND, &[(task, &[8, 0x1008])])
    };
    let looks = [(1, 5, "sh"), (4, 5, "true"), (6, 7, "true")].map(renamed);
    let (sums, resolver) = sums(&looks);
    let rows = wait_rows(&sums, &resolver);
    let [row] = &rows[..] else {
        panic!("{rows:?}");
    };
    assert_eq!((row.seen, row.tasks, row.longest), (3, 1, 3 * SECOND));
    assert_eq!(sums.name(row.most), "true");
    let thread = Thread { pid: 3, tid: 3 };
    assert_eq!(sums.delays.into_iter().next(), Some((thread, 2000)));
}

/// Run delays count for a task's last vCPU, and from look to look: a task with another one's ids starts again.
#[test]
fn run_delays_are_also_by_vcpu() {
    let delayed = |(time, (vcpu, run_delay))| {
        let task = Task {
            vcpu,
            run_delay: Some(run_delay),
            ..task(3, TaskState::Sleeping, 5)
        };
        look(time * SECOND, &[(task, &[])])
    };
    // The fourth look is at another task, which has waited for 40 ns so far.
    let vcpus_and_delays = [(0, 1000), (0, 1500), (1, 1700), (1, 40), (1, 50)];
    let looks: Vec<_> = (1..).zip(vcpus_and_delays).map(delayed).collect();
    let (sums, resolver) = sums(&looks);
    let delays: Vec<u64> = sums.vcpus.values().map(|queue| queue.delay).collect();
    assert_eq!(delays, [500, 210]);
    assert_eq!(sums.delays.values().copied().collect::<Vec<_>>(), [710]);
    let document = document(&sums, &resolver, 1, &OutputBudget::new(1 << 20)).unwrap();
    assert_eq!(document["vcpus"][1]["run_delay_ns"], 210);
}

/// Tasks that wait for a vCPU while one is free, and whether it is that one.
#[test]
fn tasks_that_wait_while_a_vcpu_is_free_are_marked() {
    let waits = |tid, vcpu| {
        let task = Task {
            vcpu,
            ..task(tid, TaskState::Runnable, 5)
        };
        (task, &[][..])
    };
    let runs = |vcpu| {
        let task = Task {
            vcpu,
            is_on_vcpu: true,
            ..task(9, TaskState::Runnable, 5)
        };
        (task, &[][..])
    };
    let looks = [
        // vCPU 1 is free: one task waits for 0, another for 1.
        look(SECOND, &[runs(0), waits(2, 0), waits(3, 1)]),
        look(2 * SECOND, &[runs(0), waits(2, 0)]),
        // None is free.
        look(3 * SECOND, &[runs(0), runs(1), waits(2, 0), waits(4, 1)]),
        // Both are.
        look(4 * SECOND, &[waits(2, 1)]),
    ];
    let (sums, resolver) = sums(&looks);
    let found: Vec<_> = (sums.free_waits.iter())
        .map(|((thread, vcpu), wait)| (thread.tid, *vcpu, wait.looks, wait.own))
        .collect();
    assert_eq!(found, [(2, 0, 2, 0), (2, 1, 1, 1), (3, 1, 1, 1)]);
    let text = printed(&sums, &resolver, 2);
    let (_, table) = text.split_once("WAITED WHILE A VCPU WAS FREE").unwrap();
    let words = table.split_whitespace().skip_while(|word| *word != "2");
    let rows = "2 0 0 2 a;b? 1 1 1 2 a;b? ... and 1 more";
    assert!(
        words.collect::<Vec<_>>().join(" ").starts_with(rows),
        "{text}"
    );
    let document = document(&sums, &resolver, 1, &OutputBudget::new(1 << 20)).unwrap();
    assert_eq!(document["waits_while_free"].as_array().unwrap().len(), 3);
    assert_eq!(document["waits_while_free"][0]["looks_own_free"], 0);
    assert_eq!(document["waits_while_free"][0]["looks"], 2);
}

#[test]
fn the_tables_and_the_document_have_the_same_numbers() {
    let (sums, resolver) = sums(&looks());
    let text = printed(&sums, &resolver, 2);
    for line in [
        "3 looks at the guest's tasks, 0 of them without some; a vCPU stood still for 0.005 ms each, 0.005 ms at most",
        "  S sleeping                3        1.0",
        "        3      1    2.000 s  S      pipe_read < vfs_read  [1 init]",
        "  ... and 1 more",
        "        1      1    0.000 s  D      io_wait  [2 a;b?]",
        "           0.003 ms         2  a;b?",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    let document = document(&sums, &resolver, 1, &OutputBudget::new(1 << 20)).unwrap();
    assert_eq!(document["waits"][0]["functions"][0], "pipe_read");
    assert_eq!(document["waits"][0]["longest_ns"], 2 * SECOND);
    assert_eq!(document["waits_left_out"], 2);
    assert_eq!(document["vcpus"][0]["looks_free_while_waiting"], 1);
}

#[test]
fn only_what_is_selected_counts() {
    let selection = Selection {
        time: "1.5:2.5".parse().unwrap(),
        ..Selection::from_pids(&[2])
    };
    let (sums, _) = read(&[], SYMBOLS, &looks(), &selection);
    assert_eq!((sums.looks, sums.waits.len()), (1, 1));
    assert_eq!(sums.states.get(&TaskState::Runnable), Some(&1));
}

#[test]
fn a_selection_of_processes_has_no_vcpu_table() {
    let selection = Selection::from_pids(&[2]);
    for (pids, selection) in [(&[][..], selection), (&[2], Selection::default())] {
        let (sums, resolver) = read(pids, SYMBOLS, &looks(), &selection);
        assert_eq!((sums.looks, sums.on_vcpu), (3, 1));
        assert!(sums.vcpus.is_empty());
        let text = printed(&sums, &resolver, 2);
        assert!(!text.contains("FREE WHILE A TASK WAITS"), "{text}");
        let document = document(&sums, &resolver, 1, &OutputBudget::new(1 << 20)).unwrap();
        assert_eq!(document["vcpus"].as_array().map(Vec::len), Some(0));
    }
}
