//! The cost of two processes, one that parses and one that traces: the time that a sample by ptrace takes from the guest in one process and in two.

use std::io::Read;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use kvmprof_attach::remote::{self, RemoteVcpu, StandStill};
use kvmprof_attach::tracer::{TraceError, TracedVcpu};
use kvmprof_attach::{AttachedMemory, HostKernel};
use kvmprof_introspection::PhysicalMemory;
use kvmprof_test_guest::{Counter, IMAGE, counters, counters_area};
use vm_memory::GuestAddress;

use super::stops::Vmm;

/// Number of samples by either way.
const LOOKS: usize = 2000;
/// After each sample.
const PAUSE: Duration = Duration::from_millis(1);
/// Timeout for the guest to count.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Numbers that a sample reads, in as many parts of guest memory: those of a process, its task and its page tables, and two stacks.
const READS: u64 = 40;
const PARTS: u64 = 10;
/// Limit for the addition by the second process.
const LIMIT: f64 = 1.05;

/// The guest's view.
struct GuestView {
    memory: Arc<AttachedMemory>,
    tsc_khz: f64,
}

impl GuestView {
    fn counter(&self) -> anyhow::Result<Counter> {
        let area = counters_area(1)?;
        let mut bytes = vec![0; usize::try_from(area.end - area.start)?];
        let read = self
            .memory
            .read_physical(GuestAddress(area.start), &mut bytes);
        read.context("The guest's counters can't be read")?;
        let first = counters(&bytes).first().copied();
        first.context("The guest has no counter")
    }

    /// The time that the guest misses during a sample, in us.
    #[expect(clippy::cast_precision_loss, reason = "times of one look are short")]
    fn missed(&self, look: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<f64> {
        let before = self.counter()?;
        look()?;
        thread::sleep(PAUSE);
        let cycles = self.counter()?.gap_cycles - before.gap_cycles;
        Ok(cycles as f64 * 1e3 / self.tsc_khz)
    }
}

/// Reads as a sample does.
fn read(memory: &impl PhysicalMemory) -> Result<(), TraceError> {
    for number in 0..READS {
        let part = number % PARTS;
        let address = GuestAddress((1 << 20) + part * 0x1_1000 + number / PARTS * 8);
        memory
            .read_physical(address, &mut [0; 8])
            .ok_or(TraceError::Gone)?;
    }
    Ok(())
}

/// Measures both alternately, prints them, and fails if the second process adds too much.
pub fn print() -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("Cannot make a folder for the kernel")?;
    let vmm = Vmm::start(folder.path(), "gaps")?;
    let (machine, mut vcpu) = vmm.vcpu()?;
    let memory = Arc::new(AttachedMemory::open(
        &machine,
        Arc::new(HostKernel::open()?),
    )?);
    let (tracer, mut guest) = remote::divide(&memory, &[vcpu.another()], StandStill::Briefly)?;
    let tracer = fork(tracer)?;
    let remote = guest.vcpus.first_mut().context("There is no vCPU")?;
    let deadline = Instant::now() + TIMEOUT;
    let mut seen = GuestView {
        memory,
        tsc_khz: f64::NAN,
    };
    while seen.counter()?.rounds == 0 {
        ensure!(Instant::now() < deadline, "The guest doesn't count");
        thread::sleep(PAUSE);
    }
    seen.tsc_khz = tsc_khz(&seen.memory)?;
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for _ in 0..LOOKS {
        one.push(seen.missed(|| look(&mut vcpu, &seen.memory))?);
        two.push(seen.missed(|| look_remotely(remote))?);
    }
    drop(tracer);
    let (one, two) = (undisturbed(one), undisturbed(two));
    println!(
        "a look by ptrace, {READS} reads in {PARTS} parts of memory, a quarter of {LOOKS} looks takes at most: {one:.1} us of the guest's time in one process, {two:.1} us in \
         two, ratio {:.3}\n",
        two / one
    );
    ensure!(
        two <= one * LIMIT,
        "the second process adds more than {:.0} %",
        (LIMIT - 1.0) * 100.0
    );
    Ok(())
}

/// The first quartile: on a busy host, many samples take longer than themselves.
fn undisturbed(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 4).copied().unwrap_or(f64::NAN)
}

fn look(vcpu: &mut TracedVcpu, memory: &AttachedMemory) -> anyhow::Result<()> {
    vcpu.look(|vcpu| {
        vcpu.registers()?;
        read(memory)
    })?;
    Ok(())
}

fn look_remotely(vcpu: &mut RemoteVcpu) -> anyhow::Result<()> {
    let memory = Arc::clone(vcpu.memory());
    vcpu.look(|vcpu| {
        vcpu.registers()?;
        read(&memory)
    })?;
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a frequency in kHz is small")]
fn tsc_khz(memory: &AttachedMemory) -> anyhow::Result<f64> {
    let copy = |address, buffer: &mut [u8]| {
        memory
            .read_physical(GuestAddress(address), buffer)
            .is_some()
    };
    Ok(IMAGE.truth(1, copy)?.tsc_khz as f64)
}

/// Starts the tracer, which ends when the result is dropped.
fn fork(tracer: remote::Tracer) -> anyhow::Result<std::io::PipeWriter> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    ensure!(
        threads == 1,
        "a process with {threads} threads doesn't fork"
    );
    let (mut ended, own) = std::io::pipe()?;
    // SAFETY: this is the only thread.
    match unsafe { libc::fork() } {
        -1 => Err(std::io::Error::last_os_error().into()),
        0 => {
            drop(own);
            let running = tracer.start();
            // It is over, whatever this returns.
            let _ = ended.read(&mut [0]);
            drop(running);
            // SAFETY: it doesn't return. Exit handlers of the parent must not run in this process.
            unsafe { libc::_exit(0) }
        }
        _ => Ok(own),
    }
}
