//! The profiler: takes the ticks from the vCPUs' rings, keeps all accounts, feeds the consumers, and lets the clocks run exactly while a
//! consumer counts.
//!
//! All of it is on the event thread, so nothing here is shared: the rings and each vCPU's [`ClockControl`](crate::clock::ClockControl) are
//! the only connections to the vCPU threads. And nothing here waits: `Clocks` sends requests to vCPUs and checks later whether they have
//! answered, `consumers` only take ticks, and clients' requests that need an answer wait in the `server`.

mod clocks;
mod consumers;
mod control;
mod kernel_text;
mod names;
mod processes;
mod restarts;
mod server;
mod status;
mod task_looks;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod texts;
mod waits;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvmprof_abi::errno::Errno;
use kvmprof_recording::{ClockLedger, QueueBudget};

use crate::binaries::BinarySources;
use crate::clock::ClockSetting;
use crate::host_socket::MAX_WAITING;
use crate::sampling::{Gate, TickReceiver, VcpuShared};
use clocks::{Clocks, Flush};
use consumers::{AllNeeds, Consumer, Consumers, Context, Device, LookNeeds, Side, SymbolSources};
use kernel_text::KernelText;
use names::Names;
use processes::Processes;
use server::Handles;
use task_looks::TaskLooks;
use texts::PacedText;

pub use clocks::ClockPlan;
pub use consumers::{FileRecorder, OnVcpus, recording_info};
pub use control::GuestControl;
pub use restarts::RestartTimes;
pub use status::{DeviceMonitors, MachineInfo};

/// Maximum time that recordings wait, after the guest's end, for files that are still being read.
const MAX_WAIT_FOR_FILES: Duration = Duration::from_secs(5);

/// The profiler, which objects on the event thread share.
pub type SharedProfiler = Rc<RefCell<Profiler>>;

/// The clocks, the consumers, and the handles that clients have open.
pub struct Profiler {
    clocks: Clocks,
    consumers: Consumers,
    room: Arc<QueueBudget>,
    processes: Processes,
    names: Names,
    kernel_text: KernelText,
    /// The list of processes that was made last.
    process_list: Option<PacedText>,
    task_looks: TaskLooks,
    handles: Handles,
    gate: Arc<Gate>,
    info: MachineInfo,
    control: Option<Box<dyn GuestControl>>,
    wants_pause: bool,
    resets: u64,
    // The search for the kernel that SIGTERM waits for.
    look_for_kernel: Option<Flush>,
    has_ended: bool,
    /// The time at which recordings end, once the guest has ended.
    recordings_end: Option<Instant>,
}

impl Profiler {
    /// A profiler of the vCPUs whose threads have the other ends of `vcpus`. `gate` holds the threads until a consumer counts. `on_vcpus` is the work of the vCPUs' threads for consumers; `None` if the threads are
    /// another program's. Files that the guest executes are searched for in `sources`.
    pub fn new(
        vcpus: Vec<(Arc<VcpuShared>, TickReceiver)>,
        plan: ClockPlan,
        gate: Arc<Gate>,
        info: MachineInfo,
        on_vcpus: Option<OnVcpus>,
        sources: BinarySources,
    ) -> Self {
        let count = u16::try_from(vcpus.len()).unwrap_or(u16::MAX);
        let room = Arc::new(QueueBudget::new(MAX_WAITING));
        Self {
            consumers: Consumers::new(count, &plan.profiling, on_vcpus, Arc::clone(&room)),
            clocks: Clocks::new(vcpus, plan),
            room,
            processes: Processes::new(sources),
            names: Names::default(),
            kernel_text: KernelText::default(),
            process_list: None,
            task_looks: TaskLooks::default(),
            handles: Handles::default(),
            gate,
            info,
            control: None,
            wants_pause: false,
            resets: 0,
            look_for_kernel: None,
            has_ended: false,
            recordings_end: None,
        }
    }

    /// The room for unread data of all clients and recordings, for the [`HostSocket`](crate::host_socket::HostSocket) that serves the
    /// clients.
    pub fn room(&self) -> Arc<QueueBudget> {
        Arc::clone(&self.room)
    }

    /// Starts `recorder`, which records until the guest's end, and lets the guest start.
    pub fn record(&mut self, mut recorder: FileRecorder) {
        for block in self.processes.known() {
            recorder.take_block(block);
        }
        self.consumers.add(Box::new(recorder));
        // The recording needn't know when the clocks run.
        let _ = self.follow_consumers();
    }

    /// Takes everything that the vCPUs have delivered. True if there was anything.
    pub fn drain(&mut self) -> bool {
        self.note_restarts();
        let Self {
            clocks,
            consumers,
            processes,
            names,
            kernel_text,
            info,
            ..
        } = self;
        let any = clocks.drain(|maps, ticks, frames| {
            // Consumers get what a sample needs before the sample.
            for map in maps.drain(..) {
                names.note_main_thread(map.pid, map.name, map.started);
                if let Some(block) = processes.enter(map) {
                    consumers.take_block(&block);
                }
            }
            if let Some(sample) = &ticks.sample {
                names.note(sample);
            }
            for consumer in consumers.iter_mut() {
                consumer.take(ticks, frames);
            }
        });
        for block in processes.loaded() {
            consumers.take_block(&block);
        }
        let mut sources = SymbolSources {
            kernel_text,
            knowledge: &info.knowledge,
            host: info.host_stacks.as_deref(),
        };
        for consumer in consumers.iter_mut() {
            consumer.advance(&mut sources);
        }
        let needs = self.consumers.needs();
        self.look_at_tasks(needs.looks());
        if self.is_ticking() && needs.source().is_none() {
            // The last consumer has ended by itself, as a full array of pcsample does.
            let _ = self.stop_clocks();
        }
        any
    }

    /// The time until the next look at the guest's tasks.
    pub fn wait_for_tasks(&self) -> Option<Duration> {
        self.task_looks.wait()
    }

    /// Requests looks at the guest's tasks as consumers need them, and passes the looks on.
    fn look_at_tasks(&mut self, needs: Option<LookNeeds>) {
        let consumers = &mut self.consumers;
        let needs = needs.filter(|_| !self.has_ended);
        self.task_looks.advance(&self.clocks, needs, |look| {
            consumers.iter_mut().for_each(|one| one.take_look(look));
        });
    }

    /// Continues to close what clients have left open, and to end the recordings after the guest's end.
    pub fn advance(&mut self) {
        self.close_abandoned();
        if let Some(end) = self.recordings_end
            && (!self.processes.is_loading() || Instant::now() >= end)
        {
            self.end_recordings();
        }
    }

    /// Ends the recordings that still wait for files, once the guest has ended.
    pub fn end_recordings(&mut self) {
        if self.recordings_end.take().is_some() {
            self.drain();
            self.consumers.iter_mut().for_each(Consumer::end);
        }
    }

    /// True while something makes ticks.
    pub fn is_ticking(&self) -> bool {
        self.clocks.is_ticking()
    }

    /// True while a client's request is in progress: [`Profiler::advance`], and the endpoint that it came from, have to be called again soon.
    pub fn is_busy(&self) -> bool {
        self.handles.are_busy() || self.recordings_end.is_some() || self.look_for_kernel.is_some()
    }

    /// Begins to collect the ticks of halted vCPUs, so that readers see idle time pass.
    pub fn flush(&mut self) {
        // They come with the next ticks, and nothing waits for them.
        let _ = self.clocks.flush();
    }

    /// The clock's account, summed over the vCPUs.
    pub fn clock_ledger(&self) -> ClockLedger {
        self.clocks.ledgers().sum()
    }

    /// Handles the end of the VM and its vCPU threads: acts as PCS_STOP. Recordings end when the files that they need have been read. prf's
    /// counts stay as they are.
    pub fn end(&mut self) {
        while self.drain() {}
        self.has_ended = true;
        let _ = self.stop_clocks();
        let consumers = self.consumers.iter_mut();
        for consumer in consumers.filter(|consumer| !consumer.needs().processes) {
            consumer.end();
        }
        self.recordings_end = Instant::now().checked_add(MAX_WAIT_FOR_FILES);
        self.advance();
    }

    /// The amount of data that clients haven't read yet: ticks of pcs, and bytes of recordings.
    pub fn unread(&self) -> u64 {
        self.consumers.iter().map(Consumer::unread).sum()
    }

    /// True while a client has a device open.
    pub fn has_clients(&self) -> bool {
        self.handles.are_open()
    }

    fn stop_clocks(&mut self) -> Flush {
        self.clocks.set(ClockSetting::default())
    }

    /// Makes the clocks run as the consumers need them now, or pauses the guest if that is requested, and lets the guest start if a
    /// consumer counts. The result is over when the vCPUs have followed; `None` if nothing changes.
    fn follow_consumers(&mut self) -> Option<Flush> {
        let needs = self.consumers.needs();
        let flush = self.set_clocks(&needs);
        // The gate opens last: a vCPU that passes it has to find the setting, or its first instructions have no ticks.
        if needs.start_guest() {
            self.gate.open();
        }
        flush
    }

    /// Makes the clocks run as the consumers need them now, or pauses the guest if that is requested.
    fn set_clocks(&mut self, needs: &AllNeeds) -> Option<Flush> {
        if self.has_ended {
            return None;
        }
        let mut setting = needs.setting();
        if setting.source.is_some() && setting.source != self.clocks.setting().source {
            self.consumers.follow(setting.source);
            // This may have ended some consumers.
            setting = self.consumers.needs().setting();
        }
        let changed = (setting != self.clocks.setting()).then(|| self.clocks.set(setting));
        let is_other = self.wants_pause != self.clocks.is_paused();
        // The answer to the later request comes last.
        let paused = is_other.then(|| self.clocks.pause(self.wants_pause));
        paused.or(changed)
    }

    /// Lets `act` use the device of consumer `index` for a client of `side`.
    fn with_device<T>(
        &mut self,
        index: usize,
        side: Side,
        act: impl FnOnce(&mut dyn Device, &Context<'_>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let needs = self.consumers.needs();
        let context = Context {
            side,
            source: needs.source_for(side),
            is_shared: needs.others_bind(index, side),
            has_ended: self.has_ended,
            clocks: &self.clocks,
            machine: &self.info,
            processes: &self.processes,
        };
        let device = self.consumers.device(index);
        act(device.ok_or(Errno::ENODEV)?, &context)
    }
}

#[cfg(test)]
mod tests;
