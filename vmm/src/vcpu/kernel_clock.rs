//! The clock of a vCPU whose samples the host's kernel takes, without an exit for each sample. The samples wait in a ring until
//! the vCPU's thread takes them: when an alarm of its own run time rings, or on request.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use kvm_ioctls::VcpuFd;
use kvmprof_abi::pcs::{BSIZE, DEF_BUFNO};
use kvmprof_attach::sampling::{SamplingError, SamplingHost};
use kvmprof_attach::{HostKernel, HostStacks, Slot, Slots};
use kvmprof_introspection::{GuestKnowledge, ProcessPlaces, Registers, ValueKind};
use kvmprof_recording::StackParts;
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};

use super::{TickSender, VcpuView, signals};
use crate::clock::{
    ClockSetting, Grid, RunTimeAlarm, ThreadTimes, aligned_start, monotonic_ns, thread_cpu_ns,
};
use crate::kernel_capture::{
    self, Capture, Contents, KernelCaptureError, KernelTicks, Reader, VcpuThreadId,
};
use crate::machine::{GuestMemory, Machine};

/// Maximum time that samples wait while the vCPU runs, in ns. Each batch costs the guest an exit.
const LONGEST_WAIT: u64 = 250_000_000;
/// Size of a sample's record in pcs, in bytes.
const RECORD_BYTES: usize = 16;
/// Maximum number of samples that all vCPUs together hand over at once: half of pcs's default buffers, so that a reader
/// with these buffers loses none.
const BATCH: u64 = (DEF_BUFNO * BSIZE / RECORD_BYTES / 2) as u64;
/// Minimum time that samples wait, in ns: the profiler doesn't look more often.
const SHORTEST_WAIT: u64 = 10_000_000;

/// The host kernel's sampling of all vCPUs of a guest of this process.
#[derive(Debug)]
pub struct KernelSampling {
    host: SamplingHost,
    slots: Slots,
    vcpus: usize,
}

impl KernelSampling {
    /// Prepares the sampling of `machine`, whose guest `knowledge` describes. With `host_stacks`, samples have the host's stacks, too.
    ///
    /// # Errors
    /// The host's kernel can't take samples.
    pub fn new(
        machine: &Machine,
        knowledge: &GuestKnowledge,
        host_stacks: Option<Arc<HostStacks>>,
    ) -> Result<Self, KernelCaptureError> {
        let kernel = HostKernel::open().map_err(SamplingError::from)?;
        let host = SamplingHost::own(Arc::new(kernel), machine.vm.as_raw_fd())?;
        let sampling = Self {
            host: host.with_host_stacks(host_stacks),
            slots: slots(&machine.memory),
            vcpus: machine.vcpus.len(),
        };
        let tid = rustix::thread::gettid().as_raw_pid();
        let vcpus = machine.vcpus.iter().map(|fd| (fd.as_raw_fd(), tid));
        let vcpus: Vec<(i32, i32)> = vcpus.collect();
        kernel_capture::check(&sampling.host, &sampling.slots, &vcpus, knowledge)?;
        Ok(sampling)
    }

    /// Whether samples have everything that recordings need of the guest that `knowledge` describes.
    pub fn serves_recordings(&self, knowledge: &GuestKnowledge) -> bool {
        // For other guests than Linux the host's kernel copies no stacks (docs/limits.md), and there are no mappings.
        self.host.knows_privilege() || !knowledge.may_be_linux()
    }
}

/// The slots of guest memory in this process.
fn slots(memory: &GuestMemory) -> Slots {
    let slot = |region: &vm_memory::GuestRegionMmap<()>| Slot {
        address: region.start_addr(),
        bytes: region.len(),
        host_address: region.as_ptr() as u64,
        is_read_only: false,
    };
    let slots: Vec<Slot> = memory.iter().map(slot).collect();
    // Regions of one memory don't overlap.
    Slots::new(&slots).unwrap_or_default()
}

/// The clock of one vCPU. Only the vCPU's thread uses it.
#[derive(Debug)]
pub struct KernelClock {
    sampling: Arc<KernelSampling>,
    vcpu: u16,
    thread: VcpuThreadId,
    schedstat: File,
    // The alarm that rings when a batch is complete.
    alarm: RunTimeAlarm,
    running: Option<Running>,
    // Whether the host's kernel has refused to take samples of this vCPU.
    is_refused: bool,
    // The setting that records don't suffice for.
    unserved: Option<ClockSetting>,
}

#[derive(Debug)]
struct Running {
    hz: u32,
    setting: ClockSetting,
    found: Found,
    ticks: KernelTicks,
}

/// The state that was found of a stopped vCPU.
#[derive(Clone, Debug)]
pub struct Found {
    /// The places of the values that identify the running process.
    pub places: Option<ProcessPlaces>,
    /// Its registers.
    pub registers: Registers,
}

impl KernelClock {
    /// The clock of vCPU number `vcpu`, which the calling thread runs by `fd`. The clock is stopped at first.
    ///
    /// # Errors
    /// The host refuses the alarm or the thread's statistics.
    pub fn for_this_thread(
        vcpu: u16,
        fd: &VcpuFd,
        sampling: Arc<KernelSampling>,
    ) -> io::Result<Self> {
        let thread = VcpuThreadId {
            descriptor: fd.as_raw_fd(),
            // 0 stands for the calling thread: the thread's filter allows nothing else (`kvmprof_sandbox`).
            tid: 0,
        };
        Ok(Self {
            sampling,
            vcpu,
            thread,
            schedstat: File::open("/proc/thread-self/schedstat")?,
            alarm: RunTimeAlarm::for_this_thread(signals::alarm())?,
            running: None,
            is_refused: false,
            unserved: None,
        })
    }

    /// Whether the clock makes ticks.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Whether the clock is stopped and may be started for `setting`.
    pub fn is_ready(&self, setting: &ClockSetting) -> bool {
        let may_serve = !setting.exits && self.unserved != Some(*setting);
        self.running.is_none() && !self.is_refused && may_serve
    }

    /// Whether records suffice for `setting` with what was `found` of the vCPU. If not, the clock isn't ready for this setting any
    /// more.
    pub fn can_serve(&mut self, found: &Found, setting: &ClockSetting) -> bool {
        let can = self.serves(found, setting);
        self.unserved = (!can).then_some(*setting);
        can
    }

    fn serves(&self, found: &Found, setting: &ClockSetting) -> bool {
        let has_stacks = self.sampling.host.knows_privilege();
        can_serve(found.places.as_ref(), setting, has_stacks)
    }

    /// Whether `places` has more values than the program reads.
    pub fn is_improved_by(&self, places: &ProcessPlaces) -> bool {
        let known = self
            .running
            .as_ref()
            .and_then(|it| it.found.places.as_ref());
        known.is_none_or(|known| known.values.len() < places.values.len())
    }

    /// Makes ticks for `setting` from now on, `hz` a second. False if the host's kernel refuses that.
    pub fn start(&mut self, hz: u32, setting: ClockSetting, found: Found) -> bool {
        let period = Grid::new(0, hz, None).period();
        let started = self.capture(&found, &setting, period).and_then(|capture| {
            let times = self.times().map_err(KernelCaptureError::Times)?;
            // The start may have taken a while.
            let now = monotonic_ns();
            let grid = Grid::new(aligned_start(now, hz), hz, None);
            Ok(KernelTicks::new(grid, now, times, Some(capture)))
        });
        match started {
            Ok(ticks) => {
                self.running = Some(Running {
                    hz,
                    setting,
                    found,
                    ticks,
                });
                self.await_batch();
            }
            Err(error) => {
                log::warn!("vCPU {} is sampled by exits: {error}", self.vcpu);
                self.is_refused = true;
            }
        }
        self.is_running()
    }

    fn capture(
        &self,
        found: &Found,
        setting: &ClockSetting,
        period: u64,
    ) -> Result<Capture, KernelCaptureError> {
        let KernelSampling { host, slots, .. } = &*self.sampling;
        let contents = Contents {
            places: found.places.as_ref(),
            stacks: setting.stacks,
        };
        Capture::start(host, slots, self.thread, contents, period)
    }

    /// Continues with `setting` at `hz` ticks a second, if the clock runs and records suffice. The ticks until now have been taken.
    pub fn follow(&mut self, hz: u32, setting: ClockSetting) -> bool {
        let can_serve = self.running.as_ref().is_some_and(|running| {
            // The program determines which stacks are copied.
            running.hz == hz
                && running.setting.stacks == setting.stacks
                && self.serves(&running.found, &setting)
        });
        if let Some(running) = self.running.as_mut().filter(|_| can_serve) {
            running.setting = setting;
        }
        can_serve
    }

    /// Makes the program read the values whose places are in `found`, from now on. The ticks until now have been taken.
    pub fn read_from(&mut self, found: Found) {
        let Some(running) = &self.running else { return };
        match self.capture(&found, &running.setting, running.ticks.period()) {
            Ok(capture) => {
                if let Some(running) = &mut self.running {
                    running.ticks.replace(Some(capture));
                    running.found = found;
                }
            }
            Err(error) => log::debug!("vCPU {} is sampled as before: {error}", self.vcpu),
        }
    }

    /// Hands over all samples until now, as `view` sees the guest, and the account of the other ticks.
    pub fn take(&mut self, view: &mut VcpuView<GuestMemory>, ticks: &mut TickSender) {
        let Some(mut running) = self.running.take() else {
            return;
        };
        let reader = Reader {
            places: running.found.places.as_ref(),
            registers: running.found.registers,
            long_mask: self.sampling.host.long_mask(),
            setting: running.setting,
            is_in_doubt: false,
            host: self.sampling.host.host_stacks(),
        };
        if let Err(error) = running.ticks.take(&reader, || self.times(), view, ticks) {
            log::debug!(
                "Ticks of vCPU {} are accounted for later: {error}",
                self.vcpu
            );
        }
        self.running = Some(running);
        self.await_batch();
    }

    /// Stops the clock. Ticks that haven't been taken are dropped.
    pub fn stop(&mut self) {
        self.running = None;
        self.alarm.disarm();
    }

    fn await_batch(&self) {
        let Some(running) = &self.running else { return };
        let room = running.ticks.capture().map_or(1, Capture::room);
        let wait = batch_ns(running.ticks.period(), room, self.sampling.vcpus);
        if let Err(error) = self.alarm.arm(wait) {
            log::debug!(
                "Samples of vCPU {} wait until somebody asks: {error}",
                self.vcpu
            );
        }
    }

    /// The thread's times. The run time is exact.
    fn times(&self) -> io::Result<ThreadTimes> {
        let times = ThreadTimes::read(&self.schedstat)?;
        Ok(ThreadTimes {
            run: thread_cpu_ns(self.thread.tid).unwrap_or(times.run),
            ..times
        })
    }
}

/// Whether records with the values of `places` suffice for `setting`. With `has_stacks`, they have copies of the stacks of Linux
/// guests, too.
fn can_serve(places: Option<&ProcessPlaces>, setting: &ClockSetting, has_stacks: bool) -> bool {
    let has_group = || {
        places.is_none_or(|places| {
            let mut values = places.values.iter();
            values.any(|value| value.kind == ValueKind::ProcessGroup)
        })
    };
    // Other guests have no mappings, and with this clock no stacks: users choose it so that the guest loses little time.
    let is_linux = places.is_some_and(|places| places.is_linux);
    let wants_stacks = setting.processes || setting.stacks != StackParts::default();
    !setting.exits
        && (!setting.process_group || has_group())
        && (!wants_stacks || !is_linux || has_stacks)
}

/// The time that the thread of one of `vcpus` vCPUs runs until its samples are taken, if its ring has `room` for this many samples. Half of
/// the ring is kept for a thread that takes them late.
fn batch_ns(period: u64, room: u64, vcpus: usize) -> u64 {
    let samples = |count: u64| period.saturating_mul(count);
    let share = BATCH / u64::try_from(vcpus.max(1)).unwrap_or(u64::MAX);
    let wanted = samples(share).clamp(SHORTEST_WAIT, LONGEST_WAIT);
    wanted.min(samples(room / 2)).max(period)
}

#[cfg(test)]
mod tests {
    use kvmprof_introspection::{ValueAt, ValuePlace};

    use super::*;

    fn places(kinds: &[ValueKind], is_linux: bool) -> ProcessPlaces {
        let value = |kind: &ValueKind| ValuePlace {
            kind: *kind,
            at: ValueAt::Task(0),
            width: 4,
        };
        ProcessPlaces {
            task: None,
            values: kinds.iter().map(value).collect(),
            interrupt_stack: None,
            is_linux,
        }
    }

    #[test]
    fn what_records_lack_takes_exits() {
        let setting = ClockSetting::default();
        let grouped = ClockSetting {
            process_group: true,
            ..setting
        };
        let exits = ClockSetting {
            exits: true,
            ..setting
        };
        let pid = places(&[ValueKind::Pid], true);
        let group = places(&[ValueKind::Pid, ValueKind::ProcessGroup], true);
        assert!(can_serve(Some(&pid), &setting, false) && can_serve(None, &setting, false));
        assert!(!can_serve(Some(&pid), &grouped, true) && can_serve(Some(&group), &grouped, true));
        assert!(!can_serve(Some(&group), &exits, true));
    }

    #[test]
    fn stacks_and_mappings_of_linux_need_a_host_that_knows_the_stack_pointer() {
        let stacks = StackParts {
            kernel: false,
            user: true,
        };
        let setting = ClockSetting::default();
        let with_stacks = ClockSetting { stacks, ..setting };
        let with_processes = ClockSetting {
            processes: true,
            ..setting
        };
        let (linux, other) = (
            places(&[ValueKind::Pid], true),
            places(&[ValueKind::Pid], false),
        );
        for asked in [with_stacks, with_processes] {
            assert!(!can_serve(Some(&linux), &asked, false), "{asked:?}");
            assert!(can_serve(Some(&linux), &asked, true), "{asked:?}");
            assert!(can_serve(Some(&other), &asked, false), "{asked:?}");
            assert!(can_serve(None, &asked, false), "{asked:?}");
        }
    }

    #[test]
    fn a_batch_fits_into_half_of_the_ring() {
        for hz in [1, 2, 10, 100, 1_000, 5_000, 10_000] {
            for (room, vcpus) in [(1, 1), (2, 1), (80, 2), (1000, 1), (1000, 64)] {
                let period = 1_000_000_000 / hz;
                let wait = batch_ns(period, room, vcpus);
                let samples = wait / period;
                assert!((1..=(room / 2).max(1)).contains(&samples), "{hz} {room}");
                assert!(samples * vcpus as u64 <= BATCH || wait <= SHORTEST_WAIT.max(period));
                assert!(wait <= LONGEST_WAIT.max(period));
            }
        }
    }
}
