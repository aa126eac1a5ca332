//! The results of the workloads `network` and `hostile-network`. The layout is `struct
//! network_results` in image/workloads/network.h.

use std::ops::Range;

use kvmprof_demo_guest::{TruthError, i32_at, u32_at, u64_at};

use crate::ports::Outcome;
use crate::{IMAGE, text_at};

const MAC_OFFSET: usize = 28;
const RANDOM_LENGTH_OFFSET: usize = 36;
const LONG_RANDOM_LENGTH_OFFSET: usize = 40;
const RANDOM_OFFSET: usize = 44;
const RANDOM_BYTES: usize = 64;
const ATTACKS_OFFSET: usize = 108;
const OVER_OFFSET: usize = 112;
const HEADER_BYTES: usize = 120;
const ATTACK_BYTES: usize = 32;
const ATTACKS_MAX: usize = 256;
const RESULTS_BYTES: usize = HEADER_BYTES + ATTACKS_MAX * ATTACK_BYTES;

/// Flag of an attack (image/attacks/attacks.h).
const NEEDS_NOTICE: u32 = 4;
/// The device's status (virtio 1.2, section 2.1).
const DEVICE_NEEDS_RESET: u32 = 64;

/// An attack on a queue, and its results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkAttack {
    /// What it does.
    pub name: &'static str,
    /// The queue that it attacks.
    pub victim: &'static str,
    /// The device has to request a reset because of it.
    pub needs_notice: bool,
    /// The device requests a reset after it.
    pub noticed: bool,
    /// [`Outcome::Done`] if it was possible.
    pub tried: Outcome,
    /// The result of a frame to the peer and back, after a reset.
    pub after: Outcome,
    /// The result of a request for random bytes, after a reset.
    pub random_after: Outcome,
}

/// A workload's results so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkResults {
    /// The obstacle that ended it, if any.
    pub failure: Outcome,
    /// It has ended.
    pub finished: bool,
    /// The last state of the link.
    pub up: bool,
    /// Number of times that it has seen the link go up, and reported it.
    pub ups: u32,
    /// Number of times that it has seen the link go down.
    pub downs: u32,
    /// Frames that it has sent back.
    pub frames: u32,
    /// Frames that no device should deliver.
    pub errors: u32,
    /// The device's address.
    pub mac: [u8; 6],
    /// Bytes returned for a request for 64 random bytes, and for one for 8192.
    pub random_lengths: [u32; 2],
    /// The first of them.
    pub random: Vec<u8>,
    /// All attacks that were started.
    pub attacks: Vec<NetworkAttack>,
    /// The number of finished ones.
    pub over: u32,
}

/// The guest-physical addresses of the results, for [`NetworkResults::parse`].
///
/// # Errors
/// As [`kvmprof_demo_guest::Image::area`].
pub fn network_results_area() -> Result<Range<u64>, TruthError> {
    IMAGE.area("kvmprof_network_results")
}

impl NetworkResults {
    /// Parses a copy of [`network_results_area`].
    ///
    /// # Errors
    /// The copy is too short.
    pub fn parse(bytes: &[u8]) -> Result<Self, TruthError> {
        let short = || TruthError::Short(bytes.len(), RESULTS_BYTES);
        let attacks = bytes.get(HEADER_BYTES..RESULTS_BYTES).ok_or_else(short)?;
        let random = bytes.get(RANDOM_OFFSET..RANDOM_OFFSET + RANDOM_BYTES);
        let mac = bytes.get(MAC_OFFSET..).and_then(<[u8]>::first_chunk);
        let count = usize::try_from(u32_at(bytes, ATTACKS_OFFSET)).unwrap_or(usize::MAX);
        Ok(Self {
            failure: Outcome::from_number(i32_at(bytes, 0)),
            finished: u32_at(bytes, 4) != 0,
            up: u32_at(bytes, 8) != 0,
            ups: u32_at(bytes, 12),
            downs: u32_at(bytes, 16),
            frames: u32_at(bytes, 20),
            errors: u32_at(bytes, 24),
            mac: *mac.ok_or_else(short)?,
            random_lengths: [
                u32_at(bytes, RANDOM_LENGTH_OFFSET),
                u32_at(bytes, LONG_RANDOM_LENGTH_OFFSET),
            ],
            random: random.ok_or_else(short)?.to_vec(),
            attacks: attacks
                .chunks_exact(ATTACK_BYTES)
                .take(count)
                .map(parse_attack)
                .collect(),
            over: u32_at(bytes, OVER_OFFSET),
        })
    }
}

fn parse_attack(bytes: &[u8]) -> NetworkAttack {
    NetworkAttack {
        name: text_at(u64_at(bytes, 0)).unwrap_or("?"),
        victim: match u32_at(bytes, 8) {
            0 => "receive",
            1 => "transmit",
            2 => "entropy",
            _ => "?",
        },
        needs_notice: u32_at(bytes, 12) & NEEDS_NOTICE != 0,
        noticed: u32_at(bytes, 16) & DEVICE_NEEDS_RESET != 0,
        tried: Outcome::from_number(i32_at(bytes, 20)),
        after: Outcome::from_number(i32_at(bytes, 24)),
        random_after: Outcome::from_number(i32_at(bytes, 28)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read() {
        let area = network_results_area().unwrap();
        let mut bytes = vec![0; usize::try_from(area.end - area.start).unwrap()];
        let mut put = |offset: usize, word: u32| {
            bytes[offset..offset + 4].copy_from_slice(&word.to_le_bytes());
        };
        put(4, 1);
        put(12, 3);
        put(28, 0x0403_0201);
        put(36, 64);
        put(108, 2);
        put(112, 1);
        let second = HEADER_BYTES + ATTACK_BYTES;
        put(second + 8, 1);
        put(second + 12, 4);
        put(second + 16, 64);
        put(second + 24, u32::MAX);
        let results = NetworkResults::parse(&bytes).unwrap();
        assert_eq!((results.finished, results.ups, results.over), (true, 3, 1));
        assert_eq!(results.mac, [1, 2, 3, 4, 0, 0]);
        assert_eq!(results.random_lengths, [64, 0]);
        assert_eq!(results.attacks.len(), 2);
        let attack = &results.attacks[1];
        assert_eq!(attack.victim, "transmit");
        assert!(attack.needs_notice && attack.noticed);
        assert_eq!(attack.after, Outcome::TimedOut);
        assert!(NetworkResults::parse(&bytes[1..]).is_err());
    }
}
