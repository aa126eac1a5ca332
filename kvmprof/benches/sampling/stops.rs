//! How long `kvmprof attach` stops a vCPU for a sample by ptrace.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use kvmprof_attach::tracer::{StopOutcome, ThreadCode, TracedVcpu};
use kvmprof_attach::{HostKernel, Machine, find_machines};
use kvmprof_test_guest::IMAGE;

/// Number of stops.
const STOPS: usize = 5000;
/// Between two of them.
const PAUSE: Duration = Duration::from_millis(1);
/// Timeout for the guest to run.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A guest in another process, which is ended when this is dropped.
pub struct Vmm(Child);

impl Vmm {
    /// Starts the guest with `workload`. Its kernel is put into `folder`.
    pub fn start(folder: &Path, workload: &str) -> anyhow::Result<Self> {
        let kernel = folder.join("kernel");
        std::fs::write(&kernel, IMAGE.elf()).context("Cannot write the guest's kernel")?;
        let child = Command::new(env!("CARGO_BIN_EXE_kvmprof"))
            .args(["run", "--memory", "64M", "--console", "none"])
            .args(["--cmdline", &format!("workload={workload}"), "--kernel"])
            .arg(&kernel)
            .stdin(Stdio::null())
            .spawn();
        Ok(Self(child.context("Cannot start kvmprof run")?))
    }

    /// The guest and its vCPU, once that has run.
    pub fn vcpu(&self) -> anyhow::Result<(Machine, TracedVcpu)> {
        let host = HostKernel::open()?;
        let deadline = Instant::now() + TIMEOUT;
        let is_it = |machine: &Machine| u32::try_from(machine.pid) == Ok(self.0.id());
        loop {
            let machine = find_machines(Ok(&host)).machines.into_iter().find(is_it);
            if let Some(machine) = machine
                && let Some(vcpu) = machine.vcpus.first()
                && let Some(tid) = vcpu.thread
            {
                let code = ThreadCode::find(machine.pid)?;
                let vcpu = TracedVcpu::new(machine.pid, tid, vcpu.descriptor, code);
                return Ok((machine, vcpu));
            }
            ensure!(Instant::now() < deadline, "The guest doesn't run");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        // It may have failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures the time from before the vCPU is interrupted until it is released, and prints it.
pub fn print() -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("Cannot make a folder for the kernel")?;
    let vmm = Vmm::start(folder.path(), "spin")?;
    let (_, mut vcpu) = vmm.vcpu()?;
    let mut stops = Vec::new();
    for _ in 0..STOPS {
        thread::sleep(PAUSE);
        let began = Instant::now();
        if let StopOutcome::Stopped(_) = vcpu.look(|vcpu| vcpu.registers())? {
            stops.push(began.elapsed());
        }
    }
    stops.sort_unstable();
    let at = |part: usize| stops.get((stops.len() * part / 1000).min(stops.len() - 1));
    ensure!(stops.len() * 10 >= STOPS * 9, "The vCPU can't be stopped");
    let [median, most, longest] =
        [500, 999, 1000].map(|part| at(part).copied().unwrap_or_default());
    println!(
        "attached by ptrace, {} stops: {} us, 99.9 % of them at most {} us, the longest {} us\n",
        stops.len(),
        median.as_micros(),
        most.as_micros(),
        longest.as_micros()
    );
    Ok(())
}
