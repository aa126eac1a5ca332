//! The event thread: drains the vCPUs' rings, serves the clients, and detects the guest's end.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use event_manager::{EventManager, EventOps, EventSet, Events, MutEventSubscriber, SubscriberOps};

use super::VmError;
use super::termination::Termination;
use kvmprof_machine::console::HvcConsole;
use kvmprof_machine::virtio::ConsoleService;
use kvmprof_profiling::host_socket::HostSocket;
use kvmprof_profiling::profiler::SharedProfiler;
use kvmprof_profiling::sampling::Doorbell;

/// The pause between two looks at the rings while ticks come in, in ms: much less than a ring takes to fill.
const BUSY_POLL_MS: i32 = 10;
/// Number of looks without ticks after which the thread sleeps until the doorbell rings.
const QUIET_POLLS: u32 = 3;
/// The period at which the ticks of halted vCPUs are collected, so that readers see idle time pass.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time that clients may pause while they read the remaining data after the guest's end.
const MAX_PAUSE_OF_CLIENTS: Duration = Duration::from_secs(2);
/// The pause between two looks at the clients' progress, in ms.
const DRAIN_POLL_MS: i32 = 20;

/// An object that the event manager calls.
type Subscriber = Box<dyn MutEventSubscriber>;

/// The threads that sample a guest.
pub(crate) trait GuestThreads {
    /// Why a thread has ended by itself.
    type End;

    /// Why the first thread has ended by itself, if one has. Whatever makes this so rings the doorbell.
    fn ended(&self) -> Option<Self::End>;

    /// Ends all threads.
    fn stop(&mut self);
}

/// The services that requests from outside the guest reach.
pub(crate) struct Services {
    pub profiler: SharedProfiler,
    pub socket: Option<HostSocket>,
    pub ports: Option<ConsoleService>,
    pub hvc: Option<Arc<HvcConsole>>,
}

/// The state of the event thread.
pub(crate) struct EventLoop {
    manager: EventManager<Subscriber>,
    profiler: SharedProfiler,
    socket: Option<Rc<RefCell<HostSocket>>>,
    ports: Option<Rc<RefCell<ConsoleService>>>,
    hvc: Option<Arc<HvcConsole>>,
    doorbell: Arc<Doorbell>,
    termination: Rc<RefCell<Termination>>,
    quiet_polls: u32,
    flushed: Instant,
}

impl EventLoop {
    pub fn new(
        services: Services,
        doorbell: Arc<Doorbell>,
        termination: Termination,
        others: Vec<Subscriber>,
    ) -> Result<Self, VmError> {
        let mut manager = EventManager::<Subscriber>::new().map_err(VmError::Events)?;
        manager.add_subscriber(Box::new(DoorbellEvents(Arc::clone(&doorbell))));
        let termination = Rc::new(RefCell::new(termination));
        manager.add_subscriber(Box::new(Rc::clone(&termination)));
        let socket = services.socket.map(|socket| Rc::new(RefCell::new(socket)));
        if let Some(socket) = &socket {
            manager.add_subscriber(Box::new(Rc::clone(socket)));
        }
        let ports = services.ports.map(|ports| Rc::new(RefCell::new(ports)));
        if let Some(ports) = &ports {
            manager.add_subscriber(Box::new(Rc::clone(ports)));
        }
        for other in others {
            manager.add_subscriber(other);
        }
        Ok(Self {
            manager,
            profiler: services.profiler,
            socket,
            ports,
            hvc: services.hvc,
            doorbell,
            termination,
            quiet_polls: 0,
            flushed: Instant::now(),
        })
    }

    /// Runs until the guest ends or a request ends it. Then lets clients read the remaining data.
    pub fn run<T: GuestThreads>(mut self, mut vcpus: T) -> Result<Option<T::End>, VmError> {
        let result = self.serve(&vcpus);
        vcpus.stop();
        self.profiler.borrow_mut().end();
        // No program of the guest is left that could read the remaining data.
        if let Some(ports) = &self.ports {
            ports.borrow_mut().end();
        }
        if let Some(hvc) = &self.hvc {
            hvc.finish();
        }
        let ending = result?;
        self.let_clients_drain()?;
        Ok(ending)
    }

    fn serve<T: GuestThreads>(&mut self, vcpus: &T) -> Result<Option<T::End>, VmError> {
        loop {
            self.wait_for_work()?;
            if let Some(ending) = vcpus.ended() {
                return Ok(Some(ending));
            }
            // The guest's memory shows whether its kernel listens to the power button.
            let is_undecided = self.termination.borrow().is_undecided();
            if is_undecided && self.profiler.borrow_mut().has_looked_for_kernel() {
                self.termination.borrow_mut().terminate();
            }
            if self.termination.borrow().requested() {
                return Ok(None);
            }
            self.profile();
        }
    }

    fn wait_for_work(&mut self) -> Result<(), VmError> {
        let ticking = self.profiler.borrow().is_ticking();
        let busy = self.profiler.borrow().is_busy();
        if ticking && !busy && self.quiet_polls < QUIET_POLLS {
            return self.wait(self.until_look(BUSY_POLL_MS));
        }
        self.doorbell.sleeping();
        // An entry or an answer that came just before didn't ring the doorbell.
        let timeout = if self.drain() {
            0
        } else if busy {
            self.wake_endpoints();
            // An answer rings the doorbell. Requests that have taken too long are seen by then.
            let done = !self.profiler.borrow().is_busy();
            if done { 0 } else { BUSY_POLL_MS }
        } else if ticking {
            i32::try_from(FLUSH_INTERVAL.as_millis()).unwrap_or(i32::MAX)
        } else {
            -1
        };
        let result = self.wait(self.until_look(timeout));
        self.doorbell.awake();
        result
    }

    /// `timeout_ms`, or less if the next look at the guest's tasks is due before that.
    fn until_look(&self, timeout_ms: i32) -> i32 {
        let Some(wait) = self.profiler.borrow().wait_for_tasks() else {
            return timeout_ms;
        };
        // The time is rounded up: after a wake-up that is too early the thread would look again at once.
        let wait = i32::try_from(wait.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        if timeout_ms < 0 {
            wait
        } else {
            wait.min(timeout_ms)
        }
    }

    fn wait(&mut self, timeout_ms: i32) -> Result<(), VmError> {
        match self.manager.run_with_timeout(timeout_ms) {
            Ok(_) => Ok(()),
            Err(event_manager::Error::Epoll(error)) if error.errno() == libc::EINTR => Ok(()),
            Err(error) => Err(VmError::Events(error)),
        }
    }

    fn profile(&mut self) {
        if self.flushed.elapsed() >= FLUSH_INTERVAL && self.profiler.borrow().is_ticking() {
            self.profiler.borrow_mut().flush();
            self.flushed = Instant::now();
        }
        self.drain();
        self.wake_endpoints();
    }

    /// Wakes all connections that wait for the devices.
    fn wake_endpoints(&self) {
        self.profiler.borrow_mut().advance();
        if let Some(socket) = &self.socket {
            socket.borrow_mut().wake();
        }
        if let Some(ports) = &self.ports {
            ports.borrow_mut().wake();
        }
    }

    fn drain(&mut self) -> bool {
        let any = self.profiler.borrow_mut().drain();
        self.quiet_polls = if any { 0 } else { self.quiet_polls + 1 };
        any
    }

    fn let_clients_drain(&mut self) -> Result<(), VmError> {
        self.termination.borrow_mut().forget();
        let mut progress = Instant::now();
        let mut sent = 0;
        loop {
            self.profiler.borrow_mut().advance();
            let now_sent = self.socket.as_ref().map_or(0, |socket| {
                let mut socket = socket.borrow_mut();
                socket.wake();
                socket.bytes_sent()
            });
            if sent != now_sent || self.profiler.borrow().is_busy() {
                sent = now_sent;
                progress = Instant::now();
            }
            let profiler = self.profiler.borrow();
            let is_over = !(profiler.has_clients() || profiler.is_busy())
                || self.termination.borrow().requested()
                || progress.elapsed() >= MAX_PAUSE_OF_CLIENTS;
            drop(profiler);
            if is_over {
                self.profiler.borrow_mut().end_recordings();
                return Ok(());
            }
            self.wait(DRAIN_POLL_MS)?;
        }
    }
}

struct DoorbellEvents(Arc<Doorbell>);

impl MutEventSubscriber for DoorbellEvents {
    fn process(&mut self, _events: Events, _ops: &mut EventOps) {
        self.0.awake();
    }

    fn init(&mut self, ops: &mut EventOps) {
        add(ops, Events::new(self.0.event(), EventSet::IN));
    }
}

/// Registers `events`. Logs a failure, after which the events of that source are lost.
pub(crate) fn add(ops: &mut EventOps, events: Events) {
    if let Err(error) = ops.add(events) {
        log::error!("Cannot wait for an event source: {error}");
    }
}
