//! The phases of a boot.

use super::samples::{BootSample, SampledCode};

/// A phase of a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The image unpacks itself.
    Unpacking,
    /// The kernel sets itself up, on one processor, until its first initcall.
    EarlySetup,
    /// From the first initcall to the last one.
    Initcalls,
    /// From the last initcall to the first process, init.
    Handover,
    /// From init's first instruction to the recording's end.
    UserSpace,
}

impl Phase {
    /// All phases, in their order.
    pub const ALL: [Self; 5] = [
        Self::Unpacking,
        Self::EarlySetup,
        Self::Initcalls,
        Self::Handover,
        Self::UserSpace,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unpacking => "unpacking",
            Self::EarlySetup => "early setup",
            Self::Initcalls => "initcalls",
            Self::Handover => "handover to init",
            Self::UserSpace => "user space",
        }
    }
}

/// The start and the end of each phase of a boot, in ns from the recording's start. A phase without samples has no length.
pub(super) fn phases(seen: &[BootSample], end: u64) -> [(u64, u64); 5] {
    let first = |is: &dyn Fn(&BootSample) -> bool| seen.iter().find(|seen| is(seen));
    let in_kernel =
        |seen: &BootSample| !matches!(seen.place, SampledCode::Loader | SampledCode::Idle);
    let is_initcall = |seen: &BootSample| matches!(seen.place, SampledCode::Initcall(_));
    let in_init = |seen: &BootSample| seen.pid == 1 && seen.place == SampledCode::User;
    let time = |found: Option<&BootSample>| found.map(|seen| seen.time);
    let user = time(first(&in_init)).unwrap_or(end);
    let kernel = time(first(&in_kernel)).unwrap_or(user).min(user);
    let initcalls = time(first(&is_initcall))
        .unwrap_or(user)
        .clamp(kernel, user);
    let last = seen.iter().rev().find(|seen| is_initcall(seen));
    let handover = time(last).unwrap_or(initcalls).clamp(initcalls, user);
    [
        (0, kernel),
        (kernel, initcalls),
        (initcalls, handover),
        (handover, user),
        (user, end.max(user)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_follow_each_other_without_gaps() {
        let at = BootSample::at;
        let call = || SampledCode::Initcall("one".into());
        let seen = [
            at(1, -1, SampledCode::Loader),
            at(2, -1, SampledCode::Kernel),
            at(4, 1, call()),
            // A helper that the kernel starts, before init.
            at(5, 20, SampledCode::User),
            at(7, 1, call()),
            at(8, 1, SampledCode::Kernel),
            at(9, 1, SampledCode::User),
        ];
        let expected = [(0, 2), (2, 4), (4, 7), (7, 9), (9, 12)];
        assert_eq!(phases(&seen, 12), expected);
        // A truncated boot has no later phases.
        let none = (3, 3);
        assert_eq!(phases(&seen[..2], 3), [(0, 2), (2, 3), none, none, none]);
        assert_eq!(phases(&[], 3)[0], (0, 3));
    }
}
