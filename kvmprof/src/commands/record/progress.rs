//! The progress of a recording, on a terminal.

use std::time::Duration;

use indicatif::{DecimalBytes, HumanCount, ProgressBar};

use kvmprof_recording::SamplingEvent;
use kvmprof_recording::file::{Account, Piece, ReadError, Reader};

use crate::commands::live_line::live_line;

/// Counts the received data, and shows it as a line on standard error if that is a terminal.
pub struct Progress {
    bar: Option<ProgressBar>,
    /// `None` after an invalid part of the stream.
    reader: Option<Reader>,
    counts: Counts,
}

/// A description of a recording of `bytes` bytes, by an event or by the clock.
pub fn summary(account: &Account, event: Option<SamplingEvent>, bytes: u64) -> String {
    let counts = Counts {
        bytes,
        account: *account,
        event: event.map(SamplingEvent::describe),
    };
    counts.text()
}

/// The received data.
#[derive(Debug, Default)]
struct Counts {
    bytes: u64,
    account: Account,
    /// A description of the event that makes the ticks; `None` for the clock.
    event: Option<String>,
}

impl Progress {
    /// Starts to show a recording that takes this time, or until it is ended.
    pub fn on_terminal(time: Option<Duration>) -> Self {
        let bar = live_line("recording", time);
        if let Some(bar) = &bar {
            bar.set_message(Counts::default().text());
        }
        let mut progress = Self::unseen();
        progress.bar = bar;
        progress
    }

    /// Counts without a line on the terminal.
    pub fn unseen() -> Self {
        Self {
            bar: None,
            reader: Some(Reader::default()),
            counts: Counts::default(),
        }
    }

    /// Takes the next `bytes` of the recording into account.
    pub fn count(&mut self, bytes: &[u8]) {
        self.counts.bytes += bytes.len() as u64;
        if let Some(reader) = &mut self.reader
            && self.counts.read(reader, bytes).is_err()
        {
            // The reader of the file will report the error.
            self.reader = None;
        }
        if let Some(bar) = &self.bar {
            bar.set_message(self.counts.text());
        }
    }

    /// Whether the recording has ticks so far. Also true for a recording that can't be read, because the user may want
    /// to keep it.
    pub fn has_ticks(&self) -> bool {
        self.counts.account.ticks > 0 || self.reader.is_none()
    }

    /// Removes the line, and returns a description of the recording.
    pub fn finish(mut self) -> String {
        self.clear();
        self.counts.text()
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Counts {
    /// Counts the ticks in the next `bytes` of the recording.
    fn read(&mut self, reader: &mut Reader, bytes: &[u8]) -> Result<(), ReadError> {
        reader.push(bytes);
        while let Some(block) = reader.next_block()? {
            match block.piece()? {
                Some(Piece::Samples(samples)) => {
                    samples.read(|ticks, _| self.account.enter(ticks))?;
                }
                Some(Piece::Info(info)) => self.event = info.event.map(SamplingEvent::describe),
                _ => {}
            }
        }
        Ok(())
    }

    #[expect(
        clippy::cast_precision_loss,
        reason = "it is shown with one decimal place"
    )]
    fn text(&self) -> String {
        let percent = |part: u64| part as f64 * 100.0 / self.account.ticks.max(1) as f64;
        // Ticks that are events aren't stolen.
        let (by_event, stolen) = match &self.event {
            Some(event) => (format!(" of {event}"), String::new()),
            None => {
                let stolen = percent(self.account.stolen);
                (String::new(), format!("{stolen:.1} % stolen, "))
            }
        };
        format!(
            "{} samples{by_event}, {}, {stolen}{:.1} % lost",
            HumanCount(self.account.samples),
            DecimalBytes(self.bytes),
            percent(self.account.lost)
        )
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvmprof_recording::{Sample, Ticks};

    #[test]
    fn progress_has_the_counts() {
        let mut counts = Counts::default();
        assert_eq!(counts.text(), "0 samples, 0 B, 0.0 % stolen, 0.0 % lost");
        let ticks = Ticks {
            lost: 1,
            stolen: 6,
            idle: 2,
            sample: Some(Sample::default()),
            ..Ticks::default()
        };
        for _ in 0..1200 {
            counts.account.enter(&ticks);
        }
        counts.bytes = 12_345;
        let expected = "1,200 samples, 12.35 kB, 60.0 % stolen, 10.0 % lost";
        assert_eq!(counts.text(), expected);
        counts.event = Some("every 10 exits".to_owned());
        let expected = "1,200 samples of every 10 exits, 12.35 kB, 10.0 % lost";
        assert_eq!(counts.text(), expected);
    }
}
