//! `kvmprof demo`: the embedded guest, read through the host socket as by any client.

mod flames;
mod record;
mod table;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use kvmprof_cli::command_line::{Command, Console, ExitStatus, value};
use kvmprof_cli::text::write_json;
use kvmprof_client::{Connection, named_socket};
use kvmprof_demo_guest::{ROWS, Truth};
use kvmprof_recording::file::write_new_file;
use tempfile::{Builder, TempDir};
use vm_memory::{Bytes, GuestAddress};

use super::exit::{machine_error, start_error, status_of_guest};
use super::profiling::{ClockOptions, SampleOptions};
use super::recordings::{NO_OUTPUT, refuse_recording};
use super::sandbox::SandboxOptions;
use super::thread_panics;
use kvmprof_machine::{GuestMemory, KernelSource, MachineConfig, MemoryOptions, open_kvm};
use kvmprof_profiling::ProfilingConfig;
use kvmprof_profiling::clock::DEFAULT_HZ;
use kvmprof_vmm::vm::{Vm, VmConfig, VmEnd, block_signals, catch_signals};

/// Memory of the embedded guest, in bytes.
const MEMORY_BYTES: u64 = 64 << 20;

/// Run the embedded guest and compare who used the time with what the guest itself counted
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0; 1 for an error; 2 for wrong options, or where there is no KVM that can be \
    used.\n\n\
    Examples:\n  kvmprof demo --seconds 10 --cpus 2\n  kvmprof demo --name demo --hz 1000 &\n  \
    kvmprof top"
)]
pub struct DemoArguments {
    /// How long to sample, in seconds
    #[arg(long, value_name = "N", default_value = "5", value_parser = value::seconds_of_a_day)]
    seconds: Duration,
    /// Ticks of the profiling clock a second on each vCPU
    #[arg(long, value_name = "HZ", default_value_t = DEFAULT_HZ, value_parser = value::rate)]
    hz: u32,
    /// How many vCPUs the guest has
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    cpus: u16,
    #[command(flatten)]
    clock: ClockOptions,
    #[command(flatten)]
    samples: SampleOptions,
    #[command(flatten)]
    sandbox: SandboxOptions,
    /// Print one JSON object instead of the table, and draw a flame graph only if --flamegraph names it
    #[arg(long)]
    json: bool,
    /// The flame graph's file (SVG). If not given: kvmprof-demo.svg in the current folder, where only an earlier demo's
    /// is replaced
    #[arg(long, value_name = "FILE")]
    flamegraph: Option<PathBuf>,
    /// Don't sample the guest, but run it for clients that connect to this path, such as getpc, top and record, until
    /// Ctrl-C
    #[arg(long, short, value_name = "PATH", group = "served", conflicts_with_all = ["seconds", "json", "flamegraph"])]
    socket: Option<PathBuf>,
    /// The same, for clients that connect to a socket of this name in /run/kvmprof, or for other users than root in
    /// $XDG_RUNTIME_DIR/kvmprof. They find it without --socket if it is the only one
    #[arg(long, value_name = "NAME", group = "served", conflicts_with_all = ["seconds", "json", "flamegraph"])]
    name: Option<String>,
    /// With --socket or --name: hold the guest until somebody samples it, and write what it has counted of its own time to this file (JSON) at the end
    #[arg(long, value_name = "FILE", requires = "served")]
    truth: Option<PathBuf>,
}

/// The results of a run of the demo.
struct Findings {
    /// The ticks that were observed.
    recorded: record::Recorded,
    /// Guest cycles that the guest itself counted in each row in the same time.
    expected: [u64; ROWS],
    /// The flame graph, if requested, or the reason why it is missing.
    graph: Option<anyhow::Result<Vec<u8>>>,
}

impl Command for DemoArguments {
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let profiling = self.samples.config(self.clock.source, self.hz)?;
        let named = self.name.as_deref().map(named_socket).transpose()?;
        let served = self.socket.as_ref().or(named.as_ref());
        let folder = served.is_none().then(own_folder).transpose()?;
        let own = folder.as_ref().map(|folder| folder.path().join("socket"));
        let socket = served.or(own.as_ref());
        let held = served.is_none() || self.truth.is_some();
        let mut config = self.config(profiling, socket.cloned(), held);
        let _helpers = self.sandbox.start(&mut config, None)?;
        open_kvm().map_err(machine_error)?;
        block_signals().context("Cannot block signals")?;
        catch_signals().context("Cannot catch signals")?;
        thread_panics::end_program();
        match (served, own) {
            (None, Some(own)) => self.sample(config, &own, console),
            _ => self.serve(config, console),
        }
    }
}

/// A folder for the socket of a guest that only this process samples.
fn own_folder() -> anyhow::Result<TempDir> {
    let mut builder = Builder::new();
    builder.prefix("kvmprof-demo-");
    let folder = builder.permissions(Permissions::from_mode(0o700)).tempdir();
    folder.context("Cannot make a folder for the demo's socket")
}

impl DemoArguments {
    /// The embedded guest, with its socket at `socket`. If `held`, it waits for the first client that samples it.
    fn config(&self, profiling: ProfilingConfig, socket: Option<PathBuf>, held: bool) -> VmConfig {
        let machine = MachineConfig {
            initrd: None,
            command_line: "workload=mixed".to_owned(),
            memory: MemoryOptions::private(MEMORY_BYTES),
            cpus: self.cpus,
        };
        VmConfig {
            profiling: ProfilingConfig {
                socket,
                ..profiling
            },
            hold: held,
            ..VmConfig::new(KernelSource::Embedded(kvmprof_demo_guest::ELF), machine)
        }
    }

    /// Runs the guest for clients until a signal ends it.
    fn serve(&self, config: VmConfig, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let socket = config.profiling.socket.clone().unwrap_or_default();
        let vm = Vm::start(config).map_err(start_error)?;
        let memory = vm.memory().clone();
        console.say(format_args!(
            "the embedded guest runs; clients take --socket {}, Ctrl-C ends it",
            socket.display()
        ));
        let end = vm.join()?;
        if let Some(path) = &self.truth {
            let truth = truth(self.cpus, &memory).context("The guest has counted nothing")?;
            let text = format!("{}\n", table::truth_json(&truth.cycles()));
            write_new_file(path, text.as_bytes())
                .with_context(|| format!("Cannot write {}", path.display()))?;
        }
        status_of_guest(end)
    }

    /// Runs the guest, samples it by its `socket` and prints what used the time.
    fn sample(
        &self,
        config: VmConfig,
        socket: &Path,
        console: &mut Console<'_>,
    ) -> anyhow::Result<ExitStatus> {
        if let Some(path) = &self.flamegraph {
            refuse_recording(path, "name another file with --flamegraph")?;
        }
        let vm = Vm::start(config).map_err(start_error)?;
        let findings = observe(self, socket, vm.memory());
        vm.stop();
        let end = vm.join()?;
        if !matches!(end, VmEnd::Stopped) {
            return status_of_guest(end);
        }
        let findings = findings?;
        let written = if self.json {
            write_json(console.text(), table::json(&findings))
        } else {
            let text = table::text(&findings, self.seconds);
            console.text().write_all(text.as_bytes())
        };
        written.context(NO_OUTPUT)?;
        if let Some(graph) = findings.graph {
            self.save_graph(graph, console)?;
        }
        if console.is_terminal() && !self.json {
            console.say(
                "next: kvmprof list shows the guests of this host, and kvmprof record profiles one",
            );
        }
        Ok(ExitStatus::SUCCESS)
    }

    /// Programs that read the JSON object must not find files that they didn't request.
    fn wants_graph(&self) -> bool {
        self.flamegraph.is_some() || !self.json
    }

    /// Saves the flame graph and prints its path. A graph that wasn't requested may fail.
    fn save_graph(
        &self,
        graph: anyhow::Result<Vec<u8>>,
        console: &mut Console<'_>,
    ) -> anyhow::Result<()> {
        let path = self.flamegraph.as_deref();
        match graph.and_then(|svg| flames::save(&svg, path)) {
            Ok(path) if !self.json => {
                let line = writeln!(console.text(), "flame graph: {}", path.display());
                line.context(NO_OUTPUT)?;
            }
            Err(error) if path.is_none() => console.warn(format_args!("no flame graph: {error:#}")),
            result => drop(result?),
        }
        Ok(())
    }
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
    recording.gather(arguments.seconds, || {
        if let Some(Ok(flames)) = &mut flames {
            flames.take();
        }
    })?;
    let after = truth(arguments.cpus, memory).context("The guest has counted nothing")?;
    // Both end here, before either is read to its end.
    if let Some(Ok(flames)) = &mut flames {
        flames.stop();
    }
    Ok(Findings {
        recorded: recording.finish()?,
        expected: after.cycles_since(&before),
        graph: flames.map(|flames| flames.and_then(flames::Flames::finish)),
    })
}

fn truth(cpus: u16, memory: &GuestMemory) -> anyhow::Result<Truth> {
    let copy =
        |address, buffer: &mut [u8]| memory.read_slice(buffer, GuestAddress(address)).is_ok();
    Ok(Truth::read(usize::from(cpus), copy)?)
}
