//! Ends a command early: by signals, or from another thread.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// The state of a command's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Working,
    Interrupted,
    /// The work is done and can't be interrupted any more.
    Done,
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// There was an interrupt, or the time has passed.
    Stop,
    /// The work is done.
    Done,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// An interrupt of a command. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<Shared>);

/// Interrupts a command from another thread.
#[derive(Clone, Debug)]
pub struct Stopper(Interrupt);

impl Interrupt {
    /// An interrupt by SIGINT or SIGTERM. The command should end then; another one of these signals ends the process by
    /// the default action.
    ///
    /// # Errors
    /// The handlers or their thread can't be set up.
    pub fn on_signals() -> io::Result<Self> {
        let interrupt = Self::default();
        let stopper = interrupt.stopper();
        on_first(&[SIGINT, SIGTERM], move || stopper.stop())?;
        Ok(interrupt)
    }

    /// Like [`on_signals`](Self::on_signals), by SIGINT only.
    ///
    /// # Errors
    /// The handler or its thread can't be set up.
    pub fn on_ctrl_c() -> io::Result<Self> {
        let interrupt = Self::default();
        let stopper = interrupt.stopper();
        on_first(&[SIGINT], move || stopper.stop())?;
        Ok(interrupt)
    }

    /// A handle with which other threads interrupt the command.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.clone())
    }

    /// Whether there was an interrupt.
    pub fn is_raised(&self) -> bool {
        self.state() == State::Interrupted
    }

    /// Ends all waits: the work is done. A later interrupt has no effect.
    pub fn done(&self) {
        self.end(State::Done);
    }

    /// Waits for an interrupt, for [`done`](Self::done), or until `timeout` has passed.
    pub fn wait(&self, timeout: Option<Duration>) -> WaitEnd {
        // A time that the clock can't represent never comes.
        self.wait_until(timeout.and_then(|timeout| Instant::now().checked_add(timeout)));
        match self.state() {
            State::Done => WaitEnd::Done,
            State::Working | State::Interrupted => WaitEnd::Stop,
        }
    }

    /// Waits until `moment`, or forever, and returns true if an interrupt or [`done`](Self::done) came first.
    pub fn comes_before(&self, moment: Option<Instant>) -> bool {
        self.wait_until(moment);
        self.state() != State::Working
    }

    fn wait_until(&self, moment: Option<Instant>) {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        while *state == State::Working {
            let changed = &self.0.changed;
            state = match moment.map(|moment| moment.saturating_duration_since(Instant::now())) {
                None => changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return,
                Some(rest) => {
                    let woken = changed.wait_timeout(state, rest);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn state(&self) -> State {
        *self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, end: State) {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        if *state == State::Working {
            *state = end;
            self.0.changed.notify_all();
        }
    }
}

impl Stopper {
    /// Interrupts the command. Has no effect after it is done.
    pub fn stop(&self) {
        self.0.end(State::Interrupted);
    }
}

/// Ignores the first SIGINT; a later one ends the process.
///
/// # Errors
/// The handlers or their thread can't be set up.
pub fn ignore_first_interrupt() -> io::Result<()> {
    on_first(&[SIGINT], || ())
}

/// Signals within this time after the first count as the same: timeout(1), for example, sends two at once.
const SAME: Duration = Duration::from_millis(200);

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
                // It fails only for signals that can't be caught.
                let _ = emulate_default_handler(signal);
            }
        })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use signal_hook::low_level::raise;

    use super::*;

    #[test]
    fn a_wait_ends_by_an_interrupt_or_in_time() {
        let interrupt = Interrupt::default();
        assert_eq!(interrupt.wait(Some(Duration::ZERO)), WaitEnd::Stop);
        assert!(!interrupt.is_raised());
        let stopper = interrupt.stopper();
        let thread = std::thread::spawn(move || stopper.stop());
        assert_eq!(interrupt.wait(None), WaitEnd::Stop);
        thread.join().unwrap();
        assert!(interrupt.is_raised());
    }

    #[test]
    fn finished_work_is_not_interrupted() {
        let interrupt = Interrupt::default();
        interrupt.done();
        interrupt.stopper().stop();
        assert_eq!(interrupt.wait(None), WaitEnd::Done);
        assert!(!interrupt.is_raised());
    }

    #[test]
    fn a_wait_ends_at_its_deadline_or_an_interrupt() {
        let interrupt = Interrupt::default();
        assert!(!interrupt.comes_before(Some(Instant::now())));
        interrupt.stopper().stop();
        for moment in [Some(Instant::now()), None] {
            assert!(interrupt.comes_before(moment));
        }
    }

    #[test]
    fn the_first_signal_is_an_interrupt() {
        let interrupt = Interrupt::on_signals().unwrap();
        assert!(!interrupt.is_raised());
        raise(SIGINT).unwrap();
        assert!(interrupt.comes_before(None) && interrupt.is_raised());
    }
}
