//! `kvmprof collect` with the demo guest: the collected counts agree with the guests' own, and every window reaches its destination,
//! whichever process is killed.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod attached;
mod demonstration;
mod launcher;
mod nodes;
mod private;
mod reload;
mod service;
mod sinks;
mod tutorial;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use kvmprof_collect::batch::Batch;
use kvmprof_collect::spool::{Progress, Spool, read_progress};
use kvmprof_demo_guest::{Mode, ROWS, rows};
use kvmprof_profiling::clock::ClockSource;
use kvmprof_recording::Mode as SampleMode;
use kvmprof_test_guest::EXIT_ROUNDS;
use kvmprof_tests::{
    Boot, Clock, CpuPressure, Guest, Machine, Sampled, assert_share, kvmprof,
    on_kvm_with_collector, recorded, run, sampling_rate, share, until,
};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const CLOCK: Clock = Clock {
    hz: 100,
    source: ClockSource::Thread,
    // The guest's own timer would run in step.
    jitter: true,
};

/// A folder with sockets of guests by their names, and what a collector has.
struct Fleet {
    folder: TempDir,
}

impl Fleet {
    fn new(guests: &[(&str, PathBuf)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, socket) in guests {
            symlink(socket, folder.path().join(format!("{name}.sock"))).unwrap();
        }
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn pattern(&self) -> String {
        self.path("*.sock").display().to_string()
    }

    /// Writes the configuration, with `more` of it.
    fn configure(&self, more: &str) {
        let spool = self.path("spool");
        let text = format!(
            "sockets = ['{}']\nhz = 100\nwindow = 1\nhost = 'h'\nspool.folder = '{}'\n{more}",
            self.pattern(),
            spool.display()
        );
        fs::write(self.path("collect.toml"), text).unwrap();
    }

    fn start(&self) -> Child {
        Command::new(kvmprof())
            .args(["collect", "--config"])
            .arg(self.path("collect.toml"))
            .stdin(Stdio::null())
            .stderr(fs::File::create(self.path("stderr")).unwrap())
            .spawn()
            .unwrap()
    }

    /// Has the collector read its configuration again.
    fn reload(&self, collector: &Child) {
        kill_process(Pid::from_child(collector), Signal::HUP).unwrap();
    }

    /// Has the collector end, and returns its messages.
    fn stop(&self, mut collector: Child) -> String {
        kill_process(Pid::from_child(&collector), Signal::TERM).unwrap();
        let status = until("the collector ends", || collector.try_wait().unwrap());
        let said = fs::read_to_string(self.path("stderr")).unwrap();
        assert!(status.success(), "{status}: {said}");
        said
    }

    /// The progress of a sink; `None` while that isn't known.
    fn progress(&self, sink: &str) -> Progress {
        // It may be being written.
        let progress = read_progress(&self.path("spool"), sink).ok().flatten();
        progress.unwrap_or_default()
    }

    /// How many windows of one guest the collector has put into the spool; `None` while that isn't known.
    fn windows(&self) -> u64 {
        let state = fs::read(self.path("spool").join("state.json"));
        let state = state.unwrap_or_else(|_| br#"{"next": 0}"#.to_vec());
        let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
        state["next"].as_u64().unwrap()
    }

    fn until_collected(&self, windows: u64) {
        until("windows are collected", || {
            (self.windows() >= windows).then_some(())
        });
    }

    fn until_delivered(&self, sink: &str, windows: u64) {
        until("the sink has windows", || {
            (self.progress(sink).delivered.windows >= windows).then_some(())
        });
    }
}

/// The row of the demo guest's truth that a row of a window belongs to.
fn demo_row(batch: &Batch, row: &kvmprof_collect::batch::Row) -> usize {
    let process = batch.name(row.process);
    let function = batch.frames(row).next();
    let function = function.map_or("", |(_, frame)| batch.name(frame.function));
    let is = |mode, found: &dyn Fn(&kvmprof_demo_guest::Row) -> bool| {
        let row = rows().iter().position(|row| row.mode == mode && found(row));
        row.unwrap_or_else(|| panic!("{process} {function}"))
    };
    match row.mode() {
        SampleMode::User => is(Mode::User, &|row| row.name == process),
        SampleMode::Interrupt => is(Mode::Interrupt, &|_| true),
        SampleMode::Idle => is(Mode::Idle, &|_| true),
        SampleMode::Kernel => {
            let named = rows()
                .iter()
                .position(|row| row.functions.contains(&function));
            named.unwrap_or_else(|| is(Mode::Kernel, &|row| row.name == "switching"))
        }
    }
}

/// The ticks of a row with interrupts off: all or none of them, as the guest's image says.
fn check_interrupts_off(batch: &Batch, row: &kvmprof_collect::batch::Row) -> u64 {
    let off = row.interrupts_off.unwrap();
    let function = batch.frames(row).next();
    let function = function.map_or("", |(_, frame)| batch.name(frame.function));
    match (row.mode(), function) {
        (SampleMode::User | SampleMode::Idle, _) | (SampleMode::Kernel, "compute") => {
            assert_eq!(off, 0, "{row:?}");
        }
        (_, "stretch_with_interrupts_off" | "service_interrupt") => {
            assert_eq!(off, row.ticks, "{row:?}");
        }
        _ => assert!(off <= row.ticks, "{row:?}"),
    }
    off
}

#[test]
fn a_look_agrees_with_each_guests_count() {
    on_kvm_with_collector(|| {
        let clock = Clock {
            hz: sampling_rate(CLOCK.hz),
            ..CLOCK
        };
        let pressure = CpuPressure::begin();
        let machines = [(); 2].map(|()| Machine::start(Boot::Demo, 1, clock));
        let sockets = [("one", machines[0].socket()), ("two", machines[1].socket())];
        let fleet = Fleet::new(&sockets);
        let hz = sampling_rate(200).to_string();
        let words = [
            "collect",
            "--once",
            "--json",
            "--window",
            "10",
            "--hz",
            &hz,
            "--sockets",
        ];
        let ran = run(words.into_iter().chain([fleet.pattern().as_str()]));
        let cycles = [0, 1].map(|index: usize| machines[index].truth().cycles());
        assert_eq!((ran.status, ran.stderr.as_str()), (0, ""), "{ran:?}");
        let batches: Vec<Batch> = (ran.stdout.lines())
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        for (guest, own) in ["one", "two"].into_iter().zip(cycles) {
            let (mut counts, mut stolen, mut lost, mut off) = ([0; ROWS], 0, 0, 0);
            for batch in &batches {
                let windows = batch.windows.iter();
                for window in windows.filter(|window| window.guest == guest) {
                    assert!(window.account.balances(), "{window:?}");
                    assert_eq!(window.ticks(), window.account.samples + window.account.idle);
                    stolen += window.account.stolen;
                    lost += window.account.lost;
                    assert_eq!(window.jitter, Some(true));
                    for row in &window.rows {
                        counts[demo_row(batch, row)] += row.ticks;
                        off += check_interrupts_off(batch, row);
                    }
                }
            }
            let whole: u64 = counts.iter().sum();
            assert!(whole > 0 && off > 0, "{batches:?}");
            let sampled = Sampled::new(whole, stolen, lost, &pressure);
            for ((row, count), own) in rows().iter().zip(counts).zip(own) {
                let (observed, expected) =
                    (share(count, whole), share(own, own_sum(&cycles, guest)));
                assert_share(row.name, observed, expected, sampled);
            }
        }
        for machine in machines {
            machine.stop();
        }
    });
}

fn own_sum(cycles: &[[u64; ROWS]; 2], guest: &str) -> u64 {
    cycles[usize::from(guest == "two")].iter().sum()
}

/// Asks for the page at `address`.
fn get(address: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .ok()?;
    let mut page = String::new();
    stream.read_to_string(&mut page).ok()?;
    page.starts_with("HTTP/1.1 200 OK\r\n").then_some(page)
}

/// The number of windows of all guests on a page.
fn all_windows(page: &str) -> u64 {
    let series = page.lines().filter_map(|line| line.split_once(' '));
    let windows = series.filter(|(name, _)| name.starts_with("kvmprof_windows_total{"));
    windows
        .map(|(_, count)| count.parse::<u64>().unwrap())
        .sum()
}

/// The count of a series on a page; 0 if it isn't there.
fn count(page: &str, series: &str) -> u64 {
    let count = page.lines().find_map(|line| line.strip_prefix(series));
    count.map_or(0, |count| count.trim().parse().unwrap())
}

/// A port that is free at present.
fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// The rows of all Parquet files below `folder`.
fn parquet_rows(folder: &Path) -> Vec<Row> {
    let mut rows = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rows.extend(parquet_rows(&path));
            continue;
        }
        // It has another name while it is written.
        if path.extension().is_none_or(|kind| kind != "parquet") {
            continue;
        }
        let reader = SerializedFileReader::new(fs::File::open(path).unwrap()).unwrap();
        rows.extend(reader.get_row_iter(None).unwrap().map(Result::unwrap));
    }
    rows
}

/// The ticks of a row.
fn ticks_of(row: &Row) -> u64 {
    let mut columns = row.get_column_iter();
    let (_, ticks) = columns.find(|(name, _)| *name == "ticks").unwrap();
    match ticks {
        Field::Long(ticks) => u64::try_from(*ticks).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Ticks in all Parquet files below `folder`.
fn parquet_ticks(folder: &Path) -> u64 {
    parquet_rows(folder).iter().map(ticks_of).sum()
}

#[test]
fn guests_start_and_end_and_the_configuration_is_reloaded() {
    on_kvm_with_collector(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "100"]);
        let fleet = Fleet::new(&[("first", guest.socket())]);
        let address = free_port();
        let lake = fleet.path("lake");
        let sinks = format!(
            "metrics.listen = '{address}'\n[[sink]]\nname = 'lake'\ntype = 'parquet'\nseconds = 2\nfolder = '{}'\n",
            lake.display()
        );
        fleet.configure(&sinks);
        let collector = fleet.start();
        let until_count = |series: &str, least: u64| {
            until(series, || {
                get(&address).filter(|page| count(page, series) >= least)
            });
        };
        until_count("kvmprof_windows_total{host=\"h\",guest=\"first\"}", 3);
        let second = Guest::start(Boot::Demo, ["--hz", "100"]);
        symlink(second.socket(), fleet.path("second.sock")).unwrap();
        let weaver =
            "kvmprof_samples_total{host=\"h\",guest=\"second\",process=\"weaver\",mode=\"user\"}";
        until_count(weaver, 1);
        fleet.configure(&format!("{sinks}[labels]\nzone = 'north'\n"));
        fleet.reload(&collector);
        until_count(
            "kvmprof_windows_total{host=\"h\",zone=\"north\",guest=\"second\"}",
            2,
        );
        // The error is reported, and changes nothing.
        fleet.configure("hz = 'fast'\n");
        fleet.reload(&collector);
        until("the error is reported", || {
            let said = fs::read_to_string(fleet.path("stderr")).unwrap();
            said.contains("the former configuration stays")
                .then_some(())
        });
        guest.stop();
        until("the guest is let go", || {
            let page = get(&address)?;
            (count(&page, "kvmprof_guests{host=\"h\",zone=\"north\"}") == 1).then_some(())
        });
        let said = fleet.stop(collector);
        assert!(!said.contains("Sink"), "{said}");
        let progress = fleet.progress("lake");
        assert!(progress.delivered.ticks > 0);
        assert_eq!(parquet_ticks(&lake), progress.delivered.ticks);
        let spool = Spool::open(&fleet.path("spool"), 1 << 30, &["lake"]).unwrap();
        assert_eq!(spool.fill().killed, 0);
        second.stop();
    });
}

/// The guest and the page agree on the number of exits of each kind.
#[test]
fn the_metrics_page_has_exits_of_guests() {
    on_kvm_with_collector(|| {
        let boot = Boot::Test("workload=exits");
        let machine = Machine::start(boot, 2, CLOCK);
        let fleet = Fleet::new(&[("first", machine.socket())]);
        let address = free_port();
        fleet.configure(&format!("metrics.listen = '{address}'\n"));
        let collector = fleet.start();
        let exits = until("the guest is done", || {
            let counters = machine.counters();
            let all = counters.iter().all(|one| one.rounds == EXIT_ROUNDS);
            all.then(|| {
                counters
                    .into_iter()
                    .map(|one| one.exits)
                    .collect::<Vec<_>>()
            })
        });
        let own = [
            (
                "port-reads",
                exits.iter().map(|vcpu| vcpu.port_reads).sum::<u64>(),
            ),
            ("mmio-reads", exits.iter().map(|vcpu| vcpu.mmio_reads).sum()),
            (
                "mmio-writes",
                exits.iter().map(|vcpu| vcpu.mmio_writes).sum(),
            ),
        ];
        let series = |event: &str| {
            format!("kvmprof_guest_events_total{{host=\"h\",guest=\"first\",event=\"{event}\"}}")
        };
        let page = until("the page has them", || {
            let page = get(&address)?;
            own.iter()
                .all(|(event, own)| count(&page, &series(event)) >= *own)
                .then_some(page)
        });
        for (event, own) in own {
            assert!(own > 0);
            assert_eq!(count(&page, &series(event)), own, "{event}");
        }
        // KVM has counted at least these.
        let all = own.iter().map(|(_, own)| own).sum();
        assert!(count(&page, &series("exits")) >= all, "{page}");
        fleet.stop(collector);
        machine.stop();
    });
}

/// A client's rate precedes the collector's, which takes it for as long, and then gets its own again.
#[test]
fn each_client_gets_its_own_rate() {
    on_kvm_with_collector(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "50"]);
        let fleet = Fleet::new(&[("first", guest.socket())]);
        let address = free_port();
        fleet.configure(&format!("metrics.listen = '{address}'\n"));
        let collector = fleet.start();
        let until_rate = |hz: u64| {
            until("windows have the rate", || {
                let page = get(&address)?;
                let rate = count(&page, "kvmprof_rate_hertz{host=\"h\",guest=\"first\"}");
                (rate == hz).then_some(())
            });
        };
        until_rate(100);
        let path = fleet.path("recording");
        let mut record = Command::new(kvmprof())
            .args(["record", "-F", "250", "--socket"])
            .arg(guest.socket())
            .arg("--output")
            .arg(&path)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until_rate(250);
        kill_process(Pid::from_child(&record), Signal::INT).unwrap();
        until("the recording is closed", || record.try_wait().unwrap());
        until_rate(100);
        let (samples, contents) = recorded(&path);
        assert_eq!(contents.info.hz, 250);
        assert!(!samples.is_empty());
        // Without a rate it is the guest's own, as without a collector.
        let ran = guest.command(
            "record",
            &[
                "--seconds",
                "1",
                "--output",
                path.with_extension("2").to_str().unwrap(),
            ],
        );
        assert_eq!(ran.status, 0, "{ran:?}");
        assert_eq!(recorded(&path.with_extension("2")).1.info.hz, 50);
        until_rate(100);
        let said = fleet.stop(collector);
        assert_eq!(said, "");
        guest.stop();
    });
}

#[test]
fn missing_files_and_wrong_options_are_reported() {
    on_kvm_with_collector(|| {
        let ran = run(["collect", "--hz", "0"]);
        assert_eq!(ran.status, 2, "{ran:?}");
        let fleet = Fleet::new(&[]);
        let pattern = fleet.pattern();
        let ran = run(["collect", "--once", "--window", "1", "--sockets", &pattern]);
        assert_eq!(ran.status, 0, "{ran:?}");
        assert!(ran.stderr.contains("No guest has ticked"), "{ran:?}");
        // A copy of the program, with nothing beside it.
        let copy = fleet.path("kvmprof");
        fs::copy(kvmprof(), &copy).unwrap();
        let output = Command::new(copy)
            .arg("collect")
            .env("PATH", "")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.contains("There is no program kvmprof-collect"),
            "{said}"
        );
    });
}
