//! Tests of a folder whose program accepts one connection, serves the queues, and ends.

use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::memory::{MemoryOptions, allocate as allocate_memory};
use crate::share::session::tests::{AnswerFault, answer};

/// Registers in addition to those that the transport names (section 4.2.2).
const DRIVER_FEATURES: u32 = 0x20;
const DRIVER_FEATURES_PAGE: u32 = 0x24;
const QUEUE: u32 = 0x30;
const QUEUE_SIZE: u32 = 0x38;
const PLACES: [(u32, u64); 3] = [(0x80, 0), (0x90, 0x1000), (0xa0, 0x2000)];
const ENTRIES: u32 = 8;
/// The addresses of queues and of a request in guest memory.
const QUEUE_PLACE: u64 = 0x10_0000;
const QUEUE_BYTES: u64 = 0x1_0000;
const REQUEST: u64 = 0x20_0000;
const ANSWER: u64 = 0x20_1000;

fn queue_place(queue: u64) -> u64 {
    QUEUE_PLACE + QUEUE_BYTES * queue
}

/// Starts the device as a driver does, up to DRIVER_OK.
fn start_driver(registers: &dyn MmioRegisters) {
    let write = |register: u32, value: u32| registers.write(register.into(), &value.to_le_bytes());
    for status in [0, 1, 3] {
        write(STATUS, status);
    }
    write(DRIVER_FEATURES_PAGE, 1);
    write(DRIVER_FEATURES, 1);
    write(STATUS, 11);
    for queue in 0..2 {
        write(QUEUE, queue);
        write(QUEUE_SIZE, ENTRIES);
        for (register, offset) in PLACES {
            let place = queue_place(queue.into()) + offset;
            write(register, u32::try_from(place).unwrap());
        }
        write(QUEUE_READY, 1);
    }
    write(STATUS, 15);
}

/// Makes a request with room for an answer available on the second queue.
fn offer_request(memory: &GuestMemory, unique: u64) {
    let queue = queue_place(1);
    memory.write_obj(unique, GuestAddress(REQUEST + 8)).unwrap();
    let descriptors: [(u64, u32, u16, u16); 2] = [(REQUEST, 40, 1, 1), (ANSWER, 16, 2, 0)];
    for (index, (address, length, flags, next)) in (0..).zip(descriptors) {
        let place = queue + 16 * index;
        memory.write_obj(address, GuestAddress(place)).unwrap();
        memory.write_obj(length, GuestAddress(place + 8)).unwrap();
        memory.write_obj(flags, GuestAddress(place + 12)).unwrap();
        memory.write_obj(next, GuestAddress(place + 14)).unwrap();
    }
    // Head 0, and the index.
    let available = GuestAddress(queue + 0x1000 + 2);
    memory.write_obj(1_u16, available).unwrap();
}

/// A folder whose program is connected once, with the place of its socket, the connection, and the program's thread.
struct ConnectedFolder {
    share: Share,
    connected: mpsc::Receiver<UnixStream>,
    program: thread::JoinHandle<()>,
    _folder: tempfile::TempDir,
}

fn connected_once(tag: &str) -> ConnectedFolder {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let (sender, connected) = mpsc::channel();
    let program = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        sender.send(stream.try_clone().unwrap()).unwrap();
        // A second connection isn't accepted.
        drop(listener);
        answer(stream, 0, AnswerFault::None);
    });
    let options = ShareOptions {
        source: ShareSource::Socket(path),
        tag: tag.to_owned(),
    };
    ConnectedFolder {
        share: Share::open(&options, Openers::default()).unwrap(),
        connected,
        program,
        _folder: folder,
    }
}

fn shared_memory() -> GuestMemory {
    let memory = MemoryOptions::private(64 << 20).shareable();
    allocate_memory(&memory).unwrap()
}

#[test]
fn a_program_serves_over_its_first_connection_and_requests_fail_when_it_goes() {
    let once = connected_once("tag");
    let monitor = Arc::clone(&once.share.monitor);
    assert_eq!(monitor.status().state, WAITING);
    let memory = shared_memory();
    let assembled = Box::new(once.share).assemble(&memory).unwrap();
    start_driver(&*assembled.registers);
    let status = monitor.status();
    assert_eq!(
        (status.state.as_str(), status.restarts, status.failures),
        (SERVING, 0, 0),
        "{status:?}"
    );
    offer_request(&memory, 7);
    let stream = once.connected.recv().unwrap();
    stream.shutdown(Shutdown::Both).unwrap();
    let status = loop {
        let status = monitor.status();
        if status.refused_requests > 0 {
            break status;
        }
        thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(status.state, FAILED);
    let answer: [u32; 2] = memory.read_obj(GuestAddress(ANSWER)).unwrap();
    assert_eq!(answer, [16, (-5_i32).cast_unsigned()]);
    let unique: u64 = memory.read_obj(GuestAddress(ANSWER + 8)).unwrap();
    assert_eq!(unique, 7);
    drop(assembled);
    once.program.join().unwrap();
}

/// A vCPU resets the device while the program's end is being noticed: its driver reads the status until it is 0.
#[test]
fn a_device_that_was_reset_needs_no_other_reset() {
    let once = connected_once("reset");
    let device = once.share.device(&shared_memory()).unwrap();
    let status = || {
        let mut status = [0; 4];
        device.read(STATUS.into(), &mut status);
        u32::from_le_bytes(status)
    };
    const NEEDS_RESET: u32 = 64;
    start_driver(&*device);
    let stream = once.connected.recv().unwrap();
    stream.shutdown(Shutdown::Both).unwrap();
    once.program.join().unwrap();
    // The vCPU has written the register, and waits to be followed.
    device.mmio.write(STATUS.into(), &0_u32.to_le_bytes());
    device.note_hangup();
    assert_eq!(status(), 0);
    device.follow();
    assert_eq!(device.monitor.status().state, WAITING);
    // A device that is in use needs one.
    start_driver(&*device);
    assert_eq!(status() & NEEDS_RESET, NEEDS_RESET);
}

/// The guest's driver resets the device many times, and each reset needs another program.
#[test]
fn a_guest_cannot_cause_unbounded_starts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let starts = Arc::new(AtomicU64::new(0));
    let (sender, connected) = mpsc::channel();
    let counted = Arc::clone(&starts);
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        sender.send(stream.try_clone().unwrap()).unwrap();
        answer(stream, 0, AnswerFault::None);
        // Later ones end at once.
        for stream in listener.incoming() {
            drop(stream);
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let options = ShareOptions {
        source: ShareSource::Socket(path),
        tag: "often".to_owned(),
    };
    let share = Share::open(&options, Openers::default()).unwrap();
    let monitor = Arc::clone(&share.monitor);
    let assembled = Box::new(share).assemble(&shared_memory()).unwrap();
    let stream = connected.recv().unwrap();
    let begin = Instant::now();
    stream.shutdown(Shutdown::Both).unwrap();
    for _ in 0..300 {
        start_driver(&*assembled.registers);
    }
    let seconds = begin.elapsed().as_secs();
    let status = monitor.status();
    drop(assembled);
    let starts = starts.load(Ordering::Relaxed);
    assert!(
        starts > 0 && starts <= 10 + seconds,
        "{starts} in {seconds} s"
    );
    let failure = status.failure.unwrap();
    assert!(
        failure.contains("has reset the device more than 10 times"),
        "{failure}"
    );
}

/// The messages that were logged of one folder.
struct Lines(Mutex<Vec<String>>);

static OF_FLOOD: Lines = Lines(Mutex::new(Vec::new()));

impl log::Log for Lines {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let line = record.args().to_string();
        if line.contains("folder flood ") {
            lock(&self.0).push(line);
        }
    }

    fn flush(&self) {}
}

/// The guest's driver resets the device many times, and no program serves the folder.
#[test]
fn a_guest_cannot_flood_the_log() {
    const STARTS: u64 = 500;
    log::set_logger(&OF_FLOOD).unwrap();
    log::set_max_level(log::LevelFilter::Error);
    let once = connected_once("flood");
    let monitor = Arc::clone(&once.share.monitor);
    let assembled = Box::new(once.share).assemble(&shared_memory()).unwrap();
    let stream = once.connected.recv().unwrap();
    let begin = Instant::now();
    start_driver(&*assembled.registers);
    stream.shutdown(Shutdown::Both).unwrap();
    while monitor.status().failures == 0 {
        thread::sleep(Duration::from_millis(1));
    }
    for _ in 0..STARTS {
        start_driver(&*assembled.registers);
    }
    drop(assembled);
    let seconds = begin.elapsed().as_secs();
    let failures = monitor.status().failures;
    assert!(failures >= STARTS, "{failures}");
    let lines = lock(&OF_FLOOD.0);
    assert!(!lines.is_empty());
    assert!(
        lines.len() as u64 <= 1 + seconds,
        "{} lines in {seconds} s",
        lines.len()
    );
    once.program.join().unwrap();
}
