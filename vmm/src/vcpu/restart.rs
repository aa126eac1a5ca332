//! A restart of the machine. The threads of all vCPUs meet. One of them resets memory and devices to their initial state. Then
//! each thread resets its own vCPU.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kvmprof_introspection::GuestKnowledge;

use kvmprof_machine::console::HvcConsole;
use kvmprof_machine::lock::lock;
use kvmprof_machine::{Machine, MachineError};
use kvmprof_profiling::clock::monotonic_ns;
use kvmprof_profiling::profiler::{MachineInfo, RestartTimes};
use kvmprof_profiling::sampling::{Doorbell, VcpuShared};

/// Minimum time between two restarts: a guest that only resets itself makes 20 a second.
const SHORTEST_DISTANCE: Duration = Duration::from_millis(50);

/// The effect of a reset of the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnReset {
    /// The guest restarts.
    #[default]
    Restart,
    /// The guest ends.
    Exit,
}

/// The restarts of a machine, shared by all its vCPUs' threads and the threads that request restarts.
pub struct Restart {
    machine: Arc<Machine>,
    knowledge: Arc<GuestKnowledge>,
    hvc: Option<Arc<HvcConsole>>,
    on_reset: OnReset,
    vcpus: Vec<Arc<VcpuShared>>,
    stopping: Arc<AtomicBool>,
    doorbell: Arc<Doorbell>,
    requested: AtomicBool,
    meeting: Mutex<ThreadBarrier>,
    changed: Condvar,
    times: Arc<RestartTimes>,
}

/// The meeting of the threads.
#[derive(Debug, Default)]
struct ThreadBarrier {
    /// The number of threads that have come.
    present: usize,
    /// Counts the meetings.
    number: u64,
    has_failed: bool,
    last: Option<Instant>,
}

/// The result of a restart.
#[derive(Debug)]
pub enum Restarted {
    /// The vCPU may run.
    Yes,
    /// The threads are to end, or another thread's part has failed.
    Stopped,
}

impl Restart {
    /// The restarts of `machine`, which `info` describes and which has this virtio console. The threads of its `vcpus` end when `stopping` is set. `doorbell`
    /// rings after each restart.
    pub fn new(
        machine: Arc<Machine>,
        info: &MachineInfo,
        hvc: Option<Arc<HvcConsole>>,
        on_reset: OnReset,
        vcpus: Vec<Arc<VcpuShared>>,
        stopping: Arc<AtomicBool>,
        doorbell: Arc<Doorbell>,
    ) -> Self {
        Self {
            machine,
            knowledge: Arc::clone(&info.knowledge),
            hvc,
            on_reset,
            vcpus,
            stopping,
            doorbell,
            requested: AtomicBool::new(false),
            meeting: Mutex::default(),
            changed: Condvar::new(),
            times: Arc::clone(&info.restarts),
        }
    }

    /// The effect of a reset.
    pub fn on_reset(&self) -> OnReset {
        self.on_reset
    }

    /// Whether a reset by the guest itself ends it: the configuration says so, or its kernel has panicked, which a restart would hide.
    pub fn is_end(&self) -> bool {
        self.on_reset == OnReset::Exit || self.has_panicked()
    }

    fn has_panicked(&self) -> bool {
        // The console matters only if the kernel's memory doesn't show it.
        let console_shows_panic = || {
            let on_hvc = self.hvc.as_ref().and_then(|hvc| hvc.panic_message());
            on_hvc
                .or_else(|| self.machine.devices.serial().panic_message())
                .is_some()
        };
        let linux = self.knowledge.linux();
        let known = linux.and_then(|linux| linux.has_panicked(&self.machine.memory));
        known.unwrap_or_else(console_shows_panic)
    }

    /// Requests a restart. Every vCPU's thread then has to call [`Restart::carry_out`].
    pub fn request(&self) {
        self.requested.store(true, Ordering::SeqCst);
        for vcpu in &self.vcpus {
            vcpu.kicker.kick();
        }
    }

    /// True from a request until all threads have met for it.
    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::SeqCst)
    }

    /// Wakes the waiting threads, once `stopping` is set.
    pub fn wake(&self) {
        drop(lock(&self.meeting));
        self.changed.notify_all();
    }

    /// Does a vCPU's part of the restart, on its thread: `restore` resets the vCPU to its initial state. Waits for the other threads.
    ///
    /// # Errors
    /// This thread's part has failed.
    pub fn carry_out(
        &self,
        restore: impl FnOnce() -> Result<(), MachineError>,
    ) -> Result<Restarted, MachineError> {
        self.meet(|| self.restart_machine())?;
        if self.is_over() {
            return Ok(Restarted::Stopped);
        }
        if let Err(error) = restore() {
            self.fail();
            return Err(error);
        }
        // No vCPU may run, and start another one, before all are reset.
        self.meet(|| Ok(()))?;
        Ok(if self.is_over() {
            Restarted::Stopped
        } else {
            Restarted::Yes
        })
    }

    fn is_over(&self) -> bool {
        self.stopping.load(Ordering::SeqCst) || lock(&self.meeting).has_failed
    }

    fn fail(&self) {
        lock(&self.meeting).has_failed = true;
        self.changed.notify_all();
    }

    /// Waits for all threads. The last one does `work` before the others continue.
    fn meet(&self, work: impl FnOnce() -> Result<(), MachineError>) -> Result<(), MachineError> {
        let mut meeting = lock(&self.meeting);
        meeting.present += 1;
        if meeting.present < self.vcpus.len() {
            let number = meeting.number;
            let is_waiting = |meeting: &mut ThreadBarrier| {
                meeting.number == number
                    && !meeting.has_failed
                    && !self.stopping.load(Ordering::SeqCst)
            };
            drop(
                self.changed
                    .wait_while(meeting, is_waiting)
                    .unwrap_or_else(PoisonError::into_inner),
            );
            return Ok(());
        }
        drop(meeting);
        let result = work();
        let mut meeting = lock(&self.meeting);
        meeting.present = 0;
        meeting.number += 1;
        meeting.has_failed |= result.is_err();
        drop(meeting);
        self.changed.notify_all();
        result
    }

    /// Resets everything except the vCPUs, which stand still.
    fn restart_machine(&self) -> Result<(), MachineError> {
        self.keep_distance();
        self.requested.store(false, Ordering::SeqCst);
        self.machine.restart()?;
        if let Some(linux) = self.knowledge.linux() {
            linux.forget_running();
        }
        lock(&self.meeting).last = Some(Instant::now());
        self.times.add(monotonic_ns());
        self.doorbell.ring_anyway();
        Ok(())
    }

    /// Waits until some time has passed since the last restart.
    fn keep_distance(&self) {
        let meeting = lock(&self.meeting);
        let passed = meeting
            .last
            .map_or(SHORTEST_DISTANCE, |last| last.elapsed());
        let left = SHORTEST_DISTANCE.saturating_sub(passed);
        let is_waiting = |_: &mut ThreadBarrier| !self.stopping.load(Ordering::SeqCst);
        drop(self.changed.wait_timeout_while(meeting, left, is_waiting));
    }
}
