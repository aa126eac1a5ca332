//! How much a command makes of a recording.

use clap::Args;
use kvmprof_report::room::Room;

use crate::commands::units::parse_memory;

/// The option `--output-limit`.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct OutputLimit {
    /// The most that is made of the recording, written or in memory, such as 4G [default: 128M and 1024 times the recording's size]
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    output_limit: Option<u64>,
}

impl OutputLimit {
    /// The limit that was given, in bytes.
    pub fn bytes(self) -> Option<u64> {
        self.output_limit
    }

    /// The room for what is made of a recording of `length` bytes.
    pub fn room(self, length: usize) -> Room {
        self.output_limit
            .map_or_else(|| Room::of_recording(length), Room::new)
    }
}
