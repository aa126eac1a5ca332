//! What ends a run before its time.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// Somebody asked for the end, or the time was up.
    Stop,
    /// There is nothing to end any more.
    Done,
}

/// Waits for the end of one run: a signal, or a [`Stopper`].
#[derive(Debug)]
pub struct Interrupt {
    sender: Sender<Woken>,
    receiver: Receiver<Woken>,
}

/// Ends a run from another thread.
#[derive(Clone, Debug)]
pub struct Stopper(Sender<Woken>);

impl Default for Interrupt {
    fn default() -> Self {
        let (sender, receiver) = channel();
        Self { sender, receiver }
    }
}

impl Interrupt {
    /// One that SIGINT and SIGTERM set off; if it takes too long then, another one ends the process
    /// as it would have without this.
    ///
    /// # Errors
    /// When the handlers or their thread can't be set up.
    pub fn on_signals() -> io::Result<Self> {
        let interrupt = Self::default();
        let stopper = interrupt.stopper();
        on_first(&[SIGINT, SIGTERM], move || stopper.stop())?;
        Ok(interrupt)
    }

    /// A handle to set it off with.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.sender.clone())
    }

    /// Waits until it is set off, or done with, or `timeout` has passed.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Woken {
        let woken = match timeout {
            Some(timeout) => self.receiver.recv_timeout(timeout),
            None => self.receiver.recv().map_err(RecvTimeoutError::from),
        };
        // It holds a sender itself, so that nothing but the time can end a wait otherwise.
        woken.unwrap_or(Woken::Stop)
    }

    /// Waits until `moment`, which may never come, unless it is set off or done with before: then
    /// true.
    pub(crate) fn comes_before(&self, moment: Option<Instant>) -> bool {
        let Some(moment) = moment else {
            return self.receiver.recv().is_ok();
        };
        let timeout = moment.saturating_duration_since(Instant::now());
        self.receiver.recv_timeout(timeout).is_ok()
    }
}

/// Lets SIGINT pass without effect at first; a later one ends the process.
pub(crate) fn ignore_first_interrupt() -> io::Result<()> {
    on_first(&[SIGINT], || ())
}

/// Signals that come within this time of the first are the same to a user: timeout(1), say, sends
/// two at once.
const SAME: Duration = Duration::from_secs(1);

/// Calls `act` at the first of `signals`; a later one has its default effect.
fn on_first(signals: &[i32], act: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new(signals)?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            let mut coming = signals.forever();
            if coming.next().is_some() {
                act();
            }
            let first = Instant::now();
            for signal in coming.filter(|_| first.elapsed() > SAME) {
                // It fails only for signals that can't be caught in the first place.
                let _ = emulate_default_handler(signal);
            }
        })?;
    Ok(())
}

impl Stopper {
    /// Ends the run. Does nothing when it has ended already.
    pub fn stop(&self) {
        self.send(Woken::Stop);
    }

    /// Ends the wait only.
    pub(crate) fn done(&self) {
        self.send(Woken::Done);
    }

    fn send(&self, woken: Woken) {
        // An error means that nobody waits any more.
        let _ = self.0.send(woken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_by_a_stop_or_in_time() {
        let interrupt = Interrupt::default();
        assert_eq!(interrupt.wait(Some(Duration::ZERO)), Woken::Stop);
        interrupt.stopper().done();
        assert_eq!(interrupt.wait(None), Woken::Done);
        let stopper = interrupt.stopper();
        let thread = std::thread::spawn(move || stopper.stop());
        assert_eq!(interrupt.wait(None), Woken::Stop);
        thread.join().unwrap();
    }

    #[test]
    fn a_moment_comes_unless_a_stop_does() {
        let interrupt = Interrupt::default();
        assert!(!interrupt.comes_before(Some(Instant::now())));
        for moment in [Some(Instant::now()), None] {
            interrupt.stopper().stop();
            assert!(interrupt.comes_before(moment));
        }
    }
}
