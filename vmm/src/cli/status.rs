//! `kvmprof status`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use kvmprof_abi::pcs::Ledger;
use kvmprof_abi::wire::device;
use kvmprof_devices::profiling::ClockLedger;
use kvmprof_tools::client::Connection;
use serde_json::Value;

use super::units::format_memory;

/// A status document is some KiB even with 64 vCPUs.
const MAX_STATUS: usize = 1 << 20;

/// Options of `kvmprof status`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0; 1 when there is no guest at the socket; 2 for wrong options.\n\n\
    Example: kvmprof status --socket /run/guest.sock"
)]
pub struct StatusArguments {
    /// The socket of the running guest
    #[arg(long, value_name = "PATH", env = "KVMPROF_SOCKET")]
    socket: PathBuf,
    /// Print the document as it is
    #[arg(long)]
    json: bool,
}

/// Prints the status of a running guest.
///
/// # Errors
/// When there is no guest at the socket.
pub fn status(arguments: &StatusArguments) -> anyhow::Result<ExitCode> {
    let connection = Connection::connect(&arguments.socket)?;
    let document = connection.snapshot(device::STATUS, MAX_STATUS)?;
    let status: Value =
        serde_json::from_slice(&document).context("The guest's status makes no sense")?;
    if arguments.json {
        println!("{status}");
    } else {
        print!("{}", text(&status));
    }
    Ok(ExitCode::SUCCESS)
}

fn text(status: &Value) -> String {
    let mut lines = machine_lines(&status["machine"]);
    lines.extend(clock_lines(&status["clock"]));
    for consumer in status["consumers"].as_array().into_iter().flatten() {
        let state = consumer_state(consumer);
        lines.push(format!("{:<10} {state}", word(&consumer["name"])));
        let [_, parts @ ..] = Ledger::default().fields().map(|(name, _)| name);
        let account = ledger(&consumer["ledger"], &parts);
        lines.push(format!("           {account}"));
    }
    lines.join("\n") + "\n"
}

fn machine_lines(machine: &Value) -> Vec<String> {
    let state = match (flag(&machine["ended"]), flag(&machine["held"])) {
        (true, _) => "ended",
        (false, true) => "held until somebody gathers samples",
        (false, false) => "running",
    };
    let unclaimed = &machine["unclaimed_accesses"];
    let mut lines = vec![
        format!(
            "machine    {}, {} vCPUs, {}, {state}",
            word(&machine["kernel"]),
            machine["vcpus"],
            format_memory(machine["memory_bytes"].as_u64().unwrap_or_default()),
        ),
        format!(
            "           nobody answered {} port reads, {} port writes, {} MMIO reads, {} MMIO writes",
            unclaimed["port_reads"],
            unclaimed["port_writes"],
            unclaimed["mmio_reads"],
            unclaimed["mmio_writes"],
        ),
        format!("processes  {}", word(&machine["introspection"])),
    ];
    let virtio = &machine["virtio"];
    if virtio.is_object() {
        lines.push(format!(
            "virtio     {} resets, {} refused queues, {} control faults",
            virtio["resets"], virtio["refused_queues"], virtio["control_faults"],
        ));
    }
    for port in virtio["ports"].as_array().into_iter().flatten() {
        lines.push(format!(
            "  {:<9} {} queue faults, {} protocol faults",
            word(&port["name"]),
            port["queue_faults"],
            port["protocol_faults"],
        ));
    }
    lines
}

fn clock_lines(clock: &Value) -> Vec<String> {
    let jitter = if flag(&clock["jitter"]) {
        " with jitter"
    } else {
        ""
    };
    let state = if flag(&clock["running"]) {
        "running"
    } else {
        "standing still"
    };
    let [_, parts @ ..] = ClockLedger::default().fields().map(|(name, _)| name);
    let mut lines = vec![
        format!(
            "clock      {} Hz by {}{jitter}, {state}; registers from the {}; ticks of halted vCPUs: {}",
            clock["hz"],
            word(&clock["source"]),
            word(&clock["registers"]),
            word(&clock["halted_ticks"]),
        ),
        format!("           {}", ledger(&clock["ledger"], &parts)),
    ];
    for (vcpu, account) in clock["vcpus"].as_array().into_iter().flatten().enumerate() {
        let account = ledger(account, &parts);
        lines.push(format!("  vCPU {vcpu:<3} {account}"));
    }
    lines
}

fn word(value: &Value) -> String {
    value.as_str().unwrap_or("?").to_owned()
}

fn consumer_state(consumer: &Value) -> String {
    if let Some(addresses) = consumer["addresses"].as_u64() {
        let on = if flag(&consumer["on"]) { "on" } else { "off" };
        return format!("{on}, {addresses} addresses");
    }
    if let Some(recording) = consumer["recording"].as_bool() {
        let state = if recording { "recording" } else { "ended" };
        let to = consumer["path"].as_str().unwrap_or("to a client");
        return format!("{state}, {to}");
    }
    let state = match (flag(&consumer["open"]), flag(&consumer["gathering"])) {
        (true, true) => "open, gathering",
        (true, false) => "open",
        (false, _) => "closed",
    };
    state.to_owned()
}

fn flag(value: &Value) -> bool {
    value.as_bool().unwrap_or_default()
}

fn ledger(ledger: &Value, parts: &[&str]) -> String {
    let parts: Vec<String> = parts
        .iter()
        .map(|part| format!("{} {part}", ledger[*part]))
        .collect();
    format!("{} ticks = {}", ledger["ticks"], parts.join(" + "))
}
