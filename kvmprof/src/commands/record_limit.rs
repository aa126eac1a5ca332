//! The maximum length of a recording's file.

use anyhow::bail;
use clap::Args;
use kvmprof_recording::file::{FileOptions, RecordingFailure};

use super::units::parse_memory;

/// The lowest limit, in bytes. The kernel's functions should have room.
const LEAST: u64 = 1 << 20;

/// The option `--record-limit` beside `--record`.
#[derive(Clone, Copy, Debug, Args)]
pub struct RecordLimit {
    /// How long the recording's file may become, such as 1G (1M at least): there the recording ends, as a whole one
    #[arg(long, value_name = "SIZE", value_parser = parse_limit, requires = "record")]
    record_limit: Option<u64>,
}

impl RecordLimit {
    /// The options for writing a recording's file. `failure` says afterwards whether it is complete.
    pub fn file(self, failure: &RecordingFailure) -> FileOptions {
        file_options(self.record_limit, failure)
    }
}

/// The options for writing a recording's file of at most `limit` bytes. `failure` says afterwards whether it is complete.
pub fn file_options(limit: Option<u64>, failure: &RecordingFailure) -> FileOptions {
    FileOptions {
        limit,
        failure: failure.clone(),
        ..FileOptions::default()
    }
}

/// Checks that the recording is complete.
///
/// # Errors
/// `failure` says that the recording is incomplete.
pub fn whole_recording(failure: &RecordingFailure) -> anyhow::Result<()> {
    failure.message().map_or(Ok(()), |why| bail!("{why}"))
}

/// The bytes of a `--record-limit`.
pub fn parse_limit(text: &str) -> Result<u64, String> {
    let bytes = parse_memory(text)?;
    if bytes < LEAST {
        return Err(format!(
            "'{text}' is too little for a recording: 1M is the least"
        ));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_allow_a_minimal_recording() {
        assert_eq!(parse_limit("1M"), Ok(1 << 20));
        for wrong in ["0", "1023K", "x"] {
            assert!(parse_limit(wrong).is_err(), "{wrong}");
        }
    }
}
