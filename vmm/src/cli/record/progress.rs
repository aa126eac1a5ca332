//! How far a recording has come, on a terminal.

use std::time::Duration;

use indicatif::{DecimalBytes, HumanCount, ProgressBar, ProgressDrawTarget, ProgressStyle};
use kvmprof_devices::profiling::Ticks;
use kvmprof_report::file::decode_samples;
use kvmprof_report::top::{Piece, StreamReader};

/// How often the time is shown anew.
const INTERVAL: Duration = Duration::from_millis(250);

/// A line on standard error; nothing where that is no terminal.
pub struct Progress {
    /// `None` once there is nothing to show.
    shown: Option<(ProgressBar, StreamReader)>,
    counts: Counts,
}

/// What has been received.
#[derive(Debug, Default)]
struct Counts {
    bytes: u64,
    ticks: u64,
    samples: u64,
    lost: u64,
}

impl Progress {
    /// Begins to show a recording that takes so long, or until it is ended.
    pub fn on_terminal(time: Option<Duration>) -> Self {
        // Hidden where standard error is no terminal.
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if bar.is_hidden() {
            return Self {
                shown: None,
                counts: Counts::default(),
            };
        }
        let end = match time {
            Some(time) => format!("of {:.0} s", time.as_secs_f64().ceil()),
            None => "(Ctrl-C ends it)".to_owned(),
        };
        let style = ProgressStyle::with_template("recording {elapsed} {prefix}: {msg}");
        let bar = bar
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
            .with_prefix(end)
            .with_message(Counts::default().text());
        bar.enable_steady_tick(INTERVAL);
        Self {
            shown: Some((bar, StreamReader::default())),
            counts: Counts::default(),
        }
    }

    /// Shows that `bytes` of the recording have come.
    pub fn show(&mut self, bytes: &[u8]) {
        let Some((bar, reader)) = &mut self.shown else {
            return;
        };
        let counts = &mut self.counts;
        counts.bytes += bytes.len() as u64;
        let read = reader.push(bytes, |piece| {
            if let Piece::Samples(records) = piece {
                // Whoever reads the file will tell what is wrong with it.
                let _ = decode_samples(&records, |ticks, _| counts.add(ticks));
            }
        });
        if read.is_ok() {
            bar.set_message(counts.text());
        } else {
            self.finish();
        }
    }

    /// Leaves the last line as it is.
    pub fn finish(&mut self) {
        if let Some((bar, _)) = self.shown.take() {
            bar.abandon();
        }
    }
}

impl Counts {
    fn add(&mut self, ticks: &Ticks) {
        self.ticks = self.ticks.saturating_add(ticks.total());
        self.samples += u64::from(ticks.sample.is_some());
        self.lost = self.lost.saturating_add(ticks.lost);
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "it is shown with one decimal place"
    )]
    fn text(&self) -> String {
        let share = self.lost as f64 / self.ticks.max(1) as f64;
        format!(
            "{} samples, {}, {:.1} % lost",
            HumanCount(self.samples),
            DecimalBytes(self.bytes),
            share * 100.0
        )
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvmprof_devices::profiling::Sample;

    #[test]
    fn counts_are_told() {
        let mut counts = Counts::default();
        assert_eq!(counts.text(), "0 samples, 0 B, 0.0 % lost");
        let ticks = Ticks {
            lost: 1,
            idle: 2,
            sample: Some(Sample::default()),
            ..Ticks::default()
        };
        for _ in 0..1200 {
            counts.add(&ticks);
        }
        counts.bytes = 12_345;
        assert_eq!(counts.text(), "1,200 samples, 12.35 kB, 25.0 % lost");
    }
}
