//! The socket device, with a guest that echoes data. The test's sockets are the peers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use kvmprof_abi::control::{CTL_PAUSE, CTL_RESET, CTL_RESUME};
use kvmprof_abi::wire::device;
use kvmprof_recording::status::VsockStatus;
use kvmprof_tests::{Boot, Clock, Machine, on_kvm, until};
use kvmprof_vmm::vm::{OnReset, VmConfig};
use tempfile::TempDir;

/// The port of the host that the guest says hello to.
const HELLO: u32 = 1234;
/// Clients that haven't sent a request.
const SILENT: usize = 64;

struct Bench {
    folder: TempDir,
    hello: UnixListener,
    machine: Machine,
}

impl Bench {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vsock");
        let hello = format!("{}_{HELLO}", path.display());
        let hello = UnixListener::bind(hello).unwrap();
        let vsock = format!("9,socket={}", path.display());
        let boot = Boot::Test("workload=vsock");
        let machine = Machine::launch(boot, 1, Clock::default(), |config| VmConfig {
            vsock: Some(vsock.parse().unwrap()),
            on_reset: OnReset::Restart,
            ..config
        });
        Self {
            folder,
            hello,
            machine,
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("vsock")
    }

    /// Waits until the guest's driver has started, by its message.
    fn greeted(&self) -> UnixStream {
        let (mut stream, _) = self.hello.accept().unwrap();
        let mut hello = [0; 5];
        stream.read_exact(&mut hello).unwrap();
        assert_eq!(&hello, b"hello");
        stream
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(self.path()).unwrap()
    }

    /// A connection to a port of the guest.
    fn connected(&self, port: u32) -> UnixStream {
        let mut stream = self.connect();
        // In small pieces.
        for piece in ["CON", "NECT ", &port.to_string(), "\n"] {
            stream.write_all(piece.as_bytes()).unwrap();
        }
        let mut line = String::new();
        // Byte by byte: what follows isn't this reader's.
        BufReader::with_capacity(1, &stream)
            .read_line(&mut line)
            .unwrap();
        assert!(line.starts_with("OK "), "{line:?}");
        stream
    }

    fn status(&self) -> VsockStatus {
        self.machine.status().machine.vsock.unwrap()
    }
}

/// Sent bytes are echoed.
fn echoes(stream: &mut UnixStream, bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back).unwrap();
    assert!(back == bytes);
}

/// Whether the other end has closed it: by an end, or by a reset if it left bytes unread.
fn is_closed(mut stream: UnixStream) -> bool {
    !matches!(stream.read(&mut [0]), Ok(1..))
}

#[test]
fn bytes_come_back_in_spite_of_hostile_clients() {
    on_kvm(|| {
        let bench = Bench::start();
        let _greeted = bench.greeted();
        let mut stream = bench.connected(52);
        let mut other = bench.connected(u32::MAX);
        let bytes: Vec<u8> = (0..20_000_u32).flat_map(u32::to_le_bytes).collect();
        for piece in bytes.chunks(8000) {
            echoes(&mut stream, piece);
            echoes(&mut other, b"other");
        }
        for nonsense in ["HELLO\n", "CONNECT -1\n", "CONNECT 1 2\n", &"C".repeat(40)] {
            let mut client = bench.connect();
            client.write_all(nonsense.as_bytes()).unwrap();
            assert!(is_closed(client), "{nonsense:?}");
        }
        // More silent ones than the limit: the oldest are closed.
        let silent: Vec<_> = (0..SILENT + 8).map(|_| bench.connect()).collect();
        until("the oldest have gone", || {
            let gone = bench.status().clients_turned_away;
            assert!(gone <= 4 + 8, "{gone}");
            (gone == 4 + 8).then_some(())
        });
        echoes(&mut stream, b"still");
        drop(silent);
        // A client that reads none of its data: the guest has credit for some of it, and then ends the connection.
        let mut greedy = bench.connected(53);
        greedy.set_nonblocking(true).unwrap();
        until("the guest has no credit", || {
            let _ = greedy.write(&[1; 4000]);
            (bench.machine.counters()[0].errors == 1).then_some(())
        });
        echoes(&mut other, b"others go on");
        // A shutdown of one direction is forwarded: the guest ends the connection then.
        stream.shutdown(Shutdown::Write).unwrap();
        assert!(is_closed(stream));
        drop(other);
        let status = until("only the guest's own is left", || {
            let status = bench.status();
            (status.connections == 1).then_some(status)
        });
        println!("{status:?}");
        let counts = status.counts;
        assert_eq!(counts.host_connections, 3, "{status:?}");
        assert_eq!((counts.malformed, counts.credit_violations), (0, 0));
        assert_eq!(counts.queue_faults, 0, "{status:?}");
    });
}

#[test]
fn connections_wait_over_a_pause_and_end_at_a_reset() {
    on_kvm(|| {
        let bench = Bench::start();
        let greeted = bench.greeted();
        let mut stream = bench.connected(52);
        let control = bench.machine.connect();
        let control = control.open(device::CONTROL, 0).unwrap();
        control.ioctl(CTL_PAUSE, 0).unwrap();
        stream.write_all(b"meanwhile").unwrap();
        control.ioctl(CTL_RESUME, 0).unwrap();
        let mut back = [0; 9];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"meanwhile");
        control.ioctl(CTL_RESET, 0).unwrap();
        assert!(is_closed(stream) && is_closed(greeted));
        // It says hello again.
        let _greeted = bench.greeted();
        echoes(&mut bench.connected(52), b"after");
        assert!(bench.path().exists());
    });
}
