//! What clients get.

use std::os::unix::fs::PermissionsExt;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::Format;
use kvmprof_abi::pcs::{
    BSIZE, Header, PCS_GETHZ, PCS_GETSTAT, PCS_STOP, PROF_ALL, PROF_LIST, Record, STATUS_SIZE,
    Status,
};
use kvmprof_abi::wire::{MAX_DATA, device};
use kvmprof_client::{ClientError, Connection, Readiness};
use kvmprof_vmm::host_socket::{HostListener, HostSocketError};

use crate::bench::{Bench, HZ, PLENTY, STATUS, VCPUS, idle, user};

#[test]
fn hello_says_what_it_serves() {
    let bench = Bench::start();
    let connection = bench.connect();
    let hello = connection.hello();
    assert_eq!((hello.vcpus, hello.hz), (VCPUS.into(), HZ));
    let mode = std::fs::metadata(bench.path())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o600);
}

#[test]
fn snapshot_is_read_to_its_end() {
    let bench = Bench::start();
    let connection = bench.connect();
    let status = connection.snapshot(device::STATUS, 1 << 20).unwrap();
    assert_eq!(status, STATUS.as_bytes());
    let error = connection.snapshot(device::STATUS, 3).unwrap_err();
    assert!(matches!(error, ClientError::TooMuch { .. }), "{error}");
}

#[test]
fn blocked_read_is_woken_by_the_profiler() {
    let bench = Bench::start();
    let connection = bench.connect();
    let pcs = connection.open(device::PCS, 0).unwrap();
    pcs.ioctl(PROF_ALL, 0).unwrap();
    let read = pcs.start_read(BSIZE).unwrap();
    // Answered while the read waits.
    assert_eq!(pcs.ioctl(PCS_GETHZ, 0).unwrap(), i64::from(HZ));
    bench.feed(user(7, 64));
    let buffer = read.wait().unwrap();
    assert_eq!(buffer.len(), BSIZE);
    let header = Header::decode(Format::Native, &buffer).unwrap();
    assert_eq!(header.lost, 0);
    let record = Record::decode(Format::Native, &buffer[8..]).unwrap();
    let Record::Sample(sample) = record else {
        panic!("{record:?}");
    };
    assert_eq!((sample.pid, sample.pc), (7, 0x40_0000));
}

#[test]
fn one_thread_reads_while_another_stops() {
    let bench = Bench::start();
    let connection = bench.connect();
    let pcs = connection.open(device::PCS, 0).unwrap();
    pcs.ioctl(PROF_ALL, 0).unwrap();
    let stream = std::thread::scope(|scope| {
        let reader = scope.spawn(|| pcs.read_to_end(1 << 20).unwrap());
        bench.feed([user(7, 70), idle(30), user(8, 5)].concat());
        bench.look();
        pcs.ioctl(PCS_STOP, 0).unwrap();
        reader.join().unwrap()
    });
    let mut ticks = 0;
    for buffer in stream.chunks(BSIZE) {
        let header = Header::decode(Format::Native, buffer).unwrap();
        let end = BSIZE - usize::from(header.unused);
        for record in buffer[8..end].chunks(16) {
            ticks += Record::decode(Format::Native, record).unwrap().ticks();
        }
    }
    assert_eq!(ticks, 105);
    let (value, data) = pcs.ioctl_with(PCS_GETSTAT, 0, &[], STATUS_SIZE).unwrap();
    let ledger = Status::decode(&data).unwrap().ledger;
    assert_eq!(value, 0);
    assert!(ledger.balances());
    assert_eq!(
        (ledger.ticks, ledger.recorded, ledger.merged),
        (105, 75, 30)
    );
}

#[test]
fn cancel_and_close_end_a_read() {
    let bench = Bench::start();
    let connection = bench.connect();
    let pcs = connection.open(device::PCS, 0).unwrap();
    let read = pcs.start_read(BSIZE).unwrap();
    connection.cancel(read.tag()).unwrap();
    assert_eq!(read.wait().unwrap_err().errno(), Some(Errno::EINTR));
    let read = pcs.start_read(BSIZE).unwrap();
    pcs.close().unwrap();
    assert_eq!(read.wait().unwrap_err().errno(), Some(Errno::EBADF));
    assert_eq!(pcs.close().unwrap_err().errno(), Some(Errno::EBADF));
    assert_eq!(pcs.try_read(1).unwrap_err().errno(), Some(Errno::EBADF));
}

#[test]
fn poll_wakes_when_there_is_a_buffer() {
    let bench = Bench::start();
    let connection = bench.connect();
    let pcs = connection.open(device::PCS, 0).unwrap();
    pcs.ioctl(PROF_ALL, 0).unwrap();
    let wanted = Readiness {
        readable: true,
        ..Readiness::default()
    };
    assert_eq!(pcs.readiness(wanted).unwrap(), Readiness::default());
    assert_eq!(
        pcs.try_read(BSIZE).unwrap_err().errno(),
        Some(Errno::EAGAIN)
    );
    bench.feed(user(7, 64));
    assert_eq!(pcs.poll(wanted).unwrap(), wanted);
    assert_eq!(pcs.try_read(BSIZE).unwrap().len(), BSIZE);
}

#[test]
fn errnos_reach_the_client() {
    let bench = Bench::start();
    let (one, other) = (bench.connect(), bench.connect());
    let refused = |device, minor| other.open(device, minor).err().unwrap().errno();
    let pcs = one.open(device::PCS, 0).unwrap();
    assert_eq!(refused(device::PCS, 0), Some(Errno::EBUSY));
    assert_eq!(refused(device::PCS, 1), Some(Errno::ENXIO));
    assert_eq!(refused(device::PRF, 0), Some(Errno::ENODEV));
    assert_eq!(pcs.write(b"x").unwrap_err().errno(), Some(Errno::EBADF));
    assert_eq!(
        pcs.ioctl(0x5003, 0).unwrap_err().errno(),
        Some(Errno::EINVAL)
    );
    for (list, errno) in [
        (&[0, 0, 0, 0][..], Errno::EINVAL),
        (&[6, 0, 0, 0], Errno::EINVAL),
        (&[2, 0, 0, 0, 7, 0, 0, 0], Errno::EFAULT),
        (&[], Errno::EFAULT),
    ] {
        let error = pcs.ioctl_with(PROF_LIST, 0, list, 0).unwrap_err();
        assert_eq!(error.errno(), Some(errno), "{list:?}");
    }
    drop(pcs);
    other.open(device::PCS, 0).unwrap();
}

#[test]
fn largest_reads_and_writes_pass() {
    let bench = Bench::start();
    let connection = bench.connect();
    let plenty = connection.open(PLENTY, 0).unwrap();
    assert_eq!(plenty.read(MAX_DATA + 1).unwrap().len(), MAX_DATA);
    let data = vec![1; MAX_DATA + 1];
    assert_eq!(plenty.write(&data[1..]).unwrap(), MAX_DATA);
    let error = plenty.write(&data).unwrap_err();
    assert!(matches!(error, ClientError::TooLarge(_)), "{error}");
    assert_eq!(plenty.write(b"still there").unwrap(), 11);
}

#[test]
fn client_that_goes_frees_what_it_had() {
    let bench = Bench::start();
    let connection = bench.connect();
    let pcs = connection.open(device::PCS, 0).unwrap();
    pcs.ioctl(PROF_ALL, 0).unwrap();
    bench.feed(user(7, 10));
    let _read = pcs.start_read(BSIZE).unwrap();
    // Forgotten, not closed: only the socket's end tells the server.
    std::mem::forget(pcs);
    let raw = bench.look();
    assert_eq!((raw.clients, raw.open), (1, 1));
    connection.disconnect();
    let state = bench.until(|state| state.clients == 0);
    assert_eq!(state.open, 0);
    assert_eq!(state.ledger.discarded, 10);
    assert!(state.ledger.balances());
    bench.connect().open(device::PCS, 0).unwrap();
}

#[test]
fn reasons_why_there_is_no_connection() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let connect = || Connection::connect(&path).err().unwrap();
    assert!(matches!(connect(), ClientError::NoSocket { .. }));
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(matches!(connect(), ClientError::NobodyListens { .. }));
    std::fs::remove_file(&path).unwrap();
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || drop(listener.accept().unwrap()));
    assert!(matches!(connect(), ClientError::TurnedAway { .. }));
    server.join().unwrap();
}

#[test]
fn live_socket_is_refused_while_it_serves() {
    let bench = Bench::start();
    let error = HostListener::bind(bench.path()).unwrap_err();
    assert!(matches!(error, HostSocketError::Live { .. }), "{error}");
    bench.connect().open(device::PCS, 0).unwrap();
}
