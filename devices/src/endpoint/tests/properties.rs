//! Properties of an endpoint with random requests in random pieces.

use kvmprof_abi::wire::{Reply, ReplyFrame, Request};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{Conversation, EXCLUSIVE, counting, encode};

/// A valid or invalid request with numbers small enough to collide.
fn any_request() -> impl Strategy<Value = Vec<u8>> {
    let tag = 1..6_u32;
    let handle = 0..5_u32;
    prop_oneof![
        (tag.clone(), 0..4_u16, 0..2_u16, 0..3_u32).prop_map(|(tag, device, minor, flags)| {
            encode(
                tag,
                Request::Open {
                    device,
                    minor,
                    flags,
                },
            )
        }),
        (
            any::<u32>(),
            handle.clone(),
            prop_oneof![0..9_u32, Just(u32::MAX)],
            0..3_u32
        )
            .prop_map(|(tag, handle, limit, flags)| encode(
                tag,
                Request::Read {
                    handle,
                    limit,
                    flags
                }
            )),
        (tag.clone(), handle.clone(), vec(any::<u8>(), 0..9)).prop_map(|(tag, handle, data)| {
            let flags = 0;
            encode(
                tag,
                Request::Write {
                    handle,
                    flags,
                    data: &data,
                },
            )
        }),
        (tag.clone(), handle.clone(), 0..5_u32, 0..400_000_i64).prop_map(
            |(tag, handle, command, argument)| {
                let (limit, data) = (4, &b"12345678"[..]);
                encode(
                    tag,
                    Request::Ioctl {
                        handle,
                        command,
                        argument,
                        limit,
                        data,
                    },
                )
            }
        ),
        (any::<u32>(), handle.clone(), 0..8_u32, 0..2_u32).prop_map(
            |(tag, handle, events, flags)| encode(
                tag,
                Request::Poll {
                    handle,
                    events,
                    flags
                }
            )
        ),
        (tag.clone(), tag.clone())
            .prop_map(|(tag, other)| encode(tag, Request::Cancel { tag: other })),
        (tag, handle).prop_map(|(tag, handle)| encode(tag, Request::Close { handle })),
    ]
}

/// Splits `bytes` at the positions `cuts`.
fn pieces<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    places.extend([0, bytes.len()]);
    places.sort_unstable();
    places
        .windows(2)
        .map(|pair| &bytes[pair[0]..pair[1]])
        .collect()
}

proptest! {
    #[test]
    fn every_request_is_answered_once_for_any_fragmentation(
        requests in vec(any_request(), 0..40),
        cuts in vec(any::<prop::sample::Index>(), 0..20),
        room in 1..300_000_usize,
    ) {
        let mut talk = Conversation::new();
        let stream: Vec<u8> = requests.concat();
        let mut output = Vec::new();
        let mut result = Ok(());
        for piece in pieces(&stream, &cuts) {
            result = talk.endpoint.receive(piece, &mut talk.bench);
            if result.is_err() {
                break;
            }
            // A client that takes `room` bytes at a time, until the endpoint accepts input.
            while !talk.endpoint.wants_input() {
                let taken = room.min(talk.endpoint.output().len());
                output.extend_from_slice(&talk.endpoint.output()[..taken]);
                talk.endpoint.consume(taken);
                result = result.and(talk.endpoint.wake(&mut talk.bench));
            }
            if result.is_err() {
                break;
            }
        }
        output.extend_from_slice(talk.endpoint.output());
        let mut data = Vec::new();
        let mut answered = 0;
        let mut rest = &output[..];
        while let Some((frame, length)) = ReplyFrame::decode(rest).unwrap() {
            rest = &rest[length..];
            answered += 1;
            if let Ok(Reply::Read { data: read }) = frame.result {
                data.extend_from_slice(read);
            }
        }
        prop_assert!(rest.is_empty());
        // All bytes from the device went out in order, even if the client broke the protocol afterwards.
        prop_assert_eq!(data, counting(0, talk.bench.given));
        if result.is_ok() {
            prop_assert_eq!(answered + talk.endpoint.outstanding(), requests.len());
        }
        prop_assert_eq!(talk.endpoint.open_devices(), talk.bench.open.len());
        talk.endpoint.close(&mut talk.bench);
        prop_assert!(talk.bench.open.is_empty());
    }

    #[test]
    fn garbage_causes_no_panic_and_no_leak(
        valid in vec(any_request(), 0..6),
        garbage in vec(any::<u8>(), 0..200),
        flips in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cuts in vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let mut talk = Conversation::new();
        talk.open(EXCLUSIVE, 0);
        let mut stream = valid.concat();
        for (place, byte) in flips {
            if !stream.is_empty() {
                let place = place.index(stream.len());
                stream[place] = byte;
            }
        }
        stream.extend_from_slice(&garbage);
        for piece in pieces(&stream, &cuts) {
            let length = talk.endpoint.output().len();
            talk.endpoint.consume(length);
            if talk.endpoint.receive(piece, &mut talk.bench).is_err() {
                break;
            }
        }
        let _ = talk.endpoint.wake(&mut talk.bench);
        talk.endpoint.close(&mut talk.bench);
        prop_assert!(talk.bench.open.is_empty());
    }
}
