//! Requests to end: SIGINT, SIGTERM and SIGHUP as events.
//!
//! Signal handlers write to a socket. signalfd(2) would be worse: every signal to any thread of the process,
//! including the ticks of each vCPU, wakes up a thread that polls a signalfd.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use event_manager::{EventOps, EventSet, Events, MutEventSubscriber};
use signal_hook::SigId;
use signal_hook::low_level::{pipe, unregister};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::event_loop::add;
use super::forced_end;
use super::power_button::PowerButton;
use kvmprof_machine::lock::lock;

/// The signals that ask for the end.
pub(super) const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The signals that [`catch_signals`] has caught, for the guest that starts next.
static CAUGHT: Mutex<Option<Caught>> = Mutex::new(None);

/// Catches the signals that end the program, which [`block_signals`](super::block_signals) has blocked: from now on a second one ends the process within
/// a second, whatever its other threads do, even while the guest is being started and after it has ended. The first signal is kept for the guest that
/// starts next in this process.
///
/// This starts a thread, which [`enter_sandbox`](super::enter_sandbox) contains.
///
/// # Errors
/// The host can't make a socket or start a thread.
pub fn catch_signals() -> io::Result<()> {
    let mut caught = lock(&CAUGHT);
    if caught.is_none() {
        *caught = Some(Caught::new()?);
    }
    forced_end::start()
}

/// Signals, a byte for each.
#[derive(Debug)]
pub(super) struct SignalBytes {
    handlers: Vec<SigId>,
    /// The end that the signals are read from.
    pub stream: UnixStream,
}

impl SignalBytes {
    /// Catches `signals` from now on.
    ///
    /// # Errors
    /// The host can't make a socket.
    pub fn of(signals: &[i32]) -> io::Result<Self> {
        let (stream, write) = UnixStream::pair()?;
        let mut bytes = Self {
            handlers: Vec::new(),
            stream,
        };
        for signal in signals {
            let handler = pipe::register(*signal, write.try_clone()?)?;
            bytes.handlers.push(handler);
        }
        Ok(bytes)
    }
}

impl Drop for SignalBytes {
    fn drop(&mut self) {
        for handler in self.handlers.drain(..) {
            unregister(handler);
        }
    }
}

/// The signals that ask for the end, for the event thread.
#[derive(Debug)]
struct Caught {
    signals: SignalBytes,
    // SIGTERM, which may press the guest's power button instead.
    terminations: SignalBytes,
}

impl Caught {
    fn new() -> io::Result<Self> {
        let caught = Self {
            signals: SignalBytes::of(&[libc::SIGINT, libc::SIGHUP])?,
            terminations: SignalBytes::of(&[libc::SIGTERM])?,
        };
        for bytes in [&caught.signals, &caught.terminations] {
            bytes.stream.set_nonblocking(true)?;
        }
        Ok(caught)
    }
}

/// Waits for one of those signals, and for a request of the program itself.
pub struct Termination {
    caught: Caught,
    stop_request: EventFd,
    power_button: Option<Arc<PowerButton>>,
    // SIGTERM has come, and its effect hasn't been decided yet.
    is_undecided: bool,
    requested: bool,
}

impl Termination {
    /// Takes over the signals that [`catch_signals`] has caught, or else catches signals from now on.
    ///
    /// # Errors
    /// The host can't make a socket or an eventfd, or start a thread.
    pub fn new() -> io::Result<Self> {
        Self::by(EventFd::new(EFD_NONBLOCK)?)
    }

    /// Does what [`Termination::new`] does. Writing to `stop_request` asks for the end, too.
    ///
    /// # Errors
    /// The host can't make a socket or start a thread.
    pub fn by(stop_request: EventFd) -> io::Result<Self> {
        let caught = lock(&CAUGHT).take();
        let caught = caught.map_or_else(Caught::new, Ok)?;
        // The event thread may be stuck and not take them.
        forced_end::start()?;
        Ok(Self {
            caught,
            stop_request,
            power_button: None,
            is_undecided: false,
            requested: false,
        })
    }

    /// Makes the first SIGTERM press `button`, if the guest's kernel listens to it. The guest then ends by itself.
    pub fn press_first(&mut self, button: Arc<PowerButton>) {
        self.power_button = Some(button);
    }

    /// True when SIGTERM has come, until [`Termination::terminate`].
    pub fn is_undecided(&self) -> bool {
        self.is_undecided
    }

    /// Decides what the SIGTERM that has come does. Call this once the guest's kernel is located, if it can be. Only the first SIGTERM
    /// since the guest's start can press its button.
    pub fn terminate(&mut self) {
        self.is_undecided = false;
        let button = self.power_button.as_ref();
        if button.is_some_and(|button| button.press_once()) {
            forced_end::forgive_one();
            log::warn!(
                "SIGTERM has pressed the guest's power button; a second one ends the guest at once"
            );
        } else {
            self.requested = true;
        }
    }

    /// An event that ends the guest when it is written to.
    ///
    /// # Errors
    /// The host has no descriptor left.
    pub fn stop_request(&self) -> io::Result<EventFd> {
        self.stop_request.try_clone()
    }

    /// True once an end has been asked for.
    pub fn requested(&self) -> bool {
        self.requested
    }

    /// Waits for another request, now that the guest has ended. Any of the signals is a request then.
    pub fn forget(&mut self) {
        self.requested = false;
        self.power_button = None;
    }
}

impl MutEventSubscriber for Termination {
    fn process(&mut self, _events: Events, _ops: &mut EventOps) {
        // An empty event isn't an error: another source has called.
        if self.stop_request.read().is_ok() {
            self.requested = true;
        }
        while matches!(self.caught.signals.stream.read(&mut [0; 16]), Ok(1..)) {
            self.requested = true;
        }
        while matches!(self.caught.terminations.stream.read(&mut [0; 1]), Ok(1..)) {
            // A second SIGTERM before the first was decided, or one without a button, asks for the end at once.
            self.requested |= self.is_undecided || self.power_button.is_none();
            self.is_undecided = true;
        }
    }

    fn init(&mut self, ops: &mut EventOps) {
        add(ops, Events::new(&self.caught.signals.stream, EventSet::IN));
        add(
            ops,
            Events::new(&self.caught.terminations.stream, EventSet::IN),
        );
        add(ops, Events::new(&self.stop_request, EventSet::IN));
    }
}
