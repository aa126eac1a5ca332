//! Shares of samples, and the tolerance for their distance from the truth.

use kvmprof_demo_guest::{ROWS, Row, rows};

use crate::{CpuPressure, in_lab, not_run};

/// Tolerance in addition to four standard errors: the clock's own exits and the guest's bookkeeping may shift shares by this much.
const MARGIN: f64 = 0.015;

/// The ratio of `part` to `whole`.
#[expect(clippy::cast_precision_loss, reason = "counts here are far below 2^52")]
pub fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

/// The standard error of a share of this number of samples.
#[expect(clippy::cast_precision_loss, reason = "counts here are far below 2^52")]
pub fn standard_error(share: f64, samples: u64) -> f64 {
    (share * (1.0 - share) / samples.max(1) as f64).sqrt()
}

/// The maximum share of stolen and lost ticks up to which a share can be judged. Measured on an otherwise idle host with two processors: 1 to 4 %
/// with one vCPU, 4 to 19 % with two, which compete with the profiler's own threads.
const UNSEEN: f64 = 0.2;
/// If threads of the host wait for a smaller share of the time, this doesn't explain missing samples.
const QUIET: f64 = 0.1;

/// The tolerance for the lab, where timers and wake-ups come late, most of all for a halted guest. Measured in seven runs of `kvmprof demo`
/// there with one and two vCPUs, at 100 and 200 Hz, 2,000 to 3,700 samples each, on an otherwise idle host: idle was high by 0.5 to 1.9
/// points, the other rows were off by up to 2.1, which is less than four standard errors.
const LAB_BLUR: f64 = 0.02;
/// The fastest clock in the lab, in Hz: a sample takes some milliseconds of emulation. In those runs, 6 to 14 % of the ticks were stolen or
/// lost at 200 Hz with one vCPU, and 23 to 25 % with two; at 1 kHz it was 41 and 57 %.
const LAB_HZ: u32 = 200;

/// The rate at which shares are measured: `hz`, or less in the lab. A multiple of 100 remains one.
pub fn sampling_rate(hz: u32) -> u32 {
    if in_lab() { hz.min(LAB_HZ) } else { hz }
}

/// The number of samples, and the limits of their accuracy.
#[derive(Clone, Copy, Debug)]
pub struct Sampled {
    /// The number of samples.
    pub samples: u64,
    /// Other ticks, during which the guest could have done anything.
    pub unseen: u64,
    /// The error of the truth itself, as a ratio.
    pub blur: f64,
    /// The share of the time in which threads of this host waited for a processor.
    pub waiting: f64,
}

impl Sampled {
    /// Makes the numbers of samples, and of ticks that were stolen and lost, all since `pressure` began. Guest and host know such time less exactly:
    /// when a vCPU that was just woken up, or preempted, waited for a processor, guest and clock may put the boundary at different times.
    pub fn new(samples: u64, stolen: u64, lost: u64, pressure: &CpuPressure) -> Self {
        Self {
            samples,
            unseen: stolen + lost,
            blur: if in_lab() { LAB_BLUR } else { 0.0 },
            waiting: pressure.share(),
        }
    }

    fn unseen_share(&self) -> f64 {
        share(self.unseen, self.samples + self.unseen)
    }

    /// Why no share can be judged: too many ticks are missing because the host was busy. `None` if enough were sampled.
    ///
    /// # Errors
    /// Too many ticks are missing, and the host was quiet.
    fn inconclusive(&self) -> Result<Option<String>, String> {
        let unseen = self.unseen_share();
        if unseen <= UNSEEN {
            return Ok(None);
        }
        let counted = format!(
            "{:.1} % of the ticks were stolen or lost, while threads waited for a processor {:.1} % of the time",
            unseen * 100.0,
            self.waiting * 100.0
        );
        // The lab can't see how busy the host around it is.
        if self.waiting < QUIET && !in_lab() {
            return Err(format!(
                "{counted}: the host was quiet, so the clock takes ticks for stolen or lost that it should sample"
            ));
        }
        Ok(Some(counted))
    }

    /// Checks that the `observed` share of the samples is compatible with the share of the whole time, which is `expected`.
    fn check_share(&self, observed: f64, expected: f64) -> Result<(), String> {
        // The missing ticks may be of any row.
        let unseen = self.unseen_share();
        let most = observed * (1.0 - unseen) + unseen;
        let least = observed * (1.0 - unseen);
        let allowed = 4.0 * standard_error(expected, self.samples) + MARGIN + self.blur;
        let comparison = format!(
            "{:.2} to {:.2} % observed, {:.2} % expected, {:.2} points allowed, {self:?}",
            least * 100.0,
            most * 100.0,
            expected * 100.0,
            allowed * 100.0
        );
        println!("{comparison}");
        if (least - allowed..=most + allowed).contains(&expected) {
            Ok(())
        } else {
            Err(comparison)
        }
    }
}

/// Checks the `observed` share of the samples against the `expected` one: it must be within four standard errors and 1.5 points, whatever the missing ticks
/// would have been. If more than a fifth of the ticks were stolen or lost because the host was busy, the check is reported as inconclusive, in the list of
/// what wasn't run.
///
/// # Panics
/// If it isn't, or if more than a fifth of the ticks were stolen or lost on a quiet host.
#[track_caller]
pub fn assert_share(what: &str, observed: f64, expected: f64, sampled: Sampled) {
    print!("{what}: ");
    let judged = match sampled.inconclusive() {
        Ok(None) => sampled.check_share(observed, expected),
        Ok(Some(why)) => return not_run(&format!("inconclusive, {what}: {why}")),
        Err(fault) => Err(fault),
    };
    if let Err(reason) = judged {
        panic!("{what}: {reason}");
    }
}

/// Checks that the rows of the demo guest that `is_judged` have the shares of its own count, in cycles. `counts` are the samples of each row.
///
/// # Panics
/// As [`assert_share`].
#[track_caller]
pub fn assert_rows(
    counts: [u64; ROWS],
    cycles: [u64; ROWS],
    is_judged: impl Fn(&Row) -> bool,
    sampled: Sampled,
) {
    let judged = || (rows().iter().zip(counts).zip(cycles)).filter(|((row, _), _)| is_judged(row));
    let whole = |of: fn(u64, u64) -> u64| judged().map(|((_, count), own)| of(count, own)).sum();
    let (seen, spent) = (whole(|count, _| count), whole(|_, own| own));
    for ((row, count), own) in judged() {
        assert_share(row.name, share(count, seen), share(own, spent), sampled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thousand ticks, of which `unseen` are missing, on a host whose threads waited for the share `waiting` of the time.
    fn sampled(unseen: u64, waiting: f64) -> Sampled {
        Sampled {
            samples: 1000 - unseen,
            unseen,
            blur: 0.0,
            waiting,
        }
    }

    #[test]
    fn a_share_may_differ_by_chance_and_by_lost_ticks() {
        // Four standard errors are 5.06 points.
        for (unseen, observed, agrees) in [
            (0, 0.2, true),
            (0, 0.2 + 0.065, true),
            (0, 0.2 - 0.065, true),
            (0, 0.2 + 0.067, false),
            (0, 0.2 - 0.067, false),
            (100, 0.2 - 0.15, true),
            (100, 0.2 + 0.15, false),
            (200, 0.2 - 0.25, true),
            (200, 0.2 + 0.2, false),
        ] {
            let checked = sampled(unseen, 1.0).check_share(observed, 0.2);
            assert_eq!(checked.is_ok(), agrees, "{unseen} {observed}: {checked:?}");
        }
    }

    #[test]
    fn missing_ticks_need_run_delay_of_the_host() {
        for (unseen, waiting, is_enough) in [
            (0, 0.0, Some(true)),
            (200, 0.0, Some(true)),
            (200, 1.0, Some(true)),
            (210, 0.0, None),
            (210, 0.09, None),
            (210, 0.1, Some(false)),
            (950, 0.0, None),
            (950, 1.0, Some(false)),
        ] {
            let why = sampled(unseen, waiting).inconclusive();
            let said = why.as_ref().ok().map(Option::is_none);
            assert_eq!(said, is_enough, "{unseen} {waiting}: {why:?}");
        }
        let quiet = sampled(950, 0.02).inconclusive().unwrap_err();
        assert!(quiet.contains("the host was quiet"), "{quiet}");
    }

    #[test]
    #[should_panic(expected = "95.0 % of the ticks were stolen or lost")]
    fn a_share_that_agrees_is_not_enough() {
        assert_share("shares", 0.2, 0.2, sampled(950, 0.02));
    }
}
