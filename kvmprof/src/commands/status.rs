//! `kvmprof status`.

use anyhow::Context;
use clap::Args;
use kvmprof_abi::wire::device;
use kvmprof_client::Connection;
use kvmprof_recording::SamplingEvent;
use kvmprof_recording::status::{
    BalloonStatus, ClockStatus, ConsumerStatus, DiskStatus, FolderStatus, LimitsStatus,
    MachineStatus, NetworkStatus, PcsStatus, PmcStatus, PrfStatus, ProfilStatus, RecorderStatus,
    Status, VsockStatus,
};
use kvmprof_tools::command_line::{Command, Console, ExitStatus, SocketArgs};
use kvmprof_tools::text::{visible_json, visible_rows};

use super::units::format_memory;

/// Maximum length of a status document, in bytes. It has some KiB even with 64 vCPUs.
const MAX_STATUS: usize = 1 << 20;

/// Show the machine, the clock and where every tick went
///
/// All counts are ticks of the clock, since the guest was started or since a consumer began. In each equation the
/// terms on the right add up to the number on the left.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0; 1 when there is no guest at the socket; 2 for wrong options.\n\n\
    Example: kvmprof status --socket /run/guest.sock"
)]
pub struct StatusArguments {
    #[command(flatten)]
    socket: SocketArgs,
    /// Print the JSON document that the guest's kvmprof gives (guest/abi/WIRE.md describes it)
    #[arg(long)]
    json: bool,
}

impl Command for StatusArguments {
    /// Prints the status of a running guest.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let (document, status) = read_status(&self.socket.connect()?)?;
        let text = if self.json {
            visible_json(&format!("{document}\n"))
        } else {
            text(&status)
        };
        let written = console.output.write_all(text.as_bytes());
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
    lines.extend(machine.networks.iter().flat_map(network_lines));
    lines.extend(machine.folders.iter().flat_map(folder_lines));
    lines.extend(machine.balloon.iter().flat_map(balloon_lines));
    lines.extend(machine.vsock.iter().flat_map(vsock_lines));
    if let Some(entropy) = &machine.entropy {
        lines.push(format!(
            "entropy    {} bytes in {} requests; {} queue faults, {} errors of the host",
            entropy.bytes, entropy.requests, entropy.queue_faults, entropy.source_errors,
        ));
    }
    if let Some(virtio) = &machine.virtio {
        lines.push(format!(
            "virtio     {} resets, {} refused queues, {} control faults",
            virtio.resets, virtio.refused_queues, virtio.control_faults,
        ));
        lines.extend(virtio.ports.iter().map(|port| {
            format!(
                "  {:<9} {} queue faults, {} protocol faults",
                port.name, port.queue_faults, port.protocol_faults,
            )
        }));
    }
    lines.extend(machine.disks.iter().flat_map(disk_lines));
    lines
}

fn disk_lines(disk: &DiskStatus) -> [String; 2] {
    let counts = &disk.counts;
    let readonly = if disk.readonly { ", readonly" } else { "" };
    [
        format!(
            "disk       {}, {}, {}{readonly}",
            disk.path,
            disk.format,
            format_memory(disk.bytes),
        ),
        format!(
            "           {} reads ({} bytes), {} writes ({} bytes), {} flushes, {} discards, {} zeroings, {} errors, {} refused, {} queue faults",
            counts.reads,
            counts.bytes_read,
            counts.writes,
            counts.bytes_written,
            counts.flushes,
            counts.discards,
            counts.zeroings,
            counts.errors,
            counts.refused,
            counts.queue_faults,
        ),
    ]
}

fn network_lines(network: &NetworkStatus) -> Vec<String> {
    let state = if network.up { "up" } else { "down" };
    let NetworkStatus { received, sent, .. } = network;
    vec![
        format!(
            "network    {}, {}, link {state}, {} times lost",
            network.peer, network.mac, network.link_losses,
        ),
        format!(
            "  received {} frames, {} bytes; {} dropped",
            received.frames, received.bytes, received.dropped,
        ),
        format!(
            "  sent     {} frames, {} bytes; {} dropped, {} malformed",
            sent.frames, sent.bytes, sent.dropped, sent.malformed,
        ),
        format!(
            "           {} resets, {} refused queues, {} queue faults, {} faults of the other end",
            network.resets, network.refused_queues, network.queue_faults, network.peer_faults,
        ),
    ]
}

fn folder_lines(folder: &FolderStatus) -> Vec<String> {
    let readonly = if folder.readonly { ", readonly" } else { "" };
    let mut lines = vec![
        format!(
            "folder     {}, {}{readonly}, {}",
            folder.tag, folder.source, folder.state,
        ),
        format!(
            "           {} failures, {} restarts, {} refused requests, {} resets, {} refused queues, {} queue faults",
            folder.failures,
            folder.restarts,
            folder.refused_requests,
            folder.resets,
            folder.refused_queues,
            folder.queue_faults,
        ),
    ];
    if let Some(failure) = &folder.failure {
        lines.push(format!("           failed last because {failure}"));
    }
    lines
}

/// Descriptions of a balloon's size, and of the memory that the guest reports.
pub(super) fn balloon_words(balloon: &BalloonStatus) -> [String; 2] {
    let guest = &balloon.guest;
    let amount = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), format_memory);
    [
        format!(
            "{} of {} held",
            format_memory(balloon.held_bytes),
            format_memory(balloon.target_bytes),
        ),
        format!(
            "{} in all, {} free, {} available",
            amount(guest.total_bytes),
            amount(guest.free_bytes),
            amount(guest.available_bytes),
        ),
    ]
}

fn balloon_lines(balloon: &BalloonStatus) -> [String; 4] {
    let [held, guest] = balloon_words(balloon);
    [
        format!("balloon    {held}"),
        format!("           the guest's memory: {guest}"),
        format!(
            "           {} inflated, {} deflated, {} reported free",
            format_memory(balloon.inflated_bytes),
            format_memory(balloon.deflated_bytes),
            format_memory(balloon.reported_bytes),
        ),
        format!(
            "           {} resets, {} refused queues, {} queue faults, {} refused pages",
            balloon.resets, balloon.refused_queues, balloon.queue_faults, balloon.refused_pages,
        ),
    ]
}

fn vsock_lines(vsock: &VsockStatus) -> [String; 4] {
    [
        format!(
            "vsock      CID {}, {}, {} connections",
            vsock.cid, vsock.socket, vsock.connections
        ),
        format!(
            "  to guest {} connections, {} refused, {} turned away; {} bytes",
            vsock.counts.host_connections,
            vsock.counts.host_refused,
            vsock.clients_turned_away,
            vsock.counts.received_bytes,
        ),
        format!(
            "  of guest {} connections, {} refused; {} bytes",
            vsock.counts.guest_connections, vsock.counts.guest_refused, vsock.counts.sent_bytes,
        ),
        format!(
            "           {} resets, {} refused queues, {} queue faults, {} malformed, {} beyond credit, {} of no connection",
            vsock.resets,
            vsock.refused_queues,
            vsock.counts.queue_faults,
            vsock.counts.malformed,
            vsock.counts.credit_violations,
            vsock.counts.unknown,
        ),
    ]
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
            limits.refused_modules,
            "changes of the kernel's modules",
            "refused: recordings lack them",
        ),
        (
            limits.refused_names,
            "names of processes",
            "left out of the list of processes",
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

    /// Where none was reached, there is nothing to say.
    #[test]
    fn limits_are_shown_once_they_were_reached() {
        let plain = text(&Status::default());
        assert!(!plain.contains("limits"), "{plain}");
        let limits = LimitsStatus {
            forgotten_address_spaces: 1,
            forgotten_files: 2,
            forgotten_modules: 3,
            refused_modules: 4,
            refused_names: 5,
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
