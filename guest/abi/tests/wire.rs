//! Tests of the wire's frames.

use kvmprof_abi::wire::{
    HEADER_LENGTH, HelloReply, MAGIC, MAX_DATA, MAX_IOCTL_DATA, Reply, ReplyFrame, Request,
    RequestBegun, RequestFrame, WireError,
};

use crate::pages::{dumps, reply, request, wire::WIRE};

/// Each frame of the page, and a write, which it doesn't show.
#[test]
fn whole_frames_are_decoded_and_others_wait() {
    let write = Request::Write {
        handle: 7,
        flags: 1,
        data: b"12345",
    };
    let mut frames: Vec<Vec<u8>> = dumps(WIRE).into_values().collect();
    frames.push(request(3, write));
    for bytes in frames {
        let length = bytes.len();
        let behind = [&bytes[..], b"more"].concat();
        let is_reply = bytes[9] & 0x80 != 0;
        if is_reply {
            let (frame, used) = ReplyFrame::decode(&behind).unwrap().unwrap();
            assert_eq!((reply(frame), used), (bytes.clone(), length));
        } else {
            let (frame, used) = RequestFrame::decode(&behind).unwrap().unwrap();
            assert_eq!(request(frame.tag, frame.request), bytes);
            assert_eq!(used, length);
            let (tag, kind) = (frame.tag, frame.request.kind());
            let begun = RequestBegun { tag, kind, length };
            for cut in 0..length {
                let known = (cut >= HEADER_LENGTH).then_some(begun);
                assert_eq!(RequestFrame::begun(&bytes[..cut]), Ok(known));
            }
            let short = frame.encode(&mut vec![0; length - 1]);
            assert_eq!(short, Err(WireError::BufferTooSmall { needed: length }));
        }
        for cut in 0..length {
            let cut = &bytes[..cut];
            assert!(!is_reply || ReplyFrame::decode(cut) == Ok(None));
            assert!(is_reply || RequestFrame::decode(cut) == Ok(None));
        }
    }
}

#[test]
fn lengths_are_checked_by_the_header() {
    for (kind, shortest, longest) in [
        (1_u16, 16, 256),
        (2, 8, 8),
        (3, 8, 8),
        (4, 4, 4 + MAX_DATA),
        (5, 16, 16 + MAX_IOCTL_DATA),
        (6, 8, 8),
        (7, 4, 4),
        (8, 0, 0),
    ] {
        let decode = |length: usize| {
            let mut header = [0; HEADER_LENGTH];
            header[..4].copy_from_slice(&u32::try_from(length).unwrap().to_le_bytes());
            header[8..10].copy_from_slice(&kind.to_le_bytes());
            RequestFrame::decode(&header).map(|frame| frame.is_some())
        };
        let refused = |length| {
            let (minimum, maximum) = (shortest, longest);
            Err(WireError::BodyLength {
                kind,
                length,
                minimum,
                maximum,
            })
        };
        assert_eq!(decode(longest), Ok(longest == 0));
        assert_eq!(decode(longest + 1), refused(longest + 1));
        let most = usize::try_from(u32::MAX).unwrap();
        assert_eq!(decode(most), refused(most));
        if shortest > 0 {
            assert_eq!(decode(shortest - 1), refused(shortest - 1));
        }
    }
}

#[test]
fn reserved_fields_and_the_magic_are_checked() {
    let changed = |what, at: usize, byte| {
        let mut bytes = request(1, what);
        bytes[at] = byte;
        RequestFrame::decode(&bytes).map(|_| ()).unwrap_err()
    };
    let reserved = |kind| WireError::Reserved { kind };
    assert_eq!(changed(Request::Close { handle: 7 }, 10, 1), reserved(8));
    assert_eq!(changed(Request::Cancel { tag: 3 }, 12, 1), reserved(7));
    let (lowest, highest) = (1, 1);
    let hello = Request::Hello { lowest, highest };
    assert_eq!(request(1, hello)[16..24], MAGIC);
    assert_eq!(changed(hello, 16, b'K'), WireError::Magic);
    assert_eq!(changed(hello, 9, 0x80), WireError::UnknownKind(0x8001));
}

#[test]
fn longer_hellos_of_later_versions_are_accepted() {
    let longer = |mut bytes: Vec<u8>| {
        bytes.extend_from_slice(&[0xee; 100]);
        bytes[0] += 100;
        bytes
    };
    let (lowest, highest) = (1, 9);
    let hello = Request::Hello { lowest, highest };
    let bytes = longer(request(1, hello));
    let (frame, length) = RequestFrame::decode(&bytes).unwrap().unwrap();
    assert_eq!((frame.request, length), (hello, bytes.len()));
    let frame = ReplyFrame::success(1, Reply::Hello(HelloReply::answer(1, 9, 4, 100)));
    let bytes = longer(reply(frame));
    let length = bytes.len();
    assert_eq!(ReplyFrame::decode(&bytes), Ok(Some((frame, length))));
}

#[test]
fn too_much_data_is_not_encoded() {
    let write = Request::Write {
        handle: 1,
        flags: 0,
        data: &vec![0; MAX_DATA + 1],
    };
    let frame = RequestFrame {
        tag: 1,
        request: write,
    };
    let refused = frame.encode(&mut vec![0; frame.encoded_length()]);
    assert!(matches!(
        refused,
        Err(WireError::BodyLength { kind: 4, .. })
    ));
}
