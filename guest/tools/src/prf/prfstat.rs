//! prfstat: shows and sets whether profiling is on.

use std::io::Write;

use clap::Args;

use super::{PrfError, Profiler};
use crate::device::DeviceOptions;
use kvmprof_cli::command_line::{Command, Console, ExitStatus};

/// Turn kernel profiling on or off, and show its state
///
/// Without an argument prfstat shows the state only: "profiling enabled" or "profiling disabled", and, if
/// prfld has loaded a table, "N kernel text addresses". Counts are kept when profiling is turned on; loading a table sets
/// them to 0. Profiling stays on after the command has ended, until prfstat off.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exit status: 0; 1 for another word than on or off, when no table is loaded that \
    could be turned on, or when the profiler cannot be reached; 2 for wrong options.\n\n\
    Examples:\n  prfstat\n  prfstat on\n  prfstat -f 0 off    (the first vCPU's profiler)"
)]
pub struct PrfstatArguments {
    /// What to do: on or off
    #[arg(value_name = "on|off")]
    pub state: Option<String>,

    /// Which profiler
    #[command(flatten)]
    pub device: DeviceOptions,
}

impl Command for PrfstatArguments {
    /// Sets the state, if requested, and prints it.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let wanted = match self.state.as_deref() {
            None => None,
            Some("on") => Some(true),
            Some("off") => Some(false),
            Some(word) => {
                let word = word.to_owned();
                return Err(PrfError::Eh { word }.into());
            }
        };
        let device = self.device.open()?;
        set_and_show(&Profiler::new(&*device), wanted, console.text())?;
        Ok(ExitStatus::SUCCESS)
    }
}

/// Sets the state to `wanted`, if there is one, and writes the resulting state.
///
/// # Errors
/// [`PrfError::NotLoaded`] for on without a table; or the device's error.
pub fn set_and_show(
    profiler: &Profiler<'_>,
    wanted: Option<bool>,
    output: &mut dyn Write,
) -> Result<(), PrfError> {
    if let Some(on) = wanted {
        profiler.turn(on)?;
    }
    let (on, loaded) = profiler.state()?;
    let mut text = format!("profiling {}\n", if on { "enabled" } else { "disabled" });
    if loaded {
        text += &format!("{} kernel text addresses\n", profiler.size()?);
    }
    output.write_all(text.as_bytes()).map_err(PrfError::Write)?;
    if wanted == Some(true) && !on {
        return Err(PrfError::NotLoaded);
    }
    Ok(())
}
