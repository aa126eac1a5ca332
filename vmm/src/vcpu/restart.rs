//! A restart of the machine: the threads of all vCPUs meet, one of them brings memory and devices into the state in which the
//! machine starts, then each does so with its own vCPU.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kvmprof_introspection::GuestKnowledge;

use super::{Doorbell, VcpuShared};
use crate::clock::monotonic_ns;
use crate::console::HvcConsole;
use crate::lock::lock;
use crate::machine::{Machine, MachineError};

/// Between two restarts: a guest that does nothing else than reset itself makes 20 a second.
const SHORTEST_DISTANCE: Duration = Duration::from_millis(50);
/// Restarts that nobody has taken note of yet; of more, the oldest are forgotten.
const MAX_UNNOTED: usize = 1024;

/// What a reset of the guest does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnReset {
    /// The guest starts anew.
    #[default]
    Restart,
    /// The guest has ended.
    Exit,
}

/// Restarts of a machine, shared by all its vCPUs' threads and who asks for them.
pub struct Restart {
    machine: Arc<Machine>,
    knowledge: Arc<GuestKnowledge>,
    hvc: Option<Arc<HvcConsole>>,
    on_reset: OnReset,
    vcpus: Vec<Arc<VcpuShared>>,
    stopping: Arc<AtomicBool>,
    doorbell: Arc<Doorbell>,
    requested: AtomicBool,
    meeting: Mutex<Meeting>,
    changed: Condvar,
}

/// Where the threads are.
#[derive(Debug, Default)]
struct Meeting {
    /// How many have come.
    present: usize,
    /// Counts the meetings.
    number: u64,
    has_failed: bool,
    last: Option<Instant>,
    unnoted: Vec<u64>,
}

/// How a restart has gone.
#[derive(Debug)]
pub enum Restarted {
    /// The vCPU may run.
    Yes,
    /// The threads are to end, or another one couldn't do its part.
    Stopped,
}

impl Restart {
    /// Restarts `machine`, of which `knowledge` is known and which has this virtio console, as `on_reset` says. Its `vcpus`' threads end
    /// when `stopping` is set; whoever takes note of restarts hears of them by `doorbell`.
    pub fn new(
        machine: Arc<Machine>,
        knowledge: Arc<GuestKnowledge>,
        hvc: Option<Arc<HvcConsole>>,
        on_reset: OnReset,
        vcpus: Vec<Arc<VcpuShared>>,
        stopping: Arc<AtomicBool>,
        doorbell: Arc<Doorbell>,
    ) -> Self {
        Self {
            machine,
            knowledge,
            hvc,
            on_reset,
            vcpus,
            stopping,
            doorbell,
            requested: AtomicBool::new(false),
            meeting: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// What a reset does.
    pub fn on_reset(&self) -> OnReset {
        self.on_reset
    }

    /// Whether a reset by the guest itself is its end: that is wanted, or its kernel has panicked, which a restart would hide.
    pub fn is_end(&self) -> bool {
        self.on_reset == OnReset::Exit || self.has_panicked()
    }

    fn has_panicked(&self) -> bool {
        // The console only counts where the kernel's memory can't be asked.
        let console_shows_panic = || {
            let on_hvc = self.hvc.as_ref().and_then(|hvc| hvc.panic_message());
            on_hvc
                .or_else(|| self.machine.devices.serial().panic_message())
                .is_some()
        };
        let known = self.knowledge.has_panicked(&self.machine.memory);
        known.unwrap_or_else(console_shows_panic)
    }

    /// Asks for a restart. Every vCPU's thread is to call [`Restart::carry_out`].
    pub fn request(&self) {
        self.requested.store(true, Ordering::SeqCst);
        for vcpu in &self.vcpus {
            vcpu.kicker.kick();
        }
    }

    /// True until all threads have met for it.
    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::SeqCst)
    }

    /// Lets those go on who wait here, once `stopping` is set.
    pub fn wake(&self) {
        drop(lock(&self.meeting));
        self.changed.notify_all();
    }

    /// When the restarts were that nobody has taken note of yet, in ns of CLOCK_MONOTONIC, the oldest first.
    pub fn take_unnoted(&self) -> Vec<u64> {
        std::mem::take(&mut lock(&self.meeting).unnoted)
    }

    /// A vCPU's part of the restart: `restore` brings the vCPU, whose thread this is, into its initial state. Waits for the others'.
    ///
    /// # Errors
    /// This thread's part can't be done.
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
        // None may run, and start another, before all are as they were.
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

    /// Waits for all threads; the last one does `work` before the others go on.
    fn meet(&self, work: impl FnOnce() -> Result<(), MachineError>) -> Result<(), MachineError> {
        let mut meeting = lock(&self.meeting);
        meeting.present += 1;
        if meeting.present < self.vcpus.len() {
            let number = meeting.number;
            let is_waiting = |meeting: &mut Meeting| {
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

    /// All vCPUs stand still: does all but their part.
    fn restart_machine(&self) -> Result<(), MachineError> {
        self.keep_distance();
        self.requested.store(false, Ordering::SeqCst);
        self.machine.restart()?;
        self.knowledge.forget_running();
        let mut meeting = lock(&self.meeting);
        meeting.last = Some(Instant::now());
        if meeting.unnoted.len() >= MAX_UNNOTED {
            meeting.unnoted.remove(0);
        }
        meeting.unnoted.push(monotonic_ns());
        drop(meeting);
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
        let is_waiting = |_: &mut Meeting| !self.stopping.load(Ordering::SeqCst);
        drop(self.changed.wait_timeout_while(meeting, left, is_waiting));
    }
}
