//! Receivers of other implementations take OTLP and pprof by HTTP.

use std::fs;

use kvmprof_collect::batch::Batch;
use kvmprof_collect::config::{Endpoint, SinkKind};
use serde_json::Value;

use super::fleet::{self, DAYS, GUESTS, HZ, LENGTH};
use super::{Receiver, deliver, hand_over, said};

/// Windows of [`batches`].
pub const WINDOWS: u64 = 2 * GUESTS as u64;

/// The endpoint of the receiver at this port, at a path.
pub fn endpoint(port: &str, path: &str) -> Endpoint {
    Endpoint {
        url: format!("http://127.0.0.1:{port}{path}"),
        ..Endpoint::default()
    }
}

pub fn batches() -> Vec<Batch> {
    (0..2).map(|window| fleet::batch(1, 3, window)).collect()
}

pub fn ticks() -> u64 {
    fleet::known(1, 3).iter().map(|known| known.ticks).sum()
}

#[test]
fn opentelemetry_proto_reads_each_field() {
    let mut receiver = Receiver::run("receiver.py", &[]);
    let kind = SinkKind::Otlp(endpoint(&receiver.first, "/v1development/profiles"));
    let progress = deliver(kind, &batches());
    assert_eq!(progress.delivered.ticks, WINDOWS * ticks());
    check_profiles(&mut receiver);
}

/// Takes the requests that have [`batches`], checks each field of their profiles, and returns them.
pub fn check_profiles(receiver: &mut Receiver) -> Vec<Value> {
    let (mut identities, mut requests) = (Vec::new(), Vec::new());
    for batch in batches() {
        let request = receiver.next();
        let profiles = request["profiles"].as_array().unwrap();
        assert_eq!(profiles.len(), GUESTS);
        for (guest, profile) in profiles.iter().enumerate() {
            identities.push(profile["id"].as_str().unwrap().to_owned());
            let name = format!("guest {guest}");
            let attributes = serde_json::json!({
                "service.name": name, "kvmprof.guest": name, "host.name": "host-3",
                "kvmprof.kernel.release": "6.12.2", "zone": "south",
            });
            assert_eq!(profile["attributes"], attributes);
            assert_eq!(profile["time"], batch.start * 1_000_000_000);
            assert_eq!(profile["duration"], u64::from(LENGTH) * 1_000_000_000);
            assert_eq!(profile["period"], 1_000_000_000 / HZ);
            assert_eq!(profile["type"], serde_json::json!(["samples", "count"]));
            let period = serde_json::json!(["cpu", "nanoseconds"]);
            assert_eq!(profile["period_type"], period);
            let scope = serde_json::json!(["kvmprof-collect", env!("CARGO_PKG_VERSION")]);
            assert_eq!(profile["scope"], scope);
            check_samples(profile["samples"].as_array().unwrap());
        }
        requests.push(request);
    }
    identities.sort_unstable();
    identities.dedup();
    assert_eq!(identities.len() as u64, WINDOWS);
    requests
}

fn check_samples(samples: &[Value]) {
    let known = fleet::known(1, 3);
    assert_eq!(samples.len(), known.len());
    for (sample, known) in samples.iter().zip(known) {
        let frame = |function: &&str| {
            let kind = if fleet::module(function) == "prog" {
                "native"
            } else {
                "kernel"
            };
            serde_json::json!([function, fleet::module(function), kind])
        };
        let mut stack: Vec<Value> = known.stack.iter().map(frame).collect();
        if stack.is_empty() {
            stack.push(serde_json::json!(["[halted]", "", "kernel"]));
        }
        let expected = serde_json::json!({
            "labels": {
                "process.executable.name": known.process,
                "thread.name": known.process,
                "cpu.mode": known.mode.name(),
            },
            "stack": stack,
            "values": [known.ticks],
        });
        assert_eq!(*sample, expected);
    }
}

/// The sums of all samples' two values (ticks, ns) in the output of `go tool pprof -raw`.
fn pprof_sums(raw: &str) -> [u64; 2] {
    let samples = raw.split("Samples:\n").nth(1).unwrap();
    let samples = samples.split("Locations\n").next().unwrap();
    let mut sums = [0; 2];
    for line in samples.lines() {
        let Some((values, _)) = line.split_once(':') else {
            continue;
        };
        let values: Vec<u64> = (values.split_whitespace())
            .filter_map(|value| value.parse().ok())
            .collect();
        if let [ticks, time] = values[..] {
            sums[0] += ticks;
            sums[1] += time;
        }
    }
    sums
}

fn check_pprof(found: &Value, batch: &Batch) {
    let raw = found["pprof"].as_str().unwrap();
    let time = ticks() * 1_000_000_000 / u64::from(HZ);
    assert_eq!(pprof_sums(raw), [ticks(), time], "{raw}");
    let start = batch.start - DAYS[1];
    assert!(start < 60, "the text below has only a place for seconds");
    for words in [
        "PeriodType: cpu nanoseconds",
        &format!("Period: {}\n", 1_000_000_000 / HZ),
        &format!("Time: 2026-03-02 00:00:{start:02} +0000 UTC\n"),
        &format!("Duration: {LENGTH}"),
        "samples/count cpu/nanoseconds",
        "process:[copier]",
        "mode:[interrupt]",
        "copy_page",
    ] {
        assert!(raw.contains(words), "no {words} in {raw}");
    }
}

#[test]
fn pprof_reads_what_pyroscope_gets_after_a_retry() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    fs::write(&secret, "Bearer abc\n").unwrap();
    let mut receiver = Receiver::run("receiver.py", &[]);
    let mut endpoint = endpoint(&receiver.first, "/ingest/busy");
    endpoint
        .headers
        .insert("X-Scope-OrgID".to_owned(), "team-a".to_owned());
    endpoint
        .header_files
        .insert("Authorization".to_owned(), secret);
    let kind = SinkKind::Pyroscope(endpoint);
    let progress = deliver(kind, &batches());
    assert_eq!((progress.retries, progress.unsure.windows), (2, 0));
    for batch in batches() {
        for guest in 0..GUESTS {
            let found = receiver.next();
            let name = format!(
                "kvmprof{{service_name=guest {guest},guest=guest {guest},host=host-3,kernel=6.12.2,zone=south}}"
            );
            let query = serde_json::json!({
                "name": name, "from": batch.start.to_string(), "until": batch.end().to_string(),
                "format": "pprof", "spyName": "kvmprof-collect",
            });
            assert_eq!(found["query"], query);
            assert_eq!(
                (&found["tenant"], &found["secret"]),
                (&"team-a".into(), &"Bearer abc".into())
            );
            check_pprof(&found, &batch);
        }
    }
}

#[test]
fn pprof_reads_what_parca_gets() {
    let mut receiver = Receiver::run("receiver.py", &[]);
    let kind = SinkKind::Parca(endpoint(&receiver.first, "/api/v1/profiles/writeraw"));
    deliver(kind, &batches());
    for number in 0..WINDOWS {
        let found = receiver.next();
        let guest = format!("guest {}", number % GUESTS as u64);
        let labels = serde_json::json!({
            "__name__": "kvmprof", "service_name": guest, "guest": guest, "host": "host-3", "kernel": "6.12.2",
            "zone": "south",
        });
        assert_eq!(found["labels"], labels);
        let window = usize::try_from(number).unwrap() / GUESTS;
        check_pprof(&found, &batches()[window]);
    }
}

#[test]
fn batches_that_a_receiver_refuses_are_counted_and_delay_no_others() {
    let receiver = Receiver::run("receiver.py", &[]);
    let kind = SinkKind::Otlp(endpoint(&receiver.first, "/v1development/wrong"));
    let progress = hand_over(kind, &batches(), |progress| {
        progress.refused.windows == WINDOWS
    });
    assert_eq!(progress.refused.ticks, WINDOWS * ticks());
    assert_eq!((progress.delivered.windows, progress.retries), (0, 0));
}

/// Checks the counts of a sink whose receiver accepts a part of the first request and nothing of the second. The sink repeats neither.
pub fn check_partly_taken(kind: SinkKind) {
    said();
    let half = GUESTS as u64;
    let progress = hand_over(kind, &batches(), |progress| {
        progress.unsure.windows + progress.refused.windows == WINDOWS
    });
    let counts = [progress.unsure, progress.refused, progress.delivered];
    assert_eq!(counts.map(|counts| counts.windows), [half, half, 0]);
    assert_eq!(
        counts.map(|counts| counts.ticks),
        [half * ticks(), half * ticks(), 0]
    );
    assert_eq!(progress.retries, 0);
    for rejected in [1, half] {
        let words = format!(
            "The receiver rejects {rejected} of {half} profiles: too much of it. It is not sent again"
        );
        assert!(said().contains(&words), "{}", said());
    }
}

#[test]
fn a_partly_accepted_batch_is_unsure() {
    let receiver = Receiver::run("receiver.py", &[]);
    check_partly_taken(SinkKind::Otlp(endpoint(
        &receiver.first,
        "/v1development/partly",
    )));
}

#[test]
fn a_batch_is_not_sent_again_before_the_time_that_the_receiver_asks_for() {
    let mut receiver = Receiver::run("receiver.py", &[]);
    let kind = SinkKind::Otlp(endpoint(&receiver.first, "/v1development/later"));
    let progress = deliver(kind, &batches());
    assert_eq!(progress.retries, 1);
    let mut at = || receiver.next()["at"].as_f64().unwrap();
    let (refused, next) = (at(), at());
    assert!(next - refused >= 3.0, "{refused} {next}");
}
