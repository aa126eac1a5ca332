//! The test guest for the measurements.

use kvmprof_machine::disk::DiskOptions;
use kvmprof_machine::network::NetworkConfig;
use kvmprof_machine::output_names::OutputNames;
use kvmprof_machine::{KernelSource, MachineConfig, MemoryOptions};
use kvmprof_profiling::ProfilingConfig;
use kvmprof_profiling::clock::{ClockSource, thread_cpu_ns};
use kvmprof_vmm::vm::{Vm, VmConfig};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use kvmprof_abi::pcs::{
    BUF_INCR, DEF_BUFNO, MAX_BSIZE, MAX_BUFS, PCS_GETSTAT, PCS_SETBSIZE, PCS_SETHZ, PCS_STOP,
    PROF_ALL, STATUS_SIZE, Status,
};
use kvmprof_abi::wire::device;
use kvmprof_client::{Connection, RemoteDevice};
use kvmprof_test_guest::{Counter, IMAGE, counters, counters_area};
use vm_memory::{Bytes, GuestAddress};

/// Timeout for a guest to start counting.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// The rate that a guest is started with, in Hz; each window sets its own.
const START_HZ: u32 = 100;

/// A guest with one vCPU that counts rounds.
pub struct Guest {
    vm: Vm,
    connection: Connection,
    counters: Range<u64>,
    tsc_khz: f64,
    // Has the socket.
    _folder: tempfile::TempDir,
}

/// Devices of a guest.
#[derive(Default)]
pub struct Devices {
    /// Its disks.
    pub disks: Vec<DiskOptions>,
    /// Its networks.
    pub networks: Vec<NetworkConfig>,
}

/// Measurements of a time window.
#[derive(Clone, Copy, Debug, Default)]
pub struct Window {
    /// Processor time of the vCPU's thread, in ns: the guest's, and that of exits.
    pub ns: f64,
    /// Rounds that the guest counted.
    pub rounds: f64,
    /// Time that exits took from the guest, in ns, as the guest saw it.
    pub away_ns: f64,
    /// Ticks of the clock.
    pub ticks: u64,
    /// Ticks that were sampled.
    pub samples: u64,
    /// Ticks that the clock lost.
    pub lost: u64,
    /// Ticks that the host stole.
    pub stolen: u64,
    /// Processor time in ns that kvmprof's other threads took (event thread).
    pub other_threads_ns: f64,
}

impl Window {
    /// Guest time of a sample in ns, beside the quiet windows before and after: the host's own interrupts take time with and without the
    /// clock. Not a number without samples.
    #[expect(clippy::cast_precision_loss, reason = "counts of one window are small")]
    pub fn guest_ns_per_sample(&self, before: &Self, after: &Self) -> f64 {
        let quiet_away = f64::midpoint(before.away_ns / before.ns, after.away_ns / after.ns);
        (self.away_ns - quiet_away * self.ns) / self.samples as f64
    }
}

impl Guest {
    /// Starts the guest with `workload`, and waits until it counts.
    pub fn start(workload: &str, source: ClockSource) -> anyhow::Result<Self> {
        Self::start_with(workload, source, Devices::default())
    }

    /// The same with these devices.
    pub fn start_with(
        workload: &str,
        source: ClockSource,
        devices: Devices,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("Cannot make a folder for the socket")?;
        let socket: PathBuf = folder.path().join("socket");
        let machine = MachineConfig {
            initrd: None,
            command_line: format!("workload={workload}"),
            memory: MemoryOptions::private(64 << 20),
            cpus: 1,
        };
        // For windows in which the thread that removes the socket has its filter.
        let names = OutputNames::on_thread(vec![socket.clone()], None)?;
        let vm = Vm::start(VmConfig {
            output_names: Some(Arc::new(names)),
            disks: devices.disks,
            networks: devices.networks,
            profiling: ProfilingConfig {
                hz: START_HZ,
                source,
                socket: Some(socket.clone()),
                ..ProfilingConfig::default()
            },
            ..VmConfig::new(KernelSource::Embedded(IMAGE.elf()), machine)
        })?;
        let mut guest = Self {
            vm,
            connection: Connection::connect(&socket)?,
            counters: counters_area(1)?,
            tsc_khz: 0.0,
            _folder: folder,
        };
        let deadline = Instant::now() + START_TIMEOUT;
        while guest.counter()?.rounds == 0 {
            ensure!(Instant::now() < deadline, "The guest doesn't count");
            thread::sleep(Duration::from_millis(1));
        }
        guest.tsc_khz = guest.measured_tsc_khz()?;
        Ok(guest)
    }

    /// Ends it.
    pub fn stop(self) -> anyhow::Result<()> {
        self.vm.stop();
        drop(self.connection);
        self.vm.join()?;
        Ok(())
    }

    /// The number of rounds that it has counted.
    pub fn rounds(&self) -> anyhow::Result<u64> {
        Ok(self.counter()?.rounds)
    }

    /// Its counts.
    pub fn counter(&self) -> anyhow::Result<Counter> {
        let mut bytes = vec![0; usize::try_from(self.counters.end - self.counters.start)?];
        let address = GuestAddress(self.counters.start);
        self.vm.memory().read_slice(&mut bytes, address)?;
        let counters = counters(&bytes);
        counters
            .first()
            .copied()
            .context("The guest has no counter")
    }

    #[expect(clippy::cast_precision_loss, reason = "a frequency in kHz is small")]
    fn measured_tsc_khz(&self) -> anyhow::Result<f64> {
        let memory = self.vm.memory();
        let copy =
            |address, buffer: &mut [u8]| memory.read_slice(buffer, GuestAddress(address)).is_ok();
        Ok(IMAGE.truth(1, copy)?.tsc_khz as f64)
    }

    /// A window with the clock stopped.
    pub fn quiet(&self, length: Duration) -> anyhow::Result<Window> {
        self.measure(length)
    }

    /// A window with the clock at `hz`, with everything gathered and read.
    pub fn sampled(&self, length: Duration, hz: u32) -> anyhow::Result<Window> {
        let device = self.connection.open(device::PCS, 0)?;
        device.ioctl(PCS_SETBSIZE, i64::try_from(MAX_BSIZE)?)?;
        device.ioctl(BUF_INCR, i64::try_from(MAX_BUFS - DEF_BUFNO)?)?;
        device.ioctl(PCS_SETHZ, hz.into())?;
        device.ioctl(PROF_ALL, 0)?;
        let reader = read_all(device);
        let before = status(&reader.device)?;
        let mut window = self.measure(length)?;
        let after = status(&reader.device)?;
        reader.device.ioctl(PCS_STOP, 0)?;
        let device = reader.finish()?;
        device.close()?;
        window.ticks = after.ledger.ticks - before.ledger.ticks;
        window.lost = after.ledger.lost - before.ledger.lost;
        window.stolen = after.ledger.stolen - before.ledger.stolen;
        window.samples = window.ticks - window.lost - window.stolen;
        Ok(window)
    }

    #[expect(clippy::cast_precision_loss, reason = "rates need no more digits")]
    fn measure(&self, length: Duration) -> anyhow::Result<Window> {
        let others = threads_ns(&["events"])?;
        let (start, before) = (threads_ns(&["vcpu 0"])?, self.counter()?);
        thread::sleep(length);
        let (end, after) = (threads_ns(&["vcpu 0"])?, self.counter()?);
        let away = (after.gap_cycles - before.gap_cycles) as f64;
        Ok(Window {
            ns: (end - start) as f64,
            rounds: (after.rounds - before.rounds) as f64,
            away_ns: away * 1e6 / self.tsc_khz,
            other_threads_ns: (threads_ns(&["events"])? - others) as f64,
            ..Window::default()
        })
    }
}

struct Reader {
    device: std::sync::Arc<RemoteDevice>,
    thread: JoinHandle<Result<(), kvmprof_client::ClientError>>,
}

impl Reader {
    fn finish(self) -> anyhow::Result<std::sync::Arc<RemoteDevice>> {
        self.thread
            .join()
            .map_err(|_| anyhow::anyhow!("The reader panicked"))??;
        Ok(self.device)
    }
}

/// Reads until the end of file on a thread of its own.
fn read_all(device: RemoteDevice) -> Reader {
    let device = std::sync::Arc::new(device);
    let of_thread = std::sync::Arc::clone(&device);
    let thread = thread::spawn(move || {
        while !of_thread.read(MAX_BSIZE)?.is_empty() {}
        Ok(())
    });
    Reader { device, thread }
}

fn status(device: &RemoteDevice) -> anyhow::Result<Status> {
    let (_, data) = device.ioctl_with(PCS_GETSTAT, 0, &[], STATUS_SIZE)?;
    Status::decode(&data).context("PCS_GETSTAT makes no sense")
}

/// Processor time of this process's threads of those names so far, in ns. It is exact to the moment, which schedstat isn't.
fn threads_ns(names: &[&str]) -> anyhow::Result<u64> {
    let mut sum = 0;
    for task in std::fs::read_dir("/proc/self/task")?.flatten() {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        if names.contains(&name.trim_end())
            && let Some(tid) = task.file_name().to_str().and_then(|tid| tid.parse().ok())
        {
            sum += thread_cpu_ns(tid).with_context(|| format!("Thread {tid} has no clock"))?;
        }
    }
    Ok(sum)
}
