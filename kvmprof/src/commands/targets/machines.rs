//! The guests of this host, of kvmprof or of other VMMs, as the host's kernel shows them.

use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use kvmprof_attach::{
    HostKernel, Machine, MachineList, find_machines, lacks, missing_to_look_into, why_hidden,
};
use kvmprof_cli::command_line::usage;
use kvmprof_report::text::visible;

/// The pause between two looks for the guest that `--wait` waits for. A look reads `/proc`, a millisecond on a host with some hundred processes.
const WAIT_POLL: Duration = Duration::from_millis(20);
/// Maximum time that `--wait` waits for the other vCPUs, once one of them has run.
const MAX_WAIT_FOR_VCPUS: Duration = Duration::from_secs(1);

const NO_HOST_KERNEL: &str = "The host's kernel doesn't tell where guests have their memory";

/// The machine that `guest` names, which can be attached to, as the host's kernel shows it.
///
/// # Errors
/// There is none, or several, or it can't be attached to.
pub fn find_machine(guest: &str, wait: bool) -> anyhow::Result<(HostKernel, Machine)> {
    let host = HostKernel::open().context(NO_HOST_KERNEL)?;
    let (mut waited_for_vcpus, mut has_said) = (Duration::ZERO, false);
    loop {
        let found = choose(find_machines(Ok(&host)), guest)?;
        match found.and_then(attachable) {
            Err(Missing { why, may_come }) if !(wait && may_come) => return Err(why),
            Err(_) if has_said => {}
            Err(Missing { why, .. }) => {
                eprintln!("Waiting for the guest {}: {why:#}", visible(guest));
                has_said = true;
            }
            Ok(machine) => {
                let is_whole = machine.vcpus.iter().all(|vcpu| vcpu.thread.is_some());
                if !wait || is_whole || waited_for_vcpus >= MAX_WAIT_FOR_VCPUS {
                    return Ok((host, machine));
                }
                waited_for_vcpus += WAIT_POLL;
            }
        }
        thread::sleep(WAIT_POLL);
    }
}

/// The machine that `guest` names, or the only one of this host, which can be attached to, as the host's kernel shows it.
///
/// # Errors
/// There is none, or several, or it can't be attached to.
pub fn find_machine_or_only(guest: Option<&str>) -> anyhow::Result<(HostKernel, Machine)> {
    match guest {
        Some(guest) => find_machine(guest, false),
        None => {
            let host = HostKernel::open();
            let machine = without_obstacle(only_of(find_machines(host.as_ref()))?)?;
            Ok((host.context(NO_HOST_KERNEL)?, machine))
        }
    }
}

/// The machine that `guest` names, attachable or not.
///
/// # Errors
/// There is none, or several.
pub(super) fn named(guest: &str) -> anyhow::Result<Machine> {
    let kernel = HostKernel::open();
    choose(find_machines(kernel.as_ref()), guest)?.map_err(|missing| missing.why)
}

/// The only machine of this host, attachable or not.
///
/// # Errors
/// [`UsageError`](kvmprof_cli::command_line::UsageError) if there is none, or several: they are listed.
pub(super) fn only() -> anyhow::Result<Machine> {
    let kernel = HostKernel::open();
    only_of(find_machines(kernel.as_ref()))
}

fn only_of(found: MachineList) -> anyhow::Result<Machine> {
    let hidden = found.hidden;
    match <[Machine; 1]>::try_from(found.machines) {
        Ok([machine]) => Ok(machine),
        Err(none) if none.is_empty() => {
            let hidden = match hidden {
                0 => String::new(),
                _ => format!(
                    ". Processes that may not be looked into may have guests, too: {}",
                    why_hidden(None)
                ),
            };
            Err(usage(format_args!(
                "No guest runs: start one with kvmprof run or with another VMM, or give kvmprof record a --kernel; one with \
                 a socket elsewhere needs --socket PATH or KVMPROF_SOCKET=PATH{hidden}"
            )))
        }
        Err(several) => {
            let words: Vec<String> = several.iter().map(in_words).collect();
            Err(usage(format_args!(
                "{} guests run, so name one, by its pid or its name: {}",
                words.len(),
                words.join(", ")
            )))
        }
    }
}

/// The machine's process and name.
pub(super) fn in_words(machine: &Machine) -> String {
    let program = visible(&machine.program);
    match &machine.name {
        Some(name) => format!("{} {} ({program})", machine.pid, visible(name)),
        None => format!("{} ({program})", machine.pid),
    }
}

/// The process that `guest` names, PID or PID:START_TIME: its pid, and its start time, if that is given.
pub(super) fn process_of(guest: &str) -> Option<(i32, Option<u64>)> {
    let Some((pid, start)) = guest.split_once(':') else {
        return Some((guest.parse().ok()?, None));
    };
    Some((pid.parse().ok()?, Some(start.parse().ok()?)))
}

/// Why a guest can't be attached to now.
#[derive(Debug)]
struct Missing {
    why: anyhow::Error,
    /// Whether that may change.
    may_come: bool,
}

/// The machine that `guest` names: its VMM's process, or its name. What has the form of a process is one, whatever other guests are called: who starts a guest
/// chooses its name.
///
/// # Errors
/// Several guests are meant.
fn choose(found: MachineList, guest: &str) -> anyhow::Result<Result<Machine, Missing>> {
    let process = process_of(guest);
    let is_meant = |machine: &Machine| match process {
        Some((pid, start)) => {
            machine.pid == pid && start.is_none_or(|start| machine.start_time == start)
        }
        None => machine.name.as_deref() == Some(guest),
    };
    let mut meant: Vec<Machine> = found.machines.into_iter().filter(is_meant).collect();
    match (meant.pop(), meant.len()) {
        (Some(machine), 0) => Ok(Ok(machine)),
        (Some(machine), others) => {
            meant.push(machine);
            let pids: Vec<String> = meant
                .iter()
                .map(|machine| machine.pid.to_string())
                .collect();
            bail!(
                "{} guests are meant by {}, of the processes {}: give the pid of one that has a single guest",
                others + 1,
                visible(guest),
                pids.join(", ")
            )
        }
        (None, _) => Ok(Err(Missing {
            why: unknown(guest, found.hidden),
            may_come: true,
        })),
    }
}

/// The machine, if it can be attached to.
fn attachable(machine: Machine) -> Result<Machine, Missing> {
    match &machine.obstacle {
        None => Ok(machine),
        Some(obstacle) => Err(Missing {
            why: anyhow!(
                "Cannot attach to the guest of process {}: {obstacle}",
                machine.pid
            ),
            may_come: obstacle.is_of_start(),
        }),
    }
}

/// The machine, which can be attached to.
///
/// # Errors
/// It can't: why.
pub(super) fn without_obstacle(machine: Machine) -> anyhow::Result<Machine> {
    attachable(machine).map_err(|missing| missing.why)
}

/// The error if no guest is called `guest`, and `hidden` processes can't be looked into.
fn unknown(guest: &str, hidden: usize) -> anyhow::Error {
    let rights = match hidden {
        0 => Vec::new(),
        _ => missing_to_look_into(process_of(guest).map(|(pid, _)| pid)),
    };
    let guest = visible(guest);
    if rights.is_empty() {
        return anyhow!("There is no guest {guest} on this host: see kvmprof list");
    }
    anyhow!(
        "Guest {guest} may be one of a process that kvmprof may not look into: {}",
        lacks(&rights)
    )
}

#[cfg(test)]
mod tests {
    use kvmprof_cli::command_line::UsageError;

    use super::*;

    fn machine(pid: i32, name: &str) -> Machine {
        Machine {
            pid,
            start_time: 7,
            user: 0,
            program: "vmm".to_owned(),
            name: Some(name.to_owned()),
            manager: None,
            labels: [].into(),
            descriptor: 3,
            vcpus: Vec::new(),
            memory_bytes: None,
            obstacle: None,
        }
    }

    #[test]
    fn a_number_is_always_a_pid() {
        let chosen = |machines: &[Machine], guest: &str| {
            let found = MachineList {
                machines: machines.to_vec(),
                hidden: 0,
            };
            choose(found, guest)?.map_err(|missing| missing.why)
        };
        let all = [machine(10, "db"), machine(11, "10"), machine(12, "web")];
        assert_eq!(chosen(&all, "10").unwrap().pid, 10);
        assert_eq!(chosen(&all, "web").unwrap().pid, 12);
        assert_eq!(chosen(&all, "11").unwrap().pid, 11);
        // That VMM has ended: another one whose name is its pid isn't taken for it.
        let error = chosen(&all[1..], "10").unwrap_err();
        assert!(error.to_string().contains("no guest 10"), "{error}");
        let all = [machine(10, "db"), machine(11, "10:7")];
        assert_eq!(chosen(&all, "10:7").unwrap().pid, 10);
        // A process that was started later has the pid.
        let error = chosen(&all, "10:6").unwrap_err();
        assert!(error.to_string().contains("no guest 10:6"), "{error}");
        let twice = [machine(10, "db"), machine(11, "db")];
        let error = chosen(&twice, "db").unwrap_err().to_string();
        let expected = "2 guests are meant by db, of the processes 10, 11: ";
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn without_a_name_the_only_guest_is_meant() {
        let only = |machines: &[Machine], hidden| {
            only_of(MachineList {
                machines: machines.to_vec(),
                hidden,
            })
        };
        assert_eq!(only(&[machine(10, "db")], 3).unwrap().pid, 10);
        let unnamed = Machine {
            name: None,
            ..machine(11, "")
        };
        let error = only(&[machine(10, "d\x1bb"), unnamed], 0).unwrap_err();
        assert!(error.is::<UsageError>());
        let expected =
            "2 guests run, so name one, by its pid or its name: 10 d\u{fffd}b (vmm), 11 (vmm)";
        assert_eq!(error.to_string(), expected);
        for hidden in [0, 1] {
            let error = only(&[], hidden).unwrap_err();
            assert!(error.is::<UsageError>());
            let error = error.to_string();
            assert!(error.starts_with("No guest runs: "), "{error}");
            assert_eq!(error.contains("may not be looked into"), hidden > 0);
        }
    }
}
