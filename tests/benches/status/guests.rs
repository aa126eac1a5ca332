//! Disturbing guests.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep, spawn};
use std::time::Duration;

use kvmprof_abi::control::CTL_RESET;
use kvmprof_abi::wire::device;
use kvmprof_tests::{Boot, Guest, make_raw};
use tempfile::TempDir;

use super::{Times, end};

/// Time after which a guest is reset to restart its attacks, in case they have ended.
const ATTACKS: Duration = Duration::from_secs(2);

fn measure(guest: Guest, answers: usize) -> Times {
    let times = Times::of(&guest, answers);
    end(guest);
    times
}

/// The baseline.
pub fn at_rest(answers: usize) -> Times {
    measure(Guest::start(Boot::Demo, ["--hz", "100"]), answers)
}

/// Circular page tables, invalid pointers and absurd counts, at the highest rate, for a recording with call
/// stacks.
pub fn hostile_memory(answers: usize) -> Times {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let recording = folder.path().join("recording");
    let recording = recording.to_str().expect("a path in UTF-8");
    let boot = Boot::Test("workload=hostile");
    let options = ["--cpus", "2", "--hz", "10000", "--record", recording];
    measure(Guest::start(boot, options), answers)
}

/// pcs is opened and closed on a port as fast as the guest can, while its other vCPU reads the device's registers.
pub fn port_flood(answers: usize) -> Times {
    let boot = Boot::Test("workload=clock-flood");
    let options = ["--cpus", "2", "--guest-access", "all"];
    measure(Guest::start(boot, options), answers)
}

/// Ports and memory without a device.
pub fn exits(answers: usize) -> Times {
    let boot = Boot::Test("workload=endless-exits");
    measure(
        Guest::start(boot, ["--cpus", "2", "--hz", "10000"]),
        answers,
    )
}

/// More vCPUs than most hosts have CPUs for, all busy.
pub fn interrupts_off(answers: usize) -> Times {
    let boot = Boot::Test("workload=irqoff");
    measure(
        Guest::start(boot, ["--cpus", "8", "--hz", "10000"]),
        answers,
    )
}

/// Measures beside a guest that is reset repeatedly, as its attacks end at some time.
fn measure_again(guest: Guest, answers: usize) -> Times {
    let is_over = AtomicBool::new(false);
    let times = scope(|scope| {
        scope.spawn(|| {
            let control = guest.connect();
            let control = control
                .open(device::CONTROL, 0)
                .expect("the control device");
            while !is_over.load(Ordering::Relaxed) {
                sleep(ATTACKS);
                control.ioctl(CTL_RESET, 0).expect("a reset");
            }
        });
        let times = Times::of(&guest, answers);
        is_over.store(true, Ordering::Relaxed);
        times
    });
    end(guest);
    times
}

/// Descriptor chains, rings and registers of the virtio console that no driver would set.
pub fn console_queues(answers: usize) -> Times {
    let boot = Boot::Test("workload=hostile-queues");
    let options = ["--cpus", "2", "--hz", "1000", "--guest-access", "all"];
    measure_again(Guest::start(boot, options), answers)
}

/// A network whose other end echoes everything.
struct Echo(TempDir);

impl Echo {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let listener = UnixListener::bind(folder.path().join("net")).expect("a socket");
        // Ends with this program: a guest that is reset has the same connection.
        spawn(move || {
            for peer in listener.incoming() {
                send_back(&mut peer.expect("a connection")).ok();
            }
        });
        Self(folder)
    }

    fn option(&self) -> String {
        format!("socket={}", self.0.path().join("net").display())
    }
}

fn send_back(peer: &mut UnixStream) -> std::io::Result<()> {
    let mut bytes = [0; 1 << 16];
    loop {
        let count = peer.read(&mut bytes)?;
        if count == 0 {
            return Ok(());
        }
        peer.write_all(&bytes[..count])?;
    }
}

/// The same for the network and the entropy device.
pub fn network_queues(answers: usize) -> Times {
    let echo = Echo::new();
    let boot = Boot::Test("workload=hostile-network");
    let option = echo.option();
    measure_again(
        Guest::start(boot, ["--hz", "1000", "--net", &option]),
        answers,
    )
}

/// A frame that the guest and the other end exchange endlessly.
pub fn frames(answers: usize) -> Times {
    let echo = Echo::new();
    let boot = Boot::Test("workload=network");
    let option = echo.option();
    measure(
        Guest::start(boot, ["--hz", "10000", "--net", &option]),
        answers,
    )
}

fn disk(folder: &Path) -> String {
    let image = make_raw(folder, "disk", 64 << 20);
    image.path.display().to_string()
}

/// Requests and chains that no driver should send to a disk.
pub fn disk_queues(answers: usize) -> Times {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let disk = disk(folder.path());
    let boot = Boot::Test("workload=disk");
    measure_again(
        Guest::start(boot, ["--hz", "1000", "--disk", &disk]),
        answers,
    )
}

/// Eight reads of a disk at any time.
pub fn disk_load(answers: usize) -> Times {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let disk = disk(folder.path());
    let boot = Boot::Test("workload=disk-load depth=8");
    measure(
        Guest::start(boot, ["--hz", "10000", "--disk", &disk]),
        answers,
    )
}

/// A guest that resets itself as soon as it has started.
pub fn resets(answers: usize) -> Times {
    let boot = Boot::Test("workload=reboot");
    measure(
        Guest::start(boot, ["--cpus", "2", "--hz", "10000"]),
        answers,
    )
}

/// Connections to the guest's socket device, which echoes everything.
pub fn socket_device(answers: usize) -> Times {
    const CONNECTIONS: usize = 8;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("vsock");
    let option = format!("3,socket={}", path.display());
    let boot = Boot::Test("workload=vsock");
    let guest = Guest::start(boot, ["--hz", "10000", "--vsock", &option]);
    let is_over = AtomicBool::new(false);
    let times = scope(|scope| {
        for _ in 0..CONNECTIONS {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // It is refused while the guest starts.
                    send_to_guest(&path, &is_over).ok();
                }
            });
        }
        let times = Times::of(&guest, answers);
        is_over.store(true, Ordering::Relaxed);
        times
    });
    end(guest);
    times
}

/// Sends bytes to a port of the guest and reads them back, until the end.
fn send_to_guest(path: &Path, is_over: &AtomicBool) -> std::io::Result<()> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(Duration::from_millis(100)))?;
    stream.write_all(b"CONNECT 77\n")?;
    let mut bytes = [0; 4096];
    stream.read_exact(&mut bytes[..3])?;
    while !is_over.load(Ordering::Relaxed) {
        stream.write_all(&bytes)?;
        stream.read_exact(&mut bytes)?;
    }
    Ok(())
}
