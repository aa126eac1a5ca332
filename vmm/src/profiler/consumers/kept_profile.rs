//! A profile whose buffer is kept for a client, and which ends with the program that it is of.

use kvmprof_devices::profiling::profil::KeptProfile;
use kvmprof_recording::Ticks;

use super::Client;
use crate::profil::{ProgramEnd, Watch};

/// The profile of a process, and the watch that tells when its program ends.
#[derive(Debug)]
pub(super) struct Kept {
    /// For whom.
    pub client: Client,
    pub profile: KeptProfile,
    watch: Watch,
    /// The end had been noticed before the last ticks were taken.
    is_over: bool,
}

impl Kept {
    pub(super) fn new(client: Client, profile: KeptProfile, watch: Watch) -> Self {
        Self {
            client,
            profile,
            watch,
            is_over: false,
        }
    }

    /// What goes on watching the process, for another profile of it.
    pub(super) fn into_watch(self) -> Watch {
        self.watch
    }

    /// Takes ticks of the clock, but for those of what the process has executed later.
    pub(super) fn feed(&mut self, ticks: &Ticks) {
        let time = ticks.sample.as_ref().map(|sample| sample.time);
        let end = self.watch.process().end();
        if end.zip(time).is_none_or(|(end, time)| time < end.time) {
            self.profile.feed(ticks);
        }
    }

    /// All ticks have been taken that the vCPUs had handed over. Those before the end are there when it has been
    /// noticed: so all of them are taken the next time.
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

    use kvmprof_abi::profil::{Call, Function, State};
    use kvmprof_introspection::ProcessInstance;
    use kvmprof_recording::{Mode, Sample};

    use super::*;
    use crate::profil::ProfiledProcesses;

    const PID: i32 = 7;

    /// A profile of 10 samples, or one that nothing is stored for.
    fn kept(samples: u64) -> Kept {
        let call = Call {
            function: Function::Pcsample,
            flags: Call::KEEP | Call::EVERY_TICK,
            pid: PID,
            ranges: 0,
            buffer: 0,
            size: samples,
            offset: 0,
            scale: 0,
            time: u64::MAX,
            program: [0; 16],
        };
        let processes = Arc::<ProfiledProcesses>::default();
        let watch = Watch::begin(&processes, PID).unwrap();
        Kept::new(
            Client::Host,
            KeptProfile::new(&call, 1, 1000).unwrap(),
            watch,
        )
    }

    fn tick(time: u64) -> Ticks {
        let sample = Sample {
            time,
            pid: PID,
            mode: Mode::User,
            ..Sample::default()
        };
        Ticks {
            sample: Some(sample),
            ..Ticks::default()
        }
    }

    #[test]
    fn ticks_from_before_the_end_count_though_it_was_noticed_before_them() {
        let mut kept = kept(10);
        let mut instance = ProcessInstance::from_pid(PID);
        kept.watch.process().meet(&instance, 10);
        kept.feed(&tick(10));
        kept.follow();
        instance.programs += 1;
        kept.watch.process().meet(&instance, 30);
        // Those were in the rings when the end was noticed, and are drained after that.
        kept.feed(&tick(30));
        kept.follow();
        assert!(kept.profile.is_on());
        kept.feed(&tick(20));
        kept.feed(&tick(40));
        kept.follow();
        let status = kept.profile.status();
        assert_eq!((status.state, status.ticks), (State::Executed, 2));
        kept.feed(&tick(25));
        assert_eq!(kept.profile.status(), status);
    }

    #[test]
    fn a_profile_that_is_off_tells_the_end_too() {
        let mut kept = kept(0);
        assert_eq!(kept.profile.status().state, State::Off);
        let mut instance = ProcessInstance::from_pid(PID);
        kept.watch.process().meet(&instance, 10);
        instance.started += 1;
        kept.watch.process().meet(&instance, 20);
        kept.follow();
        kept.follow();
        assert_eq!(kept.profile.status().state, State::Ended);
    }
}
