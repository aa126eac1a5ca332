//! Disturbing clients, each in its own threads until the answers have been measured.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvmprof_abi::pcs::PROF_ALL;
use kvmprof_abi::recorder::{REC_START, STACK_KERNEL, STACK_USER};
use kvmprof_abi::wire::{MAX_DATA, device};
use kvmprof_client::{Connection, RemoteDevice};
use kvmprof_tests::raw_client::{self, connect, encode};
use kvmprof_tests::{Boot, Guest};

use super::{MAX_STATUS, Times, end};

/// Number of clients that do the same.
const CLIENTS: usize = 8;
/// More connections than the socket accepts.
const TOO_MANY: usize = 100;

fn guest() -> Guest {
    Guest::start(Boot::Demo, ["--cpus", "2", "--hz", "10000"])
}

/// Measures while each of the clients calls `disturb` repeatedly.
fn beside(guest: &Guest, answers: usize, disturb: impl Fn(&Guest) + Sync) -> Times {
    let is_over = AtomicBool::new(false);
    // Before those that leave it no room.
    let connection = guest.connect();
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    disturb(guest);
                }
            });
        }
        let times = Times::over(&connection, answers);
        is_over.store(true, Ordering::Relaxed);
        times
    })
}

/// The maximum number of connections, with the maximum number of recorders with call stacks, none of which is read.
pub fn stalled_recorders(answers: usize) -> Times {
    let guest = guest();
    let connections: Vec<Connection> = (0..TOO_MANY)
        .map_while(|_| Connection::connect(&guest.socket()).ok())
        .collect();
    let recorders: Vec<RemoteDevice> = connections
        .iter()
        .flat_map(|connection| {
            std::iter::repeat_with(|| start_recorder(connection)).map_while(|one| one)
        })
        .take(TOO_MANY * TOO_MANY)
        .collect();
    assert!(!recorders.is_empty(), "no recording was begun");
    // Connects after the others: the client that was idle for longest is closed for a new one.
    let times = Times::of(&guest, answers);
    drop((recorders, connections));
    guest.stop();
    times
}

/// `None` at the limit.
fn start_recorder(connection: &Connection) -> Option<RemoteDevice> {
    let recorder = connection.open(device::RECORDER, 0).ok()?;
    recorder.ioctl(REC_START, STACK_KERNEL | STACK_USER).ok()?;
    Some(recorder)
}

/// The maximum number of connections, with the maximum number of handles of pmc and profil that count nothing, during a
/// recording.
pub fn idle_handles(answers: usize) -> Times {
    let guest = guest();
    let recorded = guest.connect();
    let recorder = start_recorder(&recorded).expect("a recording");
    let connections: Vec<Connection> = (0..TOO_MANY)
        .map_while(|_| Connection::connect(&guest.socket()).ok())
        .collect();
    let handles: Vec<RemoteDevice> = connections
        .iter()
        .flat_map(|connection| {
            let devices = [device::PMC, device::PROFIL].into_iter().cycle();
            devices.map_while(|number| connection.open(number, 0).ok())
        })
        .collect();
    assert!(handles.len() > TOO_MANY, "only {} are open", handles.len());
    let times = Times::of(&guest, answers);
    drop((recorder, recorded, handles, connections));
    guest.stop();
    times
}

/// Each recording begins with the kernel's symbols.
pub fn recorders_in_a_loop(answers: usize) -> Times {
    let guest = guest();
    let times = beside(&guest, answers, |guest| {
        let Ok(connection) = Connection::connect(&guest.socket()) else {
            return;
        };
        // Others may have the maximum number.
        for _ in 0..TOO_MANY {
            drop(start_recorder(&connection));
        }
    });
    guest.stop();
    times
}

/// The clock starts and stops with each.
pub fn opens(answers: usize) -> Times {
    let guest = guest();
    let times = beside(&guest, answers, |guest| {
        // Others have it open, or there is no room.
        let Ok(connection) = Connection::connect(&guest.socket()) else {
            return;
        };
        if let Ok(pcs) = connection.open(device::PCS, 0) {
            pcs.ioctl(PROF_ALL, 0).ok();
        }
    });
    guest.stop();
    times
}

/// Reads of the status, as many as kvmprof accepts, whose answers aren't read.
pub fn unread_answers(answers: usize) -> Times {
    let guest = guest();
    let times = beside(&guest, answers, |guest| {
        // Ends when kvmprof accepts no more, or has closed the connection.
        ask_without_reading(guest).ok();
    });
    guest.stop();
    times
}

fn ask_without_reading(guest: &Guest) -> std::io::Result<()> {
    let limit = Some(Duration::from_millis(100));
    let mut stream = connect(&guest.socket(), limit)?;
    let handle = raw_client::open(&mut stream, device::STATUS, 0)?;
    for tag in 2.. {
        stream.write_all(&encode(tag, raw_client::read(handle, MAX_DATA)))?;
    }
    Ok(())
}

/// Connections that break the protocol at once.
pub fn rubbish(answers: usize) -> Times {
    let guest = guest();
    let times = beside(&guest, answers, |guest| {
        let Ok(mut stream) = UnixStream::connect(guest.socket()) else {
            return;
        };
        // It may be closed before all of it is sent.
        stream.write_all(&[0xa5; 4096]).ok();
        stream.read_to_end(&mut Vec::new()).ok();
    });
    end(guest);
    times
}

/// The largest documents.
pub fn symbols(answers: usize) -> Times {
    documents(
        answers,
        &[device::KALLSYMS, device::PROCESSES, device::STATUS],
    )
}

/// The countable events, which the guest may request, too: the host's kernel is asked which events it has.
pub fn counters(answers: usize) -> Times {
    documents(answers, &[device::PMC])
}

fn documents(answers: usize, asked_for: &[u16]) -> Times {
    let guest = guest();
    let times = beside(&guest, answers, |guest| {
        let Ok(connection) = Connection::connect(&guest.socket()) else {
            return;
        };
        for document in asked_for {
            connection.snapshot(*document, MAX_STATUS).ok();
        }
    });
    guest.stop();
    times
}
