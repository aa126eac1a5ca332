//! `kvmprof control`.

use std::io::{self, Write};

use anyhow::Context;
use clap::{Args, ValueEnum};
use kvmprof_abi::control::{CTL_PAUSE, CTL_POWER_BUTTON, CTL_RESET, CTL_RESUME, CTL_STOP};
use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::device;
use kvmprof_cli::command_line::{Command, Console, ExitStatus, usage};
use kvmprof_cli::text::{visible_rows, write_json};
use kvmprof_client::{ClientError, Connection};
use kvmprof_recording::status::MachineStatus;

use super::status::{machine_state, read_status};
use super::targets::TargetArgs;
use super::units::format_memory;

/// What the guest is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Action {
    /// Hold the vCPUs: no instruction is executed, and there are no ticks. Returns when all of them stand still
    Pause,
    /// Let the vCPUs go on
    Resume,
    /// Press the power button: the guest's system powers off in order, if its kernel listens to the button
    PowerButton,
    /// Restart the guest as it was at its start; with run --on-reset exit, end it
    Reset,
    /// End the guest at once
    Stop,
    /// Show what the guest does, and change nothing
    Info,
}

/// Pause, resume, restart or end a running guest, or press its power button
///
/// Only a guest that kvmprof run runs can be controlled; kvmprof attach only looks at its guest.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0; 1 when there is no such guest, or it can't do that now; 2 for wrong options.\n\n\
    Example: kvmprof control pause guest"
)]
pub struct ControlArguments {
    /// What the guest is to do
    #[arg(value_enum, value_name = "ACTION")]
    action: Action,
    #[command(flatten)]
    target: TargetArgs,
    /// With info: print the machine's part of the status document (guest/abi/WIRE.md describes it)
    #[arg(long)]
    json: bool,
}

impl Command for ControlArguments {
    /// Sends a request to a running guest.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        if self.json && self.action != Action::Info {
            return Err(usage("--json is for info: other actions print nothing"));
        }
        let connection = self.target.connect_own("control")?;
        let Some(command) = self.action.command() else {
            let written = self.info(&connection, console.text())?;
            written.context("Cannot write what the guest does")?;
            return Ok(ExitStatus::SUCCESS);
        };
        let carried_out = connection
            .open(device::CONTROL, 0)
            .and_then(|device| device.ioctl(command, 0));
        if let Err(error) = carried_out {
            return match reason(&error) {
                Some(reason) => Err(anyhow::anyhow!(reason)),
                None => Err(error.into()),
            };
        }
        Ok(ExitStatus::SUCCESS)
    }
}

impl ControlArguments {
    /// Prints what the guest does.
    fn info(&self, connection: &Connection, out: &mut dyn Write) -> anyhow::Result<io::Result<()>> {
        let (document, status) = read_status(connection)?;
        if !self.json {
            return Ok(out.write_all(text(&status.machine).as_bytes()));
        }
        let machine = document.get("machine").cloned().unwrap_or_default();
        Ok(write_json(out, machine))
    }
}

impl Action {
    /// The device's command, if the action is one.
    fn command(self) -> Option<u32> {
        match self {
            Self::Pause => Some(CTL_PAUSE),
            Self::Resume => Some(CTL_RESUME),
            Self::PowerButton => Some(CTL_POWER_BUTTON),
            Self::Reset => Some(CTL_RESET),
            Self::Stop => Some(CTL_STOP),
            Self::Info => None,
        }
    }
}

/// Advice for a refused action.
fn reason(error: &ClientError) -> Option<&'static str> {
    Some(match error.errno()? {
        Errno::EACCES => {
            "The guest is another program's: control it with the program that runs it; kvmprof attach only looks at it"
        }
        Errno::ENODEV | Errno::EINVAL => {
            "The guest's kvmprof doesn't know this: use the kvmprof of the release that runs the guest"
        }
        Errno::ENXIO => "The guest has ended",
        Errno::EAGAIN => {
            "Nobody listens to the power button: the guest's kernel hasn't taken it, or has no driver for it; \
             kvmprof control stop ends the guest at once"
        }
        Errno::EBUSY => "The guest is paused: kvmprof control resume lets it go on",
        _ => return None,
    })
}

fn text(machine: &MachineStatus) -> String {
    let button = if machine.power_button {
        "the guest's kernel listens to it"
    } else {
        "nobody listens to it"
    };
    let lines = [
        format!("state         {}", machine_state(machine)),
        format!("power button  {button}"),
        format!("restarts      {}", machine.resets),
        format!("kernel        {}", machine.kernel),
        format!("vCPUs         {}", machine.vcpus),
        format!("memory        {}", format_memory(machine.memory_bytes)),
    ];
    visible_rows(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_makes_no_further_lines() {
        let machine = MachineStatus {
            kernel: "x\nstate         ended".to_owned(),
            ..MachineStatus::default()
        };
        let shown = text(&machine);
        assert_eq!(shown.lines().count(), 6, "{shown}");
        assert!(
            shown.contains("kernel        x\u{fffd}state         ended\n"),
            "{shown}"
        );
    }
}
