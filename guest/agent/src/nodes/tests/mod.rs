//! Tests of the forwarder, which play both the kernel and kvmprof.

mod pids;
mod pmc;
mod profil;
mod tables;

use std::collections::VecDeque;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::profil::PROFIL_CALL;
use kvmprof_abi::wire::{Kind, MAX_DATA, Reply, ReplyFrame, Request as WireRequest, RequestFrame};

use super::{Environment, Forwarder, Inspection, InspectionResult, Node};
use crate::cuse::protocol::{self, MAX_FRAGMENT, Operation, Request};

const PCS: usize = 0;
const PRF: usize = 1;
const PROFIL: usize = 2;
const PMC: usize = 3;
const THREAD: u32 = 77;

/// The forwarder's actions, and the answers that it will get.
#[derive(Default)]
struct TestEnvironment {
    answers: VecDeque<(usize, Vec<u8>)>,
    /// Requests to kvmprof, encoded.
    sent: VecDeque<Vec<u8>>,
    /// Inspections of callers that aren't answered yet.
    inspections: VecDeque<(u64, Inspection)>,
    nobody_waits: bool,
}

impl Environment for TestEnvironment {
    fn answer(&mut self, node: usize, bytes: &[u8]) -> bool {
        if !self.nobody_waits {
            self.answers.push_back((node, bytes.to_vec()));
        }
        !self.nobody_waits
    }

    fn send(&mut self, tag: u32, request: &WireRequest<'_>) {
        let frame = RequestFrame {
            tag,
            request: *request,
        };
        let mut bytes = vec![0; frame.encoded_length()];
        frame.encode(&mut bytes).unwrap();
        self.sent.push_back(bytes);
    }

    fn inspect(&mut self, number: u64, inspection: Inspection) {
        self.inspections.push_back((number, inspection));
    }
}

struct Bench {
    forwarder: Forwarder,
    environment: TestEnvironment,
    last_unique: u64,
    /// The user of the next requests.
    user: u32,
}

impl Bench {
    fn new() -> Self {
        let mut forwarder = Forwarder::new(Node::all(2));
        forwarder.connect();
        Self {
            forwarder,
            environment: TestEnvironment::default(),
            last_unique: 0,
            user: 0,
        }
    }

    /// A bench on which this node is open, as the file that is also returned.
    fn opened(node: usize) -> (Self, u64) {
        let mut bench = Self::new();
        let file = bench.open(node);
        (bench, file)
    }

    /// Makes a request of the kernel. Returns its id.
    fn ask(&mut self, node: usize, operation: Operation<'_>) -> u64 {
        self.last_unique += 2;
        let request = Request {
            unique: self.last_unique,
            thread: THREAD,
            user: self.user,
            operation,
        };
        self.forwarder
            .request(node, &request, &mut self.environment);
        self.last_unique
    }

    /// The next request to kvmprof: its tag, and the result of `look` for it.
    fn sent<T>(&mut self, look: impl FnOnce(WireRequest<'_>) -> T) -> (u32, T) {
        let next = self.environment.sent.pop_front();
        let bytes = next.expect("a request to kvmprof");
        let (frame, _) = RequestFrame::decode(&bytes).unwrap().unwrap();
        (frame.tag, look(frame.request))
    }

    fn sent_kind(&mut self) -> (u32, Kind) {
        self.sent(|request| request.kind())
    }

    fn reply(&mut self, tag: u32, reply: Reply<'_>) -> bool {
        let frame = ReplyFrame::success(tag, reply);
        self.forwarder.reply(&frame, &mut self.environment)
    }

    /// kvmprof answers the next request to it.
    #[track_caller]
    fn succeeds(&mut self, reply: Reply<'_>) {
        let (tag, _) = self.sent_kind();
        assert!(self.reply(tag, reply));
    }

    fn refuse(&mut self, tag: u32, kind: Kind, errno: Errno) {
        let frame = ReplyFrame::failure(tag, kind, errno);
        assert!(self.forwarder.reply(&frame, &mut self.environment));
    }

    fn answered(&mut self, node: usize, expected: &[u8]) {
        let (at, bytes) = self.environment.answers.pop_front().expect("an answer");
        assert_eq!(at, node);
        assert!(bytes == expected, "{bytes:x?} instead of {expected:x?}");
    }

    fn nothing_more(&self) {
        let TestEnvironment { answers, sent, .. } = &self.environment;
        assert!(
            answers.is_empty() && sent.is_empty(),
            "{answers:?} {sent:?}"
        );
    }

    /// Opens a node. Returns the file. kvmprof's handle is 100 more than the node.
    fn open(&mut self, node: usize) -> u64 {
        let unique = self.ask(node, Operation::Open);
        let (tag, (device, minor)) = self.sent(|request| match request {
            WireRequest::Open { device, minor, .. } => (device, minor),
            other => panic!("{other:?}"),
        });
        assert_eq!((device, minor), [(1, 0), (2, 255), (7, 0), (8, 0)][node]);
        let handle = 100 + u32::try_from(node).unwrap();
        assert!(self.reply(tag, Reply::Open { handle }));
        let (_, bytes) = self.environment.answers.pop_front().unwrap();
        let file = u64::from_ne_bytes(*bytes[16..].first_chunk().unwrap());
        assert_eq!(bytes, protocol::opened(unique, file));
        file
    }

    fn read(&mut self, node: usize, file: u64, offset: u64, size: usize) -> u64 {
        self.ask(node, read(file, offset, size))
    }

    /// Makes a request, which is refused at once.
    #[track_caller]
    fn refuses(&mut self, node: usize, operation: Operation<'_>, errno: Errno) {
        let unique = self.ask(node, operation);
        self.answered(node, &protocol::failed(unique, errno));
    }

    /// The next request to kvmprof is a read: its tag, its limit and its flags.
    fn sent_read(&mut self) -> (u32, (u32, u32)) {
        self.sent(|request| match request {
            WireRequest::Read { limit, flags, .. } => (limit, flags),
            other => panic!("{other:?}"),
        })
    }

    /// The next request to kvmprof is a poll: its tag, its events and its flags.
    fn sent_poll(&mut self) -> (u32, (u32, u32)) {
        self.sent(|request| match request {
            WireRequest::Poll { events, flags, .. } => (events, flags),
            other => panic!("{other:?}"),
        })
    }

    /// All answers that weren't expected one by one, sorted.
    fn other_answers(&mut self) -> Vec<Vec<u8>> {
        let answers = self.environment.answers.drain(..);
        let mut answers: Vec<Vec<u8>> = answers.map(|(_, bytes)| bytes).collect();
        answers.sort();
        answers
    }

    fn write(&mut self, file: u64, offset: u64, data: &[u8]) -> u64 {
        let operation = Operation::Write { file, offset, data };
        self.ask(PRF, operation)
    }

    /// Expects that kvmprof gets a write of `expected`, and lets it succeed.
    fn takes_write(&mut self, expected: &[u8]) {
        let (tag, same) = self.sent(|request| match request {
            WireRequest::Write { data, .. } => data == expected,
            other => panic!("{:?}", other.kind()),
        });
        assert!(same, "other data is written");
        let count = u32::try_from(expected.len()).unwrap();
        assert!(self.reply(tag, Reply::Write { count }));
    }

    /// Ends an inspection of a caller with this result.
    fn seen(&mut self, whole: InspectionResult) {
        let next = self.environment.inspections.pop_front();
        let (number, inspection) = next.expect("an inspection");
        match inspection {
            Inspection::WholeWrite { thread }
            | Inspection::ProfilCall { thread, .. }
            | Inspection::PmcCall { thread, .. }
            | Inspection::Pids { thread, .. } => {
                assert_eq!(thread, THREAD);
            }
        }
        self.forwarder
            .inspected(number, whole, &mut self.environment);
    }

    /// Makes the first piece of a write; the inspection of its caller finds `whole`.
    fn write_of(&mut self, file: u64, piece: &[u8], whole: InspectionResult) -> u64 {
        let unique = self.write(file, 0, piece);
        self.nothing_more();
        self.seen(whole);
        unique
    }
}

#[test]
fn a_signal_cancels_a_waiting_read() {
    let (mut bench, file) = Bench::opened(PCS);
    let read = bench.read(PCS, file, 0, 1000);
    let (read_tag, asked) = bench.sent_read();
    assert_eq!(asked, (1000, 0));
    // The first interrupts a request that was never made, the others the same request twice.
    for unique in [999, read, read] {
        bench.ask(PCS, Operation::Interrupt { unique });
    }
    let (cancel_tag, cancelled) = bench.sent(|request| match request {
        WireRequest::Cancel { tag } => tag,
        other => panic!("{other:?}"),
    });
    assert_eq!(cancelled, read_tag);
    bench.nothing_more();
    bench.refuse(read_tag, Kind::Read, Errno::EINTR);
    bench.answered(PCS, &protocol::failed(read, Errno::EINTR));
    assert!(bench.reply(cancel_tag, Reply::Cancel));
    bench.ask(PCS, Operation::Interrupt { unique: read });
    bench.nothing_more();
}

/// A write of a table, a command with a pid, and a call of profil: its caller can't be read, or not yet.
#[test]
fn a_signal_ends_a_call_whose_caller_is_inspected() {
    let mut bench = Bench::new();
    let [pcs, prf, profil] = [PCS, PRF, PROFIL].map(|node| bench.open(node));
    let call = profil::call().encode();
    let data = &[0; 24];
    let write = Operation::Write {
        file: prf,
        offset: 0,
        data,
    };
    for (node, operation) in [
        (PRF, write),
        (PCS, pids::group(pcs, 5)),
        (PROFIL, profil::ioctl(profil, PROFIL_CALL, &call, 0)),
    ] {
        for late in [None, Some(Ok(b"late".to_vec()))] {
            let unique = bench.ask(node, operation);
            bench.ask(node, Operation::Interrupt { unique });
            bench.answered(node, &protocol::failed(unique, Errno::EINTR));
            bench.seen(late);
            bench.nothing_more();
        }
    }
}

/// Nor does one of a file that is nonblocking, which is evaluated with every read.
#[test]
fn a_continued_read_does_not_wait() {
    let (mut bench, file) = Bench::opened(PCS);
    let nonblocking = u32::try_from(libc::O_NONBLOCK).unwrap();
    for (offset, flags) in [(131_072, 0), (0, nonblocking)] {
        let operation = Operation::Read {
            file,
            offset,
            size: 10,
            flags,
        };
        let unique = bench.ask(PCS, operation);
        let (tag, (_, flags)) = bench.sent_read();
        assert_eq!(flags, 1);
        bench.refuse(tag, Kind::Read, Errno::EAGAIN);
        let nothing = match offset {
            0 => protocol::failed(unique, Errno::EAGAIN),
            _ => protocol::read(unique, &[]),
        };
        bench.answered(PCS, &nothing);
    }
}

fn read(file: u64, offset: u64, size: usize) -> Operation<'static> {
    Operation::Read {
        file,
        offset,
        size,
        flags: 0,
    }
}

fn poll(file: u64, events: u32) -> Operation<'static> {
    Operation::Poll {
        file,
        kernel_handle: 4242,
        notify: true,
        events,
    }
}

#[test]
fn a_poll_is_woken_when_data_is_ready() {
    let (mut bench, file) = Bench::opened(PCS);
    let unique = bench.ask(PCS, poll(file, 1));
    bench.succeeds(Reply::Poll { events: 0 });
    bench.answered(PCS, &protocol::polled(unique, 0));
    let (first_watch, kind) = bench.sent_kind();
    assert_eq!(kind, Kind::Poll);
    // The same events need no further request; another event does.
    for (events, requests) in [(1, 0), (4, 2)] {
        bench.ask(PCS, poll(file, events));
        bench.succeeds(Reply::Poll { events: 0 });
        assert_eq!(bench.environment.sent.len(), requests);
    }
    bench.environment.answers.clear();
    let (cancel, kind) = bench.sent_kind();
    assert_eq!(kind, Kind::Cancel);
    let (second_watch, asked) = bench.sent_poll();
    assert_eq!(asked, (3, 0));
    bench.refuse(first_watch, Kind::Poll, Errno::EINTR);
    assert!(bench.reply(cancel, Reply::Cancel));
    bench.nothing_more();
    assert!(bench.reply(second_watch, Reply::Poll { events: 1 }));
    bench.answered(PCS, &protocol::wake_up(4242));
    bench.nothing_more();
}

#[test]
fn an_edge_triggered_epoll_is_woken_up_after_each_read() {
    let (mut bench, file) = Bench::opened(PCS);
    for round in 0..3 {
        let unique = bench.ask(PCS, poll(file, 1));
        bench.succeeds(Reply::Poll { events: 1 });
        bench.answered(PCS, &protocol::polled(unique, 0x41));
        // The file is ready, so nothing has to be reported before it is read.
        bench.nothing_more();
        let read = bench.read(PCS, file, 0, 100);
        let (tag, _) = bench.sent_kind();
        if round == 0 {
            bench.refuse(tag, Kind::Read, Errno::EAGAIN);
            bench.answered(PCS, &protocol::failed(read, Errno::EAGAIN));
        } else {
            assert!(bench.reply(tag, Reply::Read { data: b"buffer" }));
            bench.answered(PCS, &protocol::read(read, b"buffer"));
        }
        let (watch, (_, flags)) = bench.sent_poll();
        assert_eq!(flags, 0, "it waits");
        bench.nothing_more();
        assert!(bench.reply(watch, Reply::Poll { events: 1 }));
        bench.answered(PCS, &protocol::wake_up(4242));
    }
    // Without another poll no wake-up is sent.
    bench.read(PCS, file, 0, 100);
    bench.succeeds(Reply::Read { data: b"buffer" });
    bench.environment.answers.clear();
    bench.nothing_more();
    // A table of prf is always ready, so wake-ups would never end.
    let file = bench.open(PRF);
    bench.ask(PRF, poll(file, 1));
    bench.succeeds(Reply::Poll { events: 1 });
    bench.read(PRF, file, 0, 100);
    bench.succeeds(Reply::Read { data: b"table" });
    bench.environment.answers.clear();
    bench.nothing_more();
}

#[test]
fn everything_is_answered_when_the_connection_ends() {
    let mut bench = Bench::new();
    let (pcs, prf) = (bench.open(PCS), bench.open(PRF));
    let unanswered = [
        bench.ask(PCS, Operation::Open),
        bench.read(PCS, pcs, 0, 100),
        bench.read(PRF, prf, 0, 100),
    ];
    bench.ask(PCS, poll(pcs, 1));
    let release = bench.ask(PRF, Operation::Release { file: prf });
    let (tag, _) = std::iter::repeat_with(|| bench.sent_kind())
        .find(|(_, kind)| *kind == Kind::Poll)
        .unwrap();
    assert!(bench.reply(tag, Reply::Poll { events: 0 }));
    bench.environment.answers.clear();

    bench.forwarder.disconnect(&mut bench.environment);
    bench.environment.sent.clear();
    let mut expected = vec![
        protocol::failed(unanswered[0], Errno::ENXIO),
        protocol::failed(unanswered[1], Errno::EIO),
        protocol::failed(unanswered[2], Errno::EIO),
        protocol::released(release),
        protocol::wake_up(4242),
    ];
    expected.sort();
    assert_eq!(bench.other_answers(), expected);

    bench.refuses(PCS, Operation::Open, Errno::ENXIO);
    bench.forwarder.connect();
    bench.open(PCS);
    // A file that was open before stays lost.
    bench.refuses(PCS, read(pcs, 0, 100), Errno::EIO);
    let unique = bench.ask(PCS, poll(pcs, 1));
    bench.answered(PCS, &protocol::polled(unique, 0x18));
    let unique = bench.ask(PCS, Operation::Release { file: pcs });
    bench.answered(PCS, &protocol::released(unique));
    bench.nothing_more();
}

#[test]
fn files_of_cancelled_opens_are_closed() {
    let mut bench = Bench::new();
    bench.ask(PCS, Operation::Open);
    let (tag, _) = bench.sent_kind();
    bench.environment.nobody_waits = true;
    assert!(bench.reply(tag, Reply::Open { handle: 5 }));
    assert_eq!(bench.sent_kind().1, Kind::Close);

    bench.environment.nobody_waits = false;
    let file = bench.open(PCS);
    bench.read(PCS, file, 0, 10);
    let (read, _) = bench.sent_kind();
    bench.ask(PCS, Operation::Open);
    let (open, _) = bench.sent_kind();
    bench.forwarder.node_ended(PCS, &mut bench.environment);
    assert_eq!(bench.sent_kind().1, Kind::Close);
    // The new channel numbers its requests from the start, so it must not get answers to old ones.
    bench.refuse(read, Kind::Read, Errno::EBADF);
    assert!(bench.reply(open, Reply::Open { handle: 6 }));
    assert_eq!(bench.sent_kind().1, Kind::Close);
    bench.nothing_more();
}

#[test]
fn unrequested_replies_are_a_protocol_error() {
    let mut bench = Bench::new();
    assert!(!bench.reply(1, Reply::Cancel));
    bench.open(PCS);
    bench.ask(PCS, Operation::Open);
    let (tag, _) = bench.sent_kind();
    assert!(!bench.reply(tag, Reply::Write { count: 1 }));
    let answers = bench.environment.answers.len();
    assert_eq!(answers, 1, "it is answered all the same");
}

#[test]
fn unknown_files_and_requests_have_errors() {
    let mut bench = Bench::new();
    bench.refuses(PCS, read(12, 0, 10), Errno::EBADF);
    bench.refuses(PCS, Operation::Unknown, Errno(libc::ENOSYS));
    bench.ask(PCS, Operation::Notice);
    let unique = bench.ask(PCS, Operation::Release { file: 12 });
    bench.answered(PCS, &protocol::released(unique));
    bench.nothing_more();
}
