//! The processor's own counters, for the guest alone.

use std::fs::File;
use std::io;
use std::sync::Mutex;
use std::time::Instant;

use crate::perf_event::{self, Event, HardwareEvent, ProbeResult, Refusal};
use kvmprof_machine::lock::lock;

/// A counter of one vCPU. It counts while the vCPU's thread runs the guest.
#[derive(Debug)]
pub struct HardwareCounter(File);

impl HardwareCounter {
    /// Counts `event` from now on for the vCPU that the calling thread runs.
    ///
    /// # Errors
    /// perf_event_open(2) fails: with ENOENT if there is no such counter, with EACCES if the host forbids it.
    pub fn open(event: HardwareEvent) -> io::Result<Self> {
        Event::Hardware(event).open(0, 0).map(Self)
    }

    /// The count; `None` if the kernel refuses it.
    pub fn value(&self) -> Option<u64> {
        perf_event::count(&self.0)
    }
}

/// Whether the host has counters, and lets kvmprof use them. The result is the same for all threads of kvmprof.
#[derive(Debug, Default)]
pub struct HardwareProbes([Mutex<Option<ProbeResult>>; HardwareEvent::COUNT]);

impl HardwareProbes {
    /// Whether `event` can be counted at `now`. `open` tries it, if that isn't known.
    ///
    /// # Errors
    /// The reason why it can't be counted, in words.
    pub fn check(
        &self,
        event: HardwareEvent,
        now: Instant,
        open: impl FnOnce() -> io::Result<()>,
    ) -> Result<(), String> {
        let mut result = lock(&self.0[event as usize]);
        ProbeResult::get(&mut result, now, || open().map_err(Refusal::from))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The results at these times after the start, and the number of attempts, on a host with this result each
    /// time.
    fn tries(said: impl Fn() -> io::Result<()>, after: &[Duration]) -> (Vec<bool>, u32) {
        let (probes, begin) = (HardwareProbes::default(), Instant::now());
        let mut tries = 0;
        let answers = after.iter().map(|time| {
            let open = || {
                tries += 1;
                said()
            };
            let answer = probes.check(HardwareEvent::Cycles, begin + *time, open);
            answer.is_ok()
        });
        (answers.collect(), tries)
    }

    #[test]
    fn the_host_is_asked_once_or_after_a_temporary_refusal_once_a_second() {
        let error = |number| move || Err(io::Error::from_raw_os_error(number));
        let times = [0, 1, 999, 1000, 1999, 3_600_000].map(Duration::from_millis);
        assert_eq!(tries(|| Ok(()), &times), (vec![true; 6], 1));
        assert_eq!(tries(error(libc::ENOENT), &times), (vec![false; 6], 1));
        for number in [libc::EACCES, libc::EMFILE] {
            assert_eq!(tries(error(number), &times), (vec![false; 6], 3));
        }
    }

    #[test]
    fn each_counter_has_its_own_result() {
        let probes = HardwareProbes::default();
        let now = Instant::now();
        let missing = || Err(io::Error::from_raw_os_error(libc::ENOENT));
        let refused = probes.check(HardwareEvent::Cycles, now, missing);
        let refused = refused.unwrap_err();
        assert!(refused.contains("has no such counter"), "{refused}");
        let other = probes.check(HardwareEvent::Branches, now, || Ok(()));
        assert_eq!(other, Ok(()));
        let again = probes.check(HardwareEvent::Cycles, now, || Ok(()));
        assert_eq!(again, Err(refused));
    }
}
