//! Parquet files in object stores: an S3 server that checks signatures (moto), a server that checks Google's tokens, and Microsoft's emulator of
//! Azure. The stores' own libraries read the files back, and DuckDB queries them.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use kvmprof_collect::batch::Batch;
use kvmprof_collect::config::{Bucket, SinkKind};
use serde_json::Value;

use super::fleet::{self, DAYS, HOSTS, WINDOWS};
use super::lake::check_answers;
use super::{Receiver, SpoolWork, hand_over, said};

/// A store of collect/tests/receivers.
struct Store {
    receiver: Receiver,
    address: Value,
    secret: tempfile::NamedTempFile,
}

const S3: &str = "s3.py";
const GOOGLE: &str = "gcs.py";
const AZURE: &str = "azure_blobs.py";

impl Store {
    fn start(script: &str) -> Self {
        let receiver = Receiver::run(script, &[]);
        let address: Value = serde_json::from_str(&receiver.first).unwrap();
        let secret = tempfile::NamedTempFile::new().unwrap();
        let store = Self {
            receiver,
            address,
            secret,
        };
        fs::write(store.secret.path(), format!("{}\n", store.text("secret"))).unwrap();
        store
    }

    fn text(&self, member: &str) -> &str {
        self.address[member].as_str().unwrap()
    }

    fn bucket(&self) -> Bucket {
        let path = self.secret.path().to_owned();
        Bucket {
            url: self.text("url").to_owned(),
            options: serde_json::from_value(self.address["options"].clone()).unwrap(),
            option_files: [(self.text("secret_option").to_owned(), path)].into(),
            ..Bucket::default()
        }
    }

    /// A sink of files of this length in seconds.
    fn sink(&self, seconds: u64) -> SinkKind {
        SinkKind::Objects {
            bucket: self.bucket(),
            seconds,
        }
    }

    /// Has the store put all objects into a folder, and returns their keys.
    fn get_all(&mut self, folder: &Path) -> Vec<String> {
        let input = self.receiver.input.as_mut().unwrap();
        writeln!(input, "get {}", folder.display()).unwrap();
        serde_json::from_value(self.receiver.next()).unwrap()
    }
}

fn batches(host: usize) -> Vec<Batch> {
    let days = 0..DAYS.len();
    days.flat_map(|day| (0..WINDOWS).map(move |window| fleet::batch(day, host, window)))
        .collect()
}

fn check_that_duckdb_answers_every_query(script: &str) {
    let mut store = Store::start(script);
    for host in 0..HOSTS {
        let batches = batches(host);
        let ticks: u64 = batches.iter().map(Batch::ticks).sum();
        let kind = store.sink(30);
        let progress = hand_over(kind, &batches, |progress| {
            progress.delivered.ticks > ticks / 2
        });
        assert_eq!((progress.retries, progress.lost.windows), (0, 0));
    }
    let folder = tempfile::tempdir().unwrap();
    let keys = store.get_all(folder.path());
    let expected =
        "fleet/a/date=2026-03-01/host=host-0/guest=guest%200/1772323200-0000000000000000.parquet";
    assert_eq!(keys[0], expected);
    check_answers(&folder.path().join("fleet/a"));
}

#[test]
fn duckdb_answers_every_query_on_what_is_in_s3() {
    check_that_duckdb_answers_every_query(S3);
}

#[test]
fn duckdb_answers_every_query_on_what_is_in_google_cloud_storage() {
    check_that_duckdb_answers_every_query(GOOGLE);
}

#[test]
fn duckdb_answers_every_query_on_what_is_in_azure() {
    check_that_duckdb_answers_every_query(AZURE);
}

/// A collector that was killed may send a file again. It has the same name.
#[test]
fn files_that_are_sent_twice_are_stored_once() {
    for script in [S3, GOOGLE, AZURE] {
        let mut store = Store::start(script);
        let folder = tempfile::tempdir().unwrap();
        let mut all = Vec::new();
        for _ in 0..2 {
            let batches = batches(1);
            let work = SpoolWork::with(store.sink(1), &batches);
            work.spool.drain();
            let windows = (batches.len() * fleet::GUESTS) as u64;
            work.until(|progress, _| progress.delivered.windows == windows);
            drop(work);
            all.push(store.get_all(folder.path()));
        }
        assert_eq!(all[0].len(), batches(1).len() * fleet::GUESTS, "{script}");
        assert_eq!(all[0], all[1], "{script}");
    }
}

#[test]
fn a_wrong_secret_is_reported_and_loses_nothing() {
    for script in [S3, GOOGLE, AZURE] {
        let store = Store::start(script);
        said();
        let wrong = store.text("wrong");
        fs::write(store.secret.path(), wrong).unwrap();
        let work = SpoolWork::with(store.sink(0), &batches(0)[..2]);
        let progress = work.until(|progress, _| progress.retries >= 2);
        assert_eq!((progress.delivered.windows, progress.lost.windows), (0, 0));
        let said = said();
        assert!(said.contains(store.text("refusal")), "{said}");
        assert!(!said.contains(wrong), "{said}");
    }
}

#[test]
fn a_store_without_tls_needs_an_option() {
    for script in [S3, GOOGLE, AZURE] {
        let store = Store::start(script);
        said();
        let mut bucket = store.bucket();
        bucket.options.remove("allow_http");
        let work = SpoolWork::with(SinkKind::Objects { bucket, seconds: 0 }, &batches(0)[..1]);
        work.until(|progress, _| progress.retries >= 1);
        let said = said();
        assert!(said.contains("allow_http"), "{script}: {said}");
    }
}

/// Reads one S3 request. Answers with `status` and `code` if its path contains `words`, and else with success.
fn answer_one(stream: TcpStream, words: &str, status: u16, code: &str) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let (mut first, mut line, mut length) = (String::new(), String::new(), 0);
    reader.read_line(&mut first).ok()?;
    while line != "\r\n" {
        line.clear();
        reader.read_line(&mut line).ok()?;
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    reader.read_exact(&mut vec![0; length]).ok()?;
    let body = format!("<Error><Code>{code}</Code></Error>");
    let (status, body) = if first.contains(words) {
        (status, body)
    } else {
        (200, String::new())
    };
    let length = body.len();
    let head = format!("HTTP/1.1 {status} x\r\nETag: \"x\"\r\nContent-Length: {length}\r\n");
    let mut stream = reader.into_inner();
    write!(stream, "{head}Connection: close\r\n\r\n{body}").ok()
}

/// A sink for a store that answers with `status` and `code` to all requests whose path contains `words`. Its server ends with the test.
fn refusing(words: &'static str, status: u16, code: &'static str) -> SinkKind {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            answer_one(stream.unwrap(), words, status, code);
        }
    });
    let endpoint = format!("http://{address}");
    let options = [
        ("endpoint", endpoint.as_str()),
        ("allow_http", "true"),
        ("region", "r"),
        ("access_key_id", "a"),
        ("secret_access_key", "b"),
    ];
    let options = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let bucket = Bucket {
        url: "s3://fleet".to_owned(),
        options: options.into(),
        ..Bucket::default()
    };
    SinkKind::Objects { bucket, seconds: 0 }
}

#[test]
fn permanently_refused_files_are_counted_and_delay_no_others() {
    let windows = 2 * fleet::GUESTS as u64;
    for (status, code) in [(413, "x"), (422, "x"), (400, "KeyTooLongError")] {
        let kind = refusing("parquet", status, code);
        let progress = hand_over(kind, &batches(0)[..2], |progress| {
            progress.refused.windows == windows
        });
        assert_eq!((progress.delivered.windows, progress.retries), (0, 0));
    }
    // The store takes the other guest's files.
    let kind = refusing("guest%25200", 413, "x");
    let progress = hand_over(kind, &batches(0)[..2], |progress| {
        progress.refused.windows + progress.delivered.windows == windows
    });
    assert_eq!((progress.refused.windows, progress.retries), (2, 0));
    assert_eq!(progress.unsure.windows, 0);
}

/// An operator can correct credentials and buckets. Until then the batches wait.
#[test]
fn temporarily_refused_files_are_sent_again() {
    for (status, code) in [
        (400, "ExpiredToken"),
        (403, "AccessDenied"),
        (404, "NoSuchBucket"),
    ] {
        let work = SpoolWork::with(refusing("parquet", status, code), &batches(0)[..1]);
        let progress = work.until(|progress, _| progress.retries >= 1);
        assert_eq!((progress.refused.windows, progress.unsure.windows), (0, 0));
    }
}
