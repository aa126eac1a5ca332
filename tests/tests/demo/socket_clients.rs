//! Clients of a running guest's socket: requests in progress, slow readers, and a host without descriptors.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{BSIZE, PROF_ALL};
use kvmprof_abi::prf::{ALL_VCPUS, MAX_ADDRESSES, read_size};
use kvmprof_abi::wire::{HEADER_LENGTH, MAX_DATA, ReplyFrame, Request, device};
use kvmprof_client::{ClientError, Connection, Readiness};
use kvmprof_devices::endpoint::Endpoint;
use kvmprof_profiling::host_socket::{MAX_CONNECTIONS, MAX_WAITING};
use kvmprof_tests::raw_client::encode;
use kvmprof_tests::{
    Accounts, Boot, Guest, Prf, errno_of, kvmprof, on_kvm, raw_client, run_command,
};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};

fn guest() -> Guest {
    Guest::start(Boot::Demo, ["--hz", "1000", "--cpus", "2"])
}

/// As from a container that has the socket's folder: there the other end has no pid.
#[test]
fn a_client_may_be_in_another_pid_namespace() {
    if !rustix::process::geteuid().is_root() {
        return kvmprof_tests::not_run("only root can make a PID namespace");
    }
    on_kvm(|| {
        let guest = guest();
        let mut client = Command::new("unshare");
        client.args(["--pid", "--fork"]).arg(kvmprof());
        client.args(["status", "--socket"]).arg(guest.socket());
        let said = run_command(&mut client).quiet();
        assert!(said.contains("2 vCPUs"), "{said}");
        guest.stop();
    });
}

#[test]
fn cancel_and_close_end_a_read_and_poll_wakes() {
    on_kvm(|| {
        let guest = guest();
        let pcs = guest.open();
        let readable = Readiness {
            readable: true,
            ..Readiness::default()
        };
        let nothing = pcs.device.readiness(readable).unwrap();
        assert_eq!(nothing, Readiness::default());
        assert_eq!(errno_of(pcs.device.try_read(BSIZE)), Errno::EAGAIN);
        let read = pcs.device.start_read(BSIZE).unwrap();
        pcs.connection.cancel(read.tag()).unwrap();
        assert_eq!(errno_of(read.wait()), Errno::EINTR);
        pcs.ioctl(PROF_ALL, 0);
        assert_eq!(pcs.device.poll(readable).unwrap(), readable);
        assert_eq!(pcs.device.try_read(BSIZE).unwrap().len(), BSIZE);
        drop(pcs);
        let pcs = guest.open();
        let read = pcs.device.start_read(BSIZE).unwrap();
        pcs.device.close().unwrap();
        assert_eq!(errno_of(read.wait()), Errno::EBADF);
        assert_eq!(errno_of(pcs.device.close()), Errno::EBADF);
        assert_eq!(errno_of(pcs.device.try_read(1)), Errno::EBADF);
        // A document is read to its end, or refused as too long.
        let connection = guest.connect();
        let status = connection.snapshot(device::STATUS, 1 << 20).unwrap();
        assert!(status.ends_with(b"}"), "{status:?}");
        let error = connection.snapshot(device::STATUS, 3).unwrap_err();
        assert!(matches!(error, ClientError::TooMuch { .. }), "{error}");
        guest.stop();
    });
}

/// The errno of the next reply, which is one to a request that failed.
fn errno_of_reply(stream: &mut UnixStream) -> Errno {
    let mut reply = [0; HEADER_LENGTH];
    stream.read_exact(&mut reply).unwrap();
    let Ok(Some((frame, HEADER_LENGTH))) = ReplyFrame::decode(&reply) else {
        panic!("{reply:?}");
    };
    frame.result.unwrap_err()
}

/// The waiting data of all clients together is bounded: requests beyond it are refused at once, begun ones continue, and the status is answered.
#[test]
fn bytes_that_wait_are_bounded_for_all_clients_together() {
    on_kvm(|| {
        let guest = guest();
        let witness = guest.connect();
        let prf = Prf::open(&witness, ALL_VCPUS).unwrap();
        let addresses: Vec<u64> = (0..).step_by(16).take(MAX_ADDRESSES).collect();
        prf.load(&addresses);
        let whole = read_size(MAX_ADDRESSES);
        assert_eq!(prf.device.read(whole).unwrap().len(), whole);
        // The handle doesn't exist, which is an error once the request is complete.
        let data = vec![0; MAX_DATA];
        let write = Request::Write {
            handle: u32::MAX,
            flags: 0,
            data: &data,
        };
        let frame = encode(7, write);
        let (beginning, rest) = frame.split_at(1000);
        // Clients without open devices are evicted.
        let mut clients: Vec<UnixStream> = (1..MAX_CONNECTIONS)
            .map(|_| {
                let mut client = raw_client::connect(&guest.socket(), None).unwrap();
                raw_client::open(&mut client, device::STATUS, 0).unwrap();
                client.write_all(beginning).unwrap();
                client
            })
            .collect();
        // All beginnings have been read before this is answered.
        Accounts::of(&witness).check();
        assert_eq!(errno_of(prf.device.read(whole)), Errno::ENOMEM);
        Accounts::of(&guest.connect()).check();
        let answers: Vec<Errno> = (clients.iter_mut())
            .map(|client| {
                client.write_all(rest).unwrap();
                errno_of_reply(client)
            })
            .collect();
        let refused = answers.iter().filter(|errno| **errno == Errno::ENOMEM);
        let begun = answers.iter().filter(|errno| **errno == Errno::EBADF);
        let (refused, begun) = (refused.count(), begun.count());
        assert_eq!(refused + begun, clients.len(), "{answers:?}");
        let most = MAX_WAITING.div_ceil(frame.len() - Endpoint::OWN_BYTES);
        assert!((1..=most).contains(&begun), "{begun}");
        // There is room again, also for refused clients.
        for client in &mut clients {
            client.write_all(&frame).unwrap();
            assert_eq!(errno_of_reply(client), Errno::EBADF);
        }
        assert_eq!(prf.device.read(whole).unwrap().len(), whole);
        drop((prf, clients));
        guest.stop();
    });
}

/// A connection that has pcs open, and has requested the largest table of prf `reads` times without reading an answer.
fn slow_reader(guest: &Guest, reads: u32) -> UnixStream {
    let loader = guest.connect();
    let prf = Prf::open(&loader, ALL_VCPUS).unwrap();
    let addresses: Vec<u64> = (0..).step_by(16).take(MAX_ADDRESSES).collect();
    prf.load(&addresses);
    drop(prf);
    let mut stream = raw_client::connect(&guest.socket(), None).unwrap();
    raw_client::open(&mut stream, device::PCS, 0).unwrap();
    let handle = raw_client::open(&mut stream, device::PRF, ALL_VCPUS).unwrap();
    for tag in 0..reads {
        let read = raw_client::read(handle, read_size(MAX_ADDRESSES));
        stream.write_all(&encode(tag, read)).unwrap();
    }
    stream
}

#[test]
fn a_slow_reader_stalls_nobody_else_and_gets_everything() {
    const READS: u32 = 10;
    on_kvm(|| {
        let guest = guest();
        let mut slow = slow_reader(&guest, READS);
        let other = guest.connect();
        for _ in 0..20 {
            Accounts::of(&other).check();
        }
        let length = read_size(MAX_ADDRESSES);
        let mut data = vec![0; HEADER_LENGTH + length];
        for tag in 0..READS {
            slow.read_exact(&mut data).unwrap();
            assert_eq!(data[..4], u32::try_from(length).unwrap().to_le_bytes());
            assert_eq!(data[4..8], tag.to_le_bytes());
        }
        guest.stop();
    });
}

#[test]
fn without_descriptors_clients_are_turned_away_and_the_others_served() {
    on_kvm(|| {
        const ATTEMPTS: usize = 300;
        let guest = guest();
        let witness = guest.connect();
        Accounts::of(&witness).check();
        let process = Pid::from_raw(i32::try_from(guest.pid()).unwrap()).unwrap();
        let descriptors = PathBuf::from(format!("/proc/{}/fd", guest.pid()));
        let target = |number: u64| fs::read_link(descriptors.join(number.to_string())).ok();
        // The spare descriptor with which the socket turns a client away: a duplicate of the socket.
        let is_another = |number: &u64| {
            let to = target(*number).filter(|to| to.to_string_lossy().starts_with("socket:"));
            to.is_some() && (3..*number).any(|earlier| target(earlier) == to)
        };
        let spare = (3..1024).rfind(is_another);
        let free = (spare.unwrap()..).find(|number| target(*number).is_none());
        let limit = Rlimit {
            current: free,
            // Inherited from this process.
            ..getrlimit(Resource::Nofile)
        };
        let before = prlimit(Some(process), Resource::Nofile, limit).unwrap();
        let begin = Instant::now();
        // Numbers may be free below the limit.
        let mut clients = Vec::new();
        let mut turned_away = 0;
        while turned_away <= ATTEMPTS {
            match Connection::connect(&guest.socket()) {
                Ok(client) => clients.push(client),
                Err(ClientError::TurnedAway { .. }) => turned_away += 1,
                Err(error) => panic!("{error}"),
            }
            assert!(clients.len() < 32, "the socket's own limit is another one");
        }
        // One message a second at most, which counts the others.
        let seconds = begin.elapsed().as_secs();
        let stderr = guest.stderr();
        let lines = stderr.lines().filter(|line| line.contains("turned away"));
        let lines = lines.count() as u64;
        assert!((1..=1 + seconds).contains(&lines), "{seconds} s: {stderr}");
        Accounts::of(&witness).check();
        prlimit(Some(process), Resource::Nofile, before).unwrap();
        Accounts::of(&guest.connect()).check();
        guest.signal(Signal::TERM);
    });
}
