//! Sinks that are down, and collectors that are killed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Child;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use flate2::read::GzDecoder;
use kvmprof_collect::spool::Spool;
use kvmprof_tests::{Boot, Guest, on_kvm_with_collector, until};
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use prost::Message;

use super::{Fleet, free_port};

/// A profile that a receiver got: its identity, its start in s, and its ticks.
type Profile = (Vec<u8>, u64, u64);

/// A guest, the folder of its collector, and a receiver of profiles.
fn guest_and_receiver() -> (Guest, Fleet, Receiver) {
    let guest = Guest::start(Boot::Demo, ["--hz", "100"]);
    let fleet = Fleet::new(&[("first", guest.socket())]);
    (guest, fleet, Receiver::start())
}

/// Takes OTLP profiles.
struct Receiver {
    profiles: Arc<Mutex<Vec<Profile>>>,
    address: String,
    /// While this exists, no server listens at the address.
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

    fn listener(&self) -> TcpListener {
        until("the port is free", || TcpListener::bind(&self.address).ok())
    }

    fn open(&mut self) {
        let listener = self.listener();
        let profiles = Arc::clone(&self.profiles);
        self.running = Some(thread::spawn(move || {
            for stream in listener.incoming() {
                if !serve(&mut stream.unwrap(), &profiles) {
                    return;
                }
            }
        }));
    }

    /// Ends it: the port is unused.
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

/// Answers the request of a connection. False when asked to end.
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
        // The client was killed during the request.
        return true;
    }
    let mut message = Vec::new();
    GzDecoder::new(body.as_slice())
        .read_to_end(&mut message)
        .unwrap();
    let request = ExportProfilesServiceRequest::decode(message.as_slice()).unwrap();
    for resource in &request.resource_profiles {
        let profile = &resource.scope_profiles[0].profiles[0];
        let samples = profile.samples.iter();
        let ticks = samples.map(|sample| sample.values[0].unsigned_abs());
        let start = profile.time_unix_nano / 1_000_000_000;
        let found = (profile.profile_id.clone(), start, ticks.sum());
        profiles.lock().unwrap().push(found);
    }
    // A client that was killed doesn't read it.
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    true
}

fn otlp(address: &str) -> String {
    format!(
        "[[sink]]\nname = 'otlp'\ntype = 'otlp'\nurl = 'http://{address}/v1development/profiles'\n"
    )
}

#[test]
fn a_sink_that_is_down_loses_no_windows() {
    on_kvm_with_collector(|| {
        let (guest, fleet, mut receiver) = guest_and_receiver();
        fleet.configure(&otlp(&receiver.address));
        let collector = fleet.start();
        fleet.until_delivered("otlp", 2);
        receiver.close();
        let closed = Instant::now();
        until("the sink is tried again", || {
            let is_over = closed.elapsed() >= outage();
            (is_over && fleet.progress("otlp").retries >= 4).then_some(())
        });
        let before = fleet.progress("otlp").delivered.windows;
        receiver.open();
        fleet.until_delivered("otlp", before + 3);
        let said = fleet.stop(collector);
        assert!(said.contains("Sink otlp: Cannot post to"), "{said}");
        check_nothing_is_lost(&fleet, &receiver);
        receiver.close();
        guest.stop();
    });
}

/// All windows that were collected have arrived, in order and once each, or wait.
fn check_nothing_is_lost(fleet: &Fleet, receiver: &Receiver) {
    let progress = fleet.progress("otlp");
    let profiles = receiver.profiles.lock().unwrap().clone();
    assert_eq!(profiles.len() as u64, progress.delivered.windows);
    let ticks: u64 = profiles.iter().map(|(.., ticks)| ticks).sum();
    assert_eq!(ticks, progress.delivered.ticks);
    assert!(
        profiles.is_sorted_by(|one, other| one.1 < other.1),
        "{profiles:?}"
    );
    let spool = Spool::open(&fleet.path("spool"), 1 << 30, &["otlp"]).unwrap();
    // Those left at the collector's end.
    let (.., waiting) = spool.progress().remove(0);
    assert_eq!(fleet.windows(), progress.delivered.windows + waiting);
    assert_eq!((progress.lost.windows, progress.unsure.windows), (0, 0));
}

/// A receiver takes requests and never answers, until another one replaces it. The guest runs on, and is still collected from.
#[test]
fn a_sink_that_hangs_loses_nothing_and_delays_no_guest() {
    on_kvm_with_collector(|| {
        let (guest, fleet, mut receiver) = guest_and_receiver();
        receiver.close();
        let hanging = receiver.listener();
        fleet.configure(&otlp(&receiver.address));
        let collector = fleet.start();
        let (stream, _) = hanging.accept().unwrap();
        let ticks = || guest.status().clock.ledger.ticks;
        let (windows, before) = (fleet.windows(), ticks());
        fleet.until_collected(windows + 3);
        until("the guest ticks", || (ticks() > before + 100).then_some(()));
        let progress = fleet.progress("otlp");
        assert_eq!((progress.delivered.windows, progress.retries), (0, 0));
        drop((stream, hanging));
        receiver.open();
        fleet.until_delivered("otlp", windows + 5);
        fleet.stop(collector);
        check_nothing_is_lost(&fleet, &receiver);
        receiver.close();
        guest.stop();
    });
}

/// Minimum time that the sink is down: `KVMPROF_TEST_OUTAGE`, in s.
fn outage() -> Duration {
    let seconds = std::env::var("KVMPROF_TEST_OUTAGE");
    Duration::from_secs(seconds.map_or(0, |seconds| seconds.parse().unwrap()))
}

/// No window arrives twice, and windows that were open or being sent are counted.
#[test]
fn a_collector_that_is_killed_counts_what_it_loses() {
    const KILLS: u64 = 10;
    on_kvm_with_collector(|| {
        let (guest, fleet, mut receiver) = guest_and_receiver();
        fleet.configure(&otlp(&receiver.address));
        // The collector has put a window of its own into the spool, and a window has arrived. Opening the spool may have counted one that a
        // killed collector had put there.
        let until_it_collects = || -> Child {
            let (windows, delivered) = (fleet.windows(), receiver.count());
            let collector = fleet.start();
            until("windows are collected and delivered", || {
                let is_new = fleet.windows() >= windows + 2 && receiver.count() > delivered;
                is_new.then_some(())
            });
            collector
        };
        for _ in 0..KILLS {
            let mut collector = until_it_collects();
            collector.kill().unwrap();
            collector.wait().unwrap();
        }
        fleet.stop(until_it_collects());
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
        // One at each kill: ended ones outlive the collector.
        assert_eq!(killed, KILLS);
        // No tick was in two windows, whatever their names.
        let all = guest.status().clock.ledger.ticks;
        assert!(ticks <= all, "{ticks} of {all}");
        receiver.close();
        guest.stop();
    });
}

/// A trusted certificate authority, which isn't shown.
const AUTHORITY: &str = "\
-----BEGIN CERTIFICATE-----
MIIBhjCCASugAwIBAgIUcSb9P2F+EN356MvkozUvtNuVOh4wCgYIKoZIzj0EAwIw
FzEVMBMGA1UEAwwMa3ZtcHJvZiB0ZXN0MCAXDTI2MTEyNjE0MzUxNFoYDzIxMjYx
MTAyMTQzNTE0WjAXMRUwEwYDVQQDDAxrdm1wcm9mIHRlc3QwWTATBgcqhkjOPQIB
BggqhkjOPQMBBwNCAAQNK+Rg6CO4hmuNwjMSubN0eD9D2yqDIgXM0M6wSHIbR7m/
2M7C4fhfPQAnoEvNL5qpK7mDTKW5BLirS9bQNgAYo1MwUTAdBgNVHQ4EFgQUn8Qu
LgQXY/AYwYOjsbDp1AUfbVIwHwYDVR0jBBgwFoAUn8QuLgQXY/AYwYOjsbDp1AUf
bVIwDwYDVR0TAQH/BAUwAwEB/zAKBggqhkjOPQQDAgNJADBGAiEAhSNkR4XqxIsy
WT9v8GA5dk7SsW0u7ZWX4Jwxf+Qbgv8CIQDyvzbW0GbRTodTgJdF1mXsmFcU7Q9l
fuCTg9JcqFEhUw==
-----END CERTIFICATE-----
";

/// No byte of a request is sent while its sink connects: a kill then loses the open window, and no other one.
#[test]
fn killing_a_collector_while_a_sink_connects_loses_only_open_windows() {
    const KILLS: u64 = 3;
    on_kvm_with_collector(|| {
        let (guest, fleet, mut receiver) = guest_and_receiver();
        receiver.close();
        let hanging = receiver.listener();
        let authority = fleet.path("ca.pem");
        fs::write(&authority, AUTHORITY).unwrap();
        fleet.configure(&format!(
            "[[sink]]\nname = 'otlp'\ntype = 'otlp'\nurl = 'https://{}/v1development/profiles'\nca_file = '{}'\n",
            receiver.address,
            authority.display()
        ));
        for _ in 0..KILLS {
            let windows = fleet.windows();
            let mut collector = fleet.start();
            // It waits for an answer to its greeting.
            let _stream = hanging.accept().unwrap();
            fleet.until_collected(windows + 2);
            collector.kill().unwrap();
            collector.wait().unwrap();
        }
        drop(hanging);
        receiver.open();
        fleet.configure(&otlp(&receiver.address));
        let windows = fleet.windows();
        let collector = fleet.start();
        fleet.until_delivered("otlp", windows + 1);
        fleet.stop(collector);
        check_nothing_is_lost(&fleet, &receiver);
        let spool = Spool::open(&fleet.path("spool"), 1 << 30, &["otlp"]).unwrap();
        assert_eq!(spool.fill().killed, KILLS);
        receiver.close();
        guest.stop();
    });
}
