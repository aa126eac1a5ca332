//! Tests of the wire's frames: they round-trip, and any input decodes without a panic.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::{
    HEADER_LENGTH, HelloReply, Kind, MAGIC, MAX_DATA, MAX_IOCTL_DATA, Reply, ReplyFrame, Request,
    RequestBegun, RequestFrame, WireError,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn encode_request(frame: &RequestFrame<'_>) -> Vec<u8> {
    let mut bytes = vec![0; frame.encoded_length()];
    assert_eq!(frame.encode(&mut bytes), Ok(bytes.len()));
    bytes
}

fn encode_reply(frame: &ReplyFrame<'_>) -> Vec<u8> {
    let mut bytes = vec![0; frame.encoded_length()];
    assert_eq!(frame.encode(&mut bytes), Ok(bytes.len()));
    bytes
}

/// Any request, its data borrowed from `data`.
fn request(choice: u8, numbers: [u32; 4], data: &[u8]) -> Request<'_> {
    let [handle, a, b, c] = numbers;
    let low = |number: u32| u16::try_from(number & 0xffff).unwrap();
    match choice % 8 {
        0 => Request::Hello {
            lowest: low(a),
            highest: low(b),
        },
        1 => Request::Open {
            device: low(a),
            minor: low(b),
            flags: c,
        },
        2 => Request::Read {
            handle,
            limit: a,
            flags: b,
        },
        3 => Request::Write {
            handle,
            flags: a,
            data,
        },
        4 => Request::Ioctl {
            handle,
            command: a,
            argument: (i64::from(b) << 32 | i64::from(c)).wrapping_neg(),
            limit: c,
            data,
        },
        5 => Request::Poll {
            handle,
            events: a,
            flags: b,
        },
        6 => Request::Cancel { tag: a },
        _ => Request::Close { handle },
    }
}

/// Any reply, its data borrowed from `data`.
fn reply(choice: u8, numbers: [u32; 4], data: &[u8]) -> ReplyFrame<'_> {
    let [tag, a, b, c] = numbers;
    let what = match choice % 9 {
        0 => Reply::Hello(HelloReply {
            version: 1,
            ..HelloReply::answer(1, 2, b, c)
        }),
        1 => Reply::Open { handle: a },
        2 => Reply::Read { data },
        3 => Reply::Write { count: a },
        4 => Reply::Ioctl {
            value: (i64::from(b) << 32 | i64::from(c)).wrapping_neg(),
            data,
        },
        5 => Reply::Poll { events: a },
        6 => Reply::Cancel,
        7 => Reply::Close,
        _ => {
            return ReplyFrame::failure(
                tag,
                Kind::Ioctl,
                Errno(i32::try_from(a >> 1).unwrap().max(1)),
            );
        }
    };
    ReplyFrame::success(tag, what)
}

proptest! {
    #[test]
    fn requests_round_trip(
        tag: u32, choice: u8, numbers: [u32; 4], data in vec(any::<u8>(), 0..300),
        behind in vec(any::<u8>(), 0..40),
    ) {
        let frame = RequestFrame { tag, request: request(choice, numbers, &data) };
        let mut bytes = encode_request(&frame);
        let length = bytes.len();
        bytes.extend_from_slice(&behind);
        prop_assert_eq!(RequestFrame::decode(&bytes), Ok(Some((frame, length))));
        for cut in 0..length {
            prop_assert_eq!(RequestFrame::decode(&bytes[..cut]), Ok(None));
            let begun = RequestBegun { tag, kind: frame.request.kind(), length };
            let expected = (cut >= HEADER_LENGTH).then_some(begun);
            prop_assert_eq!(RequestFrame::begun(&bytes[..cut]), Ok(expected));
        }
        let needed = length;
        let result = frame.encode(&mut bytes[..length - 1]);
        prop_assert_eq!(result, Err(WireError::BufferTooSmall { needed }));
    }

    #[test]
    fn replies_round_trip(
        choice: u8, numbers: [u32; 4], data in vec(any::<u8>(), 0..300),
        behind in vec(any::<u8>(), 0..40),
    ) {
        let frame = reply(choice, numbers, &data);
        let mut bytes = encode_reply(&frame);
        let length = bytes.len();
        bytes.extend_from_slice(&behind);
        prop_assert_eq!(ReplyFrame::decode(&bytes), Ok(Some((frame, length))));
        for cut in 0..length {
            prop_assert_eq!(ReplyFrame::decode(&bytes[..cut]), Ok(None));
        }
    }

    #[test]
    fn decoding_any_bytes_does_not_panic(bytes in vec(any::<u8>(), 0..200), kind in 0..10_u16, length in 0..200_u32) {
        let _ = RequestFrame::decode(&bytes);
        let _ = ReplyFrame::decode(&bytes);
        // The same with a header that announces more.
        let mut bytes = bytes;
        if bytes.len() >= HEADER_LENGTH {
            bytes[..4].copy_from_slice(&length.to_le_bytes());
            bytes[8..10].copy_from_slice(&kind.to_le_bytes());
            bytes[10..12].fill(0);
            if let Ok(Some((frame, end))) = RequestFrame::decode(&bytes) {
                // Decoding drops only the fields after a hello's versions.
                if frame.request.kind() != Kind::Hello {
                    prop_assert_eq!(encode_request(&frame), &bytes[..end]);
                }
            }
            bytes[8..10].copy_from_slice(&(kind | 0x8000).to_le_bytes());
            let _ = ReplyFrame::decode(&bytes);
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
    let handle = 7;
    let mut close = encode_request(&RequestFrame {
        tag: 1,
        request: Request::Close { handle },
    });
    close[10] = 1;
    let reserved = |kind| Err(WireError::Reserved { kind });
    assert_eq!(RequestFrame::decode(&close), reserved(8));
    let mut cancel = encode_request(&RequestFrame {
        tag: 1,
        request: Request::Cancel { tag: 3 },
    });
    cancel[12] = 1;
    assert_eq!(RequestFrame::decode(&cancel), reserved(7));
    let (lowest, highest) = (1, 1);
    let mut hello = encode_request(&RequestFrame {
        tag: 1,
        request: Request::Hello { lowest, highest },
    });
    assert_eq!(hello[16..24], MAGIC);
    hello[16] = b'K';
    assert_eq!(RequestFrame::decode(&hello), Err(WireError::Magic));
    hello[8..10].copy_from_slice(&0x8001_u16.to_le_bytes());
    let unknown = Err(WireError::UnknownKind(0x8001));
    assert_eq!(RequestFrame::decode(&hello), unknown);
}

#[test]
fn longer_hellos_of_later_versions_are_accepted() {
    let (lowest, highest) = (1, 9);
    let frame = RequestFrame {
        tag: 1,
        request: Request::Hello { lowest, highest },
    };
    let mut bytes = encode_request(&frame);
    bytes.extend_from_slice(&[0xee; 100]);
    bytes[0] += 100;
    let length = bytes.len();
    assert_eq!(RequestFrame::decode(&bytes), Ok(Some((frame, length))));
    let frame = ReplyFrame::success(1, Reply::Hello(HelloReply::answer(1, 9, 4, 100)));
    let mut bytes = encode_reply(&frame);
    bytes.extend_from_slice(&[0xee; 100]);
    bytes[0] += 100;
    let length = bytes.len();
    assert_eq!(ReplyFrame::decode(&bytes), Ok(Some((frame, length))));
}

#[test]
fn too_much_data_is_not_encoded() {
    let data = vec![0; MAX_DATA + 1];
    let write = RequestFrame {
        tag: 1,
        request: Request::Write {
            handle: 1,
            flags: 0,
            data: &data,
        },
    };
    let mut bytes = vec![0; write.encoded_length()];
    assert!(matches!(
        write.encode(&mut bytes),
        Err(WireError::BodyLength { kind: 4, .. })
    ));
}
