//! `kvmprof status`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use kvmprof_abi::wire::device;
use kvmprof_tools::client::Connection;
use serde_json::Value;

use super::units::format_memory;

/// A status document is some KiB even with 64 vCPUs.
const MAX_STATUS: usize = 1 << 20;

/// Options of `kvmprof status`.
#[derive(Debug, Args)]
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
    let machine = &status["machine"];
    let clock = &status["clock"];
    let word = |value: &Value| value.as_str().unwrap_or("?").to_owned();
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
        format!(
            "clock      {} Hz by {}{}, {}; registers from the {}; ticks of halted vCPUs: {}",
            clock["hz"],
            word(&clock["source"]),
            if flag(&clock["jitter"]) {
                " with jitter"
            } else {
                ""
            },
            if flag(&clock["running"]) {
                "running"
            } else {
                "standing still"
            },
            word(&clock["registers"]),
            word(&clock["halted_ticks"]),
        ),
        format!(
            "           {}",
            ledger(&clock["ledger"], &["sampled", "idle", "stolen", "lost"])
        ),
    ];
    for (vcpu, account) in clock["vcpus"].as_array().into_iter().flatten().enumerate() {
        let account = ledger(account, &["sampled", "idle", "stolen", "lost"]);
        lines.push(format!("  vCPU {vcpu:<3} {account}"));
    }
    for consumer in status["consumers"].as_array().into_iter().flatten() {
        let state = match (flag(&consumer["open"]), flag(&consumer["gathering"])) {
            (true, true) => "open, gathering",
            (true, false) => "open",
            (false, _) => "closed",
        };
        lines.push(format!("{:<10} {state}", word(&consumer["name"])));
        let parts = [
            "recorded",
            "merged",
            "ungathered",
            "stolen",
            "lost",
            "pending",
            "discarded",
        ];
        lines.push(format!(
            "           {}",
            ledger(&consumer["ledger"], &parts)
        ));
    }
    lines.join("\n") + "\n"
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
