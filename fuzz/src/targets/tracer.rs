//! Requests to the tracer, which a compromised parser can write, and its answers. What decodes encodes to the same words.

use kvmprof_attach::remote::{Answer, GuestRange, Request};
use vm_memory::GuestAddress;

/// Decodes a request and an answer.
pub fn run(data: &[u8]) {
    let (words, _) = data.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let mut again = Vec::new();
    if let Some(request) = Request::decode(&words) {
        request.encode(&mut again);
        assert_eq!(again, words[..again.len()]);
        match request {
            Request::Look(_, _, blocks) => assert!(blocks.len() <= 128),
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
        ("refresh", Request::Refresh),
        ("thread", Request::HasThread(1)),
    ];
    let answers = [
        ("stopped", Answer::Stopped(Box::default())),
        ("halted", Answer::MpState(3)),
        ("slots", Answer::Slots(Some(2), Some(3))),
        ("is", Answer::Is(true)),
        ("ended", Answer::Ended),
    ];
    let requests = requests.into_iter().map(|(name, request)| {
        let mut words = Vec::new();
        request.encode(&mut words);
        (name, words)
    });
    let answers = answers.into_iter().map(|(name, answer)| {
        let mut words = Vec::new();
        answer.encode(&mut words);
        (name, words)
    });
    // Both read the whole of a message.
    let whole = |(name, words): (&'static str, Vec<u64>)| {
        let words = words.into_iter().chain([0; 80]);
        (name, words.flat_map(u64::to_le_bytes).collect())
    };
    requests.chain(answers).map(whole).collect()
}
