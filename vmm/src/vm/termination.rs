//! Requests to end: SIGINT, SIGTERM and SIGHUP as events.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use event_manager::{EventOps, EventSet, Events, MutEventSubscriber};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::event_loop::add;

const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Blocks the signals that end the program in the calling thread and all that it makes from now
/// on, so that they come as events instead. To be called before any other thread exists.
///
/// # Errors
/// What pthread_sigmask(3) says.
pub fn block_signals() -> io::Result<()> {
    let set = signal_set();
    // SAFETY: `set` is an initialised signal set; the old one isn't wanted.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn signal_set() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set; the signal numbers are valid.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in SIGNALS {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// Waits for one of those signals, and for the program's own wish to end.
#[derive(Debug)]
pub struct Termination {
    signals: OwnedFd,
    wish: EventFd,
    requested: bool,
}

impl Termination {
    /// Waits for the signals that [`block_signals`] has blocked.
    ///
    /// # Errors
    /// When the host gives no signalfd or eventfd.
    pub fn new() -> io::Result<Self> {
        let set = signal_set();
        // SAFETY: `set` is valid; -1 asks for a new descriptor.
        let signals =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) };
        if signals < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            // SAFETY: the descriptor was just made and nobody else owns it.
            signals: unsafe { OwnedFd::from_raw_fd(signals) },
            wish: EventFd::new(EFD_NONBLOCK)?,
            requested: false,
        })
    }

    /// Written to by those who want the guest to end.
    ///
    /// # Errors
    /// When the host gives no descriptor.
    pub fn wish(&self) -> io::Result<EventFd> {
        self.wish.try_clone()
    }

    /// True once an end has been asked for.
    pub fn requested(&self) -> bool {
        self.requested
    }

    /// Waits for another request.
    pub fn forget(&mut self) {
        self.requested = false;
    }

    fn take(descriptor: RawFd) {
        // A signalfd_siginfo is 128 bytes, an eventfd's counter 8.
        let mut buffer = [0u8; 128];
        // SAFETY: the buffer is as long as stated; the descriptor doesn't block.
        while unsafe { libc::read(descriptor, buffer.as_mut_ptr().cast(), buffer.len()) } > 0 {}
    }
}

impl MutEventSubscriber for Termination {
    fn process(&mut self, events: Events, _ops: &mut EventOps) {
        Self::take(events.fd());
        self.requested = true;
    }

    fn init(&mut self, ops: &mut EventOps) {
        add(ops, Events::new(&self.signals.as_raw_fd(), EventSet::IN));
        add(ops, Events::new(&self.wish, EventSet::IN));
    }
}
