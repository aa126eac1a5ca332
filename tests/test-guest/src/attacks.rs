//! The results of the workload `hostile-queues`. The layout is `struct attack_results` in
//! image/virtio/results.h.

use std::ops::Range;

use kvmprof_demo_guest::{TruthError, i32_at, u32_at, u64_at};

use crate::ports::Outcome;
use crate::{IMAGE, text_at};

const HEADER_BYTES: usize = 16;
const ATTACK_BYTES: usize = 40;
const ATTACKS_MAX: usize = 512;

/// Flags of an attack (image/attacks/attacks.h).
const COSTS_DEVICE: u32 = 1;
const CLOSES_PORT: u32 = 2;
const NEEDS_NOTICE: u32 = 4;
/// The device's status (virtio 1.2, section 2.1).
const DEVICE_NEEDS_RESET: u32 = 64;

/// The queue that an attack was tried on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// It wasn't on a queue.
    None,
    /// The attacker's transmit queue.
    Transmit,
    /// The attacker's receive queue.
    Receive,
    /// The transmit queue for control messages, which is common to all ports.
    ControlTransmit,
    /// The receive queue for control messages.
    ControlReceive,
}

impl Victim {
    fn from_number(number: u32) -> Self {
        match number {
            1 => Self::Transmit,
            2 => Self::Receive,
            3 => Self::ControlTransmit,
            4 => Self::ControlReceive,
            _ => Self::None,
        }
    }
}

/// One attack, and its results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttackResult {
    /// What it does.
    pub name: &'static str,
    /// The queue that it attacks.
    pub victim: Victim,
    /// The device may request a reset because of it: it was on a queue common to all ports.
    pub costs_device: bool,
    /// The host has to close the attacker's port because of it.
    pub closes_port: bool,
    /// The host has to notice it: by closing the port, or requesting a reset.
    pub needs_notice: bool,
    /// The device's status after it.
    pub status: u32,
    /// The host has closed the attacker's port.
    pub closed: bool,
    /// The result of the attack itself, which depends on the attack.
    pub answer: i32,
    /// The exchange on the well-behaved port after it, without a reset; [`Outcome::NotTried`] if the attack
    /// ended with one.
    pub during: Outcome,
    /// The exchange after a reset.
    pub after: Outcome,
}

/// The workload's results so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttackResults {
    /// All attacks that were started.
    pub attacks: Vec<AttackResult>,
    /// The number of finished ones.
    pub over: u32,
    /// The result of the first exchange, before all attacks.
    pub first: Outcome,
    /// The workload has ended.
    pub finished: bool,
}

/// The guest-physical addresses of the results, for [`AttackResults::parse`].
///
/// # Errors
/// As [`kvmprof_demo_guest::Image::area`].
pub fn attack_results_area() -> Result<Range<u64>, TruthError> {
    IMAGE.area("kvmprof_attack_results")
}

impl AttackResults {
    /// Parses a copy of [`attack_results_area`].
    ///
    /// # Errors
    /// The copy is too short.
    pub fn parse(bytes: &[u8]) -> Result<Self, TruthError> {
        let needed = HEADER_BYTES + ATTACKS_MAX * ATTACK_BYTES;
        let attacks = bytes
            .get(HEADER_BYTES..needed)
            .ok_or(TruthError::Short(bytes.len(), needed))?;
        let count = usize::try_from(u32_at(bytes, 0)).unwrap_or(usize::MAX);
        Ok(Self {
            attacks: attacks
                .chunks_exact(ATTACK_BYTES)
                .take(count)
                .map(parse_attack)
                .collect(),
            over: u32_at(bytes, 4),
            first: Outcome::from_number(i32_at(bytes, 8)),
            finished: u32_at(bytes, 12) != 0,
        })
    }
}

impl AttackResult {
    /// The host has closed the attacker's port, or requests a reset.
    pub fn noticed(&self) -> bool {
        self.closed || self.status & DEVICE_NEEDS_RESET != 0
    }
}

fn parse_attack(bytes: &[u8]) -> AttackResult {
    let flags = u32_at(bytes, 12);
    AttackResult {
        name: text_at(u64_at(bytes, 0)).unwrap_or("?"),
        victim: Victim::from_number(u32_at(bytes, 8)),
        costs_device: flags & COSTS_DEVICE != 0,
        closes_port: flags & CLOSES_PORT != 0,
        needs_notice: flags & NEEDS_NOTICE != 0,
        status: u32_at(bytes, 16),
        closed: u32_at(bytes, 20) != 0,
        answer: i32_at(bytes, 24),
        during: Outcome::from_number(i32_at(bytes, 28)),
        after: Outcome::from_number(i32_at(bytes, 32)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read() {
        let area = attack_results_area().unwrap();
        let mut bytes = vec![0; usize::try_from(area.end - area.start).unwrap()];
        assert_eq!(AttackResults::parse(&bytes).unwrap().attacks, []);
        bytes[0] = 2;
        bytes[4] = 1;
        let second = HEADER_BYTES + ATTACK_BYTES;
        let workload = IMAGE.symbol("workloads").unwrap().address;
        bytes[second..second + 8].copy_from_slice(&workload.to_le_bytes());
        bytes[second + 8] = 2;
        bytes[second + 12] = 2;
        bytes[second + 20] = 1;
        bytes[second + 28] = 16;
        let results = AttackResults::parse(&bytes).unwrap();
        assert_eq!((results.attacks.len(), results.over), (2, 1));
        let attack = &results.attacks[1];
        assert_eq!((attack.victim, attack.closed), (Victim::Receive, true));
        assert_eq!((attack.costs_device, attack.closes_port), (false, true));
        assert_eq!(attack.during, Outcome::Errno(16));
        assert!(AttackResults::parse(&bytes[1..]).is_err());
    }
}
