//! Sessions with programs that break the protocol in every way that a front end can see.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread;

use vmm_sys_util::eventfd::EFD_NONBLOCK;

use super::*;
use crate::memory::{MemoryOptions, allocate as allocate_memory};

/// Requests of the protocol.
const GET_FEATURES: u32 = 1;
const SET_MEM_TABLE: u32 = 5;
const GET_VRING_BASE: u32 = 11;
const GET_PROTOCOL_FEATURES: u32 = 15;
/// Flags of a message: the version, and that it is a reply, or needs one.
const VERSION: u32 = 1;
const REPLY: u32 = 4;
const NEED_REPLY: u32 = 8;
/// VHOST_USER_F_PROTOCOL_FEATURES, VHOST_USER_PROTOCOL_F_REPLY_ACK.
const PROTOCOL_FEATURES: u64 = 1 << 30;
const REPLY_ACK: u64 = 1 << 3;

/// A fault in the answer to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::share) enum AnswerFault {
    None,
    /// There is no answer, and the connection ends.
    HangsUp,
    /// It answers another request.
    OtherRequest,
    /// It has the version of another protocol.
    OtherVersion,
    /// It isn't marked as an answer.
    NoReply,
    /// Its header has a size that no message may have.
    TooLong,
    /// It has fewer bytes than the answer needs, and the connection ends.
    TooShort,
    /// The connection ends in the middle of it.
    HalfAMessage,
    /// It has this value, such as a refusal or no features.
    Value(u64),
    /// It is no message at all.
    Garbage,
}

/// A back end whose answers are valid except for the answer to one request. Ends when its client does.
fn serve(listener: &UnixListener, wrong: u32, lie: AnswerFault) {
    answer(listener.accept().unwrap().0, wrong, lie);
}

/// As [`serve`], for a client that is connected already.
pub(in crate::share) fn answer(mut stream: UnixStream, wrong: u32, lie: AnswerFault) {
    let mut header = [0; 12];
    while stream.read_exact(&mut header).is_ok() {
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let (request, flags, size) = (word(0), word(4), word(8));
        let mut payload = vec![0; size as usize];
        stream.read_exact(&mut payload).unwrap();
        let answer = match request {
            GET_FEATURES => Some(VERSION_1 | PROTOCOL_FEATURES),
            GET_PROTOCOL_FEATURES => Some(REPLY_ACK),
            // The queue's number, and its position: 0.
            GET_VRING_BASE => Some(u64::from(payload[0])),
            _ => (flags & NEED_REPLY != 0).then_some(0),
        };
        let Some(answer) = answer else { continue };
        let lie = if request == wrong {
            lie
        } else {
            AnswerFault::None
        };
        let message = message(request, answer, lie);
        // The client may have disconnected after the first half.
        if stream.write_all(&message).is_err()
            || [
                AnswerFault::HangsUp,
                AnswerFault::HalfAMessage,
                AnswerFault::TooShort,
            ]
            .contains(&lie)
        {
            return;
        }
    }
}

fn message(request: u32, answer: u64, lie: AnswerFault) -> Vec<u8> {
    let (mut request, mut flags, mut size, mut answer) = (request, VERSION | REPLY, 8_u32, answer);
    match lie {
        AnswerFault::OtherRequest => request += 1,
        AnswerFault::OtherVersion => flags += 1,
        AnswerFault::NoReply => flags &= !REPLY,
        AnswerFault::TooLong => size = u32::MAX,
        AnswerFault::TooShort => size = 4,
        AnswerFault::Value(value) => answer = value,
        AnswerFault::HangsUp => return Vec::new(),
        AnswerFault::Garbage => return vec![0x5a; 64],
        AnswerFault::None | AnswerFault::HalfAMessage => {}
    }
    let words = [request, flags, size];
    let mut message: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    message.extend(answer.to_le_bytes());
    match lie {
        AnswerFault::HalfAMessage => message.truncate(9),
        AnswerFault::TooShort => message.truncate(16),
        _ => {}
    }
    message
}

/// The result of a session with such a back end, which is opened, started and stopped.
fn outcome(wrong: u32, lie: AnswerFault) -> Result<(), ShareError> {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| serve(&listener, wrong, lie));
        let mut session = Session::open(&ShareSource::Socket(path), &Openers::default())?;
        let memory = MemoryOptions::private(64 << 20).shareable();
        let memory = allocate_memory(&memory).unwrap();
        let event = EventFd::new(EFD_NONBLOCK).unwrap();
        let events = Events {
            notifications: [&event, &event],
            interrupt: &event,
        };
        let queue = |start: u64| {
            Some(QueueLayout {
                size: 8,
                descriptors: start,
                available: start + 0x1000,
                used: start + 0x2000,
            })
        };
        let queues = RunningQueues {
            resets: 0,
            features: VERSION_1,
            queues: vec![queue(0x10_0000), queue(0x20_0000)],
        };
        let result = session
            .start(&queues, &memory, &events)
            .and_then(|()| session.stop(&queues));
        session.close();
        result
    })
}

#[test]
fn an_honest_program_is_started_and_stopped() {
    outcome(0, AnswerFault::None).unwrap();
}

#[test]
fn every_broken_answer_is_an_error() {
    let lies = [
        AnswerFault::HangsUp,
        AnswerFault::OtherRequest,
        AnswerFault::OtherVersion,
        AnswerFault::NoReply,
        AnswerFault::TooLong,
        AnswerFault::TooShort,
        AnswerFault::HalfAMessage,
        AnswerFault::Garbage,
    ];
    for request in [
        GET_FEATURES,
        GET_PROTOCOL_FEATURES,
        SET_MEM_TABLE,
        GET_VRING_BASE,
    ] {
        for lie in lies {
            let error = outcome(request, lie).unwrap_err();
            let is_gone = matches!(error, ShareError::Gone(_));
            let is_broken = matches!(error, ShareError::Protocol(_));
            assert!(is_gone || is_broken, "{request} {lie:?}: {error}");
            assert!(
                is_gone || lie != AnswerFault::HangsUp,
                "{request} {lie:?}: {error}"
            );
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
        }
    }
}

#[test]
fn a_program_that_refuses_or_is_too_old_is_an_error() {
    for (request, value) in [(GET_FEATURES, PROTOCOL_FEATURES), (SET_MEM_TABLE, 1)] {
        let error = outcome(request, AnswerFault::Value(value)).unwrap_err();
        assert!(matches!(error, ShareError::Protocol(_)), "{error}");
    }
}

#[test]
fn slow_exchanges_are_aborted() {
    let (mut mine, _theirs) = UnixStream::pair().unwrap();
    let stream = mine.try_clone().unwrap();
    let read = || mine.read(&mut [0]).unwrap();
    let (read, is_late) = within(Duration::from_millis(10), &stream, read).unwrap();
    assert_eq!((read, is_late), (0, true));
    let (value, is_late) = within(ANSWER_LIMIT, &stream, || 7).unwrap();
    assert_eq!((value, is_late), (7, false));
}
