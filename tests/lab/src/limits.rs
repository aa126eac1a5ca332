//! The limits of machines on the command line.

use std::time::Duration;

use clap::Args;
use kvmprof_lab::Lab;

/// Maximum time for which a command may be silent.
const QUIET_LIMIT: Duration = Duration::from_secs(600);

/// When a machine is ended.
#[derive(Debug, Args)]
pub(crate) struct LimitArguments {
    /// End the machine after this many seconds [default: when nothing has come
    /// from it for ten minutes, in which this host had time for it]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: Option<u64>,
}

impl LimitArguments {
    /// Sets the machine's limits. `silence` is the time for which the command may be silent in addition to the usual limit.
    pub(crate) fn apply(&self, lab: Lab, silence: Duration) -> Lab {
        match self.timeout.map(Duration::from_secs) {
            Some(limit) => lab.timeout(limit).quiet_limit(limit),
            None => lab.quiet_limit(QUIET_LIMIT + silence),
        }
    }
}
