//! `kvmprof collect` with the demo guest: what it collects agrees with what the guests counted of themselves, and every window gets to
//! where it is to go, whoever is killed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use kvmprof_collect::batch::Batch;
use kvmprof_collect::spool::{Progress, Spool};
use kvmprof_demo_guest::{Mode, ROWS, rows};
use kvmprof_recording::Mode as SampleMode;
use kvmprof_tests::{
    Boot, Clock, CpuPressure, Guest, Machine, Sampled, assert_share, kvmprof,
    on_kvm_with_collector, run, sampling_rate, share, until,
};
use kvmprof_vmm::clock::ClockSource;
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use prost::Message;
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

    /// Has the collector end, and returns what it said.
    fn stop(&self, mut collector: Child) -> String {
        kill_process(Pid::from_child(&collector), Signal::TERM).unwrap();
        let status = until("the collector ends", || collector.try_wait().unwrap());
        let said = fs::read_to_string(self.path("stderr")).unwrap();
        assert!(status.success(), "{status}: {said}");
        said
    }

    /// How far a sink has come; none while that isn't known.
    fn progress(&self, sink: &str) -> Progress {
        let path = self.path("spool").join(format!("sink-{sink}.json"));
        let document = fs::read(path).unwrap_or_else(|_| b"{}".to_vec());
        serde_json::from_slice(&document).unwrap()
    }

    /// How many windows the collector has put into the spool, of one guest.
    fn windows(&self) -> u64 {
        let state = fs::read(self.path("spool").join("state.json")).unwrap();
        let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
        state["next"].as_u64().unwrap()
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

#[test]
fn a_look_agrees_with_what_each_guest_counted() {
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
            let (mut counts, mut stolen, mut lost) = ([0; ROWS], 0, 0);
            for batch in &batches {
                let windows = batch.windows.iter();
                for window in windows.filter(|window| window.guest == guest) {
                    assert!(window.account.balances(), "{window:?}");
                    assert_eq!(window.ticks(), window.account.samples + window.account.idle);
                    stolen += window.account.stolen;
                    lost += window.account.lost;
                    for row in &window.rows {
                        counts[demo_row(batch, row)] += row.ticks;
                    }
                }
            }
            let whole: u64 = counts.iter().sum();
            assert!(whole > 0, "{batches:?}");
            let sampled = Sampled::new(whole, stolen, lost, &pressure);
            for ((row, count), own) in rows().iter().zip(counts).zip(own) {
                let shares = (share(count, whole), share(own, own_sum(&cycles, guest)));
                assert_share(row.name, shares, sampled);
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
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        .ok()?;
    let mut page = String::new();
    stream.read_to_string(&mut page).ok()?;
    page.starts_with("HTTP/1.1 200 OK\r\n").then_some(page)
}

/// The count of a series on a page; 0 if it isn't there.
fn count(page: &str, series: &str) -> u64 {
    let count = page.lines().find_map(|line| line.strip_prefix(series));
    count.map_or(0, |count| count.trim().parse().unwrap())
}

/// A port that nobody has just now.
fn free_port() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Ticks in all Parquet files below `folder`.
fn parquet_ticks(folder: &Path) -> u64 {
    let mut ticks = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            ticks += parquet_ticks(&path);
            continue;
        }
        let reader = SerializedFileReader::new(fs::File::open(path).unwrap()).unwrap();
        for row in reader.get_row_iter(None).unwrap() {
            for (name, field) in row.unwrap().get_column_iter() {
                if let (true, Field::Long(count)) = (name == "ticks", field) {
                    ticks += u64::try_from(*count).unwrap();
                }
            }
        }
    }
    ticks
}

#[test]
fn guests_come_and_go_and_the_configuration_is_read_anew() {
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
        kill_process(Pid::from_child(&collector), Signal::HUP).unwrap();
        until_count(
            "kvmprof_windows_total{host=\"h\",zone=\"north\",guest=\"second\"}",
            2,
        );
        // What is wrong is told, and changes nothing.
        fleet.configure("hz = 'fast'\n");
        kill_process(Pid::from_child(&collector), Signal::HUP).unwrap();
        until("the error is told", || {
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
        assert_eq!((spool.fill().batches, spool.fill().killed), (0, 0));
        second.stop();
    });
}

/// A profile that a receiver got: its identity, its start in s, and its ticks.
type Profile = (Vec<u8>, u64, u64);

/// Takes OTLP profiles.
struct Receiver {
    profiles: Arc<Mutex<Vec<Profile>>>,
    address: String,
    /// While it lives, there is nobody at the address.
    running: Option<JoinHandle<()>>,
}

impl Receiver {
    fn start() -> Self {
        let mut receiver = Self {
            profiles: Arc::default(),
            address: free_port(),
            running: None,
        };
        receiver.open();
        receiver
    }

    fn open(&mut self) {
        let listener = until("the port is free", || TcpListener::bind(&self.address).ok());
        let profiles = Arc::clone(&self.profiles);
        self.running = Some(thread::spawn(move || {
            for stream in listener.incoming() {
                if !serve(&mut stream.unwrap(), &profiles) {
                    return;
                }
            }
        }));
    }

    /// Ends it: the port is nobody's.
    fn close(&mut self) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(b"QUIT").unwrap();
        drop(stream);
        self.running.take().unwrap().join().unwrap();
    }

    fn count(&self) -> u64 {
        self.profiles.lock().unwrap().len() as u64
    }
}

/// Answers the request of a connection. False when it is asked to end.
fn serve(stream: &mut TcpStream, profiles: &Mutex<Vec<Profile>>) -> bool {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return head != b"QUIT",
        }
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let mut lines = head.lines();
    let length = lines.find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.unwrap().parse().unwrap()];
    if stream.read_exact(&mut body).is_err() {
        // The client was killed in the middle.
        return true;
    }
    let request = ExportProfilesServiceRequest::decode(unpacked(body).as_slice()).unwrap();
    for resource in &request.resource_profiles {
        let profile = &resource.scope_profiles[0].profiles[0];
        let samples = profile.samples.iter();
        let ticks = samples.map(|sample| sample.values[0].unsigned_abs());
        let start = profile.time_unix_nano / 1_000_000_000;
        let found = (profile.profile_id.clone(), start, ticks.sum());
        profiles.lock().unwrap().push(found);
    }
    // A client that was killed doesn't take it.
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    true
}

fn unpacked(body: Vec<u8>) -> Vec<u8> {
    let mut gzip = Command::new("gzip");
    let gzip = gzip.arg("-dc").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = gzip.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let writer = thread::spawn(move || input.write_all(&body).unwrap());
    let mut all = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut all).unwrap();
    writer.join().unwrap();
    assert!(child.wait().unwrap().success());
    all
}

fn otlp(address: &str) -> String {
    format!(
        "[[sink]]\nname = 'otlp'\ntype = 'otlp'\nurl = 'http://{address}/v1development/profiles'\n"
    )
}

#[test]
fn a_sink_that_is_down_loses_nothing() {
    on_kvm_with_collector(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "100"]);
        let fleet = Fleet::new(&[("first", guest.socket())]);
        let mut receiver = Receiver::start();
        fleet.configure(&otlp(&receiver.address));
        let collector = fleet.start();
        fleet.until_delivered("otlp", 2);
        receiver.close();
        until("the sink is tried again", || {
            (fleet.progress("otlp").retries >= 4).then_some(())
        });
        let before = fleet.progress("otlp").delivered.windows;
        receiver.open();
        fleet.until_delivered("otlp", before + 3);
        let said = fleet.stop(collector);
        assert!(said.contains("Sink otlp: Cannot post to"), "{said}");
        let progress = fleet.progress("otlp");
        let profiles = receiver.profiles.lock().unwrap().clone();
        assert_eq!(profiles.len() as u64, progress.delivered.windows);
        let ticks: u64 = profiles.iter().map(|(.., ticks)| ticks).sum();
        assert_eq!(ticks, progress.delivered.ticks);
        // In their order, each once, and all that were collected.
        assert!(
            profiles.is_sorted_by(|one, other| one.1 < other.1),
            "{profiles:?}"
        );
        assert_eq!(fleet.windows(), progress.delivered.windows);
        assert_eq!((progress.lost.windows, progress.unsure.windows), (0, 0));
        receiver.close();
        guest.stop();
    });
}

/// No window comes twice, and what was open or on its way is counted.
#[test]
fn a_collector_that_is_killed_counts_what_it_loses() {
    const KILLS: u64 = 10;
    on_kvm_with_collector(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "100"]);
        let fleet = Fleet::new(&[("first", guest.socket())]);
        let mut receiver = Receiver::start();
        fleet.configure(&otlp(&receiver.address));
        for _ in 0..KILLS {
            let mut collector = fleet.start();
            let delivered = receiver.count() + 1;
            until("a window is delivered", || {
                (receiver.count() >= delivered).then_some(())
            });
            collector.kill().unwrap();
            collector.wait().unwrap();
        }
        let collector = fleet.start();
        let delivered = receiver.count() + 1;
        until("a window is delivered", || {
            (receiver.count() >= delivered).then_some(())
        });
        fleet.stop(collector);
        let progress = fleet.progress("otlp");
        let profiles = receiver.profiles.lock().unwrap().clone();
        let mut by_identity: BTreeMap<&[u8], u64> = BTreeMap::new();
        for (identity, ..) in &profiles {
            *by_identity.entry(identity).or_default() += 1;
        }
        assert!(
            by_identity.values().all(|count| *count == 1),
            "{by_identity:?}"
        );
        let (windows, ticks) = (
            profiles.len() as u64,
            profiles.iter().map(|(.., ticks)| ticks).sum::<u64>(),
        );
        let (taken, unsure) = (progress.delivered, progress.unsure);
        println!("{windows} windows, {taken:?}, {unsure:?}");
        assert!((taken.windows..=taken.windows + unsure.windows).contains(&windows));
        assert!((taken.ticks..=taken.ticks + unsure.ticks).contains(&ticks));
        assert!(unsure.windows <= KILLS);
        assert_eq!(progress.lost.windows, 0);
        let spool = Spool::open(&fleet.path("spool"), 1 << 30, &["otlp"]).unwrap();
        let killed = spool.fill().killed;
        println!("{killed} windows were open");
        // The present one at each kill, at most: those that are over outlive the collector.
        assert!((1..=KILLS).contains(&killed), "{killed}");
        receiver.close();
        guest.stop();
    });
}

#[test]
fn what_is_missing_or_wrong_is_told() {
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
