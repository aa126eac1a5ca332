//! A folder that another program serves: a contained kvmprof reconnects to it.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use kvmprof_tests::{Boot, Guest, on_kvm, until};
use rustix::process::Signal;

/// Requests of the protocol (QEMU: docs/interop/vhost-user.rst).
const GET_FEATURES: u32 = 1;
const GET_VRING_BASE: u32 = 11;
const SET_VRING_KICK: u32 = 12;
/// VIRTIO_F_VERSION_1, and no features of the protocol.
const FEATURES: u64 = 1 << 32;
/// Flags of an answer: the version, and that it is an answer.
const ANSWER: u32 = 1 | 4;
/// Of a device.
const QUEUES: usize = 2;

/// Serves an empty folder to one client: `hears` gets each request, and returns whether to continue. Ends with its client at the latest.
pub(super) fn serve(listener: &UnixListener, mut hears: impl FnMut(u32) -> bool) {
    let (mut stream, _) = listener.accept().unwrap();
    let mut header = [0; 12];
    while stream.read_exact(&mut header).is_ok() {
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let request = word(0);
        let mut payload = vec![0; word(8) as usize];
        stream.read_exact(&mut payload).unwrap();
        let answer = match request {
            GET_FEATURES => Some(FEATURES),
            // The queue's number, and its position: 0.
            GET_VRING_BASE => Some(u64::from(payload[0])),
            _ => None,
        };
        if let Some(answer) = answer {
            let header = [request, ANSWER, 8].map(u32::to_le_bytes).concat();
            let message = [header, answer.to_le_bytes().to_vec()].concat();
            stream.write_all(&message).unwrap();
        }
        if !hears(request) {
            return;
        }
    }
}

/// Serves this many clients, one after the other, and reports when each has all its queues; closes all but the last one then.
fn serve_and_leave(listener: UnixListener, clients: usize) -> Receiver<()> {
    let (tell, started) = channel();
    thread::spawn(move || {
        for client in 1..=clients {
            let mut queues = 0;
            serve(&listener, |request| {
                queues += usize::from(request == SET_VRING_KICK);
                if request != SET_VRING_KICK || queues < QUEUES {
                    return true;
                }
                // The test may have failed.
                let _ = tell.send(());
                client == clients
            });
        }
    });
    started
}

/// The connection is made at a reset of the device, for a vCPU, which may not connect to anything.
#[test]
fn a_program_that_was_gone_is_connected_to_again() {
    on_kvm(|| {
        const CLIENTS: usize = 3;
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("files");
        let started = serve_and_leave(UnixListener::bind(&socket).unwrap(), CLIENTS);
        let share = format!("socket={},tag=files", socket.display());
        let mut guest = Guest::start(Boot::Test("workload=folder"), ["--share", &share]);
        for _ in 0..CLIENTS {
            until("the folder is served", || {
                assert!(!guest.has_ended(), "{}", guest.stderr());
                started.try_recv().ok()
            });
        }
        let last = format!("started {CLIENTS}");
        until("the guest has started the device", || {
            guest.console().contains(&last).then_some(())
        });
        let status = guest.status();
        let folder = &status.machine.folders[0];
        assert_eq!(folder.restarts, CLIENTS as u64 - 1, "{folder:?}");
        assert_eq!(folder.state, "serving", "{folder:?}");
        guest.signal(Signal::INT);
        let ran = guest.wait();
        assert_eq!(ran.status, 0, "{ran:?}");
    });
}
