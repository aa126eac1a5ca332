//! Shares of samples, and how near they must be to the truth.

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

/// Checks a share of `samples` against the truth: four standard errors and 1.5 points, and `blur`,
/// a part of 1 by which the truth itself may be off.
///
/// # Panics
/// When it is farther off.
#[track_caller]
pub fn assert_share(what: &str, (observed, expected): (f64, f64), samples: u64, blur: f64) {
    let allowed = 4.0 * standard_error(expected, samples) + MARGIN + blur;
    println!(
        "{what}: {:.2} % observed, {:.2} % expected, {:.2} points allowed, {samples} samples",
        observed * 100.0,
        expected * 100.0,
        allowed * 100.0
    );
    assert!((observed - expected).abs() <= allowed, "{what}");
}
