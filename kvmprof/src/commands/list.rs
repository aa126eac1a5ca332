//! `kvmprof list`.

use std::io::{self, Write};

use anyhow::Context;
use clap::Args;
use kvmprof_attach::{HostKernel, Machine, MachineList, Obstacle, find_machines, why_hidden};
use kvmprof_cli::command_line::{Command, Console, ExitStatus};
use kvmprof_cli::table::{Align, write_table};
use kvmprof_cli::text::write_json;
use kvmprof_report::text::visible;
use serde_json::{Value, json};

use super::units::format_memory;

/// List the KVM guests of this host, whatever program runs them
///
/// Each with its VMM's process, its name, its memory, and the threads of its vCPUs. Memory and threads of guests that
/// kvmprof did not start come from the host's kernel, by eBPF: that needs CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE, or root.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0, with guests or without; 1 when the list cannot be written; 2 for wrong options.\n\n\
    Example: kvmprof list"
)]
pub struct ListArguments {
    /// Print a JSON document
    #[arg(long)]
    json: bool,
}

impl Command for ListArguments {
    /// Prints the guests of the host.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let kernel = HostKernel::open();
        let found = find_machines(kernel.as_ref());
        let written = if self.json {
            write_json(console.text(), document(&found))
        } else {
            write(&found, console.text())
        };
        written.context("Cannot write the list of guests")?;
        let mut attachable = found.machines.iter();
        let attachable = attachable.find(|machine| machine.obstacle.is_none());
        if let (true, false, Some(machine)) = (console.is_terminal(), self.json, attachable) {
            console.say(format_args!("next: kvmprof record {}", machine.pid));
        }
        Ok(ExitStatus::SUCCESS)
    }
}

fn document(found: &MachineList) -> Value {
    let guest = |machine: &Machine| {
        let vcpus = machine.vcpus.iter().map(|vcpu| {
            json!({
                "index": vcpu.index,
                "descriptor": vcpu.descriptor,
                "thread": vcpu.thread,
            })
        });
        json!({
            "pid": machine.pid,
            "start_time": machine.start_time,
            "user": machine.user,
            "program": machine.program,
            "name": machine.name,
            "manager": machine.manager,
            "labels": machine.labels,
            "descriptor": machine.descriptor,
            "vcpus": vcpus.collect::<Vec<_>>(),
            "memory_bytes": machine.memory_bytes,
            "attachable": machine.obstacle.is_none(),
            "obstacle": machine.obstacle.as_ref().map(Obstacle::to_string),
        })
    };
    json!({
        "guests": found.machines.iter().map(guest).collect::<Vec<_>>(),
        "hidden_processes": found.hidden,
    })
}

fn write(found: &MachineList, output: &mut dyn Write) -> io::Result<()> {
    if found.machines.is_empty() {
        writeln!(output, "No KVM guest was found on this host.")?;
    } else {
        write_guests(&found.machines, output)?;
    }
    if found.hidden > 0 {
        writeln!(
            output,
            "\nProcesses that may not be looked into: {}. They may have guests, too; {}.",
            found.hidden,
            why_hidden(None)
        )?;
    }
    Ok(())
}

fn write_guests(machines: &[Machine], output: &mut dyn Write) -> io::Result<()> {
    let mut rows = Vec::new();
    let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
    for machine in machines {
        rows.push(row(machine));
        let Some(obstacle) = &machine.obstacle else {
            continue;
        };
        let (reason, pid) = (obstacle.to_string(), machine.pid.to_string());
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, pids)) => pids.push(pid),
            None => reasons.push((reason, vec![pid])),
        }
    }
    let headings = [
        ("PID", Align::Right),
        ("PROGRAM", Align::Left),
        ("NAME", Align::Left),
        ("MANAGER", Align::Left),
        ("MEMORY", Align::Right),
        ("ATTACH", Align::Left),
        ("VCPUS", Align::Right),
        ("VCPU:THREAD", Align::Left),
    ];
    write_table(output, &headings, &rows)?;
    for (reason, pids) in reasons {
        writeln!(output, "\nCannot attach to {}: {reason}", pids.join(", "))?;
    }
    Ok(())
}

fn row(machine: &Machine) -> [String; 8] {
    let unknown = || "-".to_owned();
    let thread = |thread: Option<i32>| thread.map_or_else(unknown, |thread| thread.to_string());
    let threads: Vec<String> = machine
        .vcpus
        .iter()
        .map(|vcpu| format!("{}:{}", vcpu.index, thread(vcpu.thread)))
        .collect();
    let can_attach = if machine.obstacle.is_none() {
        "yes"
    } else {
        "no"
    };
    [
        machine.pid.to_string(),
        visible(&machine.program),
        machine.name.as_deref().map_or_else(unknown, visible),
        machine.manager.map_or_else(unknown, str::to_owned),
        machine.memory_bytes.map_or_else(unknown, rounded),
        can_attach.to_owned(),
        machine.vcpus.len().to_string(),
        threads.join(" "),
    ]
}

/// `bytes`, in whole MiB, because video memory and parts of ROMs make sizes uneven.
fn rounded(bytes: u64) -> String {
    format_memory(bytes.div_ceil(1 << 20) << 20)
}

#[cfg(test)]
mod tests {
    use kvmprof_attach::Vcpu;

    use super::*;

    fn machine(pid: i32, obstacle: Option<Obstacle>) -> Machine {
        let vcpu = |index, thread| Vcpu {
            index,
            descriptor: 20,
            thread,
        };
        Machine {
            pid,
            start_time: 7,
            user: 1000,
            program: "qemu-system-x86_64".to_owned(),
            name: Some("db\x1b[2J".to_owned()),
            manager: Some("libvirt"),
            labels: [("pod".to_owned(), "7\n".to_owned())].into(),
            descriptor: 11,
            vcpus: vec![vcpu(0, Some(pid + 1)), vcpu(1, None)],
            memory_bytes: Some((512 << 20) - 1),
            obstacle,
        }
    }

    fn text(found: &MachineList) -> Vec<String> {
        let mut output = Vec::new();
        write(found, &mut output).unwrap();
        let text = String::from_utf8(output).unwrap();
        text.lines().map(|line| line.trim().to_owned()).collect()
    }

    #[test]
    fn guests_are_listed_with_their_obstacles() {
        let found = MachineList {
            machines: vec![
                machine(100, None),
                machine(200, Some(Obstacle::Encrypted)),
                machine(300, Some(Obstacle::Encrypted)),
            ],
            hidden: 2,
        };
        let text = text(&found);
        assert_eq!(
            text[1],
            "100  qemu-system-x86_64  db\u{fffd}[2J  libvirt    512M  yes         2  0:101 1:-"
        );
        let hidden = format!(
            "Processes that may not be looked into: 2. They may have guests, too; {}.",
            why_hidden(None)
        );
        let encrypted = "Cannot attach to 200, 300: its memory is encrypted (SEV or TDX)";
        assert_eq!(text[4..], ["", encrypted, "", &hidden]);
        let document = document(&found);
        let guests = document["guests"].as_array().unwrap();
        assert_eq!(guests[0]["vcpus"][0]["thread"], 101);
        assert_eq!(guests[0]["manager"], "libvirt");
        assert_eq!(guests[0]["labels"], json!({ "pod": "7\n" }));
        assert_eq!(guests[0]["attachable"], true);
        assert_eq!(guests[1]["attachable"], false);
        assert_eq!(
            guests[1]["obstacle"],
            "its memory is encrypted (SEV or TDX)"
        );
        assert_eq!(document["hidden_processes"], 2);
    }

    #[test]
    fn an_empty_list_has_a_message() {
        assert_eq!(
            text(&MachineList::default()),
            ["No KVM guest was found on this host."]
        );
        assert_eq!(document(&MachineList::default())["guests"], json!([]));
    }
}
