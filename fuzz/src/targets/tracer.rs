//! Requests to the tracer, which a compromised parser can write, and its answers. What decodes encodes to the same words.

use std::sync::Arc;

use kvmprof_attach::remote::testing::{HostileTracer, served};
use kvmprof_attach::remote::{Answer, GuestRange, Request, UnreadBlocks};
use kvmprof_introspection::PhysicalMemory;
use vm_memory::GuestAddress;

/// Bytes of a request that somebody writes who has taken over the process that asks.
const ASKED: usize = 48;
/// What an input begins with that has requests, or answers, and not one message.
const REQUESTS: u8 = 0xa5;
const ANSWERS: u8 = 0x5a;

/// Decodes a request and an answer, and has each side deal with whatever the other one says.
pub fn run(data: &[u8]) {
    decode(data);
    match data.split_first() {
        Some((&REQUESTS, requests)) => ask(requests),
        Some((&ANSWERS, answers)) => be_answered(answers.to_vec()),
        _ => {}
    }
}

/// Has the tracer answer requests. It has no vCPU, and reads nothing but guest memory.
fn ask(requests: &[u8]) {
    let mut served = served().unwrap();
    for request in requests.chunks(ASKED).take(64) {
        let (words, _) = request.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let before = served.reads();
        let answer = served.ask(&words).unwrap();
        let has_read = served.reads() > before;
        match answer {
            Answer::Is(_) | Answer::Blocks(_) | Answer::Slots(..) => {}
            Answer::Refused => assert!(!has_read),
            other => panic!("{other:?}"),
        }
    }
}

/// Has the other side ask a tracer that answers by these bytes.
fn be_answered(answers: Vec<u8>) {
    let (_tracer, mut vcpu) = HostileTracer::start(answers).unwrap();
    let memory = Arc::clone(vcpu.memory());
    let mut buffer = [0; 3000];
    for address in [0x1ff0, u64::MAX - 8, 0x10_0000].map(GuestAddress) {
        let _ = vcpu.look(|state| {
            let _ = (state.is_in_guest(), state.registers());
            let _ = memory.read_physical(address, &mut buffer[..1000]);
            let _ = state.mp_state();
            let _ = memory.read_physical(address, &mut buffer);
            Ok(())
        });
        let _ = memory.refresh();
        assert!(memory.slots().iter().count() <= 1 << 16);
        let _ = memory.contains(address);
        let _ = memory.read_physical(address, &mut buffer);
        let _ = vcpu.has_thread();
    }
}

fn decode(data: &[u8]) {
    let (words, _) = data.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let mut again = Vec::new();
    if let Some(request) = Request::decode(&words) {
        request.encode(&mut again);
        assert_eq!(again, words[..again.len()]);
        match request {
            Request::Look(_, _, blocks) | Request::ReadBlocks(blocks) => {
                assert!(blocks.len() <= 128);
            }
            Request::Read(range) => assert!(range.bytes <= 1 << 20),
            _ => {}
        }
    }
    if let Some(answer) = Answer::decode(&words) {
        again.clear();
        answer.encode(&mut again);
        let decoded = Answer::decode(&again).unwrap();
        assert_eq!(format!("{decoded:?}"), format!("{answer:?}"));
    }
}

/// A request of each kind, and answers.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let blocks = [0x1000, 0x2200, 0x10_0000].map(GuestAddress);
    let range = GuestRange {
        address: GuestAddress(0x1234),
        bytes: 4096,
    };
    let requests = [
        ("look", Request::Look(1, Some(2), blocks.to_vec())),
        ("state", Request::MpState),
        ("release", Request::Release),
        ("read", Request::Read(range)),
        ("blocks", Request::ReadBlocks(blocks.to_vec())),
        ("refresh", Request::Refresh),
        ("thread", Request::HasThread(1)),
    ];
    let answers = [
        ("stopped", Answer::Stopped(Box::default())),
        ("halted", Answer::MpState(3)),
        ("slots", Answer::Slots(Some(2), Some(3))),
        ("is", Answer::Is(true)),
        ("ended", Answer::Ended),
        ("unread", Answer::Blocks(UnreadBlocks::default())),
    ];
    let requests = requests.map(|(name, request)| {
        let mut words = Vec::new();
        request.encode(&mut words);
        (name, words)
    });
    let answers = answers.map(|(name, answer)| {
        let mut words = Vec::new();
        answer.encode(&mut words);
        (name, words)
    });
    let bytes_of = |words: &[u64]| -> Vec<u8> {
        let words = words.iter().copied();
        words.flat_map(u64::to_le_bytes).collect()
    };
    // What each side says, one after the other.
    let mut asked = vec![REQUESTS];
    for (_, words) in &requests {
        let mut request = bytes_of(words);
        request.resize(ASKED, 0);
        asked.extend(request);
    }
    let mut answered = vec![ANSWERS];
    for (_, words) in answers.iter().cycle().take(24) {
        answered.push(u8::try_from(words.len()).unwrap());
        answered.extend(bytes_of(words));
        answered.extend([0x11; 64]);
    }
    let conversations = [("requests", asked), ("answers", answered)];
    // Both read the whole of a message.
    let whole = |(name, words): (&'static str, Vec<u64>)| {
        let words = words.into_iter().chain([0; 80]);
        (name, words.flat_map(u64::to_le_bytes).collect())
    };
    let messages = requests.into_iter().chain(answers).map(whole);
    messages.chain(conversations).collect()
}
