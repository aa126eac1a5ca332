//! Receivers that are killed and started again, or hang.

use std::io::Read;
use std::net::TcpListener;

use kvmprof_collect::batch::Batch;
use kvmprof_collect::config::SinkKind;
use kvmprof_collect::spool::{Progress, Spool};

use super::fleet::{self, GUESTS};
use super::push::endpoint;
use super::{Receiver, SpoolWork};

const BATCHES: u64 = 20;
const PATH: &str = "/v1development/profiles";

fn batches(first: u64, count: u64) -> Vec<Batch> {
    let windows = first..first + count;
    windows.map(|window| fleet::batch(0, 2, window)).collect()
}

fn sum(batches: &[Batch]) -> u64 {
    batches.iter().map(Batch::ticks).sum()
}

/// Checks that the receiver got `expected`, by the starts and the ticks of what it got, and that the sink counts no loss.
fn check_all_arrived(progress: &Progress, (starts, ticks): (Vec<u64>, u64), expected: &[Batch]) {
    let all: Vec<u64> = expected.iter().map(|batch| batch.start).collect();
    assert_eq!((starts, ticks), (all, sum(expected)));
    let others = [progress.lost, progress.refused, progress.unsure];
    assert_eq!(others.map(|counts| counts.windows), [0; 3]);
}

/// The starts of the next `count` batches that the receiver gets, and the ticks in them.
fn take(receiver: &mut Receiver, count: u64) -> (Vec<u64>, u64) {
    let (mut starts, mut ticks) = (Vec::new(), 0);
    for _ in 0..count {
        let request = receiver.next();
        let profiles = request["profiles"].as_array().unwrap();
        assert_eq!(profiles.len(), GUESTS);
        starts.push(profiles[0]["time"].as_u64().unwrap() / 1_000_000_000);
        for sample in profiles
            .iter()
            .flat_map(|profile| profile["samples"].as_array().unwrap())
        {
            ticks += sample["values"][0].as_u64().unwrap();
        }
    }
    (starts, ticks)
}

/// Kills a sink's receiver after its first batch, pushes `BATCHES` more while the receiver is down and the sink retries, and starts another
/// one at its port. Returns the sink's progress when the spool is empty, and the starts and the ticks of the batches that the second
/// receiver got.
fn killed_and_back(limit: u64) -> (Progress, Vec<u64>, u64) {
    let mut receiver = Receiver::run("receiver.py", &[]);
    let port = receiver.first.clone();
    let work = SpoolWork::start(SinkKind::Otlp(endpoint(&port, PATH)), limit);
    work.push(&batches(0, 1));
    work.until(|progress, waiting| progress.delivered.windows == GUESTS as u64 && waiting == 0);
    let first = take(&mut receiver, 1);
    assert_eq!(first.1, sum(&batches(0, 1)));
    drop(receiver);
    work.push(&batches(1, 1));
    // The sink has tried to send it.
    work.until(|progress, _| progress.retries >= 1);
    work.push(&batches(2, BATCHES - 1));
    let before = work.until(|progress, waiting| {
        progress.retries >= 3 && waiting + progress.lost.batches == BATCHES
    });
    assert_eq!(before.delivered.windows, GUESTS as u64);
    let mut receiver = Receiver::run("receiver.py", &[&port]);
    let progress = work.until(|_, waiting| waiting == 0);
    let taken = (progress.delivered.windows - before.delivered.windows) / GUESTS as u64;
    let (starts, ticks) = take(&mut receiver, taken);
    (progress, starts, ticks)
}

#[test]
fn a_receiver_that_was_killed_loses_nothing() {
    let (progress, starts, ticks) = killed_and_back(1 << 30);
    check_all_arrived(&progress, (starts, ticks), &batches(1, BATCHES));
    let windows = (1 + BATCHES) * GUESTS as u64;
    assert_eq!(progress.delivered.windows, windows);
}

/// A receiver accepts the connection and never answers. Then another one is started at its port.
#[test]
fn a_receiver_that_hangs_loses_nothing_and_delays_nothing() {
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = hanging.local_addr().unwrap().port().to_string();
    let work = SpoolWork::with(SinkKind::Otlp(endpoint(&port, PATH)), &batches(0, 1));
    let (mut stream, _) = hanging.accept().unwrap();
    // Read the whole request, and send no answer.
    let mut request = Vec::new();
    let mut piece = [0; 4096];
    while !is_whole(&request) {
        let length = stream.read(&mut piece).unwrap();
        assert!(length > 0, "{request:?}");
        request.extend_from_slice(&piece[..length]);
    }
    // The collector can still push batches.
    work.push(&batches(1, BATCHES));
    let before = work.until(|_, waiting| waiting == 1 + BATCHES);
    assert_eq!((before.delivered.windows, before.retries), (0, 0));
    assert!(before.attempt.unwrap().is_sent);
    drop((stream, hanging));
    let mut receiver = Receiver::run("receiver.py", &[&port]);
    let progress = work.until(|_, waiting| waiting == 0);
    let expected = batches(0, 1 + BATCHES);
    check_all_arrived(&progress, take(&mut receiver, 1 + BATCHES), &expected);
    assert_eq!(progress.delivered.ticks, sum(&expected));
    assert!(progress.retries >= 1);
}

/// Whether an HTTP request has arrived with its whole body.
fn is_whole(request: &[u8]) -> bool {
    let Some(head) = request.windows(4).position(|end| end == b"\r\n\r\n") else {
        return false;
    };
    let text = String::from_utf8_lossy(&request[..head]).to_lowercase();
    let length = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    request.len() >= head + 4 + length.unwrap().trim().parse::<usize>().unwrap()
}

/// The spool has room for five batches. It counts each batch that it removes, and all others arrive.
#[test]
fn losses_of_a_full_spool_are_counted_exactly() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(&folder.path().join("spool"), 1 << 30, &[]).unwrap();
    spool.push(&batches(1, 1)[0]).unwrap();
    let each = spool.fill().bytes;
    let (progress, starts, ticks) = killed_and_back(5 * each + each / 2);
    let expected = batches(1, BATCHES);
    let kept: Vec<&Batch> = expected
        .iter()
        .filter(|batch| starts.contains(&batch.start))
        .collect();
    assert_eq!(kept.len(), starts.len());
    let kept: u64 = kept.into_iter().map(Batch::ticks).sum();
    assert_eq!(ticks, kept);
    let lost = progress.lost;
    assert!(lost.batches >= 10, "{lost:?}");
    assert_eq!(lost.batches, BATCHES - starts.len() as u64);
    assert_eq!(lost.windows, lost.batches * GUESTS as u64);
    assert_eq!(lost.ticks, sum(&expected) - kept);
    assert_eq!((progress.refused.windows, progress.unsure.windows), (0, 0));
}
