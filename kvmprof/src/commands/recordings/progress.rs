//! The progress of long work, and its interruption.

use std::io::IsTerminal;
use std::ops::ControlFlow;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kvmprof_cli::interrupt::Interrupt;
use kvmprof_recording::file::Observer;

/// The progress of one command.
#[derive(Clone, Debug)]
pub struct Progress {
    interrupt: Interrupt,
    is_shown: bool,
}

impl Progress {
    /// Progress that is shown on standard error if that is a terminal, and interrupted by SIGINT. If SIGINT can't be
    /// caught, it ends the program.
    pub fn for_terminal() -> Self {
        Self {
            is_shown: std::io::stderr().is_terminal(),
            ..Self::unseen(Interrupt::on_ctrl_c().unwrap_or_default())
        }
    }

    /// The same, but SIGINT ends the program.
    pub fn uninterrupted() -> Self {
        Self {
            is_shown: std::io::stderr().is_terminal(),
            ..Self::unseen(Interrupt::default())
        }
    }

    /// The interrupt of the work.
    pub fn interrupt(&self) -> &Interrupt {
        &self.interrupt
    }

    /// Progress that isn't shown, and that `interrupt` interrupts.
    pub fn unseen(interrupt: Interrupt) -> Self {
        Self {
            interrupt,
            is_shown: false,
        }
    }

    /// A part of the work, with the description `what`.
    pub fn of(&self, what: &'static str) -> ProgressPart {
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
        ProgressPart {
            interrupt: self.interrupt.clone(),
            bar,
        }
    }
}

/// A part of the work.
#[derive(Debug)]
pub struct ProgressPart {
    interrupt: Interrupt,
    bar: ProgressBar,
}

impl Observer for ProgressPart {
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

impl Drop for ProgressPart {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_ends_all_parts() {
        let progress = Progress::unseen(Interrupt::default());
        let (first, second) = (progress.of("a"), progress.of("b"));
        assert!(first.advance(1, 2).is_continue());
        progress.interrupt.stopper().stop();
        assert!(first.advance(2, 2).is_break());
        assert!(second.advance(0, 0).is_break());
    }
}
