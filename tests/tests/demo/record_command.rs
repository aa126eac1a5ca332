//! `kvmprof record`: selected processes, progress on a terminal, and ways to end it.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{MAX_HZ, PCS_SETHZ};
use kvmprof_abi::recorder::{
    MAX_INTERVAL, MAX_LOOK_TICKS, MAX_PIDS, REC_HZ, REC_INTERVAL, REC_PIDS, REC_START, REC_STOP,
    REC_TASKS,
};
use kvmprof_abi::wire::device;
use kvmprof_client::RemoteDevice;
use kvmprof_recording::Sample;
use kvmprof_recording::file::{Account, Contents, Kind, Piece, Reader, Recording};
use kvmprof_tests::{
    Boot, Guest, TERMINAL_TYPE, Terminal, kvmprof, on_kvm, recorded, run, share, until,
};
use rustix::process::{Pid, Signal, kill_process};

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
fn record(guest: &Guest, path: &Path, stderr: Stdio) -> Child {
    Command::new(kvmprof())
        .args(["record", "--socket"])
        .env("TERM", TERMINAL_TYPE)
        .arg(guest.socket())
        .arg("--output")
        .arg(path)
        .stdin(Stdio::null())
        .stderr(stderr)
        .spawn()
        .unwrap()
}

/// Waits until the only recorder has this many samples.
fn until_recorded(guest: &Guest, samples: u64) {
    until("something is recorded", || {
        let status = guest.status();
        let recorder = status.recorders().next()?;
        (recorder.ledger.recorded >= samples).then_some(())
    });
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
            let ran = guest.record(1000, &words);
            assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
            let samples = samples(&path);
            // A description of what was written.
            let start = format!("{}: ", path.display());
            assert!(ran.stdout.starts_with(&start), "{ran:?}");
            assert!(ran.stdout.ends_with(" % lost\n"), "{ran:?}");
            samples
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

#[test]
fn processes_are_chosen_before_the_start() {
    on_kvm(|| {
        let guest = guest();
        let connection = guest.connect();
        let recorder = connection.open(device::RECORDER, 0).unwrap();
        let choose = |data: &[u8]| {
            let result = recorder.ioctl_with(REC_PIDS, 0, data, 0);
            result.map_err(|error| error.errno().unwrap())
        };
        assert_eq!(choose(&[1, 2, 3]).unwrap_err(), Errno::EINVAL);
        assert_eq!(choose(&[0; 4 * (MAX_PIDS + 1)]).unwrap_err(), Errno::EINVAL);
        choose(&[0; 4 * MAX_PIDS]).unwrap();
        choose(&102_i32.to_le_bytes()).unwrap();
        recorder.ioctl(REC_START, 0).unwrap();
        assert_eq!(choose(&[]).unwrap_err(), Errno::EBUSY);
        until("ticks of others are counted", || {
            let status = guest.status();
            let recorder = status.recorders().next()?;
            assert_eq!(recorder.pids, [102]);
            let ledger = recorder.ledger;
            assert!(ledger.balances(), "{ledger:?}");
            (ledger.ungathered > 0 && ledger.pending > 0).then_some(())
        });
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
        let mut child = record(&guest, &path, terminal.stdio());
        terminal.until_shown("0 samples", &mut child);
        until_recorded(&guest, 100);
        terminal.until_shown("kB", &mut child);
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
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
            let child = record(&guest, &path, Stdio::piped());
            until_recorded(&guest, 100);
            kill_process(Pid::from_child(&child), signal).unwrap();
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success());
            assert_eq!(String::from_utf8_lossy(&output.stderr), "");
            let (samples, _) = samples(&path);
            assert!(samples.len() >= 100);
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
        let mut command = Command::new(kvmprof());
        command.args(["record", "--seconds", "0.5", "--output", "-", "--socket"]);
        let output = command.arg(guest.socket()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.starts_with("kvmprof: ") && said.ends_with(" % lost\n"),
            "{said}"
        );
        let path = guest.folder().join("piped");
        fs::write(&path, &output.stdout).unwrap();
        samples(&path);

        // A reader that closes the pipe ends it.
        let mut child = command_without_end(&guest, "-")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        assert!(child.wait().unwrap().success());
        guest.stop();
    });
}

fn command_without_end(guest: &Guest, output: &str) -> Command {
    let mut command = Command::new(kvmprof());
    command.args(["record", "--output", output, "--socket"]);
    command.arg(guest.socket()).stdin(Stdio::null());
    command
}

/// The first Ctrl-C ends a recording, and a later one the program, even while the guest's kvmprof doesn't answer.
#[test]
fn a_second_interrupt_ends_the_program() {
    on_kvm(|| {
        let guest = guest();
        let path = guest.folder().join("ended");
        let mut child = record(&guest, &path, Stdio::piped());
        until_recorded(&guest, 100);
        guest.interrupt_unanswered(&mut child);
        // The data until then is a truncated recording.
        let contents = Recording::open(&path).unwrap().read(|_, _| {}).unwrap();
        assert!(contents.account.samples > 0 && contents.closed.is_none());
        guest.stop();
    });
}

/// The demo's guest isn't Linux: looks at its tasks are refused for each way of requesting them.
#[test]
fn tasks_are_those_of_linux_guests() {
    on_kvm(|| {
        let guest = guest();
        let connection = guest.connect();
        let recorder = connection.open(device::RECORDER, 0).unwrap();
        let choose = |ticks: i64| {
            let result = recorder.ioctl(REC_TASKS, ticks);
            result.map(|_| ()).map_err(|error| error.errno().unwrap())
        };
        assert_eq!(choose(10), Err(Errno::ENODEV));
        for wrong in [-1, i64::from(MAX_LOOK_TICKS) + 1, i64::MAX] {
            assert_eq!(choose(wrong), Err(Errno::EINVAL));
        }
        assert_eq!(choose(0), Ok(()));
        recorder.ioctl(REC_START, 0).unwrap();
        assert_eq!(choose(0), Err(Errno::EBUSY));
        let path = guest.folder().join("tasks");
        let path = path.to_str().unwrap();
        let socket = guest.socket();
        let socket = socket.to_str().unwrap();
        let words = ["record", "--socket", socket, "--output", path, "--tasks"];
        let ran = run(words);
        ran.assert_refused(1, &["--tasks is for Linux guests"]);
        let kernel = guest.folder().join("demo.elf");
        fs::write(&kernel, kvmprof_demo_guest::ELF).unwrap();
        let kernel = kernel.to_str().unwrap();
        let words = [
            "run",
            "--kernel",
            kernel,
            "--console",
            "none",
            "--record",
            path,
        ];
        let ran = run([&words[..], &["--tasks=5"]].concat());
        ran.assert_refused(1, &["--tasks is for Linux guests"]);
        guest.stop();
    });
}

/// A recording has the requested rate, unless the guest is sampled at another one; then it is refused, as are others during it.
#[test]
fn a_recording_has_a_rate_of_its_own() {
    on_kvm(|| {
        let guest = guest();
        let path = guest.folder().join("rate");
        let path = path.to_str().unwrap();
        let words = ["-F", "250", "--output", path];
        let ran = guest.record(50, &words);
        assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
        assert_eq!(samples(Path::new(path)).1.info.hz, 250);

        let connection = guest.connect();
        let recorder = connection.open(device::RECORDER, 0).unwrap();
        let choose = |recorder: &RemoteDevice, hz: i64| {
            let result = recorder.ioctl(REC_HZ, hz);
            result.map(|_| ()).map_err(|error| error.errno().unwrap())
        };
        for wrong in [-1, i64::from(MAX_HZ) + 1, i64::MAX] {
            assert_eq!(choose(&recorder, wrong), Err(Errno::EINVAL));
        }
        assert_eq!(choose(&recorder, 0), Ok(()));
        assert_eq!(choose(&recorder, 500), Ok(()));
        recorder.ioctl(REC_START, 0).unwrap();
        assert_eq!(choose(&recorder, 500), Err(Errno::EBUSY));
        let ran = guest.command("record", &words);
        ran.assert_refused(1, &["sampled at another rate"]);
        let ran = guest.command("top", &["-F", "250", "--count", "1"]);
        ran.assert_refused(1, &["sampled at another rate"]);
        let pcs = connection.open(device::PCS, 0).unwrap();
        let error = pcs.ioctl(PCS_SETHZ, 100).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::EBUSY));
        pcs.close().unwrap();

        // Requests for the running rate, or for none, share it.
        let other = connection.open(device::RECORDER, 0).unwrap();
        assert_eq!(choose(&other, 500), Ok(()));
        other.ioctl(REC_START, 0).unwrap();
        let ran = guest.command("record", &["--seconds", "0.5", "--output", path]);
        assert_eq!((ran.status, ran.stderr.as_str()), (0, ""));
        assert_eq!(samples(Path::new(path)).1.info.hz, 500);
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
        let choose = |recorder: &RemoteDevice, interval: i64| {
            let result = recorder.ioctl(REC_INTERVAL, interval);
            result.map(|_| ()).map_err(|error| error.errno().unwrap())
        };
        let (often, rarely) = (open(), open());
        for wrong in [-1, i64::from(MAX_INTERVAL) + 1, i64::MAX] {
            assert_eq!(choose(&rarely, wrong), Err(Errno::EINVAL));
        }
        assert_eq!(choose(&often, 0), Ok(()));
        assert_eq!(choose(&rarely, MAX_INTERVAL.into()), Ok(()));
        for recorder in [&often, &rarely] {
            recorder.ioctl(REC_START, 0).unwrap();
        }
        assert_eq!(choose(&rarely, 1), Err(Errno::EBUSY));
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
