//! The network device and the entropy device, with a guest that echoes frames. The test is the peer at the socket, as
//! passt would be.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;

use kvmprof_recording::status::NetworkStatus;
use kvmprof_test_guest::{NetworkResults, Outcome};
use kvmprof_tests::{Boot, Clock, Machine, on_kvm, until};
use kvmprof_vmm::vm::VmConfig;
use tempfile::TempDir;

const BOOT: Boot = Boot::Test("workload=network");
const MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 0x2a];
/// The type of the guest's own frames, and the offset of what follows it.
const TYPE: [u8; 2] = [0x88, 0xb5];
const PAYLOAD: usize = 14;
const ANNOUNCEMENT: usize = 60;

/// A socket to listen on, and the guest's network that connects to it.
struct PeerSocket {
    folder: TempDir,
}

impl PeerSocket {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder }
    }

    fn listen(&self) -> UnixListener {
        let path = self.folder.path().join("network");
        let _ = std::fs::remove_file(&path);
        UnixListener::bind(path).unwrap()
    }

    /// Starts a guest that is connected to it.
    fn start(&self, boot: Boot) -> Machine {
        let path = self.folder.path().join("network");
        let network = format!("socket={},mac=02:00:00:00:00:2a", path.display());
        Machine::launch(boot, 1, Clock::default(), |config| VmConfig {
            networks: vec![network.parse().unwrap()],
            ..config
        })
    }
}

/// The other end of a connection.
struct Peer(UnixStream);

impl Peer {
    fn accept(listener: &UnixListener) -> Self {
        Self(listener.accept().unwrap().0)
    }

    fn send(&mut self, frame: &[u8]) {
        let length = u32::try_from(frame.len()).unwrap();
        self.0.write_all(&length.to_be_bytes()).unwrap();
        self.0.write_all(frame).unwrap();
    }

    /// The next frame; `None` at the end.
    fn receive(&mut self) -> Option<Vec<u8>> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length).ok()?;
        let mut frame = vec![0; usize::try_from(u32::from_be_bytes(length)).unwrap()];
        self.0.read_exact(&mut frame).ok()?;
        Some(frame)
    }

    /// Waits for the guest's announcement number `number` that its link is up.
    fn announced(&mut self, number: u32) {
        let frame = self.receive().unwrap();
        let mut expected = [0xff; 6].to_vec();
        expected.extend(MAC);
        expected.extend(TYPE);
        expected.extend(number.to_le_bytes());
        expected.resize(ANNOUNCEMENT, 0);
        assert_eq!(frame, expected);
    }
}

/// A frame of this length, and the guest's echo.
fn frame(length: usize, byte: u8) -> (Vec<u8>, Vec<u8>) {
    let other = [2, 0, 0, 0, 0, 1];
    let rest = vec![byte; length - PAYLOAD];
    let with = |to: [u8; 6], from: [u8; 6]| [&to[..], &from, &TYPE, &rest].concat();
    (with(MAC, other), with(other, MAC))
}

/// The status document's part about the network.
fn status(machine: &Machine) -> NetworkStatus {
    machine.status().machine.networks.remove(0)
}

/// Waits for a result of the guest.
fn until_guest(machine: &Machine, is: impl Fn(&NetworkResults) -> bool) -> NetworkResults {
    until("the guest has got that far", || {
        let results = machine.network();
        assert_eq!(results.failure, Outcome::Done, "{results:?}");
        is(&results).then_some(results)
    })
}

/// Frames of all sizes go to the guest and return unchanged.
#[test]
fn frames_go_to_the_peer_and_back() {
    on_kvm(|| {
        let place = PeerSocket::new();
        let listener = place.listen();
        let machine = place.start(BOOT);
        let mut peer = Peer::accept(&listener);
        peer.announced(1);
        let lengths = [14, 15, 60, 61, 590, 1514, 1524];
        let mut bytes = 0;
        for (length, byte) in lengths.into_iter().zip(1..) {
            let (there, back) = frame(length, byte);
            peer.send(&there);
            assert_eq!(peer.receive(), Some(back), "{length} bytes");
            bytes += length;
        }
        // More at once than the guest has buffers for.
        for byte in 0..100 {
            peer.send(&frame(100, byte).0);
        }
        for byte in 0..100 {
            assert_eq!(peer.receive(), Some(frame(100, byte).1));
        }
        // Longer than its buffers: dropped, and the next one arrives.
        peer.send(&frame(9000, 1).0);
        peer.send(&frame(65553, 2).0);
        let (there, back) = frame(64, 3);
        peer.send(&there);
        assert_eq!(peer.receive(), Some(back));

        let results = until_guest(&machine, |results| results.frames == 108);
        println!("{results:?}");
        assert_eq!((results.mac, results.errors), (MAC, 0));
        assert_eq!((results.ups, results.downs), (1, 0));
        let bytes = bytes + 100 * 100 + 64;
        // The account of a turn is updated at its end, and its frames may arrive before.
        let status = until("all frames are counted", || {
            let status = status(&machine);
            (status.sent.frames == 109).then_some(status)
        });
        println!("{status:?}");
        assert_eq!(status.mac, "02:00:00:00:00:2a");
        assert!(status.up);
        let received = status.received;
        assert_eq!((received.frames, received.dropped), (108, 2));
        assert_eq!(received.bytes, bytes as u64);
        assert_eq!(status.sent.bytes, (bytes + ANNOUNCEMENT) as u64);
        let faults = [
            status.peer_faults,
            status.queue_faults,
            status.refused_queues,
            status.link_losses,
        ];
        assert_eq!(faults, [0; 4]);
        machine.stop();
    });
}

/// The device keeps working after every attack on a queue, and reports those that it has to notice.
#[test]
fn hostile_queues_harm_only_themselves() {
    on_kvm(|| {
        let place = PeerSocket::new();
        let listener = place.listen();
        let machine = place.start(Boot::Test("workload=hostile-network"));
        let mut peer = Peer::accept(&listener);
        let echo = thread::spawn(move || {
            while let Some(frame) = peer.receive() {
                peer.send(&frame);
            }
        });
        let results = until("all attacks are over", || {
            let results = machine.network();
            results.finished.then_some(results)
        });
        assert_eq!(results.failure, Outcome::Done);
        assert_eq!(usize::try_from(results.over), Ok(results.attacks.len()));
        assert!(results.attacks.len() > 90);
        let mut complaints = 0;
        for (number, attack) in results.attacks.iter().enumerate() {
            let outcomes = [attack.tried, attack.after, attack.random_after];
            let survived = outcomes == [Outcome::Done; 3];
            let noticed = attack.noticed || !attack.needs_notice;
            complaints += u32::from(!survived || !noticed);
            println!("{number:3} {survived} {noticed}: {attack:?}");
        }
        assert_eq!(complaints, 0);
        let noticed = results.attacks.iter().filter(|attack| attack.needs_notice);
        let noticed = u64::try_from(noticed.count()).unwrap();
        let status = machine.status().machine;
        let network = &status.networks[0];
        let faults = network.queue_faults + status.entropy.unwrap().queue_faults;
        assert!(faults >= noticed, "{faults} of {noticed}: {status:?}");
        assert!(network.up, "{status:?}");
        machine.stop();
        echo.join().unwrap();
    });
}
