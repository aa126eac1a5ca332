//! The clock of a vCPU whose samples the host's kernel takes, without an exit for each sample, or at one of every N exits to KVM or faults of guest memory if another program runs the vCPU. The samples wait in a ring until the vCPU's
//! thread takes them: when an alarm of its own run time rings, or on request. If another program runs the vCPU, a thread for the vCPU takes them
//! from time to time.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use kvm_ioctls::VcpuFd;
use kvmprof_attach::Slots;
use kvmprof_introspection::{PhysicalMemory, ProcessPlaces, Registers};
use kvmprof_recording::EventKind;

use super::access::Presence;
use super::batches::{batch_ns, pause_ns};
use super::kernel_sampling::KernelSampling;
use super::record_contents::can_serve;
use kvmprof_profiling::clock::{
    ClockSetting, Grid, RunTimeAlarm, ThreadTimes, TickSource, aligned_start, monotonic_ns,
};
use kvmprof_profiling::kernel_capture::{
    Capture, CaptureOpener, Contents, KernelTicks, Period, Reader, VcpuThreadId,
};
use kvmprof_profiling::sampling::{TickSender, VcpuView};
use kvmprof_profiling::signals;

/// The pause between two looks at the registers of another program's guest whose processes haven't been located yet, in ns. If they still aren't
/// located, or only by a guess, after [`MANY_LOOKS`], the pause doubles after each [`FEW_LOOKS`], up to 8 times its length.
const PAUSE: u64 = 250_000_000;
const MANY_LOOKS: u32 = 16;
const FEW_LOOKS: u32 = 4;
/// The pause before another try after the host's kernel has refused to take samples, in ns: memory or descriptors may be short for a moment.
const RETRY: u64 = 1_000_000_000;

/// The clock of one vCPU. Only the thread that samples the vCPU uses it.
#[derive(Debug)]
pub struct KernelClock {
    opener: Arc<CaptureOpener>,
    vcpu: u16,
    thread: VcpuThreadId,
    schedstat: File,
    // None if another thread than the vCPU's collects the samples. Then nothing else samples the vCPU.
    on_vcpu: Option<OnVcpu>,
    running: Option<Running>,
    // When the host's kernel last refused to take samples of this vCPU, in ns.
    refused: Option<u64>,
    // The setting that records don't suffice for.
    unserved: Option<ClockSetting>,
    // When the vCPU's registers were last looked at, in ns, and how often.
    looked: u64,
    looks: u32,
}

/// How the vCPU's own thread collects the samples.
#[derive(Debug)]
struct OnVcpu {
    // The alarm that rings when a batch is complete.
    alarm: RunTimeAlarm,
    // The number of vCPUs.
    vcpus: usize,
}

#[derive(Debug)]
struct Running {
    source: TickSource,
    setting: ClockSetting,
    found: CaptureInput,
    slots: Arc<Slots>,
    ticks: KernelTicks,
}

/// The state that was found of a stopped vCPU.
#[derive(Clone, Debug, Default)]
pub struct CaptureInput {
    /// The places of the values that identify the running process.
    pub places: Option<ProcessPlaces>,
    /// Its registers.
    pub registers: Registers,
}

impl CaptureInput {
    /// Whether `other` tells more.
    fn is_improved_by(&self, other: &Self) -> bool {
        match (&self.places, &other.places) {
            (Some(known), Some(places)) => {
                known != places && known.values.len() <= places.values.len()
            }
            (known, places) => known.is_none() && places.is_some(),
        }
    }
}

/// What replaces the program that takes the samples.
#[derive(Debug)]
pub struct Renewal {
    capture: Option<Capture>,
    found: Option<CaptureInput>,
    slots: Arc<Slots>,
}

impl KernelClock {
    /// The clock of vCPU number `vcpu`, which the calling thread runs by `fd`. The clock is stopped at first.
    ///
    /// # Errors
    /// The host refuses the alarm or the thread's statistics.
    pub fn for_this_thread(vcpu: u16, fd: &VcpuFd, sampling: &KernelSampling) -> io::Result<Self> {
        let thread = VcpuThreadId {
            descriptor: fd.as_raw_fd(),
            // 0 stands for the calling thread: the thread's filter allows nothing else (`kvmprof_sandbox`).
            tid: 0,
        };
        let on_vcpu = OnVcpu {
            alarm: RunTimeAlarm::for_this_thread(signals::alarm())?,
            vcpus: sampling.vcpus,
        };
        let schedstat = File::open("/proc/thread-self/schedstat")?;
        let opener = Arc::clone(&sampling.opener);
        Ok(Self::new(vcpu, opener, thread, schedstat, Some(on_vcpu)))
    }

    /// The clock of vCPU number `vcpu`, which `thread` of another process runs, whose statistics are in `schedstat`. The clock is stopped at first.
    pub fn of_another_process(
        vcpu: u16,
        opener: Arc<CaptureOpener>,
        thread: VcpuThreadId,
        schedstat: File,
    ) -> Self {
        Self::new(vcpu, opener, thread, schedstat, None)
    }

    fn new(
        vcpu: u16,
        opener: Arc<CaptureOpener>,
        thread: VcpuThreadId,
        schedstat: File,
        on_vcpu: Option<OnVcpu>,
    ) -> Self {
        Self {
            opener,
            vcpu,
            thread,
            schedstat,
            on_vcpu,
            running: None,
            refused: None,
            unserved: None,
            looked: 0,
            looks: 0,
        }
    }

    /// Whether nothing else samples the vCPU, so that ticks are lost while the host's kernel refuses to.
    pub fn is_alone(&self) -> bool {
        self.on_vcpu.is_none()
    }

    /// Whether the clock makes ticks.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Whether the clock is stopped and may be started for `setting`.
    pub fn is_ready(&self, setting: &ClockSetting) -> bool {
        let may_serve =
            || !setting.exits && self.unserved != Some(*setting) && self.refused.is_none();
        self.running.is_none() && (self.is_alone() || may_serve())
    }

    /// Whether records suffice for `setting` with what was `found` of the vCPU. If not, the clock isn't ready for this setting any
    /// more.
    pub fn can_serve(&mut self, found: &CaptureInput, setting: &ClockSetting) -> bool {
        let can = self.serves(found, setting);
        self.unserved = (!can).then_some(*setting);
        can
    }

    fn serves(&self, found: &CaptureInput, setting: &ClockSetting) -> bool {
        let has_stacks = self.opener.form().knows_privilege();
        self.is_alone() || can_serve(found.places.as_ref(), setting, has_stacks)
    }

    /// Makes ticks for `setting` from now on, by `source`: an event is exits to KVM or faults of guest memory, of a clock that is alone. `slots` are those of the guest's memory. False if the
    /// host's kernel refuses that, and the clock isn't alone.
    pub fn start(
        &mut self,
        source: TickSource,
        setting: ClockSetting,
        found: CaptureInput,
        slots: Arc<Slots>,
    ) -> bool {
        let capture = self.capture(&found, &setting, period(source), &slots);
        let times = self.times();
        if (capture.is_none() || times.is_err()) && !self.is_alone() {
            return false;
        }
        // The times of a thread that has ended can't be read, which is seen when the ticks are taken.
        let times = times.unwrap_or_default();
        // The start may have taken a while.
        let now = monotonic_ns();
        let ticks = match source {
            TickSource::Clock(hz) => {
                let grid = Grid::new(aligned_start(now, hz), hz, None);
                KernelTicks::of_clock(grid, now, times, capture)
            }
            TickSource::Event(_) => KernelTicks::of_events(capture),
        };
        self.running = Some(Running {
            source,
            setting,
            found,
            slots,
            ticks,
        });
        self.await_batch();
        true
    }

    /// Makes the host's kernel take samples; `None` if it refuses.
    fn capture(
        &mut self,
        found: &CaptureInput,
        setting: &ClockSetting,
        period: Period,
        slots: &Slots,
    ) -> Option<Capture> {
        let contents = Contents {
            places: found.places.as_ref(),
            stacks: setting.stacks,
        };
        let error = match Capture::start(&self.opener, slots, self.thread, contents, period) {
            Ok(capture) => return Some(capture),
            Err(error) => error,
        };
        let vcpu = self.vcpu;
        if self.is_running() && !self.is_alone() {
            log::debug!("vCPU {vcpu} is sampled as before: {error}");
            return None;
        }
        let what = if self.is_alone() {
            format!("Ticks of vCPU {vcpu} are lost until it is sampled again")
        } else {
            format!("vCPU {vcpu} is sampled by exits")
        };
        match self.refused.replace(monotonic_ns()) {
            None => log::warn!("{what}: {error}"),
            Some(_) => log::debug!("{what}: {error}"),
        }
        None
    }

    /// Continues with `setting`, if the clock runs by the same source and records suffice. The ticks until now have been taken.
    pub fn follow(&mut self, setting: ClockSetting) -> bool {
        let can_serve = self.running.as_ref().is_some_and(|running| {
            // The program determines which stacks are copied.
            setting.source == Some(running.source)
                && running.setting.stacks == setting.stacks
                && self.serves(&running.found, &setting)
        });
        if let Some(running) = self.running.as_mut().filter(|_| can_serve) {
            running.setting = setting;
        }
        can_serve
    }

    /// Whether to look at `now` (ns) where the processes are. `is_sure`: as far as they are located, they are for sure. `is_linux`: the guest is.
    pub fn is_to_look(&self, now: u64, is_sure: bool, is_linux: bool) -> bool {
        let Some(running) = &self.running else {
            return false;
        };
        if self.on_vcpu.is_some() {
            // Pages that weren't mapped when the guest started may be mapped now. It takes no stop of the vCPU.
            return !is_linux;
        }
        let is_open = running.found.places.is_none() || !is_sure;
        let doublings = self.looks.saturating_sub(MANY_LOOKS).div_ceil(FEW_LOOKS);
        is_open && now.saturating_sub(self.looked) >= PAUSE << doublings.min(3)
    }

    /// Notes a look at the vCPU at `now`, in ns.
    pub fn note_look(&mut self, now: u64) {
        self.looked = now;
        self.looks = self.looks.saturating_add(1);
    }

    /// The program for what was `found` of the vCPU and the `slots` of the guest's memory at `now` (ns), if they have changed or the host's kernel
    /// has refused to take samples.
    pub fn renewed(
        &mut self,
        now: u64,
        found: Option<CaptureInput>,
        slots: Arc<Slots>,
    ) -> Option<Renewal> {
        let running = self.running.as_ref()?;
        let found = found.filter(|found| running.found.is_improved_by(found));
        let is_refused = running.ticks.capture().is_none();
        let is_to_retry = is_refused
            && self
                .refused
                .is_none_or(|at| now.saturating_sub(at) >= RETRY);
        if found.is_none() && Arc::ptr_eq(&slots, &running.slots) && !is_to_retry {
            return None;
        }
        let (setting, period) = (running.setting, period(running.source));
        let known = found.clone().unwrap_or_else(|| running.found.clone());
        let capture = self.capture(&known, &setting, period, &slots);
        if capture.is_none() && !self.is_alone() {
            return None;
        }
        Some(Renewal {
            capture,
            found,
            slots,
        })
    }

    /// Takes samples by `renewal` from now on. The samples of the previous program have been taken.
    pub fn renew(&mut self, renewal: Renewal) {
        let Some(running) = &mut self.running else {
            return;
        };
        running.ticks.replace(renewal.capture);
        running.slots = renewal.slots;
        if let Some(found) = renewal.found {
            running.found = found;
        }
    }

    /// Hands over all samples until now, as `view` sees the guest, and the account of the other ticks. The vCPU's thread was `held` for looks for this time
    /// in all, in ns. While it `is_in_doubt` which kernel runs, samples are lost.
    pub fn take<M: PhysicalMemory>(
        &mut self,
        view: &mut VcpuView<M>,
        ticks: &mut TickSender,
        held: u64,
        is_in_doubt: bool,
    ) -> Presence {
        let Some(mut running) = self.running.take() else {
            return Presence::There;
        };
        let reader = Reader {
            places: running.found.places.as_ref(),
            registers: running.found.registers,
            long_mask: self.opener.form().long_mask(),
            setting: running.setting,
            held,
            is_in_doubt,
            host: self.opener.form().host_stacks(),
            slots: &running.slots,
        };
        let taken = running.ticks.take(&reader, || self.times(), view, ticks);
        self.running = Some(running);
        self.await_batch();
        match taken {
            // The file of a thread that has ended can't be read.
            Err(_) if self.is_alone() => Presence::Gone,
            Err(error) => {
                log::debug!(
                    "Ticks of vCPU {} are accounted for later: {error}",
                    self.vcpu
                );
                Presence::There
            }
            Ok(()) => Presence::There,
        }
    }

    /// Stops the clock, whose records don't suffice for its setting. Ticks that haven't been taken are dropped.
    pub fn give_up(&mut self) {
        self.unserved = self.running.as_ref().map(|running| running.setting);
        self.stop();
    }

    /// Stops the clock. Ticks that haven't been taken are dropped.
    pub fn stop(&mut self) {
        self.running = None;
        if let Some(OnVcpu { alarm, .. }) = &self.on_vcpu {
            alarm.disarm();
        }
    }

    /// The pause between two looks into the ring, for another thread than the vCPU's; `None` while there are no ticks.
    pub fn pause(&self) -> Option<Duration> {
        let running = self.running.as_ref()?;
        let room = running.ticks.capture().map(Capture::room);
        let time = match period(running.source) {
            Period::RunTime(time) => time,
            // Nobody knows how often the guest exits.
            Period::Exits(_) | Period::Faults(_) => 0,
        };
        Some(Duration::from_nanos(pause_ns(time, room)))
    }

    fn await_batch(&self) {
        let (Some(running), Some(OnVcpu { alarm, vcpus })) = (&self.running, &self.on_vcpu) else {
            return;
        };
        let Period::RunTime(time) = period(running.source) else {
            return;
        };
        let room = running.ticks.capture().map_or(1, Capture::room);
        if let Err(error) = alarm.arm(batch_ns(time, room, *vcpus)) {
            log::debug!(
                "Samples of vCPU {} wait until somebody asks: {error}",
                self.vcpu
            );
        }
    }

    fn times(&self) -> io::Result<ThreadTimes> {
        ThreadTimes::read(&self.schedstat)
    }
}

/// What passes between two ticks of `source`.
fn period(source: TickSource) -> Period {
    match source {
        TickSource::Clock(hz) => Period::RunTime(Grid::new(0, hz, None).period()),
        TickSource::Event(event) if event.kind() == EventKind::PageFaults => {
            Period::Faults(event.period())
        }
        TickSource::Event(event) => Period::Exits(event.period()),
    }
}
