//! Connections that share a limit for waiting bytes.

use std::sync::Arc;

use kvmprof_abi::wire::{HEADER_LENGTH, MAX_DATA};
use kvmprof_recording::QueueBudget;

use super::*;

/// A common limit that has room for one long request, not for two.
const ROOM: usize = 6 << 20;

impl Conversation {
    fn within(room: &Arc<QueueBudget>) -> Self {
        let mut talk = Self::new();
        talk.endpoint = Endpoint::within(Client::Host, HelloInfo::default(), room);
        talk.say(0, HELLO);
        talk
    }

    /// Passes these bytes in, and takes the immediate answers.
    fn give(&mut self, bytes: &[u8]) -> Vec<OwnedReply> {
        self.endpoint.begin_turn();
        self.endpoint.receive(bytes, &mut self.bench).unwrap();
        replies(&mut self.endpoint)
    }
}

fn write(tag: u32, handle: u32) -> Vec<u8> {
    let data = vec![0; MAX_DATA];
    let request = Request::Write {
        handle,
        flags: 0,
        data: &data,
    };
    encode(tag, request)
}

/// A request that announces more than there is room for is refused as soon as that is known; its remaining bytes aren't
/// parsed as requests.
#[test]
fn a_long_request_without_room_is_refused_and_skipped() {
    let room = Arc::new(QueueBudget::new(ROOM));
    let [mut first, mut second] = [(); 2].map(|()| Conversation::within(&room));
    let handles = [&mut first, &mut second].map(|talk| talk.open(COMMON, 0));
    let frames = handles.map(|handle| write(5, handle));
    assert_eq!(first.give(&frames[0][..1000]), []);
    assert_eq!(second.give(&frames[1][..HEADER_LENGTH - 1]), []);
    let header = &frames[1][HEADER_LENGTH - 1..HEADER_LENGTH];
    let refused = [failed(5, Kind::Write, Errno::ENOMEM)];
    assert_eq!(second.give(header), refused);
    // Its remaining bytes arrive in pieces, the last one followed by another request.
    let (middle, end) = frames[1][HEADER_LENGTH..].split_at(MAX_DATA / 2);
    assert_eq!(second.give(middle), []);
    let close = encode(6, Request::Close { handle: handles[1] });
    let closed = [got(6, Kind::Close, 0, &[])];
    assert_eq!(second.give(&[end, &close[..]].concat()), closed);
    // The first one is complete, so there is room again.
    let written = |tag| [got(tag, Kind::Write, MAX_DATA.try_into().unwrap(), &[])];
    assert_eq!(first.give(&frames[0][1000..]), written(5));
    assert_eq!(room.left(), ROOM);
    let handle = second.open(COMMON, 0);
    let again = write(7, handle);
    assert_eq!(second.give(&again[..1000]), []);
    assert!(room.left() < ROOM / 2);
    assert_eq!(second.give(&again[1000..]), written(7));
    // A connection that ends frees its share.
    assert_eq!(first.give(&frames[0][..1000]), []);
    drop(first);
    assert_eq!(room.left(), ROOM);
}

#[test]
fn refusing_breaks_no_rule_of_the_protocol() {
    let room = Arc::new(QueueBudget::new(0));
    let mut talk = Conversation::within(&room);
    let handle = talk.open(COMMON, 0);
    assert_eq!(talk.read(1, handle, 10), []);
    let mut other = Endpoint::within(Client::Host, HelloInfo::default(), &room);
    let received = |endpoint: &mut Endpoint, bench: &mut Bench, tag| {
        let frame = write(tag, handle);
        endpoint.receive(&frame[..1000], bench)
    };
    let used = received(&mut talk.endpoint, &mut talk.bench, 1);
    assert_eq!(used, Err(EndpointError::TagInUse { tag: 1 }));
    let early = received(&mut other, &mut talk.bench, 2);
    assert_eq!(early, Err(EndpointError::NoHello));
}

/// Beyond the common limit a stream is read in smaller pieces, and requests that can't be split are refused.
#[test]
fn long_reads_without_room_are_shortened_or_refused() {
    let room = Arc::new(QueueBudget::new(ROOM));
    let [mut other, mut talk] = [(); 2].map(|()| Conversation::within(&room));
    let [stream, whole] = [EXCLUSIVE, COMMON].map(|number| talk.open(number, 0));
    talk.bench.released = 64 << 20;
    let length = |replies: Vec<OwnedReply>| match replies.as_slice() {
        [OwnedReply { result, .. }] => result.as_ref().map(|(_, data)| data.len()).map_err(|e| *e),
        _ => panic!("{} replies", replies.len()),
    };
    let limit = 4 << 20;
    assert_eq!(length(talk.read(1, stream, limit)), Ok(4 << 20));
    assert_eq!(length(talk.read(2, whole, limit)), Ok(4 << 20));
    assert_eq!(room.left(), ROOM);
    // Another one takes most of the limit.
    let handle = other.open(COMMON, 0);
    assert_eq!(other.give(&write(5, handle)[..1000]), []);
    assert_eq!(length(talk.read(3, whole, limit)), Err(Errno::ENOMEM));
    let shortened = length(talk.read(4, stream, limit)).unwrap();
    assert!((256 << 10..3 << 20).contains(&shortened), "{shortened}");
    assert_eq!(length(talk.read(5, whole, 100_000)), Ok(100_000));
    drop(other);
    assert_eq!(length(talk.read(6, whole, limit)), Ok(4 << 20));
}
