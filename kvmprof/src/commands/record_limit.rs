//! How long a recording's file may become.

use anyhow::bail;
use clap::Args;
use kvmprof_recording::file::{FileOptions, RecordingFailure};

use super::units::parse_memory;

/// Bytes of the least limit: the kernel's functions should have room.
const LEAST: u64 = 1 << 20;

/// The option `--record-limit` beside `--record`.
#[derive(Clone, Copy, Debug, Args)]
pub struct RecordLimit {
    /// How long the recording's file may become, such as 1G (1M at least): there the recording ends, as a whole one
    #[arg(long, value_name = "SIZE", value_parser = parse_limit, requires = "record")]
    record_limit: Option<u64>,
}

impl RecordLimit {
    /// How a recording's file is written of which `failure` tells afterwards whether it is whole.
    pub fn file(self, failure: &RecordingFailure) -> FileOptions {
        file_options(self.record_limit, failure)
    }
}

/// How a recording's file is written that may have `limit` bytes at most; `failure` tells afterwards whether it is whole.
pub fn file_options(limit: Option<u64>, failure: &RecordingFailure) -> FileOptions {
    FileOptions {
        limit,
        failure: failure.clone(),
        begin: None,
    }
}

/// # Errors
/// What `failure` says: the recording isn't whole.
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
    fn limits_have_room_for_a_recording() {
        assert_eq!(parse_limit("1M"), Ok(1 << 20));
        for wrong in ["0", "1023K", "x"] {
            assert!(parse_limit(wrong).is_err(), "{wrong}");
        }
    }
}
