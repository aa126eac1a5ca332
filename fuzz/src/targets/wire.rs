//! Frames of the wire protocol, either way. What decodes encodes to the same bytes.

use kvmprof_abi::wire::{Kind, ReplyFrame, Request, RequestFrame, VERSION};

/// Decodes a request and a reply.
pub fn run(data: &[u8]) {
    if let Ok(Some((frame, length))) = RequestFrame::decode(data) {
        // Of a hello, what later versions say behind it is passed over.
        if frame.request.kind() != Kind::Hello {
            assert_eq!(request(&frame), &data[..length]);
        }
    }
    if let Ok(Some((frame, length))) = ReplyFrame::decode(data) {
        let mut bytes = vec![0; frame.encoded_length()];
        let written = frame.encode(&mut bytes).unwrap();
        assert!(written <= length);
        assert_eq!(ReplyFrame::decode(&bytes), Ok(Some((frame, written))));
    }
}

/// The bytes of a request.
pub fn request(frame: &RequestFrame<'_>) -> Vec<u8> {
    let mut bytes = vec![0; frame.encoded_length()];
    frame.encode(&mut bytes).unwrap();
    bytes
}

/// A request of each kind, and replies.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let handle = 1;
    let requests = [
        (
            "hello",
            Request::Hello {
                lowest: VERSION,
                highest: VERSION,
            },
        ),
        (
            "open",
            Request::Open {
                device: 1,
                minor: 0,
                flags: 0,
            },
        ),
        (
            "read",
            Request::Read {
                handle,
                limit: 4096,
                flags: 1,
            },
        ),
        (
            "write",
            Request::Write {
                handle,
                flags: 0,
                data: b"12345678",
            },
        ),
        (
            "ioctl",
            Request::Ioctl {
                handle,
                command: 0x5001,
                argument: -1,
                limit: 64,
                data: b"1234",
            },
        ),
        (
            "poll",
            Request::Poll {
                handle,
                events: 1,
                flags: 0,
            },
        ),
        ("cancel", Request::Cancel { tag: 7 }),
        ("close", Request::Close { handle }),
    ];
    let mut seeds: Vec<_> = requests
        .into_iter()
        .map(|(name, what)| {
            (
                name,
                request(&RequestFrame {
                    tag: 1,
                    request: what,
                }),
            )
        })
        .collect();
    for (name, reply) in [
        (
            "reply-read",
            kvmprof_abi::wire::Reply::Read { data: b"abcd" },
        ),
        (
            "reply-ioctl",
            kvmprof_abi::wire::Reply::Ioctl {
                value: -1,
                data: b"ab",
            },
        ),
    ] {
        let frame = ReplyFrame::success(3, reply);
        let mut bytes = vec![0; frame.encoded_length()];
        frame.encode(&mut bytes).unwrap();
        seeds.push((name, bytes));
    }
    seeds
}
