//! A profile whose buffer is kept for a client, and which ends with the program that it is of.

use kvmprof_devices::profiling::profil::KeptProfile;
use kvmprof_recording::Ticks;

use crate::profil::{ProgramEnd, Watch};

/// The profile of a process, and the watch that tells when its program ends.
#[derive(Debug)]
pub(super) struct Kept {
    pub profile: KeptProfile,
    watch: Watch,
    /// The end had been noticed before the last ticks were taken.
    is_over: bool,
}

impl Kept {
    pub(super) fn new(profile: KeptProfile, watch: Watch) -> Self {
        Self {
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
