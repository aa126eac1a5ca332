//! Properties of an endpoint with random requests in random pieces.

use kvmprof_abi::wire::{Reply, ReplyFrame, Request};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{Conversation, counting, encode, ioctl, open_request, read_request};

/// A valid or invalid request with numbers small enough to collide.
fn any_request() -> impl Strategy<Value = Vec<u8>> {
    let numbers = (0..7_u8, 1..6_u32, any::<u32>(), 0..5_u32, 0..9_u32);
    let some = (numbers, 0..400_000_i64, vec(any::<u8>(), 0..9));
    some.prop_map(|((kind, tag, any_tag, handle, number), argument, data)| {
        let device = u16::try_from(number % 4).unwrap();
        let flags = number % 3;
        match kind {
            0 => encode(tag, open_request(device, flags)),
            1 if number == 8 => encode(any_tag, read_request(handle, u32::MAX, flags)),
            1 => encode(any_tag, read_request(handle, number, flags)),
            2 => encode(
                tag,
                Request::Write {
                    handle,
                    flags: 0,
                    data: &data,
                },
            ),
            3 => encode(tag, ioctl(handle, (number % 5, argument), 4, b"12345678")),
            4 => encode(
                any_tag,
                Request::Poll {
                    handle,
                    events: number,
                    flags: flags % 2,
                },
            ),
            5 => encode(tag, Request::Cancel { tag: any_tag % 6 }),
            _ => encode(tag, Request::Close { handle }),
        }
    })
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
}
