//! Raw mode: while a guest runs on the terminal, each key goes to it at once and unseen.
//!
//! The terminal belongs to the user, who must get it back on every way out: when [`RawTerminal`]
//! is dropped, when any thread panics, and from the caller's signal handling by
//! [`restore_terminal`].

use std::io::{self, IsTerminal};
use std::panic;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The terminal's settings before the first change.
static SAVED: OnceLock<libc::termios> = OnceLock::new();
/// Whether the terminal is in raw mode.
static RAW: AtomicBool = AtomicBool::new(false);

/// Keeps standard input's terminal in raw mode while it lives.
#[derive(Debug)]
pub struct RawTerminal(());

impl RawTerminal {
    /// Puts the terminal into raw mode: no echo, no line editing, no signals from keys (Ctrl-C
    /// goes to the guest). Output is left alone. None if standard input is no terminal, or if it
    /// is another job's.
    ///
    /// # Errors
    /// If the terminal doesn't tell or take its settings.
    pub fn enter() -> io::Result<Option<Self>> {
        if !io::stdin().is_terminal() || !in_foreground() {
            return Ok(None);
        }
        let before = settings()?;
        let saved = *SAVED.get_or_init(|| {
            restore_on_panic();
            before
        });
        let mut raw = saved;
        raw.c_iflag &= !(libc::IGNBRK
            | libc::BRKINT
            | libc::PARMRK
            | libc::ISTRIP
            | libc::INLCR
            | libc::IGNCR
            | libc::ICRNL
            | libc::IXON);
        raw.c_lflag &= !(libc::ECHO | libc::ECHONL | libc::ICANON | libc::ISIG | libc::IEXTEN);
        raw.c_cc[libc::VMIN] = 1;
        raw.c_cc[libc::VTIME] = 0;
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

/// Gives the terminal back as it was. Does nothing if it isn't in raw mode, and may be called
/// in a signal handler.
pub fn restore_terminal() {
    if RAW.swap(false, Ordering::SeqCst)
        && let Some(saved) = SAVED.get()
    {
        // There is nobody to tell if the terminal is gone.
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
    // SAFETY: Both calls only return numbers.
    unsafe { libc::tcgetpgrp(libc::STDIN_FILENO) == libc::getpgrp() }
}

fn settings() -> io::Result<libc::termios> {
    // SAFETY: termios is plain numbers, for which zero is valid.
    let mut settings: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: `settings` is valid for writing until the call returns.
    let result = unsafe { libc::tcgetattr(libc::STDIN_FILENO, &raw mut settings) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(settings)
}

fn set(settings: &libc::termios) -> io::Result<()> {
    // SAFETY: `settings` is valid for reading until the call returns.
    let result = unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, settings) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
