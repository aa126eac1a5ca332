//! TLS: which certificates are trusted.

use std::io::Read;
use std::net::TcpListener;
use std::path::Path;

use kvmprof_collect::config::{Endpoint, SinkKind, Tls};

use super::push::{batches, check_profiles};
use super::{Receiver, SpoolWork, certificates, deliver, hand_over, said};

/// Settings with this file as trusted authority.
pub fn trusting(folder: &Path, authority: &str) -> Tls {
    Tls {
        ca_file: Some(folder.join(authority)),
        ..Tls::default()
    }
}

/// Settings with a client certificate, too.
pub fn showing(folder: &Path) -> Tls {
    Tls {
        certificate_file: Some(folder.join("client.pem")),
        key_file: Some(folder.join("client.key")),
        ..trusting(folder, "ca.pem")
    }
}

/// The endpoint of the receiver at this port, at a path.
pub fn endpoint(port: &str, path: &str, tls: Tls) -> Endpoint {
    Endpoint {
        url: format!("https://127.0.0.1:{port}{path}"),
        tls,
        ..Endpoint::default()
    }
}

fn start(folder: &Path) -> Receiver {
    Receiver::run("receiver.py", &["0", folder.to_str().unwrap()])
}

#[test]
fn the_right_authority_is_trusted() {
    let folder = certificates();
    let mut receiver = start(folder.path());
    let tls = trusting(folder.path(), "ca.pem");
    let kind = SinkKind::Otlp(endpoint(&receiver.first, "/v1development/profiles", tls));
    let progress = deliver(kind, &batches());
    assert_eq!(progress.retries, 0);
    check_profiles(&mut receiver);
}

#[test]
fn a_client_certificate_is_sent_on_request() {
    let folder = certificates();
    let mut receiver = start(folder.path());
    let path = "/v1development/shown";
    let kind = SinkKind::Otlp(endpoint(&receiver.first, path, showing(folder.path())));
    deliver(kind, &batches());
    check_profiles(&mut receiver);
    // Without the certificate, the same receiver accepts nothing.
    let tls = trusting(folder.path(), "ca.pem");
    let kind = SinkKind::Otlp(endpoint(&receiver.first, path, tls));
    let progress = hand_over(kind, &batches(), |progress| progress.retries >= 1);
    assert_eq!(progress.delivered.windows, 0);
}

/// A sink that still connects has sent nothing of its request. A collector that is killed then must not count the batch as
/// unsure.
#[test]
fn a_batch_is_not_sent_while_its_sink_connects() {
    let folder = certificates();
    let tls = trusting(folder.path(), "ca.pem");
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port().to_string();
    let endpoint = endpoint(&port, "/", tls);
    for kind in [
        SinkKind::Otlp(endpoint.clone()),
        SinkKind::OtlpGrpc(endpoint.clone()),
        SinkKind::Pyroscope(endpoint),
    ] {
        let work = SpoolWork::with(kind, &batches()[..1]);
        // The sink has sent its first TLS message, and waits for the answer.
        let (mut stream, _) = server.accept().unwrap();
        stream.read_exact(&mut [0]).unwrap();
        let (_, progress, waiting) = work.spool.progress().remove(0);
        assert_eq!((progress.retries, waiting), (0, 1));
        assert!(!progress.attempt.unwrap().is_sent, "{progress:?}");
        // With a closed spool, the sink ends at its first failure.
        work.spool.close();
        drop(stream);
    }
}

/// The sink retries as if the receiver were down. Nothing is lost, and the log has the reason.
#[test]
fn another_authority_is_not_trusted() {
    let folder = certificates();
    let receiver = start(folder.path());
    said();
    let tls = trusting(folder.path(), "other.pem");
    let kind = SinkKind::Otlp(endpoint(&receiver.first, "/v1development/profiles", tls));
    let work = SpoolWork::with(kind, &batches());
    let progress = work.until(|progress, _| progress.retries >= 2);
    let lost = [progress.delivered, progress.lost, progress.refused].map(|counts| counts.windows);
    assert_eq!(lost, [0; 3]);
    assert_eq!(work.spool.progress()[0].2, 2);
    let said = said();
    for words in ["its certificate isn't trusted", "ca_file", "UnknownIssuer"] {
        assert!(said.contains(words), "{said}");
    }
}
