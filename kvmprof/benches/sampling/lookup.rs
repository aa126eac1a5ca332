//! The lookup of the process that a vCPU runs, without KVM: guests with synthetic memory.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use kvmprof_introspection::{GuestKnowledge, Registers, VcpuIntrospector};
use kvmprof_introspection_fixtures::kernel::HOT;
use kvmprof_introspection_fixtures::linux_guest::LinuxGuest;
use kvmprof_introspection_fixtures::page_tables::{Memory, Tables, long_mode};
use kvmprof_introspection_fixtures::processes::FixtureMemory;
use vm_memory::{Bytes, GuestAddress};

use crate::median;

const ROUNDS: usize = 301;
/// Lookups in a round.
const LOOKUPS: u32 = 1_000;
/// The limit for a lookup, in ns.
const ALLOWED_NS: u32 = 300;
/// Tasks that alternate.
const TASKS: u64 = 240;
/// A step from each task to a distant one that visits all of them: it has no common divisor with
/// [`TASKS`].
const STRIDE: u64 = 97;
/// The pid of the running task if none alternate.
const PID: i32 = 41;

/// Measures and prints.
pub fn print() -> anyhow::Result<()> {
    println!(
        "look-up of the process alone, medians over {ROUNDS} rounds of {LOOKUPS}, ns (allowed: {ALLOWED_NS})"
    );
    linux()?;
    note()?;
    println!();
    Ok(())
}

fn linux() -> anyhow::Result<()> {
    let guest = LinuxGuest::new(HOT);
    let knowledge = GuestKnowledge::from_kernel_image(&HOT.file())?;
    let mut vcpu = VcpuIntrospector::new(Arc::new(knowledge), 0);
    // The first lookups learn the slide, the per-CPU area and the direct map: from then on page tables
    // aren't needed.
    let (user, kernel) = (guest.user(), guest.kernel(0));
    vcpu.identify(&guest.memory, &user, false, false);
    let without_tables = Registers { cr3: 0, ..user };
    let identity = vcpu.identify(&guest.memory, &without_tables, false, false);
    ensure!(identity.pid == PID, "The direct map wasn't learned");
    for (mode, registers) in [("user mode", user), ("kernel mode", kernel)] {
        for group in [false, true] {
            let mut look = || vcpu.identify(&guest.memory, black_box(&registers), false, group);
            ensure!(look().pid == PID, "The process wasn't found");
            report(&format!("Linux, {mode}"), group, look);
        }
    }
    inner_id(&guest, &mut vcpu)?;
    turns(&guest, &mut vcpu)
}

/// The id of a thread in its pid namespace, which recordings have beside the other one.
fn inner_id(guest: &LinuxGuest, vcpu: &mut VcpuIntrospector) -> anyhow::Result<()> {
    FixtureMemory::new(guest, HOT.areas).namespaces(1, &[PID, 7], 0, 0);
    let user = guest.user();
    vcpu.identify(&guest.memory, &user, false, false);
    let mut look = || vcpu.inner_tid(&guest.memory, black_box(&user), PID);
    ensure!(look() == Some(7), "The thread's id is another one");
    report("Linux, id in a pid namespace", false, look);
    Ok(())
}

/// Lookups that each find another task, in another page, which has more cache misses than a single task.
/// The cost of switching tasks is part of the figure.
fn turns(guest: &LinuxGuest, vcpu: &mut VcpuIntrospector) -> anyhow::Result<()> {
    let pid = |index| anyhow::Ok(PID + i32::try_from(index)?);
    for index in 0..TASKS {
        guest.task(index, pid(index)?, pid(index)?, pid(index)?);
    }
    let modes = [guest.user(), guest.kernel(0)];
    for group in [false, true] {
        let mut index = 0;
        let mut look = || {
            index = (index + STRIDE) % TASKS;
            guest.run(0, index);
            let registers = if index % 2 == 0 { &modes[0] } else { &modes[1] };
            vcpu.identify(&guest.memory, black_box(registers), false, group)
        };
        for turn in 1..=TASKS {
            let expected = pid(turn * STRIDE % TASKS)?;
            ensure!(look().pid == expected, "Process {expected} wasn't found");
        }
        let name = format!("Linux, {TASKS} tasks in turn, both modes");
        report(&name, group, look);
    }
    Ok(())
}

/// By the note of the demo's guest, which keeps a pointer to its current thread at its GS base.
fn note() -> anyhow::Result<()> {
    const CURRENT: u64 = 0x40_0000;
    const THREAD: u64 = 0x40_1000;
    let memory = Memory::from_ranges(&[(GuestAddress(0), 8 << 20)])?;
    let mut tables = Tables::new(memory.clone(), 0x1000, 4);
    for page in (0..8_u64 << 20).step_by(2 << 20) {
        tables.map(page, page, 2);
    }
    memory.write_obj(THREAD, GuestAddress(CURRENT))?;
    // Process, thread and group.
    memory.write_obj([PID; 3], GuestAddress(THREAD))?;
    let knowledge = GuestKnowledge::from_image(kvmprof_demo_guest::ELF)
        .context("Cannot read the demo's image")?;
    let mut vcpu = VcpuIntrospector::new(Arc::new(knowledge), 0);
    for (mode, cpl) in [("user mode", 3), ("kernel mode", 0)] {
        let registers = Registers {
            gs_base: CURRENT,
            cpl,
            ..long_mode(0x1000, false)
        };
        for group in [false, true] {
            let mut look = || vcpu.identify(&memory, black_box(&registers), false, group);
            ensure!(look().pid == PID, "The note doesn't lead to the process");
            report(&format!("kvmprof note, {mode}"), group, look);
        }
    }
    Ok(())
}

/// Prints the time of one `look`.
fn report<T>(name: &str, group: bool, mut look: impl FnMut() -> T) {
    let rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..LOOKUPS {
                black_box(look());
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(LOOKUPS)
        })
        .collect();
    let group = if group { "with group" } else { "" };
    println!("  {name:<38} {group:<12} {:>6.0}", median(&rounds));
}
