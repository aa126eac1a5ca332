//! Peers of a contained guest's networks and sockets: another process connects to them.

use std::io::Read;
use std::os::unix::net::UnixListener;

use kvmprof_tests::{Boot, Guest, on_kvm};

/// The port of the host that the test guest says hello to.
const HELLO: u32 = 1234;

/// The thread of a network may not connect.
#[test]
fn the_other_end_of_a_network_is_connected_to_again() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("network");
        let listener = UnixListener::bind(&path).unwrap();
        let network = format!("socket={},mac=02:00:00:00:00:2a", path.display());
        let guest = Guest::start(Boot::Test("workload=network"), ["--net", &network]);
        for _ in 0..3 {
            let (mut stream, _) = listener.accept().unwrap();
            // The guest announces each time that its link goes up.
            stream.read_exact(&mut [0; 64]).unwrap();
        }
        drop(guest);
    });
}

/// The thread of the guest's sockets may not, either; the helper reaches only sockets of the host at numbered
/// paths.
#[test]
fn the_guest_reaches_sockets_of_the_host() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vsock");
        let hello = format!("{}_{HELLO}", path.display());
        let hello = UnixListener::bind(hello).unwrap();
        let device = format!("9,socket={}", path.display());
        let guest = Guest::start(Boot::Test("workload=vsock"), ["--vsock", &device]);
        let (mut stream, _) = hello.accept().unwrap();
        let mut said = [0; 5];
        stream.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"hello");
        drop(guest);
    });
}
