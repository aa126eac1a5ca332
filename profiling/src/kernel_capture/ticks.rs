//! Ticks of a vCPU that the host's kernel samples.

use super::capture::Capture;
use super::ring::Entry;
use super::run_time_account::RunTimeAccount;
use super::sample::Reader;
use crate::clock::{ElapsedTicks, Grid, ThreadTimes, monotonic_ns};
use crate::sampling::{TickSender, VcpuView};
use kvmprof_introspection::PhysicalMemory;
use kvmprof_recording::Ticks;

/// The ticks of one vCPU: those with samples, and those that the thread's times explain.
#[derive(Debug)]
pub struct KernelTicks {
    /// The clock's ticks; `None` while events make ticks, each of which has a sample or is lost.
    clock: Option<ClockTicks>,
    /// The samples of the host's kernel; `None` if it refuses them, so that ticks are lost.
    capture: Option<Capture>,
    /// The numbers of samples that were sent, and that were lost, since the other ticks were last accounted for.
    sampled: u64,
    lost: u64,
    /// The host's frames at the tick whose sample is the next entry of the ring.
    host_frames: Vec<u64>,
}

impl KernelTicks {
    /// The ticks of `grid`, none of which has passed at `now` (ns), when the times of the vCPU's thread are `times`.
    pub fn of_clock(grid: Grid, now: u64, times: ThreadTimes, capture: Option<Capture>) -> Self {
        let clock = ClockTicks {
            account: RunTimeAccount::new(grid.period(), now, ThreadTimes { run: 0, ..times }),
            run_time: RunTime {
                total: 0,
                counted: capture.as_ref().and_then(Capture::run_time),
                scheduled: times.run,
            },
            grid,
        };
        Self {
            clock: Some(clock),
            ..Self::of_events(capture)
        }
    }

    /// The ticks that are exits or faults of guest memory.
    pub fn of_events(capture: Option<Capture>) -> Self {
        Self {
            clock: None,
            capture,
            sampled: 0,
            lost: 0,
            host_frames: Vec::new(),
        }
    }

    /// The samples of the host's kernel, if it takes any.
    pub fn capture(&self) -> Option<&Capture> {
        self.capture.as_ref()
    }

    /// Replaces the samples of the host's kernel. All former samples have been taken before.
    pub fn replace(&mut self, capture: Option<Capture>) {
        if let Some(clock) = &mut self.clock {
            clock.run_time.counted = capture.as_ref().and_then(Capture::run_time);
        }
        self.capture = capture;
        // A stack without its sample doesn't belong to the new samples.
        self.host_frames.clear();
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
        let (sampled, lost) = (&mut self.sampled, &mut self.lost);
        let host_frames = &mut self.host_frames;
        if let Some(capture) = &mut self.capture {
            capture.drain(|entry| match entry {
                Entry::Lost(count) => {
                    *lost += count;
                    host_frames.clear();
                }
                Entry::Unreadable => {
                    *lost += 1;
                    host_frames.clear();
                }
                Entry::Host(record) => {
                    host_frames.clear();
                    if let Some(host) = reader.host {
                        host.unwind(record.kernel_frames(), record.program(), host_frames);
                    }
                }
                Entry::Sample(interrupted, record) => {
                    host_frames.extend(reader.occasion(&record));
                    view.memory.begin_sample();
                    let sample = reader.sample(view, interrupted, &record, host_frames, sender);
                    view.memory.end_sample();
                    match sample {
                        None => *lost += 1,
                        sample => {
                            *sampled += 1;
                            view.send(sender, ElapsedTicks::default(), sample);
                        }
                    }
                    host_frames.clear();
                }
            });
            // A clock's ticks without a sample are known by the thread's times.
            if self.clock.is_none() {
                *lost += capture.take_lost();
            }
        }
        // They can't be read once the thread has ended.
        let times = times()?;
        let [sampled, lost] = [&mut self.sampled, &mut self.lost].map(std::mem::take);
        let elapsed = match &mut self.clock {
            Some(clock) => {
                let counted = self.capture.as_ref().and_then(Capture::run_time);
                clock.explain(times, counted, reader.held, sampled, lost)
            }
            None => ElapsedTicks {
                lost,
                ..ElapsedTicks::default()
            },
        };
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

/// The ticks of a clock, and what explains those without a sample.
#[derive(Debug)]
struct ClockTicks {
    grid: Grid,
    account: RunTimeAccount,
    run_time: RunTime,
}

impl ClockTicks {
    /// What became of the ticks until now that have no sample. The thread's times are `times`, and the samples' clock has `counted` this much; the thread was
    /// `held` for looks for this time in all, in ns. Since the last call, these numbers of samples were sent and lost.
    fn explain(
        &mut self,
        times: ThreadTimes,
        counted: Option<u64>,
        held: u64,
        sampled: u64,
        lost: u64,
    ) -> ElapsedTicks {
        let times = ThreadTimes {
            run: self.run_time.advance(counted, times.run),
            ..times
        };
        let now = monotonic_ns();
        let passed = self.grid.take(now);
        (self.account).explain(now, times, held, passed, sampled, lost)
    }
}

/// The time for which the host's kernel had a vCPU's thread on a processor, in ns.
///
/// The clock of the samples counts all of it. The scheduler's run time lacks interrupts (`CONFIG_IRQ_TIME_ACCOUNTING`), and on a host that is a
/// guest itself what its hypervisor took (`CONFIG_PARAVIRT_TIME_ACCOUNTING`): `update_rq_clock_task` in kernel/sched/core.c. The account would take both
/// for sleep.
#[derive(Debug)]
struct RunTime {
    total: u64,
    /// The last count of the samples' clock; `None` without one.
    counted: Option<u64>,
    /// The last run time of the scheduler, which serves while there are no samples.
    scheduled: u64,
}

impl RunTime {
    /// Returns the time since the start, when the samples' clock has `counted` this much, and the scheduler says `scheduled`.
    fn advance(&mut self, counted: Option<u64>, scheduled: u64) -> u64 {
        self.total += match (counted, self.counted) {
            (Some(now), Some(before)) => now.saturating_sub(before),
            _ => scheduled.saturating_sub(self.scheduled),
        };
        (self.counted, self.scheduled) = (counted, scheduled);
        self.total
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use kvmprof_attach::Slots;
    use kvmprof_introspection::{GuestKnowledge, Registers};
    use kvmprof_recording::DEFAULT_STACK_FRAMES;
    use vm_memory::{GuestAddress, GuestMemoryMmap};

    use super::*;
    use crate::clock::ClockSetting;
    use crate::sampling::{Doorbell, tick_ring};

    /// The samples have been sent, so that they must explain ticks of the grid, whenever the thread's times can be read.
    #[test]
    fn samples_count_once_if_the_threads_times_cannot_be_read() {
        let reader = Reader {
            places: None,
            registers: Registers::default(),
            long_mask: 1,
            setting: ClockSetting::default(),
            held: 0,
            is_in_doubt: false,
            host: None,
            slots: &Slots::default(),
        };
        let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 0x1000)]).unwrap();
        let knowledge = Arc::new(GuestKnowledge::unknown());
        let mut view = VcpuView::new(3, memory, knowledge, DEFAULT_STACK_FRAMES);
        let (mut sender, receiver) = tick_ring(3, Arc::new(Doorbell::new().unwrap()));
        let now = monotonic_ns();
        let mut ticks = KernelTicks::of_clock(
            Grid::new(now, 10_000, None),
            now,
            ThreadTimes::default(),
            None,
        );
        // More than there can be ticks until the end of the test.
        ticks.sampled = 1 << 40;
        let mut take = |times| ticks.take(&reader, || times, &mut view, &mut sender);
        assert_eq!(take(Err(())), Err(()));
        thread::sleep(Duration::from_millis(5));
        assert_eq!(take(Ok(ThreadTimes::default())), Ok(()));
        assert_eq!(
            format!("{:?}", receiver.present()),
            "Present { ticks: 0, maps: 0 }"
        );
    }
    /// A hypervisor below the host takes 3 of 10 ms for which the host's kernel has the thread on a processor.
    #[test]
    fn time_that_is_taken_from_a_running_thread_is_no_sleep() {
        let mut run_time = RunTime {
            total: 0,
            counted: Some(5),
            scheduled: 100,
        };
        assert_eq!(run_time.advance(Some(15), 107), 10);
        // Without the samples' clock there is only the scheduler's time.
        assert_eq!(run_time.advance(None, 117), 20);
        assert_eq!(run_time.advance(None, 120), 23);
        // The count of a new clock begins at 0.
        run_time.counted = Some(0);
        assert_eq!(run_time.advance(Some(4), 130), 27);
    }
}
