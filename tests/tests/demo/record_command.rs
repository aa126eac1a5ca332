//! `kvmprof record`: selected processes, progress on a terminal, and ways to end it.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{MAX_HZ, PCS_SETHZ};
use kvmprof_abi::recorder::{
    EVENT_CACHE_MISSES, EVENT_CYCLES, EVENT_EXITS, EVENT_GUEST_TIME, MAX_INTERVAL, MAX_LOOK_TICKS,
    MAX_PERIOD, MAX_PIDS, MIN_CYCLES, MIN_GUEST_TIME, REC_EVENT, REC_HZ, REC_INTERVAL, REC_PIDS,
    REC_START, REC_STOP, REC_TASKS, STACK_KERNEL,
};
use kvmprof_abi::wire::device;
use kvmprof_client::RemoteDevice;
use kvmprof_recording::Sample;
use kvmprof_recording::file::{Account, Contents, Kind, Piece, Reader, Recording};
use kvmprof_tests::{
    Boot, Guest, Ran, TERMINAL_TYPE, Terminal, errno_of, kvmprof, on_kvm, recorded, run, share,
    until, write_kernel,
};
use rustix::process::Signal;

fn guest() -> Guest {
    Guest::start(Boot::Demo, ["--hz", "1000", "--cpus", "2", "--jitter"])
}

/// The samples of a recording that was closed.
fn samples(path: &Path) -> (Vec<Sample>, Contents) {
    let (samples, contents) = recorded(path);
    assert_eq!(contents.closed, Some(contents.account));
    (samples, contents)
}

/// Starts `kvmprof record` without an end.
fn record(guest: &Guest, path: &Path) -> Child {
    guest.spawn_command(&["record", "--output", path.to_str().unwrap()])
}

/// There are only samples of the requested processes; every other tick is still accounted for.
#[test]
fn a_recording_of_some_processes_counts_the_others() {
    on_kvm(|| {
        let guest = guest();
        let path = guest.folder().join("some");
        let record = |pids: &[&str]| {
            let mut words = vec!["--output", path.to_str().unwrap()];
            words.extend(pids.iter().flat_map(|pid| ["--pid", pid]));
            let said = guest.record(1000, &words).quiet();
            // A description of what was written.
            assert!(said.starts_with(&format!("{}: ", path.display())), "{said}");
            assert!(said.ends_with(" % lost\n"), "{said}");
            samples(&path)
        };
        let (all, of_all) = record(&[]);
        assert_eq!(of_all.account.ungathered, 0);
        let (some, of_some) = record(&["101", "103"]);
        assert_eq!(of_some.info.pids, [101, 103]);
        assert!(some.iter().all(|sample| [101, 103].contains(&sample.pid)));
        for pid in [101, 103] {
            assert!(some.iter().any(|sample| sample.pid == pid), "{pid}");
        }
        let account = of_some.account;
        assert_eq!(account.idle, 0);
        // The others run as before: the guest repeats the same, however much of it is recorded.
        let others = all.iter().filter(|one| ![101, 103].contains(&one.pid));
        let before = share(
            others.count() as u64 + of_all.account.idle,
            of_all.account.samples + of_all.account.idle,
        );
        let now = share(account.ungathered, account.samples + account.ungathered);
        assert!(
            now * 2.0 > before && now < before * 2.0,
            "{account:?}, {before}"
        );

        // Pid 0 is idle time.
        let (idle, of_idle) = record(&["0"]);
        assert!(idle.iter().all(|sample| sample.pid == 0));
        assert!(of_idle.account.idle > 0 && of_idle.account.ungathered > 0);
        guest.stop();
    });
}

/// The number of a kind of events, as `REC_EVENT` has it.
fn kind(number: u32) -> Vec<u8> {
    number.to_le_bytes().to_vec()
}

/// Refused choices change nothing, the last accepted one counts, and none is made after the start.
#[test]
fn choices_are_made_before_the_start() {
    on_kvm(|| {
        let guest = guest();
        let connection = guest.connect();
        let recorder = || connection.open(device::RECORDER, 0).unwrap();
        let choose = |recorder: &RemoteDevice, command, argument, data: &[u8]| {
            let chosen = recorder.ioctl_with(command, argument, data, 0);
            chosen.map(drop).map_err(|error| error.errno().unwrap())
        };
        let least = |period: u64| i64::try_from(period).unwrap() - 1;
        let one = recorder();
        for (command, argument, data, errno) in [
            (REC_PIDS, 0, vec![1, 2, 3], Errno::EINVAL),
            (REC_PIDS, 0, vec![0; 4 * (MAX_PIDS + 1)], Errno::EINVAL),
            (REC_EVENT, 1, vec![1], Errno::EINVAL),
            (REC_EVENT, 1, vec![1, 0, 0], Errno::EINVAL),
            (REC_EVENT, 1, vec![1, 0, 0, 0, 0], Errno::EINVAL),
            (REC_EVENT, 1, kind(0), Errno::ENODEV),
            (REC_EVENT, 1, kind(EVENT_CACHE_MISSES + 1), Errno::ENODEV),
            (REC_EVENT, 1, kind(u32::MAX), Errno::ENODEV),
            (
                REC_EVENT,
                least(MIN_GUEST_TIME),
                kind(EVENT_GUEST_TIME),
                Errno::EINVAL,
            ),
            (
                REC_EVENT,
                least(MIN_CYCLES),
                kind(EVENT_CYCLES),
                Errno::EINVAL,
            ),
            // The demo's guest isn't Linux.
            (REC_TASKS, 10, Vec::new(), Errno::ENODEV),
        ] {
            let refused = choose(&one, command, argument, &data);
            assert_eq!(refused, Err(errno), "{command:#x} {argument} {data:?}");
        }
        drop(one);
        for (command, most, data, right) in [
            (REC_HZ, MAX_HZ.into(), Vec::new(), 500),
            (REC_INTERVAL, MAX_INTERVAL.into(), Vec::new(), 1),
            (REC_TASKS, MAX_LOOK_TICKS.into(), Vec::new(), 0),
            (
                REC_EVENT,
                i64::try_from(MAX_PERIOD).unwrap(),
                kind(EVENT_EXITS),
                10,
            ),
            (REC_PIDS, 0, 102_i32.to_le_bytes().to_vec(), 0),
        ] {
            let recorder = recorder();
            let is_pids = command == REC_PIDS;
            for wrong in [-1, most + 1, i64::MAX, i64::MIN] {
                let refused = choose(&recorder, command, wrong, &data);
                assert!(
                    is_pids || refused == Err(Errno::EINVAL),
                    "{command:#x} {wrong}"
                );
            }
            choose(&recorder, command, right, &data).unwrap();
            recorder.ioctl(REC_START, STACK_KERNEL).unwrap();
            let late = choose(&recorder, command, right, &data);
            assert_eq!(late, Err(Errno::EBUSY), "{command:#x}");
            if command == REC_EVENT {
                let event = guest.status().clock.event;
                assert_eq!(event.as_deref(), Some("exits:10"));
            }
            until("ticks of others are counted", || {
                let status = guest.status();
                let recorder = status.recorders().next()?;
                assert_eq!(recorder.pids, [102][..usize::from(is_pids)]);
                assert!(recorder.ledger.balances(), "{recorder:?}");
                (!is_pids || recorder.ledger.ungathered > 0).then_some(())
            });
            recorder.close().unwrap();
        }
        guest.stop();
        // An event can be taken back, but then there has to be a clock.
        let guest = Guest::start(Boot::Demo, ["--hz", "0"]);
        let connection = guest.connect();
        let recorder = connection.open(device::RECORDER, 0).unwrap();
        choose(&recorder, REC_EVENT, 1, &kind(EVENT_EXITS)).unwrap();
        choose(&recorder, REC_EVENT, 0, &[]).unwrap();
        assert_eq!(errno_of(recorder.ioctl(REC_START, 0)), Errno::EINVAL);
        guest.stop();
    });
}

/// A terminal shows the progress; Ctrl-C ends it, and leaves a complete file.
#[test]
fn a_terminal_shows_progress_and_ends_it() {
    on_kvm(|| {
        let guest = guest();
        let path = guest.folder().join("shown");
        let mut terminal = Terminal::open(100, 24);
        let mut child = Command::new(kvmprof())
            .args(["record", "--output", path.to_str().unwrap()])
            .env("KVMPROF_SOCKET", guest.socket())
            .env("TERM", TERMINAL_TYPE)
            .stdin(Stdio::null())
            .stderr(terminal.stdio())
            .spawn()
            .unwrap();
        terminal.until_shown("0 samples", &mut child);
        guest.until_recorded(100);
        terminal.until_shown("kB", &mut child);
        kvmprof_tests::signal(&child, Signal::INT);
        assert!(child.wait().unwrap().success());
        assert!(terminal.shown().contains("% lost"), "{}", terminal.shown());
        let (samples, _) = samples(&path);
        assert!(samples.len() >= 100);
        guest.stop();
    });
}

/// The same without a terminal, where nothing is shown.
#[test]
fn signals_end_a_recording_and_close_its_file() {
    on_kvm(|| {
        let guest = guest();
        for signal in [Signal::INT, Signal::TERM] {
            let path = guest.folder().join("ended");
            let child = record(&guest, &path);
            guest.until_recorded(100);
            kvmprof_tests::signal(&child, signal);
            Ran::from(child.wait_with_output().unwrap()).quiet();
            assert!(!samples(&path).0.is_empty());
            until("the recorder has gone", || {
                (!guest.status().clock.running).then_some(())
            });
        }
        guest.stop();
    });
}

/// Standard output gets the recording, and messages go elsewhere.
#[test]
fn a_recording_is_written_to_a_pipe() {
    on_kvm(|| {
        let guest = guest();
        let child = guest.spawn_command(&["record", "--seconds", "0.5", "--output", "-"]);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.starts_with("kvmprof: "), "{said}");
        assert!(said.ends_with(" % lost\n"), "{said}");
        let path = guest.folder().join("piped");
        fs::write(&path, &output.stdout).unwrap();
        samples(&path);

        // A reader that closes the pipe ends it.
        let mut child = record(&guest, Path::new("-"));
        drop(child.stdout.take());
        assert!(child.wait().unwrap().success());
        guest.stop();
    });
}

/// Ends `client` with more than one Ctrl-C, while the guest's kvmprof doesn't answer it.
fn interrupt_unanswered(guest: &Guest, mut client: Child) {
    guest.signal(Signal::STOP);
    // Two within a short time count as one.
    let ended = until("a signal ends the client", || {
        kvmprof_tests::signal(&client, Signal::INT);
        client.try_wait().unwrap()
    });
    assert_eq!(ended.signal(), Some(Signal::INT.as_raw()));
    guest.signal(Signal::CONT);
    until("the clock stops", || {
        (!guest.status().clock.running).then_some(())
    });
}

/// The first Ctrl-C requests an end in order, which waits for an answer; the second one ends the program.
#[test]
fn a_second_interrupt_ends_a_client_that_gets_no_answer() {
    on_kvm(|| {
        let guest = guest();
        let path = guest.folder().join("ended");
        let recorder = record(&guest, &path);
        guest.until_recorded(100);
        interrupt_unanswered(&guest, recorder);
        // The data until then is a truncated recording.
        let contents = Recording::open(&path).unwrap().read(|_, _| {}).unwrap();
        assert!(contents.account.samples > 0 && contents.closed.is_none());

        let getpc = guest.spawn_command(&["getpc", "--all", "--output", "/dev/null"]);
        until("the clock runs", || {
            guest.status().clock.running.then_some(())
        });
        interrupt_unanswered(&guest, getpc);
        guest.stop();
    });
}

/// The demo's guest isn't Linux.
#[test]
fn tasks_are_those_of_linux_guests() {
    on_kvm(|| {
        let guest = guest();
        let path = guest.folder().join("tasks").display().to_string();
        let ran = guest.command("record", &["--output", &path, "--tasks"]);
        ran.assert_refused(1, &["--tasks is for Linux guests"]);
        let kernel = write_kernel(Boot::Demo, guest.folder());
        let words = ["run", "--console", "none", "--record", &path, "--tasks=5"];
        let words = words
            .into_iter()
            .chain(["--kernel", kernel.to_str().unwrap()]);
        run(words).assert_refused(1, &["--tasks is for Linux guests"]);
        guest.stop();
    });
}

/// A recording has the requested rate, unless the guest is sampled at another one; then it is refused, as are others during it.
#[test]
fn a_recording_has_a_rate_of_its_own() {
    on_kvm(|| {
        let guest = guest();
        let path = guest.folder().join("rate");
        let words = ["-F", "250", "--output", path.to_str().unwrap()];
        guest.record(50, &words).quiet();
        assert_eq!(samples(&path).1.info.hz, 250);

        let connection = guest.connect();
        let started = || {
            let recorder = connection.open(device::RECORDER, 0).unwrap();
            recorder.ioctl(REC_HZ, 500).unwrap();
            recorder.ioctl(REC_START, 0).unwrap();
            recorder
        };
        let recorder = started();
        for (command, words) in [
            ("record", &words[..]),
            ("top", &["-F", "250", "--count", "1"]),
        ] {
            let ran = guest.command(command, words);
            ran.assert_refused(1, &["sampled at another rate"]);
        }
        let pcs = connection.open(device::PCS, 0).unwrap();
        assert_eq!(errno_of(pcs.ioctl(PCS_SETHZ, 100)), Errno::EBUSY);
        pcs.close().unwrap();
        // Requests for the running rate, or for none, share it.
        let other = started();
        let ran = guest.command("record", &["--seconds", "0.5", words[2], words[3]]);
        ran.quiet();
        assert_eq!(samples(&path).1.info.hz, 500);
        drop((recorder, other));
        guest.stop();
    });
}

/// A client gets the ticks of a minute together on request. The blocks of another client show how late.
#[test]
fn blocks_arrive_at_the_requested_interval() {
    on_kvm(|| {
        let guest = guest();
        let connection = guest.connect();
        let open = || connection.open(device::RECORDER, 0).unwrap();
        let (often, rarely) = (open(), open());
        for (recorder, interval) in [(&often, 0), (&rarely, MAX_INTERVAL.into())] {
            recorder.ioctl(REC_INTERVAL, interval).unwrap();
            recorder.ioctl(REC_START, 0).unwrap();
        }
        let mut reader = Reader::default();
        let mut blocks = 0;
        let mut count = |bytes: &[u8]| {
            reader.push(bytes);
            while let Some(block) = reader.next_block().unwrap() {
                blocks += usize::from(block.kind == Some(Kind::Samples));
            }
            blocks
        };
        while count(&often.read(1 << 16).unwrap()) < 5 {}
        let (mut reader, mut blocks, mut account) = (Reader::default(), 0, Account::default());
        rarely.ioctl(REC_STOP, 0).unwrap();
        loop {
            let bytes = rarely.read(1 << 16).unwrap();
            if bytes.is_empty() {
                break;
            }
            reader.push(&bytes);
            while let Some(block) = reader.next_block().unwrap() {
                match block.piece().unwrap() {
                    Some(Piece::Samples(samples)) => {
                        blocks += 1;
                        let read = samples.read(|ticks, _| account.enter(ticks));
                        read.unwrap();
                    }
                    Some(Piece::End(end)) => assert_eq!(end, account),
                    _ => {}
                }
            }
        }
        // A minute may have begun meanwhile.
        assert!((1..=2).contains(&blocks), "{blocks}");
        assert!(account.samples > 0 && account.balances());
        drop((often, rarely));
        guest.stop();
    });
}
