//! Sums of looks that are made by hand.

use std::path::Path;

use kvmprof_recording::file::{Block, Kind, Recording, RecordingInfo, TasksEncoder, header};
use kvmprof_recording::tasks::{Task, TaskLook, TaskStack, TaskState};
use kvmprof_recording::{COMM_LENGTH, StackEnd};

use super::*;
use crate::profile::Selection;
use kvmprof_recording::file::Unobserved;

const BASE: u64 = 0xffff_ffff_8100_0000;
const SYMBOLS: &str = "ffffffff81000000 T __schedule\nffffffff81001000 T pipe_read\nffffffff81002000 T vfs_read\n\
    ffffffff81003000 T io_wait\nffffffff81004000 T _end\n";
const SECOND: u64 = 1_000_000_000;

fn task(tid: i32, state: TaskState, switches: u64) -> Task {
    let mut comm = [0; COMM_LENGTH];
    comm[..4].copy_from_slice(if tid == 1 { b"init" } else { b"a;b\x1b" });
    Task {
        pid: tid,
        tid,
        comm,
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

/// The sums of a recording of all processes.
fn sums(selection: &Selection) -> (TaskSums, Resolver) {
    sums_of(&[], selection)
}

/// Three looks: one task reads a pipe all the time, another one runs, waits for its vCPU, and waits for a disk. They
/// are those of a recording of `pids`, or of all processes if there are none.
fn sums_of(pids: &[i32], selection: &Selection) -> (TaskSums, Resolver) {
    let reader = (task(1, TaskState::Sleeping, 5), &[8, 0x1008, 0x2008][..]);
    let running = Task {
        is_on_vcpu: true,
        ..task(2, TaskState::Runnable, 7)
    };
    let mut encoder = TasksEncoder::default();
    for look in [
        look(SECOND, &[reader, (running, &[])]),
        look(
            2 * SECOND,
            &[reader, (task(2, TaskState::Runnable, 8), &[9])],
        ),
        look(
            3 * SECOND,
            &[
                reader,
                (task(2, TaskState::Uninterruptible, 10), &[9, 0x3008]),
            ],
        ),
    ] {
        encoder.push(&look, |pid| pids.is_empty() || pids.contains(&pid));
    }
    let info = RecordingInfo {
        vcpus: 2,
        tasks: Some(10),
        pids: pids.to_vec(),
        ..RecordingInfo::default()
    };
    let mut bytes = header().to_vec();
    for (kind, contents) in [
        (Kind::Info, serde_json::to_vec(&info).unwrap()),
        (Kind::Symbols, SYMBOLS.into()),
        (Kind::Tasks, encoder.take()),
    ] {
        bytes.extend(Block::encode(kind, &contents).unwrap());
    }
    let recording = Recording::from_bytes(Path::new("test"), bytes).unwrap();
    let contents = recording.contents().unwrap();
    let sums = TaskSums::read(&recording, &contents, selection, &Unobserved).unwrap();
    (sums, Resolver::from_contents(&contents))
}

#[test]
fn tasks_are_counted_by_state_vcpu_and_function() {
    let (sums, resolver) = sums(&Selection::default());
    assert_eq!((sums.looks, sums.complete, sums.on_vcpu), (3, 3, 1));
    assert_eq!((sums.duration, sums.longest), (15_000, 5000));
    let states: Vec<_> = sums
        .states
        .iter()
        .map(|(state, seen)| (state.letter(), *seen))
        .collect();
    assert_eq!(states, [('R', 1), ('S', 3), ('D', 1)]);
    let queues: Vec<_> = sums.vcpus.values().copied().collect();
    let queue = |waiting, free, free_while_waiting| VcpuQueue {
        waiting,
        most: waiting,
        looks: waiting,
        free,
        free_while_waiting,
    };
    assert_eq!(queues, [queue(1, 2, 1), queue(0, 3, 1)]);
    let rows = wait_rows(&sums, &resolver);
    let seen: Vec<_> = (rows.iter())
        .map(|row| {
            (
                row.state.letter(),
                row.functions.join(" "),
                row.seen,
                row.longest / SECOND,
            )
        })
        .collect();
    let expected = [
        ('S', "pipe_read vfs_read", 3, 2),
        ('R', "", 1, 0),
        ('D', "io_wait", 1, 0),
    ];
    assert_eq!(
        seen,
        expected.map(|(state, name, seen, longest)| (state, name.to_owned(), seen, longest))
    );
    let delays: Vec<u64> = sums.delays.values().copied().collect();
    assert_eq!(delays, [0, 3000]);
}

#[test]
fn the_flame_graph_is_of_waits_by_process_and_state() {
    let (sums, resolver) = sums(&Selection::default());
    assert_eq!(
        folded(&sums, &resolver),
        [
            "a:b\u{fffd}-2;runnable 1",
            "a:b\u{fffd}-2;uninterruptible;io_wait_[k] 1",
            "init-1;sleeping;vfs_read_[k];pipe_read_[k] 3",
        ]
    );
}

#[test]
fn the_tables_and_the_document_have_the_same_numbers() {
    let (sums, resolver) = sums(&Selection::default());
    let mut text = Vec::new();
    print(&sums, &resolver, 2, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    for line in [
        "3 looks at the guest's tasks, 0 of them without some; a vCPU stood still for 0.005 ms each, 0.005 ms at most",
        "  S sleeping                3        1.0",
        "        3      1    2.000 s  S      pipe_read < vfs_read  [1 init]",
        "  ... and 1 more",
        "        1      1    0.000 s  D      io_wait  [2 a;b\u{fffd}]",
        "           0.003 ms         2  a;b\u{fffd}",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
    let document = document(&sums, &resolver, 1);
    assert_eq!(document["waits"][0]["functions"][0], "pipe_read");
    assert_eq!(document["waits"][0]["longest_ns"], 2 * SECOND);
    assert_eq!(document["waits_left_out"], 2);
    assert_eq!(document["vcpus"][0]["looks_free_while_waiting"], 1);
}

#[test]
fn only_what_is_selected_counts() {
    let selection = Selection {
        pids: vec![2],
        time: "1.5:2.5".parse().unwrap(),
        ..Selection::default()
    };
    let (sums, _) = sums(&selection);
    assert_eq!((sums.looks, sums.waits.len()), (1, 1));
    assert_eq!(sums.states.get(&TaskState::Runnable), Some(&1));
}

#[test]
fn of_some_processes_nothing_is_said_of_vcpus() {
    let selection = Selection {
        pids: vec![2],
        ..Selection::default()
    };
    for (sums, resolver) in [sums(&selection), sums_of(&[2], &Selection::default())] {
        assert_eq!((sums.looks, sums.on_vcpu), (3, 1));
        assert!(sums.vcpus.is_empty());
        let mut text = Vec::new();
        print(&sums, &resolver, 2, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(!text.contains("FREE WHILE A TASK WAITS"), "{text}");
        let document = document(&sums, &resolver, 1);
        assert_eq!(document["vcpus"].as_array().map(Vec::len), Some(0));
    }
}
