//! Small recordings crafted to take much memory: they are refused, or reported in bounded memory.

use std::fs;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use kvmprof_recording::file::{Kind, Recording, SamplesEncoder, TasksEncoder, Unobserved};
use kvmprof_recording::tasks::{Task, TaskLook, TaskStack, TaskState};
use kvmprof_recording::{IPL_MASKED, Mode, Sample, StackEnd, Ticks, comm_of};
use kvmprof_report::budget::{BudgetWriter, OutputBudget, TooMuch, too_much};
use kvmprof_report::export::{ExportError, Format, Source};
use kvmprof_report::graph::Graph;
use kvmprof_report::profile::{Profile, Selection, SortBy, document, folded};
use kvmprof_report::stalls::{StallWatcher, Stalls};
use kvmprof_report::symbolize::Resolver;
use kvmprof_report::tasks::{self, TaskSums, wait_rows};
use tempfile::TempDir;

use super::shared::bombs::{deep_samples, long_name, many_addresses, recording, unpacks_to_much};
use super::shared::read::opened;
use super::shared::recordings::stack_of;

/// The maximum memory that this program may have taken, in KiB: a few times the limit of the largest tables.
const MAX_MEMORY_KIB: u64 = 1 << 20;

/// The maximum memory of this process so far, in KiB (`VmHWM`, proc(5)).
fn memory_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let (_, line) = status.split_once("VmHWM:").unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

fn assert_memory(most_kib: u64) {
    let memory = memory_kib();
    assert!(memory < most_kib, "{memory} KiB");
}

/// Produces every output of a recording with these blocks.
fn survives(blocks: &[(Kind, Vec<u8>)], length: usize) {
    let (_folder, path) = recording(blocks, length);
    let profile = Profile::from_file(&path, &[]).unwrap();
    assert!(document(&profile, SortBy::Own, 10).is_object());
    drop(profile);
    let source = Source::open(&path, &[]).unwrap();
    for format in [Format::Folded, Format::Firefox, Format::Speedscope] {
        format.write(&source, &mut std::io::sink()).unwrap();
    }
    assert_memory(MAX_MEMORY_KIB);
}

fn repeat(head: &str, item: &str, tail: &str, length: usize) -> Vec<u8> {
    let items = item.repeat(length / item.len());
    [head, items.as_str(), tail].concat().into_bytes()
}

const LONG: usize = 60 << 20;
const ENOUGH: usize = 1 << 20;

#[test]
fn tables_that_fill_the_memory() {
    let mapping = "{\"mappings\":[{\"begin\":1,\"end\":99,\"binary\":0}]}";
    let mapping = (Kind::Mappings, mapping.as_bytes().to_vec());
    let functions = repeat("{\"id\":0}\n", "0 0\n", "", LONG / 2);
    for blocks in [
        &[(Kind::Symbols, repeat("", "0 t a\n", "", LONG))][..],
        &[(
            Kind::Mappings,
            repeat("{\"mappings\":[", "{},", "{}]}", LONG),
        )],
        &[mapping, (Kind::Binary, functions)],
        &[(
            Kind::Binary,
            repeat("{\"segments\":[", "{},", "{}]}\n", LONG),
        )],
    ] {
        survives(blocks, ENOUGH);
    }
}

/// Samples of as many processes, all with the same long stack.
#[test]
fn stacks_that_fill_the_memory() {
    let stack = [&[2, 0, 128, 0, 1][..], &[2; 128]].concat();
    let mut block = stack.clone();
    let mut blocks = Vec::new();
    let mut threads = 0_u8;
    for pid in 0..400_000_u32 {
        // A thread of this pid without a name, and its sample.
        let digits = [pid << 1, pid >> 6, pid >> 13].map(|digits| digits.to_le_bytes()[0]);
        let pid = [digits[0] | 0x80, digits[1] | 0x80, digits[2] & 0x7f];
        block.extend([&[1][..], &pid, &[0, 0, 0]].concat());
        block.extend([3, 0, 0, 0, 3, 0, threads, 0, 0]);
        threads += 1;
        if threads == 128 {
            blocks.push((Kind::Samples, std::mem::replace(&mut block, stack.clone())));
            threads = 0;
        }
    }
    drop(block);
    let (_folder, path) = recording(&blocks, ENOUGH);
    drop(blocks);
    let profile = Profile::from_file(&path, &[]).unwrap();
    assert_eq!(profile.samples(), 400_000 / 128 * 128);
    let frames = profile.stacks().map(|stack| profile.frames(stack).count());
    let length = usize::try_from(fs::metadata(&path).unwrap().len()).unwrap();
    let most = (4 * length).max(1 << 20) + 400_000;
    assert!(most < 400_000 * 100, "{length} bytes allow for too much");
    assert!(frames.sum::<usize>() <= most);
    assert_memory(MAX_MEMORY_KIB);
}

/// Recordings that took gigabytes out of kilobytes are refused with the reason.
#[test]
fn a_small_recording_that_unpacks_to_much_is_refused() {
    let (_folder, path) = unpacks_to_much();
    assert!(fs::metadata(&path).unwrap().len() < 64 << 10);
    let error = Profile::from_file(&path, &[]).unwrap_err().to_string();
    let why = "bomb is damaged: it unpacks to far more";
    assert!(error.contains(why), "{error}");
}

/// A sparse file of this length.
#[derive(Default)]
struct Length(u64);

impl std::io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The source of an export whose events, tables and output take at most `limit` bytes.
fn source_within(path: &Path, limit: u64) -> Result<Source, ExportError> {
    let (recording, resolver) = opened(path);
    let all = Selection::default();
    Source::read(recording, all, resolver, Some(limit), &Unobserved)
}

/// Kept samples take more than in the file.
#[test]
fn events_are_refused_while_they_are_read() {
    const EVENT: u64 = 256;
    let (_folder, path) = deep_samples(300_000, 1);
    assert!(fs::metadata(&path).unwrap().len() < 64 << 10);
    let enough = 300_000 * EVENT;
    let source = source_within(&path, enough).unwrap();
    assert_eq!(source.budget().take(1), Err(TooMuch(enough)));
    let Err(ExportError::TooMuch(refused)) = source_within(&path, enough - 1) else {
        panic!("one byte less isn't enough");
    };
    assert_eq!(refused, TooMuch(enough - 1));
}

/// Tens of KB became gigabytes of text.
#[test]
fn exports_end_where_their_budget_does() {
    const ROOM: u64 = 8 << 20;
    let (folder, path) = deep_samples(30_000, 60);
    assert!(fs::metadata(&path).unwrap().len() < 64 << 10);
    for format in Format::value_variants() {
        let source = source_within(&path, ROOM).unwrap();
        let mut length = Length::default();
        let written = if *format == Format::PerfData {
            let output = folder.path().join("perf.data");
            let written = format.write_file(&source, &output);
            length.0 = fs::metadata(&output).unwrap().len();
            written
        } else {
            format.write(&source, &mut length)
        };
        let is_refused = matches!(written, Err(ExportError::TooMuch(TooMuch(ROOM))));
        assert!(is_refused, "{format:?}: {written:?}");
        assert!(length.0 <= ROOM, "{format:?}: {} bytes", length.0);
    }
    assert_memory(MAX_MEMORY_KIB);
}

/// The same stack has as many lines as there are threads.
#[test]
fn pictures_end_where_their_budget_does() {
    let (_folder, path) = deep_samples(30_000, 60);
    let profile = Profile::from_file(&path, &[]).unwrap();
    let budget = 8 << 20;
    let refused = folded(&profile, &OutputBudget::new(budget));
    assert_eq!(refused, Err(TooMuch(budget)));
    let enough = folded(&profile, &OutputBudget::new(budget * 16)).unwrap();
    assert_eq!(enough.len(), 60);
    let svg = Graph::default().draw(&enough[..1]).unwrap();
    assert!(svg.len() < 8 << 20, "{} bytes", svg.len());
}

/// As many addresses as fit into a file of 325 KB took 3 GB and minutes.
#[test]
fn addresses_that_fill_the_memory() {
    let (_folder, path) = many_addresses();
    assert!(fs::metadata(&path).unwrap().len() < 128 << 10);
    let profile = Profile::from_file(&path, &[]).unwrap();
    let frames = profile.stacks().map(|stack| profile.frames(stack).count());
    assert!(frames.sum::<usize>() <= (1 << 20) + 10_000);
    assert_eq!(profile.samples(), 10_000);
    assert!(document(&profile, SortBy::Own, 10).is_object());
    assert_memory(MAX_MEMORY_KIB);
}

/// A recording with a sample of each of this many processes, with this interrupt priority level, after this many ticks that the host stole.
/// Its stack has `depth` functions with long names.
fn stalled(processes: i32, depth: usize, ipl: u8, stolen: u64) -> (TempDir, PathBuf) {
    let frames: Vec<u64> = (0..depth as u64).map(|frame| 0x1000 + 16 * frame).collect();
    let mut encoder = SamplesEncoder::default();
    let mut blocks = vec![long_name()];
    let pids: Vec<i32> = (1..=processes).collect();
    for some in pids.chunks(10_000) {
        for pid in some {
            let sample = Sample {
                time: u64::try_from(*pid).unwrap() * 1_000_000,
                pid: *pid,
                tid: *pid,
                comm: comm_of(&pid.to_string()),
                mode: Mode::Kernel,
                pc: frames[0],
                ipl,
                stack: stack_of(depth, 0, StackEnd::Absent),
                ..Sample::default()
            };
            let ticks = Ticks {
                stolen,
                ..sample.into()
            };
            encoder.push(&ticks, &frames);
        }
        blocks.push((Kind::Samples, encoder.take().bytes));
    }
    recording(&blocks, 32 << 10)
}

fn stalls_of(path: &Path, top: usize, budget: &OutputBudget) -> Result<Stalls, TooMuch> {
    let (recording, resolver) = opened(path);
    let mut watcher = StallWatcher::default();
    let selection = Selection::default();
    let profile =
        Profile::read_with(&recording, selection, resolver, &Unobserved, &mut watcher).unwrap();
    Stalls::new(&profile, watcher, top, budget)
}

/// Each process is a stretch, or the last activity of a vCPU.
#[test]
fn stalls_end_where_their_budget_does() {
    const ROOM: u64 = 1 << 20;
    for (ipl, stolen) in [(IPL_MASKED, 0), (0, 1)] {
        let (_folder, path) = stalled(300, 64, ipl, stolen);
        assert!(fs::metadata(&path).unwrap().len() < 64 << 10);
        for (top, is_refused) in [(1, false), (usize::MAX, true)] {
            let budget = OutputBudget::new(ROOM);
            let stalls = stalls_of(&path, top, &budget);
            let refused = stalls.as_ref().err().copied();
            assert_eq!(refused, is_refused.then_some(TooMuch(ROOM)), "{top}");
            if let Ok(stalls) = stalls {
                assert_eq!(stalls.interrupts_off.len() + stalls.stolen.len(), 1);
                let out = &mut Length::default();
                let budget = &budget;
                serde_json::to_writer(BudgetWriter { out, budget }, &stalls).unwrap();
            }
        }
    }
    assert_memory(MAX_MEMORY_KIB);
}

/// A row for each, with its own name, would be 1.6 GB.
#[test]
fn processes_with_stolen_ticks_share_function_names() {
    let (_folder, path) = stalled(400_000, 1, 0, 1);
    let length = usize::try_from(fs::metadata(&path).unwrap().len()).unwrap();
    let stalls = stalls_of(&path, 20, &OutputBudget::of_recording(length)).unwrap();
    assert_eq!(stalls.stolen.len(), 20);
    assert_memory(MAX_MEMORY_KIB);
}

/// A look at a task for each of these stacks, which sleeps in the innermost frame.
fn look(stacks: &[[u64; 128]]) -> TaskLook {
    let mut look = TaskLook::default();
    for (number, stack) in stacks.iter().enumerate() {
        let tid = i32::try_from(number).unwrap();
        look.tasks.push(Task {
            pid: tid,
            tid,
            state: TaskState::Uninterruptible,
            run_delay: Some(1),
            stack: TaskStack::Known {
                first: u32::try_from(look.frames.len()).unwrap(),
                count: 128,
                scheduler: 0,
                end: StackEnd::Complete,
            },
            ..Task::default()
        });
        look.frames.extend(stack);
    }
    look
}

/// The output for the looks of the recording with these blocks.
fn sums_of(blocks: &[(Kind, Vec<u8>)]) -> (TaskSums, Resolver, usize) {
    let (_folder, path) = recording(blocks, 32 << 10);
    let length = usize::try_from(fs::metadata(&path).unwrap().len()).unwrap();
    assert!(length < 256 << 10, "{length} bytes");
    let recording = Recording::open(&path).unwrap();
    let contents = recording.contents().unwrap();
    let sums = TaskSums::read(&recording, &contents, &Selection::default(), &Unobserved);
    (sums.unwrap(), Resolver::from_contents(&contents), length)
}

/// A few tasks whose stacks have the same functions in different orders, with long names.
#[test]
fn reports_of_tasks_end_where_their_budget_does() {
    const ROOM: u64 = 1 << 20;
    const FUNCTIONS: u64 = 200;
    let name = "x".repeat(4000);
    let lines =
        (0..FUNCTIONS).map(|function| format!("{:x} T {name}{function}\n", (1 + function) << 12));
    let symbols: String = lines.chain(["fff000 T end\n".to_owned()]).collect();
    let stacks: Vec<[u64; 128]> = (0..FUNCTIONS)
        .map(|first| std::array::from_fn(|frame| (1 + (first + frame as u64) % FUNCTIONS) << 12))
        .collect();
    let mut encoder = TasksEncoder::default();
    encoder.push(&look(&stacks), |_| true);
    let blocks = [
        (Kind::Symbols, symbols.into_bytes()),
        (Kind::Tasks, encoder.take()),
    ];
    let (sums, resolver, _) = sums_of(&blocks);
    assert_eq!(sums.waits.len() as u64, FUNCTIONS);
    let budget = || OutputBudget::new(ROOM);
    let refused = tasks::folded(&sums, &resolver, &budget());
    assert_eq!(refused, Err(TooMuch(ROOM)));
    for (top, is_refused) in [(1, false), (usize::MAX, true)] {
        let document = tasks::document(&sums, &resolver, top, &budget());
        assert_eq!(document.is_err(), is_refused, "{top}");
        let (mut out, budget) = (Length::default(), &budget());
        let mut within = BudgetWriter {
            out: &mut out,
            budget,
        };
        let printed = tasks::print(&sums, &resolver, top, &mut within);
        let error = printed.err().and_then(|error| too_much(&error));
        assert_eq!(error, is_refused.then_some(TooMuch(ROOM)), "{top}");
        assert!(out.0 <= ROOM);
    }
    assert_memory(MAX_MEMORY_KIB);
}

/// As many stacks as fit into a small file, with distinct addresses.
#[test]
fn stacks_of_tasks_that_fill_the_memory() {
    let stacks: Vec<[u64; 128]> = (1..=10_000_u64)
        .map(|stack| std::array::from_fn(|frame| (stack << 12) + 8 * frame as u64))
        .collect();
    let mut encoder = TasksEncoder::default();
    for part in stacks.chunks(2000) {
        encoder.push(&look(part), |_| true);
    }
    let (sums, resolver, length) = sums_of(&[(Kind::Tasks, encoder.take())]);
    assert_eq!(sums.waits.len(), 10_000);
    let frames: usize = sums.waits.keys().map(|key| key.stack.frames.len()).sum();
    assert!(frames <= (4 * length).max(1 << 20) + 10_000, "{frames}");
    let rows = wait_rows(&sums, &resolver);
    assert_eq!(rows.iter().map(|row| row.seen).sum::<u64>(), 10_000);
    let budget = OutputBudget::of_recording(length);
    assert!(tasks::document(&sums, &resolver, 20, &budget).is_ok());
    tasks::print(&sums, &resolver, 20, &mut std::io::sink()).unwrap();
    let lines = tasks::folded(&sums, &resolver, &OutputBudget::new(1 << 30));
    assert_eq!(lines.unwrap().len(), 10_000);
    assert_memory(MAX_MEMORY_KIB);
}
