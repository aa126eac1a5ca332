//! Recordings of the demo guest agree with the guest's own counts.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::recorder::{MAX_RECORDINGS, REC_START, REC_STOP, STACK_KERNEL, STACK_USER};
use kvmprof_abi::wire::device;
use kvmprof_client::{ClientError, Connection, RemoteDevice};
use kvmprof_demo_guest::{Mode, function_at, rows};
use kvmprof_recording::Sample;
use kvmprof_report::profile::{Profile, Symbols};
use kvmprof_tests::{
    Boot, Clock, CpuPressure, Guest, Machine, Ran, Sampled, assert_rows, counts_of_rows, errno_of,
    kvmprof, on_kvm, recorded, run, run_command, sampling_rate, until, until_recorded,
};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use serde_json::Value;

#[test]
fn a_recording_agrees_with_the_guests_own_count() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording");
        let clock = Clock::jittered(sampling_rate(1000));
        let pressure = CpuPressure::begin();
        let machine = Machine::recorded(Boot::Demo, 2, clock, &path);
        until_recorded(&machine.connect(), 2000);
        let cycles = machine.truth().cycles();
        machine.stop();
        let (samples, contents) = recorded(&path);
        let account = contents.account;
        assert_eq!(contents.closed, Some(account));
        let counts = counts_of_rows(&samples, account.idle);
        let whole = counts.iter().sum();
        let sampled = Sampled::new(whole, account.stolen, account.lost, &pressure);
        assert_rows(counts, cycles, |_| true, sampled);
        check_functions(&samples, &Symbols::parse(&contents.symbols));
        let profile = Profile::from_file(&path, &[]).unwrap();
        for row in rows() {
            if let (Mode::User, Some(pid)) = (row.mode, row.pid) {
                assert_eq!(profile.processes[&pid].name, row.name);
            }
        }
        assert_eq!(profile.samples(), account.samples + account.idle);
    });
}

/// The symbols in the recording name functions as the guest's image does.
fn check_functions(samples: &[Sample], symbols: &Symbols) {
    let mut named = 0;
    for sample in samples {
        if let Some(function) = function_at(sample.pc) {
            assert_eq!(symbols.find(sample.pc), Some(function));
            named += 1;
        }
    }
    assert!(named * 10 > samples.len() * 9, "{named} named");
}

/// Not even by many connections. A finished one counts until it is closed: the client may not have read it yet.
#[test]
fn clients_have_a_bounded_number_of_recordings() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "1000"]);
        let connections = [guest.connect(), guest.connect()];
        let started = |connection: &Connection| -> Result<RemoteDevice, ClientError> {
            let recorder = connection.open(device::RECORDER, 0)?;
            recorder.ioctl(REC_START, 0).map(|_| recorder)
        };
        let all = connections.iter().cycle().take(MAX_RECORDINGS);
        let mut recorders: Vec<RemoteDevice> = all.map(|one| started(one).unwrap()).collect();
        recorders[0].ioctl(REC_STOP, 0).unwrap();
        for connection in &connections {
            assert_eq!(errno_of(started(connection)), Errno::ENOSPC);
        }
        recorders.remove(0).close().unwrap();
        started(&connections[1]).unwrap();
        guest.stop();
    });
}

/// Two recordings over the socket, of different length: each is complete, and the clock stops after them.
#[test]
fn clients_record_over_the_socket() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "1000", "--cpus", "2"]);
        let folder = guest.folder().to_owned();
        let (long, short) = (folder.join("long"), folder.join("short"));
        let record = |path: &Path, more: &[&str]| {
            let words = [&["--output", path.to_str().unwrap()], more].concat();
            guest.command("record", &words).quiet();
        };
        std::thread::scope(|scope| {
            scope.spawn(|| record(&long, &["--seconds", "1.5"]));
            scope.spawn(|| record(&short, &["--seconds", "0.5", "--stacks", "none"]));
        });
        until("the clock stops", || {
            (!guest.status().clock.running).then_some(())
        });
        for (path, kernel) in [(&long, true), (&short, false)] {
            let (samples, contents) = recorded(path);
            assert_eq!(contents.closed, Some(contents.account));
            assert_eq!(contents.info.stacks.kernel, kernel);
            assert!(!samples.is_empty() && !contents.symbols.is_empty());
        }
        guest.stop();
    });
}

/// The guest's end is that of the recording, too; a client that disconnects frees its devices.
#[test]
fn a_recording_ends_with_the_guest_and_with_its_client() {
    on_kvm(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "1000"]);
        let connection = guest.connect();
        let recorder = connection.open(device::RECORDER, 0).unwrap();
        let refused = |command, argument| errno_of(recorder.ioctl(command, argument));
        for (command, argument) in [(REC_STOP, 0), (REC_START, 4), (REC_START - 1, 0)] {
            assert_eq!(refused(command, argument), Errno::EINVAL, "{command:#x}");
        }
        assert_eq!(errno_of(recorder.read(1)), Errno::EINVAL);
        let stacks = STACK_KERNEL | STACK_USER;
        recorder.ioctl(REC_START, stacks).unwrap();
        assert_eq!(refused(REC_START, 0), Errno::EBUSY);
        let gone = guest.connect();
        let other = gone.open(device::RECORDER, 0).unwrap();
        other.ioctl(REC_START, 0).unwrap();
        let recorders = || guest.status().recorders().count();
        assert_eq!(recorders(), 2);
        drop((other, gone));
        until("the other is gone", || (recorders() == 1).then_some(()));
        until("the one that isn't read has ticks", || {
            let status = guest.status();
            let ledger = status.recorders().next()?.ledger;
            assert!(ledger.balances(), "{ledger:?}");
            (ledger.ticks > 100).then_some(())
        });
        let path = guest.folder().join("read");
        guest.signal(Signal::TERM);
        let bytes = recorder.read_to_end(1 << 20).unwrap();
        fs::write(&path, bytes).unwrap();
        let (_, contents) = recorded(&path);
        assert_eq!(contents.closed, Some(contents.account));
    });
}

fn kvmprof_on(path: &Path, words: &[&str]) -> Ran {
    run(words.iter().copied().chain([path.to_str().unwrap()]))
}

/// kvmprof is killed while it records: its file opens up to there.
#[test]
fn a_truncated_recording_opens_up_to_there() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording");
        let options = ["--hz", "1000", "--record", path.to_str().unwrap()];
        let guest = Guest::start(Boot::Demo, options);
        guest.until_recorded(1000);
        guest.signal(Signal::KILL);
        drop(guest);
        let (_, contents) = recorded(&path);
        assert_eq!(contents.closed, None);
        assert!(contents.account.samples + contents.account.idle >= 1000);
        let said = kvmprof_on(&path, &["report"]).quiet();
        assert!(said.contains("was cut off"), "{said}");
    });
}

/// The file size limit is like a full disk: the guest continues, and the exit status shows it. The written file is for the user only.
#[test]
fn files_that_cannot_be_written_to_the_end_show_in_the_exit_status() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording");
        let options = ["--hz", "1000", "--console-limit", "5", "--record"];
        let options = options.into_iter().chain(path.to_str());
        let mut guest = Guest::start(Boot::Demo, options);
        let pid = Pid::from_raw(i32::try_from(guest.pid()).unwrap());
        guest.until_recorded(100);
        let limit = Rlimit {
            current: Some(fs::metadata(&path).unwrap().len() + 1),
            ..getrlimit(Resource::Fsize)
        };
        prlimit(pid, Resource::Fsize, limit).unwrap();
        until("the recording has ended", || {
            guest.stderr().contains("ends here").then_some(())
        });
        assert!(!guest.status().machine.ended);
        // The client's own file.
        let other = guest.folder().join("other");
        let ran = run_command(
            Command::new("sh")
                .args(["-c", "ulimit -f 1 && exec \"$0\" \"$@\""])
                .arg(kvmprof())
                .args(["record", "--seconds", "60", "--socket"])
                .arg(guest.socket())
                .arg("--output")
                .arg(&other),
        );
        ran.assert_refused(1, &["Cannot write", "File too large"]);
        let console = guest.folder().join("console");
        for file in [&path, &console, &other] {
            let mode = fs::metadata(file).map_or(0o600, |found| found.mode() & 0o777);
            assert_eq!(mode, 0o600, "{}", file.display());
        }
        assert!(fs::metadata(&console).unwrap().len() <= 5);
        guest.signal(Signal::TERM);
        let ran = guest.wait();
        assert_eq!(ran.status, 1, "{ran:?}");
        assert!(
            ran.stderr.contains("isn't whole: File too large"),
            "{ran:?}"
        );
        let (_, contents) = recorded(&path);
        assert_eq!(contents.closed, None);
        assert!(contents.account.samples + contents.account.idle >= 100);
    });
}

/// The commands that show a recording agree.
#[test]
fn report_folded_stacks_and_flame_graph_agree() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording");
        let machine = Machine::recorded(Boot::Demo, 1, Clock::jittered(1000), &path);
        until_recorded(&machine.connect(), 1000);
        machine.stop();

        let report = kvmprof_on(&path, &["report", "--json", "--top", "1000"]).json();
        assert_eq!(report["complete"], true);
        let whole = report["samples"].as_u64().unwrap();
        let functions = report["functions"].as_array().unwrap();
        let own = |function: &Value| function["self"].as_u64().unwrap();
        assert_eq!(functions.iter().map(own).sum::<u64>(), whole);

        let folded = kvmprof_on(&path, &["export", "--format", "folded"]).stdout;
        let counted = |name: &str| -> u64 {
            folded
                .lines()
                .filter_map(|line| line.rsplit_once(' '))
                .filter(|(stack, _)| {
                    let innermost = stack.rsplit(';').next().unwrap();
                    innermost.strip_suffix("_[k]").unwrap_or(innermost) == name
                })
                .map(|(_, count)| count.parse::<u64>().unwrap())
                .sum()
        };
        for function in functions.iter().take(8) {
            let name = function["name"].as_str().unwrap();
            assert_eq!(counted(name), own(function), "{name}");
        }

        let svg = folder.path().join("flames.svg");
        kvmprof_on(&path, &["flamegraph", "-o", svg.to_str().unwrap()]).quiet();
        let svg = fs::read_to_string(svg).unwrap();
        for name in ["weaver-101", "stretch_with_interrupts_off", "weave"] {
            assert!(svg.contains(name), "{name}");
        }
    });
}
