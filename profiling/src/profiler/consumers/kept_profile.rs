//! A profile whose buffer is kept for a client, and which ends with the profiled program.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::profil::Call;
use kvmprof_devices::profiling::profil::KeptProfile;
use kvmprof_recording::Ticks;

use super::Side;
use crate::profil::{ProgramEnd, Watch};

/// The number of ticks that have passed on each vCPU, by the vCPUs' indexes.
#[derive(Clone, Debug, Default)]
pub(super) struct PassedTicks(Vec<u64>);

impl PassedTicks {
    /// Adds `ticks`. Returns the number that had passed on their vCPU before.
    pub(super) fn pass(&mut self, ticks: &Ticks) -> u64 {
        let passed = self.of(ticks.vcpu);
        let before = *passed;
        *passed = before.saturating_add(ticks.total());
        before
    }

    fn of(&mut self, vcpu: u16) -> &mut u64 {
        let index = usize::from(vcpu);
        if index >= self.0.len() {
            self.0.resize(index + 1, 0);
        }
        &mut self.0[index]
    }
}

/// The profile of a process, and the watch for the end of its program.
#[derive(Debug)]
pub(super) struct WatchedProfile {
    /// The client that the profile is kept for.
    pub side: Side,
    pub profile: KeptProfile,
    watch: Watch,
    /// The ticks that the profile has taken into account.
    passed: PassedTicks,
    /// Whether the end was detected before the last ticks were taken.
    is_over: bool,
}

impl WatchedProfile {
    /// A profile that counts the ticks after those that have `passed`.
    pub(super) fn new(side: Side, profile: KeptProfile, watch: Watch, passed: PassedTicks) -> Self {
        Self {
            side,
            profile,
            watch,
            passed,
            is_over: false,
        }
    }

    /// Carries out another call for the process, at a clock of `hz` ticks a second, after the ticks that have `passed`. Returns the function's
    /// result.
    ///
    /// # Errors
    /// As of [`KeptProfile::call`].
    pub(super) fn call(&mut self, call: &Call, hz: u32, passed: PassedTicks) -> Result<i64, Errno> {
        let Some(returned) = self.profile.call(call, hz)? else {
            return Ok(0);
        };
        // An end that was detected before stays one.
        self.is_over = false;
        self.passed = passed;
        Ok(returned)
    }

    /// Takes ticks of the clock, except those of programs that the process has executed later. `before` ticks have passed on
    /// their vCPU until then. Most of them were ticks of other processes, with which this wasn't called.
    pub(super) fn feed(&mut self, ticks: &Ticks, before: u64) {
        let time = ticks.sample.as_ref().map(|sample| sample.time);
        let end = self.watch.process().end();
        if end.zip(time).is_some_and(|(end, time)| time >= end.time) {
            return;
        }
        let passed = self.passed.of(ticks.vcpu);
        self.profile.feed(&Ticks {
            vcpu: ticks.vcpu,
            lost: before.saturating_sub(*passed),
            ..Ticks::default()
        });
        *passed = before.saturating_add(ticks.total());
        self.profile.feed(ticks);
    }

    /// Notes that the clock runs at `hz` ticks a second from now on, after the ticks that have `passed`.
    pub(super) fn set_hz(&mut self, hz: u32, passed: PassedTicks) {
        self.profile.set_hz(hz);
        self.passed = passed;
    }

    /// Notes that all ticks that the vCPUs had delivered have been taken. When the end has been detected, all ticks before
    /// it have been delivered, so that they have been taken at the next call.
    pub(super) fn follow(&mut self) {
        let Some(ProgramEnd { state, .. }) = self.watch.process().end() else {
            return;
        };
        if self.is_over {
            self.profile.end(state);
        }
        self.is_over = true;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kvmprof_abi::profil::{Function, State};
    use kvmprof_introspection::ProcessInstance;
    use kvmprof_recording::{Mode, Sample};

    use super::*;
    use crate::profil::ProfiledProcesses;

    const PID: i32 = 7;

    /// A call for this many samples of the process, or for none.
    fn call(samples: u64, flags: u32) -> Call {
        Call {
            flags: Call::KEEP | flags,
            size: samples,
            ..Call::new(Function::Pcsample, PID)
        }
    }

    /// A profile of this many samples, or one for which nothing is stored.
    fn kept(samples: u64, flags: u32) -> WatchedProfile {
        let processes = Arc::<ProfiledProcesses>::default();
        let watch = Watch::begin(&processes, PID).unwrap();
        let profile = KeptProfile::new(&call(samples, flags), 2, 1000).unwrap();
        WatchedProfile::new(Side::Host, profile, watch, PassedTicks::default())
    }

    fn tick(time: u64) -> Ticks {
        let sample = Sample {
            time,
            pid: PID,
            mode: Mode::User,
            ..Sample::default()
        };
        sample.into()
    }

    #[test]
    fn ticks_before_the_end_count_even_if_they_arrive_after_it() {
        let mut kept = kept(10, Call::EVERY_TICK);
        let mut instance = ProcessInstance::from_pid(PID);
        kept.watch.process().meet(&instance, 10);
        kept.feed(&tick(10), 0);
        kept.follow();
        instance.programs += 1;
        kept.watch.process().meet(&instance, 30);
        // These ticks were in the rings when the end was detected, and are drained after that.
        kept.feed(&tick(30), 1);
        kept.follow();
        assert!(kept.profile.is_on());
        kept.feed(&tick(20), 2);
        kept.feed(&tick(40), 3);
        kept.follow();
        let status = kept.profile.status();
        assert_eq!((status.state, status.ticks), (State::Executed, 2));
        kept.feed(&tick(25), 4);
        assert_eq!(kept.profile.status(), status);
    }

    #[test]
    fn a_profile_that_is_off_reports_the_end() {
        let mut kept = kept(0, Call::EVERY_TICK);
        assert_eq!(kept.profile.status().state, State::Off);
        let mut instance = ProcessInstance::from_pid(PID);
        kept.watch.process().meet(&instance, 10);
        instance.started += 1;
        kept.watch.process().meet(&instance, 20);
        kept.follow();
        kept.follow();
        assert_eq!(kept.profile.status().state, State::Ended);
    }

    #[test]
    fn another_call_returns_what_the_call_before_has_stored() {
        let mut kept = kept(10, Call::EVERY_TICK);
        let again =
            |kept: &mut WatchedProfile, call: Call| kept.call(&call, 1000, PassedTicks::default());
        kept.feed(&tick(10), 0);
        kept.feed(&tick(20), 1);
        let refused = Call {
            size: u64::MAX,
            ..call(5, Call::EVERY_TICK)
        };
        assert_eq!(again(&mut kept, refused), Err(Errno::EINVAL));
        assert_eq!(again(&mut kept, call(5, Call::EVERY_TICK)), Ok(2));
        assert_eq!(kept.profile.status().stored, 0);
        kept.feed(&tick(30), 0);
        assert_eq!(again(&mut kept, call(0, 0)), Ok(1));
        assert_eq!(again(&mut kept, call(0, 0)), Ok(0));
        // On AIX, a buffer that is on stays, with its counts.
        let aix = Call {
            function: Function::AixProfil,
            size: 64,
            scale: 2,
            ..call(0, Call::EVERY_TICK)
        };
        for _ in 0..2 {
            assert_eq!(again(&mut kept, aix), Ok(0));
            kept.feed(&tick(40), 0);
        }
        assert_eq!(kept.profile.status().stored, 2);
        assert_eq!(kept.profile.stored()[..2], [2, 0]);
    }

    /// With a clock at 1000 Hz, every tenth tick of a vCPU counts, for any process.
    #[test]
    fn ticks_of_other_processes_are_not_needed() {
        let (mut kept, mut passed) = (kept(1000, 0), PassedTicks::default());
        let mut fed_all = KeptProfile::new(&call(1000, 0), 2, 1000).unwrap();
        for number in 0..3000_u64 {
            let vcpu = u16::from(number % 7 < 3);
            let mut ticks = Ticks {
                vcpu,
                idle: number % 5,
                stolen: u64::from(number % 11 == 0),
                ..tick(number)
            };
            let is_its_own = number % 3 == 0;
            if let Some(sample) = &mut ticks.sample {
                sample.pid += i32::from(!is_its_own);
                sample.pc = number;
            }
            fed_all.feed(&ticks);
            let before = passed.pass(&ticks);
            if is_its_own {
                kept.feed(&ticks, before);
            }
            if number == 1500 {
                fed_all.set_hz(500);
                kept.set_hz(500, passed.clone());
            }
        }
        assert!(fed_all.status().ticks > 20);
        assert_eq!(kept.profile.status(), fed_all.status());
        assert_eq!(kept.profile.stored(), fed_all.stored());
    }
}
