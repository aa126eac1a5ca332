//! Parquet files in object stores: an S3 server that checks signatures (moto), read back by boto3 and DuckDB.

use std::fs;
use std::io::Write;
use std::path::Path;

use kvmprof_collect::batch::Batch;
use kvmprof_collect::config::{Bucket, SinkKind};
use serde_json::Value;

use super::fleet::{self, DAYS, HOSTS, WINDOWS};
use super::lake::check_answers;
use super::{Receiver, Work, hand_over, said};

struct S3 {
    receiver: Receiver,
    address: Value,
    secret: tempfile::NamedTempFile,
}

impl S3 {
    fn start() -> Self {
        let receiver = Receiver::run("s3.py", &[]);
        let address: Value = serde_json::from_str(&receiver.first).unwrap();
        let secret = tempfile::NamedTempFile::new().unwrap();
        let word = address["secret"].as_str().unwrap();
        fs::write(secret.path(), format!("{word}\n")).unwrap();
        Self {
            receiver,
            address,
            secret,
        }
    }

    fn bucket(&self) -> Bucket {
        let option = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let endpoint = format!("http://127.0.0.1:{}", self.address["port"]);
        let path = self.secret.path().to_owned();
        Bucket {
            url: "s3://lake/fleet/a".to_owned(),
            options: [
                option("endpoint", &endpoint),
                option("region", "eu-west-1"),
                option("access_key_id", self.address["key"].as_str().unwrap()),
                option("allow_http", "true"),
            ]
            .into(),
            option_files: [("secret_access_key".to_owned(), path)].into(),
            ..Bucket::default()
        }
    }

    /// Gets all objects into a folder, and returns their keys.
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

#[test]
fn duckdb_answers_every_query_on_what_is_in_s3() {
    let mut s3 = S3::start();
    for host in 0..HOSTS {
        let batches = batches(host);
        let ticks: u64 = batches.iter().map(Batch::ticks).sum();
        let kind = SinkKind::Objects {
            bucket: s3.bucket(),
            seconds: 30,
        };
        let progress = hand_over(kind, &batches, |progress| {
            progress.delivered.ticks > ticks / 2
        });
        assert_eq!((progress.retries, progress.lost.windows), (0, 0));
    }
    let folder = tempfile::tempdir().unwrap();
    let keys = s3.get_all(folder.path());
    let expected =
        "fleet/a/date=2026-03-01/host=host-0/guest=guest%200/1772323200-0000000000000000.parquet";
    assert_eq!(keys[0], expected);
    check_answers(&folder.path().join("fleet/a"));
}

/// What a killed collector may have sent is sent again under the same name.
#[test]
fn what_is_sent_twice_is_there_once() {
    let mut s3 = S3::start();
    let folder = tempfile::tempdir().unwrap();
    let mut all = Vec::new();
    for _ in 0..2 {
        let kind = SinkKind::Objects {
            bucket: s3.bucket(),
            seconds: 1,
        };
        let batches = batches(1);
        let work = Work::start(kind, 1 << 30);
        work.push(&batches);
        work.spool.close();
        let windows = (batches.len() * fleet::GUESTS) as u64;
        work.until(|progress, _| progress.delivered.windows == windows);
        drop(work);
        all.push(s3.get_all(folder.path()));
    }
    assert_eq!(all[0].len(), batches(1).len() * fleet::GUESTS);
    assert_eq!(all[0], all[1]);
}

#[test]
fn a_wrong_secret_is_told_and_loses_nothing() {
    let s3 = S3::start();
    said();
    let wrong = tempfile::NamedTempFile::new().unwrap();
    fs::write(wrong.path(), "not-the-secret").unwrap();
    let mut bucket = s3.bucket();
    let path = wrong.path().to_owned();
    bucket
        .option_files
        .insert("secret_access_key".to_owned(), path);
    let work = Work::start(SinkKind::Objects { bucket, seconds: 0 }, 1 << 30);
    work.push(&batches(0)[..2]);
    let progress = work.until(|progress, _| progress.retries >= 2);
    assert_eq!((progress.delivered.windows, progress.lost.windows), (0, 0));
    let said = said();
    assert!(said.contains("SignatureDoesNotMatch"), "{said}");
    assert!(!said.contains("not-the-secret"), "{said}");
}

#[test]
fn a_store_without_tls_has_to_be_allowed() {
    let s3 = S3::start();
    said();
    let mut bucket = s3.bucket();
    bucket.options.remove("allow_http");
    let work = Work::start(SinkKind::Objects { bucket, seconds: 0 }, 1 << 30);
    work.push(&batches(0)[..1]);
    work.until(|progress, _| progress.retries >= 1);
    assert!(said().contains("allow_http"), "{}", said());
}
