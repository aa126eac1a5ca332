//! Shares of samples, and how near they must be to the truth.

use crate::in_lab;

/// Beside four standard errors: what the clock's own exits, and the guest's bookkeeping, may shift.
const MARGIN: f64 = 0.015;

/// `part` of `whole` as a part of 1.
#[expect(clippy::cast_precision_loss, reason = "counts here are far below 2^52")]
pub fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// The standard error of a share of so many samples.
#[expect(clippy::cast_precision_loss, reason = "counts here are far below 2^52")]
pub fn standard_error(share: f64, samples: u64) -> f64 {
    (share * (1.0 - share) / samples.max(1) as f64).sqrt()
}

/// In the lab interrupts come late and time stands still now and then: shares there tell whether
/// something is counted at all, and as what, but hardly how much of it there is.
const LAB_BLUR: f64 = 0.25;

/// Samples, and what is known of how far they can be trusted.
#[derive(Clone, Copy, Debug)]
pub struct Sampled {
    /// How many there are.
    pub samples: u64,
    /// Ticks beside them that could have been anything.
    pub unseen: u64,
    /// By how much the truth itself may be off, as a part of 1.
    pub blur: f64,
}

impl Sampled {
    /// So many samples, and ticks that were stolen and lost. Those stand for time of the guest's
    /// that neither side knows well: where a vCPU that was just woken up, or preempted, waited for a
    /// processor, guest and clock need not put the border at the same place.
    pub fn new(samples: u64, stolen: u64, lost: u64) -> Self {
        Self {
            samples,
            unseen: stolen + lost,
            blur: if in_lab() { LAB_BLUR } else { 0.0 },
        }
    }
}

/// Checks the `observed` share of the samples against the `expected` one: within four standard errors
/// and 1.5 points, whatever the ticks would have been that weren't seen.
///
/// # Panics
/// When it is farther off.
#[track_caller]
pub fn assert_share(what: &str, (observed, expected): (f64, f64), sampled: Sampled) {
    let all = sampled.samples + sampled.unseen;
    let least = observed * share(sampled.samples, all);
    let most = least + share(sampled.unseen, all);
    let allowed = 4.0 * standard_error(expected, sampled.samples) + MARGIN + sampled.blur;
    println!(
        "{what}: {:.2} to {:.2} % observed, {:.2} % expected, {:.2} points allowed, {sampled:?}",
        least * 100.0,
        most * 100.0,
        expected * 100.0,
        allowed * 100.0
    );
    assert!(
        (least - allowed..=most + allowed).contains(&expected),
        "{what}"
    );
}
