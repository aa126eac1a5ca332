//! Guests that disturb.

use kvmprof_tests::{Boot, Guest};

use super::Times;

fn measure(guest: Guest, answers: usize) -> Times {
    let times = Times::of(&guest, answers);
    guest.stop();
    times
}

/// What the others are compared with.
pub fn at_rest(answers: usize) -> Times {
    measure(Guest::start(Boot::Demo, ["--hz", "100"]), answers)
}

/// Circular page tables, wild pointers and absurd counts, at the highest rate, for a recording with call stacks.
pub fn hostile_memory(answers: usize) -> Times {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let recording = folder.path().join("recording");
    let recording = recording.to_str().expect("a path in UTF-8");
    let boot = Boot::Test("workload=hostile");
    let options = ["--cpus", "2", "--hz", "10000", "--record", recording];
    measure(Guest::start(boot, options), answers)
}

/// pcs is opened and closed on a port as fast as the guest can, while its other vCPU reads the device's registers.
pub fn port_flood(answers: usize) -> Times {
    let boot = Boot::Test("workload=clock-flood");
    let options = ["--cpus", "2", "--guest-access", "all"];
    measure(Guest::start(boot, options), answers)
}

/// Ports and memory that nobody answers for.
pub fn exits(answers: usize) -> Times {
    let boot = Boot::Test("workload=endless-exits");
    measure(
        Guest::start(boot, ["--cpus", "2", "--hz", "10000"]),
        answers,
    )
}

/// More vCPUs than most hosts have CPUs for, all busy.
pub fn interrupts_off(answers: usize) -> Times {
    let boot = Boot::Test("workload=irqoff");
    measure(
        Guest::start(boot, ["--cpus", "8", "--hz", "10000"]),
        answers,
    )
}
