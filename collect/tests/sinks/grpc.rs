//! grpcio and PyPI's opentelemetry-proto receive OTLP by gRPC.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use kvmprof_collect::config::SinkKind;
use serde_json::json;

use super::push::{WINDOWS, batches, check_partly_taken, check_profiles, endpoint, ticks};
use super::tls::{self, showing, trusting};
use super::{Receiver, SpoolWork, certificates, deliver, hand_over, said};

/// Forwards connections to another port. Returns its own port, and the bytes that clients send.
fn listen_between(port: &str) -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap().port().to_string();
    let address = format!("127.0.0.1:{port}");
    let heard = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&heard);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut near = stream.unwrap();
            let mut far = TcpStream::connect(&address).unwrap();
            let (mut back_from, mut back_to) =
                (far.try_clone().unwrap(), near.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = near.read(&mut piece) {
                kept.lock().unwrap().extend(&piece[..length]);
                if far.write_all(&piece[..length]).is_err() {
                    break;
                }
            }
        }
    });
    (own, heard)
}

/// Whether there is a gRPC message that is compressed by gzip: a byte of 1, four bytes of length, and the start of a gzip stream.
fn has_packed_message(bytes: &[u8]) -> bool {
    let mut windows = bytes.windows(8);
    windows.any(|window| window[0] == 1 && window[5..8] == [0x1f, 0x8b, 8])
}

#[test]
fn grpcio_gets_each_field() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    fs::write(&secret, "Bearer abc\n").unwrap();
    let mut receiver = Receiver::run("grpc_receiver.py", &["-"]);
    let (port, heard) = listen_between(&receiver.first);
    let mut endpoint = endpoint(&port, "");
    let tenant = ("X-Scope-OrgID".to_owned(), "team-a".to_owned());
    endpoint.headers.extend([tenant]);
    endpoint
        .header_files
        .extend([("Authorization".to_owned(), secret)]);
    let progress = deliver(SinkKind::OtlpGrpc(endpoint), &batches());
    assert_eq!(progress.delivered.ticks, WINDOWS * ticks());
    for request in check_profiles(&mut receiver) {
        let headers = &request["headers"];
        let own = [&headers["x-scope-orgid"], &headers["authorization"]];
        assert_eq!(own, [&json!("team-a"), &json!("Bearer abc")]);
        let agent = headers["user-agent"].as_str().unwrap();
        assert!(agent.starts_with("kvmprof-collect/"), "{agent}");
        let deadline = request["deadline"].as_f64().unwrap();
        assert!(deadline <= 30.0, "{deadline}");
    }
    assert!(has_packed_message(&heard.lock().unwrap()));
}

#[test]
fn both_ends_check_certificates() {
    let folder = certificates();
    let mut receiver = Receiver::run("grpc_receiver.py", &[folder.path().to_str().unwrap()]);
    let with = |tls| SinkKind::OtlpGrpc(tls::endpoint(&receiver.first, "", tls));
    let [all, wrong, none] = [
        showing(folder.path()),
        trusting(folder.path(), "other.pem"),
        trusting(folder.path(), "ca.pem"),
    ]
    .map(with);
    deliver(all, &batches());
    check_profiles(&mut receiver);
    said();
    for (kind, words) in [
        (wrong, "its certificate isn't trusted (ca_file"),
        // The receiver requires a certificate, and this sink has none.
        (none, "127.0.0.1"),
    ] {
        let work = SpoolWork::with(kind, &batches());
        let progress = work.until(|progress, _| progress.retries >= 2);
        let lost = [progress.delivered, progress.lost, progress.refused];
        assert_eq!(lost.map(|counts| counts.windows), [0; 3]);
        assert!(said().contains(words), "{}", said());
    }
}

#[test]
fn the_answer_determines_retries() {
    let answers = [
        "-",
        "UNAVAILABLE",
        "RESOURCE_EXHAUSTED:3",
        "INVALID_ARGUMENT",
    ];
    let mut receiver = Receiver::run("grpc_receiver.py", &answers);
    let kind = SinkKind::OtlpGrpc(endpoint(&receiver.first, ""));
    let half = WINDOWS / 2;
    let progress = hand_over(kind, &batches(), |progress| {
        progress.delivered.windows + progress.refused.windows == WINDOWS
    });
    // The receiver refuses the first batch twice temporarily and then permanently. It takes the second one.
    assert_eq!((progress.retries, progress.unsure.windows), (2, 0));
    assert_eq!(
        (progress.refused.windows, progress.delivered.windows),
        (half, half)
    );
    assert_eq!(progress.refused.ticks, half * ticks());
    let mut at = || receiver.next()["at"].as_f64().unwrap();
    let (_, refused, next) = (at(), at(), at());
    // The sink waits for as long as the receiver requested.
    assert!(next - refused >= 3.0, "{refused} {next}");
}

#[test]
fn a_partly_accepted_batch_is_unsure() {
    let answers = ["-", "PARTLY:1", "PARTLY:all"];
    let receiver = Receiver::run("grpc_receiver.py", &answers);
    check_partly_taken(SinkKind::OtlpGrpc(endpoint(&receiver.first, "")));
}

#[test]
fn messages_leave_out_the_query_of_a_url() {
    said();
    let endpoint = endpoint("1", "/?token=pa55");
    for kind in [
        SinkKind::OtlpGrpc(endpoint.clone()),
        SinkKind::Otlp(endpoint),
    ] {
        let work = SpoolWork::with(kind, &batches()[..1]);
        work.until(|progress, _| progress.retries >= 1);
        drop(work);
    }
    let said = said();
    let messages: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("Sink "))
        .collect();
    assert!(messages.len() >= 2, "{said}");
    assert!(
        messages.iter().all(|line| !line.contains("pa55")),
        "{messages:?}"
    );
}
