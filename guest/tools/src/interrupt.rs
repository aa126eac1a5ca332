//! What ends a run before its time.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

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
    /// One that SIGINT and SIGTERM set off; a second signal ends the process as it would
    /// have without this.
    ///
    /// # Errors
    /// When the handlers or their thread can't be set up.
    pub fn on_signals() -> io::Result<Self> {
        let interrupt = Self::default();
        spare_first(&[SIGINT, SIGTERM])?;
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let stopper = interrupt.stopper();
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || signals.forever().for_each(|_| stopper.stop()))?;
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
}

/// Lets the first SIGINT pass without effect; a second one ends the process.
pub(crate) fn ignore_first_interrupt() -> io::Result<()> {
    spare_first(&[SIGINT])
}

/// Lets the first of `signals` pass; after it each has its default effect.
fn spare_first(signals: &[i32]) -> io::Result<()> {
    let caught = Arc::new(AtomicBool::new(false));
    for signal in signals {
        // In this order, the first signal sets the flag only after it was looked at.
        signal_hook::flag::register_conditional_default(*signal, Arc::clone(&caught))?;
        signal_hook::flag::register(*signal, Arc::clone(&caught))?;
    }
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
}
