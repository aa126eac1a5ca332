//! The addition of profil to a tick, without KVM: a Linux guest with synthetic memory.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, ensure};
use kvmprof_abi::profil::{Call, Function};
use kvmprof_introspection::{GuestKnowledge, Registers, VcpuIntrospector};
use kvmprof_introspection_fixtures::kernel::HOT;
use kvmprof_introspection_fixtures::linux_guest::{LinuxGuest, USER_TABLES};
use kvmprof_introspection_fixtures::page_tables::Tables;
use kvmprof_profiling::profil::{ProfiledProcesses, VcpuStores};
use kvmprof_profiling::sampling::StoppedVcpu;
use kvmprof_recording::{Mode, Sample};
use vm_memory::{Bytes, GuestAddress};

use crate::median;

const ROUNDS: usize = 301;
/// Ticks in a round: fewer than the page has room for program counters.
const TICKS: u32 = 500;
/// Limit for the addition of a store to a tick, in ns.
const ALLOWED_NS: u32 = 300;
/// The pid of the process that runs.
const PID: i32 = 41;
/// The virtual and the physical address of the process's buffer.
const BUFFER: u64 = 0x7fff_1234_5000;
const PAGE: u64 = 0x50_0000;
/// A page-table entry's bit: user mode may access the page.
const USER: u64 = 1 << 2;

/// Measures and prints.
pub fn print() -> anyhow::Result<()> {
    println!(
        "profil's part of a tick, medians over {ROUNDS} rounds of {TICKS}, ns (allowed: {ALLOWED_NS})"
    );
    let guest = guest()?;
    for (name, function, pid) in [
        ("no process is profiled", None, PID),
        ("another process is profiled", Some(Function::Profil), 42),
        ("a count is incremented", Some(Function::Profil), PID),
        ("a program counter is stored", Some(Function::Pcsample), PID),
    ] {
        let ns = measure(&guest, function, pid)?;
        println!("  {name:<38} {ns:>6.0}");
    }
    println!();
    Ok(())
}

/// A guest whose process has a page for its buffer, by four levels of page tables.
fn guest() -> anyhow::Result<LinuxGuest> {
    let guest = LinuxGuest::new(HOT);
    let mut user = Tables::new(guest.memory.clone(), USER_TABLES, 4);
    user.skip_to(0x58_0000);
    user.map(BUFFER, PAGE, 1);
    let last = GuestAddress(user.end() - 4096 + (BUFFER >> 12 & 0x1ff) * 8);
    let entry: u64 = guest.memory.read_obj(last)?;
    guest.memory.write_obj(entry | USER, last)?;
    Ok(guest)
}

fn measure(guest: &LinuxGuest, function: Option<Function>, pid: i32) -> anyhow::Result<f64> {
    let processes = Arc::<ProfiledProcesses>::default();
    let call = |function| Call {
        function,
        flags: Call::EVERY_TICK,
        pid,
        ranges: 0,
        buffer: BUFFER,
        size: match function {
            Function::Pcsample => u64::from(TICKS) + 1,
            _ => 4096,
        },
        offset: 0x40_0000,
        scale: 0x4000,
        time: u64::MAX,
        program: [0; 16],
    };
    let mut stores = VcpuStores::new(Arc::clone(&processes));
    stores.set_hz(100);
    let knowledge = GuestKnowledge::from_kernel_image(&HOT.file())?;
    let mut vcpu = VcpuIntrospector::new(Arc::new(knowledge), 0);
    let registers = guest.user();
    vcpu.identify(&guest.memory, &guest.kernel(0), false, false);
    vcpu.identify(&guest.memory, &registers, false, false);
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        guest.memory.write_slice(&[0; 4096], GuestAddress(PAGE))?;
        if let Some(function) = function {
            processes.call(&call(function), &[], Some(&[]))?;
        }
        // The first one finds the process.
        tick(&mut stores, guest, &vcpu, &registers);
        let start = Instant::now();
        for _ in 0..TICKS {
            tick(&mut stores, guest, &vcpu, black_box(&registers));
        }
        rounds.push(start.elapsed().as_secs_f64() * 1e9 / f64::from(TICKS));
    }
    if let (Some(_), PID) = (function, pid) {
        let status = processes.status(PID).context("No process is profiled")?;
        ensure!(status.stored == u64::from(TICKS) + 1, "{status:?}");
    }
    Ok(median(&rounds))
}

fn tick(
    stores: &mut VcpuStores,
    guest: &LinuxGuest,
    vcpu: &VcpuIntrospector,
    registers: &Registers,
) {
    let sample = Sample {
        pc: registers.rip,
        pid: PID,
        mode: Mode::User,
        ..Sample::default()
    };
    let vcpu = StoppedVcpu {
        memory: &guest.memory,
        registers,
        introspector: vcpu,
    };
    stores.tick(&sample, vcpu);
}
