//! Ticks of a vCPU that the host's kernel samples.

use super::capture::Capture;
use super::ring::Entry;
use super::run_time_account::RunTimeAccount;
use super::sample::Reader;
use crate::clock::{ElapsedTicks, Grid, ThreadTimes, monotonic_ns};
use crate::vcpu::{TickSender, VcpuView};
use kvmprof_introspection::PhysicalMemory;
use kvmprof_recording::Ticks;

/// The ticks of one vCPU: those with samples, and those that the thread's times explain.
#[derive(Debug)]
pub struct KernelTicks {
    grid: Grid,
    account: RunTimeAccount,
    /// The samples of the host's kernel; `None` if it refuses them, so that ticks are lost.
    capture: Option<Capture>,
    /// The host's frames at the tick whose sample is the next entry of the ring.
    host_frames: Vec<u64>,
}

impl KernelTicks {
    /// The ticks of `grid`, none of which has passed at `now` (ns), when the times of the vCPU's thread are `times`.
    pub fn new(grid: Grid, now: u64, times: ThreadTimes, capture: Option<Capture>) -> Self {
        Self {
            account: RunTimeAccount::new(grid.period(), now, times),
            grid,
            capture,
            host_frames: Vec::new(),
        }
    }

    /// The samples of the host's kernel, if it takes any.
    pub fn capture(&self) -> Option<&Capture> {
        self.capture.as_ref()
    }

    /// Replaces the samples of the host's kernel. All former samples have been taken before.
    pub fn replace(&mut self, capture: Option<Capture>) {
        self.capture = capture;
        // A stack without its sample doesn't belong to the new samples.
        self.host_frames.clear();
    }

    /// The time between ticks, in ns.
    pub fn period(&self) -> u64 {
        self.grid.period()
    }

    /// Sends all samples, as `reader` makes them with `view`, and then the other ticks until now. `times` reads the thread's times; if it
    /// fails, the other ticks stay open.
    pub fn take<E, M: PhysicalMemory>(
        &mut self,
        reader: &Reader<'_>,
        times: impl FnOnce() -> Result<ThreadTimes, E>,
        view: &mut VcpuView<M>,
        sender: &mut TickSender,
    ) -> Result<(), E> {
        let (mut sampled, mut lost) = (0, 0);
        let host_frames = &mut self.host_frames;
        if let Some(capture) = &mut self.capture {
            capture.drain(|entry| match entry {
                Entry::Lost(count) => {
                    lost += count;
                    host_frames.clear();
                }
                Entry::Host(record) => {
                    host_frames.clear();
                    if let Some(host) = reader.host {
                        host.unwind(&record, host_frames);
                    }
                }
                Entry::Sample(interrupted, record) => {
                    match reader.sample(view, interrupted, &record, host_frames, sender) {
                        None => lost += 1,
                        sample => {
                            sampled += 1;
                            view.send(sender, ElapsedTicks::default(), sample);
                        }
                    }
                    host_frames.clear();
                }
            });
        }
        let times = times()?;
        let now = monotonic_ns();
        let passed = self.grid.take(now);
        let elapsed = self.account.explain(now, times, passed, sampled, lost);
        let ticks = Ticks {
            vcpu: view.vcpu,
            idle: elapsed.idle,
            stolen: elapsed.stolen,
            lost: elapsed.lost,
            ..Ticks::default()
        };
        sender.send(&ticks, &[]);
        Ok(())
    }
}
