//! What was counted, as recordings have it, too.

use std::collections::{BTreeMap, BTreeSet};

use kvmprof_attach::Machine;
use kvmprof_attach::exits::ExitCounter;
use kvmprof_recording::exits::{Counts, ExitInterval, HostGuest, ReasonName};
use kvmprof_vmm::attached::GuestNames;

/// The `counts` of the guest `machine`, with the names of what is in them, out of those that the guest had at first. Others of the host's `machines` may have run meanwhile.
pub fn of(
    counter: &ExitCounter,
    counts: Counts,
    (machine, names_of_guest): (&Machine, &GuestNames),
    machines: &[Machine],
) -> ExitInterval {
    ExitInterval {
        containers: containers(&counts, &names_of_guest.containers),
        vcpus: u32::try_from(machine.vcpus.len()).unwrap_or(u32::MAX),
        knows_processes: counter.knows_processes(),
        names: names(counter, &counts),
        softirqs: counter.softirq_names().clone(),
        guests: guests(&counts, machine, machines),
        missing: counter
            .missing()
            .iter()
            .map(|&name| name.to_owned())
            .collect(),
        counts,
        ..ExitInterval::default()
    }
}

/// The names of all reasons.
fn names(counter: &ExitCounter, counts: &Counts) -> BTreeMap<u32, ReasonName> {
    let mut reasons: BTreeSet<u32> = counts.reasons.iter().map(|one| one.reason).collect();
    reasons.extend(counts.accesses.iter().map(|one| one.reason));
    reasons.extend(counts.functions.iter().map(|one| one.reason));
    reasons.extend(counts.processes.iter().map(|one| one.reason));
    let known = counter.reason_names(counts.isa);
    let names = reasons.into_iter().map(|reason| {
        let name = ReasonName {
            name: known.name(reason),
            is_halt: known.is_halt(reason),
        };
        (reason, name)
    });
    names.collect()
}

/// The containers of the processes that have left the guest.
fn containers(counts: &Counts, known: &BTreeMap<i32, String>) -> BTreeMap<i32, String> {
    let processes = counts.processes.iter().filter_map(|one| one.process);
    let containers = processes.filter_map(|process| Some((process, known.get(&process)?.clone())));
    containers.collect()
}

/// The guests that ran while vCPUs waited.
fn guests(counts: &Counts, machine: &Machine, machines: &[Machine]) -> Vec<HostGuest> {
    let ran: BTreeSet<u32> = counts.waits.iter().map(|one| one.other_process).collect();
    let guests = machines.iter().map(|guest| HostGuest {
        process: guest.pid.cast_unsigned(),
        name: guest.name.clone(),
        program: guest.program.clone(),
        vcpus: (guest.vcpus.iter())
            .filter_map(|vcpu| vcpu.thread.map(i32::cast_unsigned))
            .collect(),
        is_counted: guest.pid == machine.pid,
    });
    guests
        .filter(|guest| ran.contains(&guest.process))
        .collect()
}
