//! Raw mode: while a guest runs on the terminal, each key goes to the guest at once and isn't echoed.
//!
//! The terminal belongs to the user, who must get it back on every way out: when [`RawTerminal`]
//! is dropped, when any thread panics, and from the caller's signal handling by
//! [`restore_terminal`].

use std::io::{self, IsTerminal};
use std::panic;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::getpgrp;
use rustix::stdio::stdin;
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp,
    tcsetattr,
};

/// Turns a terminal's special key off (`_POSIX_VDISABLE`).
const NO_KEY: u8 = 0;
/// The terminal's settings before the first change.
static SAVED: OnceLock<Termios> = OnceLock::new();
/// Whether the terminal is in raw mode.
static RAW: AtomicBool = AtomicBool::new(false);

/// Whom the key Ctrl-C of a raw terminal is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// The guest.
    ForGuest,
    /// The terminal's programs, which get SIGINT as usual.
    ForPrograms,
}

/// Keeps standard input's terminal in raw mode while it lives.
#[derive(Debug)]
pub struct RawTerminal(());

impl RawTerminal {
    /// Puts the terminal into raw mode: no echo, no line editing, no signals from keys, except that of Ctrl-C if `interrupt` says so.
    /// Output isn't changed. None if standard input isn't a terminal, or if the terminal belongs to another job.
    ///
    /// # Errors
    /// If the terminal's settings can't be read or changed.
    pub fn enter(interrupt: Interrupt) -> io::Result<Option<Self>> {
        if !io::stdin().is_terminal() || !in_foreground() {
            return Ok(None);
        }
        let before = tcgetattr(stdin())?;
        let saved = SAVED.get_or_init(|| {
            restore_on_panic();
            before
        });
        let mut raw = saved.clone();
        raw.input_modes.remove(
            InputModes::IGNBRK
                | InputModes::BRKINT
                | InputModes::PARMRK
                | InputModes::ISTRIP
                | InputModes::INLCR
                | InputModes::IGNCR
                | InputModes::ICRNL
                | InputModes::IXON,
        );
        raw.local_modes.remove(
            LocalModes::ECHO
                | LocalModes::ECHONL
                | LocalModes::ICANON
                | LocalModes::ISIG
                | LocalModes::IEXTEN,
        );
        raw.special_codes[SpecialCodeIndex::VMIN] = 1;
        raw.special_codes[SpecialCodeIndex::VTIME] = 0;
        if interrupt == Interrupt::ForPrograms {
            raw.local_modes.insert(LocalModes::ISIG);
            for other in [SpecialCodeIndex::VQUIT, SpecialCodeIndex::VSUSP] {
                raw.special_codes[other] = NO_KEY;
            }
        }
        RAW.store(true, Ordering::SeqCst);
        set(&raw)?;
        Ok(Some(Self(())))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        restore_terminal();
    }
}

/// Restores the terminal's settings. Does nothing if it isn't in raw mode. May be called
/// in a signal handler.
pub fn restore_terminal() {
    if RAW.swap(false, Ordering::SeqCst)
        && let Some(saved) = SAVED.get()
    {
        // An error can't be reported if the terminal is gone.
        let _ = set(saved);
    }
}

fn restore_on_panic() {
    let previous = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        restore_terminal();
        previous(info);
    }));
}

/// Whether this process may touch its terminal without being stopped for it (SIGTTOU).
fn in_foreground() -> bool {
    tcgetpgrp(stdin()).is_ok_and(|group| group == getpgrp())
}

fn set(settings: &Termios) -> io::Result<()> {
    Ok(tcsetattr(stdin(), OptionalActions::Now, settings)?)
}
