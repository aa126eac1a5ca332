//! `kvmprof status`.

mod devices;

use anyhow::Context;
use clap::Args;
use kvmprof_abi::wire::device;
use kvmprof_cli::command_line::{Command, Console, ExitStatus};
use kvmprof_cli::text::{visible_rows, write_json};
use kvmprof_client::Connection;
use kvmprof_recording::SamplingEvent;
use kvmprof_recording::status::{
    ClockStatus, ConsumerStatus, LimitsStatus, MachineStatus, PcsStatus, PmcStatus, PrfStatus,
    ProfilStatus, RecorderStatus, Status,
};

use super::targets::TargetArgs;
use super::units::format_memory;
use devices::device_lines;

/// Maximum length of a status document, in bytes. It has some KiB even with 64 vCPUs.
const MAX_STATUS: usize = 1 << 20;

/// Show the machine, the clock and where every tick went
///
/// All counts are ticks of the clock, since the guest was started or since a consumer began. In each equation the
/// terms on the right add up to the number on the left.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0; 1 when there is no such guest; 2 for wrong options.\n\n\
    Example: kvmprof status guest"
)]
pub struct StatusArguments {
    #[command(flatten)]
    target: TargetArgs,
    /// Print the JSON document that the guest's kvmprof gives (guest/abi/WIRE.md describes it)
    #[arg(long)]
    json: bool,
}

impl Command for StatusArguments {
    /// Prints the status of a running guest.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let (document, status) = read_status(&self.target.connect_served()?)?;
        let written = if self.json {
            write_json(console.text(), document)
        } else {
            console.text().write_all(text(&status).as_bytes())
        };
        written.context("Cannot write the status")?;
        Ok(ExitStatus::SUCCESS)
    }
}

const NO_STATUS: &str =
    "The status of the guest cannot be read: use the kvmprof of the release that runs the guest";

/// The status document of the guest at the other end, in its original form, because a newer kvmprof may add members,
/// and in the form that this program knows.
///
/// # Errors
/// There is none, or this program can't read it.
pub(super) fn read_status(connection: &Connection) -> anyhow::Result<(serde_json::Value, Status)> {
    let document = connection.snapshot(device::STATUS, MAX_STATUS)?;
    let status = Status::from_json(&document).context(NO_STATUS)?;
    let document = serde_json::from_slice(&document).context(NO_STATUS)?;
    Ok((document, status))
}

fn text(status: &Status) -> String {
    let mut lines = machine_lines(&status.machine);
    if !status.sandbox.is_empty() {
        let parts = status
            .sandbox
            .iter()
            .map(|(part, how)| format!("{part} {how}"));
        lines.push(format!(
            "sandbox    {}",
            parts.collect::<Vec<_>>().join(", ")
        ));
    }
    lines.extend(clock_lines(&status.clock));
    lines.extend(limit_lines(&status.limits));
    for consumer in &status.consumers {
        let state = consumer_state(consumer);
        lines.push(format!("{:<10} {state}", consumer.name()));
        lines.push(format!(
            "           {}",
            equation(consumer.ledger().fields())
        ));
    }
    visible_rows(&lines)
}

/// A description of the machine's state.
pub(super) fn machine_state(machine: &MachineStatus) -> &'static str {
    match machine {
        MachineStatus { ended: true, .. } => "ended",
        MachineStatus { paused: true, .. } => "paused",
        MachineStatus { held: true, .. } => "held until a client gathers samples",
        _ => "running",
    }
}

fn machine_lines(machine: &MachineStatus) -> Vec<String> {
    let state = machine_state(machine);
    let unclaimed = &machine.unclaimed_accesses;
    let mut lines = vec![
        format!(
            "machine    {}, {} vCPUs, {}, {state}",
            machine.kernel,
            machine.vcpus,
            format_memory(machine.memory_bytes),
        ),
        format!(
            "           no device answered {} port reads, {} port writes, {} MMIO reads, {} MMIO writes",
            unclaimed.port_reads,
            unclaimed.port_writes,
            unclaimed.mmio_reads,
            unclaimed.mmio_writes,
        ),
        format!("processes  {}", machine.introspection),
    ];
    let gaps = machine.linux.iter().flat_map(|linux| &linux.gaps);
    lines.extend(gaps.map(|gap| format!("           {gap}")));
    lines.extend(device_lines(machine));
    lines
}

fn clock_lines(clock: &ClockStatus) -> Vec<String> {
    let jitter = if clock.jitter { " with jitter" } else { "" };
    let state = match (clock.running, &clock.event) {
        (true, _) => "running".to_owned(),
        (false, None) => "stopped".to_owned(),
        (false, Some(event)) => {
            let known = event.parse::<SamplingEvent>();
            let words = known.map_or_else(|_| event.clone(), SamplingEvent::describe);
            format!("stopped, ticks are {words}")
        }
    };
    let mut lines = vec![
        format!(
            "clock      {} Hz by {}{jitter}, {state}; registers from the {}; ticks of halted vCPUs: {}",
            clock.hz, clock.source, clock.registers, clock.halted_ticks,
        ),
        format!("           {}", equation(clock.ledger.fields())),
    ];
    for (vcpu, ledger) in clock.vcpus.iter().enumerate() {
        lines.push(format!("  vCPU {vcpu:<3} {}", equation(ledger.fields())));
    }
    if clock.unread_processes > 0 {
        let count = clock.unread_processes;
        lines.push(format!(
            "           {count} samples have no process: the host's kernel couldn't read it"
        ));
    }
    lines
}

/// The limits that were reached.
fn limit_lines(limits: &LimitsStatus) -> Vec<String> {
    const LATER: &str = "forgotten: recordings that start later lack them";
    const UNWOUND: &str = "stacks there are unwound by frame pointers";
    let all = [
        (limits.forgotten_address_spaces, "address spaces", LATER),
        (limits.forgotten_files, "files of programs", LATER),
        (
            limits.forgotten_modules,
            "changes of the kernel's modules",
            LATER,
        ),
        (
            limits.forgotten_names,
            "names of processes",
            "forgotten until they are sampled again",
        ),
        (
            limits.refused_modules,
            "changes of the kernel's modules",
            "refused: recordings lack them",
        ),
        (limits.refused_tables, "unwind tables of programs", UNWOUND),
        (
            limits.unnamed_functions,
            "functions of programs",
            "without names in recordings",
        ),
        (limits.unread_mappings, "lists of mappings unread", UNWOUND),
    ];
    let reached = all.into_iter().filter(|(count, ..)| *count > 0);
    let mut margin = "limits";
    reached
        .map(|(count, what, effect)| {
            let margin = std::mem::take(&mut margin);
            format!("{margin:<10} {count} {what}, {effect}")
        })
        .collect()
}

fn consumer_state(consumer: &ConsumerStatus) -> String {
    match consumer {
        ConsumerStatus::Pcs(pcs) => pcs_state(pcs).to_owned(),
        ConsumerStatus::Prf(PrfStatus { on, addresses, .. }) => {
            let on = if *on { "on" } else { "off" };
            format!("{on}, {addresses} addresses")
        }
        ConsumerStatus::Recorder(RecorderStatus {
            recording, path, ..
        }) => {
            let state = if *recording { "recording" } else { "ended" };
            format!("{state}, {}", path.as_deref().unwrap_or("to a client"))
        }
        ConsumerStatus::Profil(ProfilStatus { state, kept, .. }) => {
            let place = if *kept {
                "to a client"
            } else {
                "into its memory"
            };
            format!("{state}, {place}")
        }
        ConsumerStatus::Pmc(pmc) => pmc_state(pmc),
        ConsumerStatus::Other(_) => "of a kind that this kvmprof does not know".to_owned(),
    }
}

fn pmc_state(pmc: &PmcStatus) -> String {
    let mut state = format!("{} processes have counters", pmc.processes);
    if pmc.accounts > 0 {
        state += ", all processes are counted";
    }
    if !pmc.kernel.is_empty() {
        state += &format!(", the kernel uses {}", pmc.kernel.join(", "));
    }
    state
}

fn pcs_state(pcs: &PcsStatus) -> &'static str {
    match (pcs.open, pcs.gathering) {
        (true, true) => "open, gathering",
        (true, false) => "open",
        (false, _) => "closed",
    }
}

/// A ledger whose first field is the sum of the others.
fn equation<const N: usize>(fields: [(&'static str, u64); N]) -> String {
    let [(_, ticks), parts @ ..] = fields.as_slice() else {
        return String::new();
    };
    let parts: Vec<String> = parts
        .iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    format!("{ticks} ticks = {}", parts.join(" + "))
}

#[cfg(test)]
mod tests {
    use kvmprof_recording::ConsumerLedger;
    use kvmprof_recording::status::OtherStatus;

    use super::*;

    /// Names come from the command line, from guests of other VMMs, and from the server of the socket.
    #[test]
    fn a_name_makes_no_further_lines() {
        let forged = "x\nclock      0 Hz\t\u{1b}[2J";
        let machine = MachineStatus {
            kernel: forged.to_owned(),
            ..MachineStatus::default()
        };
        let plain = text(&Status::default());
        let shown = text(&Status {
            machine,
            ..Status::default()
        });
        assert_eq!(shown.lines().count(), plain.lines().count(), "{shown}");
        assert!(
            shown.contains("x\u{fffd}clock      0 Hz\u{fffd}\u{fffd}[2J"),
            "{shown}"
        );
    }

    /// No message if none was reached.
    #[test]
    fn limits_are_shown_after_they_were_reached() {
        let plain = text(&Status::default());
        assert!(!plain.contains("limits"), "{plain}");
        let limits = LimitsStatus {
            forgotten_address_spaces: 1,
            forgotten_files: 2,
            forgotten_modules: 3,
            forgotten_names: 4,
            refused_modules: 5,
            refused_tables: 6,
            unnamed_functions: 7,
            unread_mappings: 8,
        };
        let text = text(&Status {
            limits,
            ..Status::default()
        });
        let lines: Vec<&str> = text
            .lines()
            .skip_while(|line| !line.starts_with("limits     1 "))
            .collect();
        for (line, count) in lines.iter().zip(1..=8) {
            assert!(
                line.get(11..)
                    .is_some_and(|rest| rest.starts_with(&format!("{count} "))),
                "{line}"
            );
        }
        assert_eq!(lines.len(), 8, "{text}");
        assert!(lines[1].contains("files of programs, forgotten"), "{text}");
    }

    #[test]
    fn every_consumer_is_shown_with_its_ledger() {
        let ledger = ConsumerLedger {
            ticks: 3,
            recorded: 2,
            lost: 1,
            ..ConsumerLedger::default()
        };
        let status = Status {
            consumers: vec![
                ConsumerStatus::Pcs(PcsStatus::new(true, true, ledger)),
                ConsumerStatus::Prf(PrfStatus::new(255, false, 229, ledger)),
                ConsumerStatus::Other(OtherStatus {
                    name: "pmc".to_owned(),
                    ledger,
                }),
            ],
            ..Status::default()
        };
        let text = text(&status);
        for line in [
            "pcs        open, gathering\n",
            "prf 255    off, 229 addresses\n",
            "pmc        of a kind",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        let account = "           3 ticks = 2 recorded + 0 merged + 0 ungathered + 0 stolen + 1 lost + 0 pending + 0 discarded\n";
        assert_eq!(text.matches(account).count(), 3, "{text}");
    }
}
