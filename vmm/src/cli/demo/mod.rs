//! `kvmprof demo`: the embedded guest, read through the host socket like any client would.

mod flames;
mod record;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use kvmprof_abi::pcs::Status;
use kvmprof_demo_guest::{ROWS, Truth};
use kvmprof_tools::client::Connection;
use vm_memory::{Bytes, GuestAddress};

use crate::clock::{ClockSource, DEFAULT_HZ, MAXIMUM_HZ, MINIMUM_HZ};
use crate::console::Console;
use crate::machine::{GuestMemory, KernelSource, MachineConfig, open_kvm};
use crate::virtio::GuestAccess;
use crate::vm::{Vm, VmConfig, VmEnd, block_signals};

/// Memory of the embedded guest, in bytes.
const MEMORY_BYTES: u64 = 64 << 20;

/// Options of `kvmprof demo`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0; 1 for an error; 2 for wrong options, or where there is no KVM that can be \
    used.\n\n\
    Example: kvmprof demo --seconds 10 --cpus 2"
)]
pub struct DemoArguments {
    /// How long to sample, in seconds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Ticks of the profiling clock a second on each vCPU
    #[arg(long, value_name = "HZ", default_value_t = DEFAULT_HZ, value_parser = clap::value_parser!(u32).range(i64::from(MINIMUM_HZ)..=i64::from(MAXIMUM_HZ)))]
    hz: u32,
    /// How many vCPUs the guest has
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    cpus: u16,
    /// What drives the clock: thread or ticker
    #[arg(long, value_name = "SOURCE", default_value = "thread")]
    clock: ClockSource,
    /// Print one JSON object instead of the table, and draw a flame graph only if --flamegraph names it
    #[arg(long)]
    json: bool,
    /// Where the flame graph goes, an SVG file which is made anew; if not given, to kvmprof-demo.svg in the
    /// current folder, where only an earlier demo's is replaced
    #[arg(long, value_name = "FILE")]
    flamegraph: Option<PathBuf>,
}

impl DemoArguments {
    /// Programs that read the object mustn't find files that they didn't ask for.
    fn wants_graph(&self) -> bool {
        self.flamegraph.is_some() || !self.json
    }
}

/// What a run of the demo has found.
struct Findings {
    /// The account after PCS_STOP.
    status: Status,
    /// Ticks observed in each row.
    observed: [u64; ROWS],
    /// Ticks that belong to no row of the guest.
    foreign: u64,
    /// Guest cycles that the guest itself counted in each row meanwhile.
    expected: [u64; ROWS],
    /// The flame graph, if one is wanted, or why there is none.
    graph: Option<anyhow::Result<Vec<u8>>>,
}

/// Runs the embedded guest and prints who used the time.
///
/// # Errors
/// When there is no usable KVM (exit status 2), or anything fails.
pub fn demo(arguments: &DemoArguments) -> anyhow::Result<ExitCode> {
    open_kvm()?;
    block_signals().context("Cannot block signals")?;
    let folder = tempfile::Builder::new()
        .prefix("kvmprof-demo-")
        .tempdir()
        .context("Cannot make a folder for the demo's socket")?;
    let socket = folder.path().join("socket");
    let vm = Vm::start(VmConfig {
        machine: MachineConfig {
            kernel: KernelSource::Embedded(kvmprof_demo_guest::ELF),
            initrd: None,
            command_line: "workload=mixed".to_owned(),
            memory_bytes: MEMORY_BYTES,
            cpus: arguments.cpus,
        },
        console: Console::None,
        guest_access: GuestAccess::None,
        hz: arguments.hz,
        clock_source: arguments.clock,
        jitter: false,
        hold: true,
        socket: Some(socket.clone()),
        prf_addresses: kvmprof_abi::prf::MAX_ADDRESSES,
        record: None,
        sysroot: None,
        knowledge: None,
    })?;
    let findings = observe(arguments, &socket, vm.memory());
    vm.stop();
    let end = vm.join()?;
    if !matches!(end, VmEnd::Stopped) {
        return super::exit::status_of_guest(end);
    }
    let findings = findings?;
    if arguments.json {
        println!("{}", table::json(&findings));
    } else {
        print!("{}", table::text(&findings, arguments.seconds));
    }
    if let Some(graph) = findings.graph {
        tell_graph(graph, arguments)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Saves the flame graph and says where. One that nobody asked for may fail.
fn tell_graph(graph: anyhow::Result<Vec<u8>>, arguments: &DemoArguments) -> anyhow::Result<()> {
    let path = arguments.flamegraph.as_deref();
    match graph.and_then(|svg| flames::save(&svg, path)) {
        Ok(path) if !arguments.json => println!("flame graph: {}", path.display()),
        Err(error) if path.is_none() => log::warn!("No flame graph: {error:#}"),
        result => drop(result?),
    }
    Ok(())
}

fn observe(
    arguments: &DemoArguments,
    socket: &Path,
    memory: &GuestMemory,
) -> anyhow::Result<Findings> {
    let connection = Connection::connect(socket)?;
    let mut recording = record::Recording::start(&connection)?;
    let mut flames = (arguments.wants_graph())
        .then(|| flames::Flames::start(&connection, socket.parent().unwrap_or(Path::new("."))));
    let before = truth(arguments.cpus, memory).unwrap_or_default();
    recording.gather(Duration::from_secs(arguments.seconds), || {
        if let Some(Ok(flames)) = &mut flames {
            flames.take();
        }
    })?;
    let after = truth(arguments.cpus, memory).context("The guest has counted nothing")?;
    let record::Recorded {
        status,
        observed,
        foreign,
    } = recording.finish()?;
    Ok(Findings {
        status,
        observed,
        foreign,
        expected: after.cycles_since(&before),
        graph: flames.map(|flames| flames.and_then(flames::Flames::finish)),
    })
}

fn truth(cpus: u16, memory: &GuestMemory) -> anyhow::Result<Truth> {
    let copy =
        |address, buffer: &mut [u8]| memory.read_slice(buffer, GuestAddress(address)).is_ok();
    Ok(Truth::read(usize::from(cpus), copy)?)
}
