//! Long work: how far it is, and how it is interrupted.

use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use signal_hook::consts::SIGINT;

use crate::file::Observer;

/// The exit status of a program that SIGINT ended, by the custom of shells.
const INTERRUPTED: i32 = 130;

/// Whether work is to end early.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// One that the first SIGINT raises; a second one ends the program. Where that can't be had, SIGINT does what it
    /// did before.
    pub fn on_signal() -> Self {
        let interrupt = Self::default();
        let flag = || Arc::clone(&interrupt.0);
        // In this order: the first one must not find the flag that it raises.
        let second = signal_hook::flag::register_conditional_shutdown(SIGINT, INTERRUPTED, flag());
        if second.is_ok() {
            let _ = signal_hook::flag::register(SIGINT, flag());
        }
        interrupt
    }

    /// Ends the work.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was raised.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The progress of one command.
#[derive(Clone, Debug)]
pub struct Progress {
    interrupt: Interrupt,
    is_shown: bool,
}

impl Progress {
    /// Shown on standard error if that is a terminal, and interrupted by SIGINT.
    pub fn for_terminal() -> Self {
        Self {
            is_shown: std::io::stderr().is_terminal(),
            ..Self::unseen(Interrupt::on_signal())
        }
    }

    /// Shown nowhere, and interrupted by `interrupt`.
    pub fn unseen(interrupt: Interrupt) -> Self {
        Self {
            interrupt,
            is_shown: false,
        }
    }

    /// A part of the work, of which `what` says what it is.
    pub fn of(&self, what: &'static str) -> Part {
        let target = if self.is_shown {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(None, target).with_message(what);
        let style = ProgressStyle::with_template("{msg:14} {wide_bar} {percent:>3} %");
        if let Ok(style) = style {
            bar.set_style(style);
        }
        Part {
            interrupt: self.interrupt.clone(),
            bar,
        }
    }
}

/// A part of the work.
#[derive(Debug)]
pub struct Part {
    interrupt: Interrupt,
    bar: ProgressBar,
}

impl Observer for Part {
    fn advance(&self, done: u64, whole: u64) -> ControlFlow<()> {
        self.bar.set_length(whole);
        self.bar.set_position(done);
        if self.interrupt.is_raised() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_signal_is_an_interrupt() {
        let interrupt = Interrupt::on_signal();
        assert!(!interrupt.is_raised());
        signal_hook::low_level::raise(SIGINT).unwrap();
        assert!(interrupt.is_raised());
    }

    #[test]
    fn an_interrupt_ends_all_parts() {
        let progress = Progress::unseen(Interrupt::default());
        let (first, second) = (progress.of("a"), progress.of("b"));
        assert!(first.advance(1, 2).is_continue());
        progress.interrupt.raise();
        assert!(first.advance(2, 2).is_break());
        assert!(second.advance(0, 0).is_break());
    }
}
