use std::cmp::Reverse;
use std::collections::HashSet;

use kvmprof_recording::file::{KERNEL_CLOCK, ResetInfo, SamplesEncoder, header};
use kvmprof_recording::{IPL_MASKED, Sample, StackEnd, StackSummary, comm_of};

use super::*;
use crate::batch::{Batch, IDLE, OTHER};
use crate::hash::{Hashed, Key};
use crate::names::Names;

pub(crate) const SECOND: u64 = 1_000_000_000;

/// The time `second` of both clocks. Windows have ten seconds, and those before `first` are closed.
pub(crate) fn at(second: u64, first: u64) -> WindowClock {
    WindowClock {
        real: (1_000_000 + second) * SECOND,
        monotonic: second * SECOND,
        length: 10,
        first: 1_000_000 + first,
    }
}

pub(crate) fn begin() -> Vec<u8> {
    let info = RecordingInfo {
        hz: 20,
        ..RecordingInfo::default()
    };
    let symbols = b"ffffffff81000000 T work\nffffffff81000100 T main\n";
    let blocks = [
        header().to_vec(),
        info.to_block().unwrap(),
        Block::encode(Kind::Symbols, symbols).unwrap(),
    ];
    blocks.concat()
}

/// A sample at `second` of the thread `comm` of process `pid`, and an idle tick before it.
pub(crate) fn ticks(second: u64, pid: i32, comm: &str) -> Ticks {
    let sample = Sample {
        time: second * SECOND,
        pc: 0xffff_ffff_8100_0010,
        pid,
        tid: pid,
        comm: comm_of(comm),
        mode: Mode::Kernel,
        stack: StackSummary {
            kernel: 2,
            kernel_end: StackEnd::Complete,
            ..StackSummary::default()
        },
        ..Sample::default()
    };
    Ticks {
        idle: 1,
        sample: Some(sample),
        ..Ticks::default()
    }
}

pub(crate) fn block(all: &[Ticks]) -> Vec<u8> {
    block_of(all, &[0xffff_ffff_8100_0010, 0xffff_ffff_8100_0110])
}

/// A block of ticks, all with these frames.
fn block_of(all: &[Ticks], frames: &[u64]) -> Vec<u8> {
    let mut encoder = SamplesEncoder::default();
    for ticks in all {
        encoder.push(ticks, frames);
    }
    Block::encode(Kind::Samples, &encoder.take().bytes).unwrap()
}

/// A block of one sample of process `pid` without a stack, at the address `pc`.
fn block_without_stack(second: u64, pid: i32, comm: &str, pc: u64) -> Vec<u8> {
    let mut ticks = ticks(second, pid, comm);
    if let Some(sample) = &mut ticks.sample {
        (sample.pc, sample.stack) = (pc, StackSummary::default());
    }
    block_of(&[ticks], &[])
}

/// What is gathered of a recording that has just begun.
fn begun() -> Gather {
    let mut gather = Gather::default();
    assert_eq!(gather.feed(&begin(), at(1, 0)), Ok(State::Live));
    gather
}

pub(crate) fn policy(processes: usize, threads: usize, drop: &[&str]) -> Policy {
    let patterns = drop.iter().map(|pattern| Pattern::new(pattern).unwrap());
    Policy {
        processes,
        threads,
        drop: patterns.collect(),
        hash: None,
        labels: LABELS_OF_GROUPS.map(str::to_owned).to_vec(),
    }
}

pub(crate) fn close(gather: &mut Gather, start: u64, policy: &Policy) -> Batch {
    close_with(gather, start, policy, &mut Names::default())
}

/// The same with the names of earlier windows.
fn close_with(gather: &mut Gather, start: u64, policy: &Policy, names: &mut Names) -> Batch {
    let mut names = BatchNames::new(names);
    let window = gather.close(1_000_000 + start, "guest", policy, &mut names);
    let mut batch = Batch {
        windows: window.into_iter().collect(),
        ..Batch::default()
    };
    names.tables.into_batch(&mut batch);
    for window in &batch.windows {
        assert!(window.account.balances(), "{window:?}");
        assert_eq!(window.ticks(), window.account.samples + window.account.idle);
    }
    batch
}

/// Functions of the kernel have its build id from when it is known.
#[test]
fn functions_have_their_modules_build_id() {
    let mut gather = begun();
    let mut names = Names::default();
    let kernel = KernelInfo {
        build_id: "0f1e".to_owned(),
        ..KernelInfo::default()
    };
    let kernels = [Vec::new(), kernel.to_block().unwrap()];
    for ((second, kernel), known) in [3, 13].into_iter().zip(kernels).zip(["", "0f1e"]) {
        gather.feed(&kernel, at(second, 0)).unwrap();
        let samples = block(&[ticks(second, 7, "one")]);
        gather.feed(&samples, at(second, 0)).unwrap();
        let batch = close_with(&mut gather, second - 3, &policy(9, 9, &[]), &mut names);
        let functions = batch.frames.iter().map(|frame| batch.function(frame));
        let functions: Vec<_> = functions.map(|one| (one.name, one.build_id)).collect();
        assert_eq!(functions, [("work", known), ("main", known)]);
    }
}

/// Process, thread, and ticks of the rows.
fn rows(batch: &Batch) -> Vec<(&str, &str, u64)> {
    let rows = batch.windows.iter().flat_map(|window| &window.rows);
    rows.map(|row| (batch.name(row.process), batch.name(row.thread), row.ticks))
        .collect()
}

#[test]
fn a_sample_counts_for_the_window_of_its_time() {
    let mut gather = begun();
    let all = [ticks(3, 7, "one"), ticks(8, 7, "one"), ticks(11, 7, "one")];
    // In pieces of any length.
    for piece in block(&all).chunks(5) {
        gather.feed(piece, at(12, 0)).unwrap();
    }
    let starts: Vec<u64> = gather.open().collect();
    assert_eq!(starts, [1_000_000, 1_000_010]);
    let all = policy(9, 9, &[]);
    let batch = close(&mut gather, 0, &all);
    let (window, names) = (&batch.windows[0], rows(&batch));
    assert_eq!(names, [("one", "one", 2), (IDLE, IDLE, 2)]);
    assert_eq!((window.guest.as_str(), window.hz), ("guest", 20));
    let frames = batch.frames(&window.rows[0]);
    let frames: Vec<&str> = frames
        .map(|(_, frame)| batch.name(frame.function))
        .collect();
    assert_eq!(frames, ["work", "main"]);
    // Late samples count for the first open window, and samples with a time in the future for the present one.
    let late = [ticks(4, 7, "late"), ticks(500, 7, "late")];
    gather.feed(&block(&late), at(13, 10)).unwrap();
    let batch = close(&mut gather, 10, &all);
    assert_eq!(
        rows(&batch),
        [(IDLE, IDLE, 3), ("late", "late", 2), ("late", "one", 1)]
    );
    assert_eq!(gather.open().count(), 0);
}

/// Ticks of an idle vCPU count for the windows in which it was idle, although their block comes later.
#[test]
fn ticks_without_a_sample_count_for_their_window() {
    let idle = |vcpu, idle| Ticks {
        vcpu,
        idle,
        ..Ticks::default()
    };
    let mut sampled = ticks(11, 7, "one");
    (sampled.vcpu, sampled.idle) = (1, 100);
    sampled.sample.as_mut().unwrap().vcpu = 1;
    let mut gather = begun();
    // At 20 Hz: ten seconds of vCPU 0 until now, and on vCPU 1 five before its sample.
    let all = [idle(0, 120), idle(1, 0), sampled, idle(0, 80)];
    gather.feed(&block(&all), at(11, 0)).unwrap();
    let ticks = |gather: &mut Gather, start| close(gather, start, &policy(9, 9, &[]));
    let first = ticks(&mut gather, 0);
    assert_eq!(rows(&first), [(IDLE, IDLE, 260)]);
    let second = ticks(&mut gather, 10);
    assert_eq!(rows(&second), [(IDLE, IDLE, 40), ("one", "one", 1)]);
    // Ticks of a closed window count for the next one.
    gather.feed(&block(&[idle(0, 200)]), at(21, 20)).unwrap();
    assert_eq!(gather.open().collect::<Vec<_>>(), [1_000_020]);
}

#[test]
fn names_are_bounded_or_dropped() {
    let mut gather = begun();
    let mut all = Vec::new();
    for (pid, name, count) in [
        (1, "often", 5),
        (2, "seldom", 1),
        (3, "secret-key", 4),
        (4, "rare", 1),
        (5, "", 2),
    ] {
        all.extend((0..count).map(|_| ticks(1, pid, name)));
    }
    gather.feed(&block(&all), at(5, 0)).unwrap();
    let batch = close(&mut gather, 0, &policy(2, 1, &["secret-*"]));
    let expected = [
        (IDLE, IDLE, 13),
        ("often", "often", 5),
        (OTHER, OTHER, 4),
        ("[unknown]", OTHER, 2),
        (OTHER, OTHER, 2),
    ];
    let mut found = rows(&batch);
    found.sort_by_key(|row| (Reverse(row.2), row.0));
    assert_eq!(found, expected);
    assert!(
        !batch.names.iter().any(|name| name.contains("secret")),
        "{batch:?}"
    );
}

#[test]
fn endless_names_and_stacks_take_bounded_memory() {
    let mut gather = begun();
    for number in 0..20_000_i32 {
        let pc = u64::from(number.unsigned_abs());
        let bytes = block_without_stack(1, number, &format!("n{number}"), pc);
        gather.feed(&bytes, at(5, 0)).unwrap();
    }
    let batch = close(&mut gather, 0, &policy(64, 256, &[]));
    assert!(batch.windows[0].rows.len() <= MAX_STACKS + 2);
    assert!(batch.names.len() < 3 * MAX_STACKS);
    let processes: HashSet<u32> = batch.windows[0]
        .rows
        .iter()
        .map(|row| row.process)
        .collect();
    assert!(processes.len() <= 66, "{}", processes.len());
    // There are too many symbols: from some point on, functions are shown by their addresses.
    let symbols = "ffffffff81000000 T work\n".repeat(1 << 20);
    let symbols = Block::encode(Kind::Symbols, symbols.as_bytes());
    let mut states = Vec::new();
    for _ in 0..4 {
        states.push(gather.feed(symbols.as_ref().unwrap(), at(5, 0)));
    }
    assert_eq!(states.first(), Some(&Ok(State::Live)));
    assert_eq!(states.last(), Some(&Ok(State::Stale)));
}

#[test]
fn a_name_that_is_not_ascii_has_question_marks() {
    let mut gather = begun();
    let mut ticks = ticks(1, 7, "abc");
    if let Some(sample) = &mut ticks.sample {
        sample.comm[1] = 0xff;
    }
    gather.feed(&block(&[ticks]), at(5, 0)).unwrap();
    let batch = close(&mut gather, 0, &policy(9, 9, &[]));
    let name = "a?c";
    assert_eq!(rows(&batch), [(name, name, 1), (IDLE, IDLE, 1)]);
}

#[test]
fn a_restart_makes_the_recording_stale_and_nonsense_ends_it() {
    let mut gather = begun();
    let reset = (ResetInfo { time: 1 }).to_block().unwrap();
    assert_eq!(gather.feed(&reset, at(5, 0)), Ok(State::Stale));
    assert!(gather.was_reset());
    assert!(Gather::default().feed(&[7; 100], at(5, 0)).is_err());
}

/// A rule for names that begin with `secret`.
fn hash(keeps_stacks: bool) -> Hashed {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    std::fs::write(&path, [0x0b; 20]).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    Hashed {
        processes: vec![Pattern::new("secret*").unwrap()],
        key: Key::read(&path).unwrap(),
        keeps_stacks,
    }
}

#[test]
fn hashed_names_stay_on_the_host() {
    for keeps_stacks in [false, true] {
        let hash = hash(keeps_stacks);
        let hashed = hash.of("secret-1");
        let policy = Policy {
            hash: Some(hash),
            ..policy(10, 10, &[])
        };
        let mut gather = begun();
        let secret = [ticks(1, 7, "secret-1"), ticks(2, 7, "secret-1")];
        gather.feed(&block(&secret), at(3, 0)).unwrap();
        let batch = close(&mut gather, 0, &policy);
        let row = batch.windows[0].rows[0];
        assert_eq!((batch.name(row.process), row.ticks), (hashed.as_str(), 2));
        assert_eq!(batch.name(row.thread), hashed);
        assert_eq!(
            (row.mode(), row.stack.is_some()),
            (Mode::Kernel, keeps_stacks)
        );
        assert_eq!(batch.frames(&row).count(), if keeps_stacks { 2 } else { 0 });
        // The name isn't in the table of names either.
        let text = serde_json::to_string(&batch).unwrap();
        assert!(!text.contains("secret"), "{text}");
        assert_eq!(text.contains("work"), keeps_stacks, "{text}");
        assert_eq!(batch.windows[0].ticks(), 4);
    }
}

/// A rule also covers threads by their own names: an earlier name of the process, and names that its threads give themselves.
#[test]
fn rules_cover_names_of_threads() {
    let of_thread = |pid, comm: &str| {
        let mut ticks = ticks(1, pid, comm);
        if let Some(sample) = &mut ticks.sample {
            // It isn't the process's main thread, whose name would be that of the process.
            sample.tid = pid + 1000;
        }
        ticks
    };
    let all = [ticks(1, 7, "open"), of_thread(7, "secret-thread")];
    for (drop, hash) in [(&["secret*"][..], None), (&[], Some(hash(false)))] {
        let hashed = hash.as_ref().map(|hash| hash.of("secret-thread"));
        let policy = Policy {
            hash,
            ..policy(10, 10, drop)
        };
        let mut gather = begun();
        gather.feed(&block(&all), at(3, 0)).unwrap();
        let batch = close(&mut gather, 0, &policy);
        let text = serde_json::to_string(&batch).unwrap();
        assert!(!text.contains("secret"), "{text}");
        let hidden = match &hashed {
            Some(hashed) => ("open", hashed.as_str(), 1),
            None => (OTHER, OTHER, 1),
        };
        let mut found = rows(&batch);
        found.sort_unstable();
        let mut expected = [hidden, (IDLE, IDLE, 2), ("open", "open", 1)];
        expected.sort_unstable();
        assert_eq!(found, expected);
        let names: Vec<&str> = (batch.windows[0].rows.iter())
            .filter(|row| row.stack.is_some())
            .map(|row| batch.name(row.thread))
            .collect();
        assert_eq!(names, ["open"], "{batch:?}");
    }
}

/// They are counted for each row and for samples beyond the limits, but not if the host's kernel took the samples.
#[test]
fn ticks_with_interrupts_off_are_counted() {
    let masked = |second, pid, comm: &str, mode| {
        let mut ticks = ticks(second, pid, comm);
        if let Some(sample) = &mut ticks.sample {
            (sample.ipl, sample.mode) = (IPL_MASKED, mode);
        }
        ticks
    };
    let all = [
        ticks(1, 7, "one"),
        masked(2, 7, "one", Mode::Kernel),
        masked(3, 7, "one", Mode::Kernel),
        masked(4, 8, "secret", Mode::Kernel),
        // Right after its HLT.
        masked(5, 0, "swapper", Mode::Idle),
    ];
    for clock in ["thread", "ptrace", KERNEL_CLOCK] {
        let info = RecordingInfo {
            hz: 20,
            jitter: true,
            clock: clock.to_owned(),
            ..RecordingInfo::default()
        };
        let mut gather = begun();
        gather.feed(&info.to_block().unwrap(), at(1, 0)).unwrap();
        gather.feed(&block(&all), at(6, 0)).unwrap();
        let batch = close(&mut gather, 0, &policy(9, 9, &["secret"]));
        let window = &batch.windows[0];
        assert_eq!(window.jitter, Some(true));
        let mut found: Vec<_> = (window.rows.iter())
            .map(|row| (batch.name(row.process), row.ticks, row.interrupts_off))
            .collect();
        found.sort_unstable();
        let off = |count| (clock != KERNEL_CLOCK).then_some(count);
        let expected = [
            (IDLE, 5, off(0)),
            ("one", 3, off(2)),
            (OTHER, 1, off(1)),
            ("swapper", 1, off(0)),
        ];
        assert_eq!(found, expected, "{clock}");
    }
}

#[test]
fn stacks_are_kept_across_windows_for_a_bounded_time() {
    let mut gather = begun();
    let mut names = Names::default();
    let all = policy(9, 9, &[]);
    let sample = |second: u64, pc: u64| block_without_stack(second, 7, "one", pc);
    let work = 0xffff_ffff_8100_0020;
    for window in 0..8 {
        // Each window has 200 stacks of its own, and one common stack. When it is closed, the next one is open.
        let second = 10 * window;
        let own = (0..200).map(|number| 1000 * (window + 1) + number);
        for pc in own.clone().chain([work]) {
            let at = at(second + 1, second);
            gather.feed(&sample(second + 1, pc), at).unwrap();
        }
        let next = second + 10;
        let pc = 1000 * (window + 2);
        gather.feed(&sample(next, pc), at(next, second)).unwrap();
        let batch = close_with(&mut gather, second, &all, &mut names);
        let rows = batch.windows[0].rows.iter().filter_map(|row| {
            let (_, frame) = batch.frames(row).next()?;
            Some((batch.name(frame.function), row.ticks))
        });
        let mut found: Vec<(&str, u64)> = rows.collect();
        found.sort_unstable();
        let is_first = second == 0;
        let own: Vec<String> = own.map(|pc| format!("{pc:#x}")).collect();
        let mut expected: Vec<(&str, u64)> = own
            .iter()
            .enumerate()
            .map(|(place, name)| (name.as_str(), if place == 0 && !is_first { 2 } else { 1 }))
            .chain([("work", 1)])
            .collect();
        expected.sort_unstable();
        assert_eq!(found, expected, "{second}");
        assert_eq!(gather.stacks.get(800), None);
    }
    // A name that arrives later is used for open windows.
    gather.feed(&sample(80, work), at(80, 80)).unwrap();
    let symbols = Block::encode(Kind::Symbols, b"ffffffff81000000 T renamed\n").unwrap();
    gather.feed(&symbols, at(81, 80)).unwrap();
    let batch = close(&mut gather, 80, &all);
    assert!(
        batch.names.iter().any(|name| name == "renamed"),
        "{batch:?}"
    );
}
