//! Calls of profil and pcsample, by programs of any user.

use kvmprof_abi::profil::{self, Call, Function};

use super::*;

/// Limits of one user's open files and calls.
const FILES_OF_USER: u64 = 24;
const CALLS_OF_USER: u64 = 8;

pub(super) fn call() -> Call {
    Call {
        buffer: 0x1000,
        size: 100,
        ..Call::new(Function::Pcsample, 0)
    }
}

pub(super) fn ioctl(file: u64, command: u32, data: &[u8], out_size: usize) -> Operation<'_> {
    Operation::Ioctl {
        file,
        command,
        argument: 0x3000,
        data,
        out_size,
        compat: false,
    }
}

impl Bench {
    /// Makes a call with all its data.
    pub(super) fn calls(&mut self, file: u64) -> u64 {
        let data = call().encode();
        self.ask(PROFIL, ioctl(file, profil::PROFIL_CALL, &data, 0))
    }

    /// Expects that kvmprof gets an ioctl with this data, and lets it return `value`.
    fn takes_ioctl(&mut self, command: u32, expected: &[u8], value: i64, data: &[u8]) {
        let tag = self.gets_ioctl(PROFIL, command, expected);
        assert!(self.reply(tag, Reply::Ioctl { value, data }));
    }

    pub(super) fn gets_ioctl(&mut self, node: usize, command: u32, expected: &[u8]) -> u32 {
        self.sent_ioctl(node, (command, 0), expected)
    }

    /// The next request to kvmprof is this command of the node, with this argument and data. Returns its tag.
    pub(super) fn sent_ioctl(&mut self, node: usize, expected: (u32, i64), of: &[u8]) -> u32 {
        let (tag, ()) = self.sent(|request| match request {
            WireRequest::Ioctl {
                handle,
                command,
                argument,
                data,
                ..
            } => {
                assert_eq!(handle as usize, 100 + node);
                assert_eq!(((command, argument), data), (expected, of));
            }
            other => panic!("{other:?}"),
        });
        tag
    }
}

#[test]
fn a_call_is_forwarded_with_what_was_read_of_its_caller() {
    let (mut bench, file) = Bench::opened(PROFIL);
    let first = bench.ask(PROFIL, ioctl(file, profil::PROFIL_CALL, &[], 0));
    let piece = protocol::Piece {
        address: 0x3000,
        length: Call::SIZE,
    };
    bench.answered(PROFIL, &protocol::ioctl_retry(first, Some(piece), None));

    let unique = bench.calls(file);
    bench.nothing_more();
    let (_, inspection) = bench.environment.inspections[0];
    let expected = Inspection::ProfilCall {
        thread: THREAD,
        call: call(),
    };
    assert_eq!(inspection, expected);
    bench.seen(Some(Ok(b"completed".to_vec())));
    bench.takes_ioctl(profil::PROFIL_CALL, b"completed", 41, &[]);
    bench.answered(PROFIL, &protocol::ioctl_done(unique, 41, &[]));

    let unique = bench.calls(file);
    bench.seen(Some(Ok(b"completed".to_vec())));
    let tag = bench.gets_ioctl(PROFIL, profil::PROFIL_CALL, b"completed");
    bench.refuse(tag, Kind::Ioctl, Errno::ENOSPC);
    bench.answered(PROFIL, &protocol::failed(unique, Errno::ENOSPC));

    let unique = bench.calls(file);
    bench.seen(Some(Err(Errno::EFAULT)));
    bench.answered(PROFIL, &protocol::failed(unique, Errno::EFAULT));

    let unique = bench.ask(PROFIL, ioctl(file, profil::PROFIL_GETSTAT, &[], 48));
    bench.takes_ioctl(profil::PROFIL_GETSTAT, &[], 0, &[5; 48]);
    bench.answered(PROFIL, &protocol::ioctl_done(unique, 0, &[5; 48]));
    bench.nothing_more();
}

#[test]
fn unsupported_operations_are_refused_by_the_agent() {
    let (mut bench, file) = Bench::opened(PROFIL);
    bench.refuses(PROFIL, read(file, 0, 100), Errno::EINVAL);
    let data = b"counts";
    let write = Operation::Write {
        file,
        offset: 0,
        data,
    };
    bench.refuses(PROFIL, write, Errno::EINVAL);
    let unique = bench.ask(PROFIL, poll(file, 1));
    bench.answered(PROFIL, &protocol::polled(unique, 0x145));
    bench.refuses(PROFIL, ioctl(file, 0x5503, &[], 0), Errno::EINVAL);
    let unknown = [9; Call::SIZE];
    bench.refuses(
        PROFIL,
        ioctl(file, profil::PROFIL_CALL, &unknown, 0),
        Errno::EINVAL,
    );
    let narrow = Operation::Ioctl {
        file,
        command: profil::PROFIL_CALL,
        argument: 0x3000,
        data: &[],
        out_size: 0,
        compat: true,
    };
    bench.refuses(PROFIL, narrow, Errno(libc::EOPNOTSUPP));
    let unique = bench.calls(999);
    bench.seen(Some(Ok(Vec::new())));
    bench.answered(PROFIL, &protocol::failed(unique, Errno::EBADF));
    bench.nothing_more();
}

#[test]
fn a_call_with_an_unreadable_caller_can_be_killed() {
    let (mut bench, file) = Bench::opened(PROFIL);
    // Calls that wait for a turn can be interrupted, too.
    let calls: Vec<u64> = (0..=CALLS_OF_USER).map(|_| bench.calls(file)).collect();
    let last = *calls.last().unwrap();
    bench.ask(PROFIL, Operation::Interrupt { unique: last });
    bench.answered(PROFIL, &protocol::failed(last, Errno::EINTR));
    bench.nothing_more();
    // kvmprof answers soon, so a request that it has isn't cancelled.
    bench.seen(Some(Ok(b"completed".to_vec())));
    bench.ask(PROFIL, Operation::Interrupt { unique: calls[0] });
    bench.takes_ioctl(profil::PROFIL_CALL, b"completed", 0, &[]);
    bench.answered(PROFIL, &protocol::ioctl_done(calls[0], 0, &[]));
    bench.nothing_more();
}

#[test]
fn calls_of_one_user_are_limited() {
    let (mut bench, file) = Bench::opened(PROFIL);
    bench.user = 1000;
    let hostile: Vec<u64> = (0..2 * CALLS_OF_USER).map(|_| bench.calls(file)).collect();
    assert_eq!(bench.environment.inspections.len() as u64, CALLS_OF_USER);
    // A signal doesn't end the inspection, and so not the turn either.
    for unique in &hostile[..2] {
        bench.ask(PROFIL, Operation::Interrupt { unique: *unique });
        bench.answered(PROFIL, &protocol::failed(*unique, Errno::EINTR));
    }
    bench.calls(file);
    assert_eq!(bench.environment.inspections.len() as u64, CALLS_OF_USER);
    bench.user = 1001;
    bench.calls(file);
    let inspections = bench.environment.inspections.len() as u64;
    assert_eq!(inspections, CALLS_OF_USER + 1);
    bench.seen(Some(Err(Errno::EFAULT)));
    let inspections = bench.environment.inspections.len() as u64;
    assert_eq!(inspections, CALLS_OF_USER + 1);
    // A turn lasts until kvmprof's reply.
    bench.seen(None);
    bench.seen(Some(Ok(b"completed".to_vec())));
    let before = bench.environment.inspections.len();
    bench.takes_ioctl(profil::PROFIL_CALL, b"completed", 0, &[]);
    assert_eq!(bench.environment.inspections.len(), before + 1);
}

#[test]
fn files_of_one_user_are_limited() {
    let mut bench = Bench::new();
    bench.user = 1000;
    let files: Vec<u64> = (0..FILES_OF_USER).map(|_| bench.open(PROFIL)).collect();
    let waiting = bench.ask(PROFIL, Operation::Open);
    let given_up = bench.ask(PROFIL, Operation::Open);
    bench.nothing_more();
    bench.ask(PROFIL, Operation::Interrupt { unique: given_up });
    bench.answered(PROFIL, &protocol::failed(given_up, Errno::EINTR));
    bench.user = 1001;
    bench.open(PROFIL);
    bench.nothing_more();

    // The place is free once kvmprof has closed the file.
    let release = bench.ask(PROFIL, Operation::Release { file: files[0] });
    let (tag, kind) = bench.sent_kind();
    assert_eq!(kind, Kind::Close);
    bench.nothing_more();
    assert!(bench.reply(tag, Reply::Close));
    bench.answered(PROFIL, &protocol::released(release));
    let (tag, kind) = bench.sent_kind();
    assert_eq!(kind, Kind::Open);
    bench.refuse(tag, Kind::Open, Errno::EACCES);
    bench.answered(PROFIL, &protocol::failed(waiting, Errno::EACCES));
    bench.nothing_more();
}

#[test]
fn waiting_calls_are_answered_when_the_connection_ends() {
    let mut bench = Bench::new();
    let files: Vec<u64> = (0..FILES_OF_USER).map(|_| bench.open(PROFIL)).collect();
    let open = bench.ask(PROFIL, Operation::Open);
    let calls: Vec<u64> = (0..=CALLS_OF_USER).map(|_| bench.calls(files[0])).collect();
    bench.forwarder.disconnect(&mut bench.environment);
    let mut expected: Vec<Vec<u8>> = calls
        .iter()
        .map(|unique| protocol::failed(*unique, Errno::EIO))
        .collect();
    expected.push(protocol::failed(open, Errno::ENXIO));
    expected.sort();
    assert_eq!(bench.other_answers(), expected);
    for _ in 0..CALLS_OF_USER {
        bench.seen(Some(Ok(Vec::new())));
    }
    let open = bench.ask(PROFIL, Operation::Open);
    bench.answered(PROFIL, &protocol::failed(open, Errno::ENXIO));
    bench.nothing_more();

    // After the node has ended, nobody waits for an answer.
    bench.forwarder.connect();
    let file = {
        let release = bench.ask(PROFIL, Operation::Release { file: files[0] });
        bench.answered(PROFIL, &protocol::released(release));
        bench.open(PROFIL)
    };
    bench.calls(file);
    bench.forwarder.node_ended(PROFIL, &mut bench.environment);
    assert_eq!(bench.sent_kind().1, Kind::Close);
    bench.seen(Some(Ok(Vec::new())));
    bench.nothing_more();
}
