//! The demo guest in this process, so that its own count of its time can be read.

use kvmprof::clock::ClockSource;
use kvmprof::console::Console;
use kvmprof::machine::{KernelSource, MachineConfig};
use kvmprof::vm::{Vm, VmConfig, VmEnd};
use kvmprof_demo_guest::{Counter, Truth, counters, counters_area};
use kvmprof_tools::client::Connection;
use tempfile::TempDir;
use vm_memory::{Bytes, GuestAddress};

use crate::{Pcs, until};

const MEMORY_BYTES: u64 = 64 << 20;

/// The clock that a [`Machine`] has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// Ticks a second on each vCPU.
    pub hz: u32,
    /// What drives it.
    pub source: ClockSource,
    /// Whether ticks have a random phase.
    pub jitter: bool,
}

/// The demo guest, run by this process.
pub struct Machine {
    vm: Vm,
    vcpus: u16,
    folder: TempDir,
}

impl Machine {
    /// Starts it with these words on its command line, held until somebody gathers.
    ///
    /// # Panics
    /// When it can't be started.
    pub fn start(command_line: &str, vcpus: u16, clock: Clock) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let vm = Vm::start(VmConfig {
            machine: MachineConfig {
                kernel: KernelSource::Embedded(kvmprof_demo_guest::ELF),
                initrd: None,
                command_line: command_line.to_owned(),
                memory_bytes: MEMORY_BYTES,
                cpus: vcpus,
            },
            console: Console::None,
            hz: clock.hz,
            clock_source: clock.source,
            jitter: clock.jitter,
            hold: true,
            socket: Some(folder.path().join("socket")),
            knowledge: None,
        })
        .unwrap();
        Self { vm, vcpus, folder }
    }

    /// pcs, opened by a new client.
    ///
    /// # Panics
    /// When that fails.
    pub fn open(&self) -> Pcs {
        Pcs::open(self.connect()).unwrap()
    }

    fn copy(&self, address: u64, buffer: &mut [u8]) -> bool {
        let memory = self.vm.memory();
        memory.read_slice(buffer, GuestAddress(address)).is_ok()
    }

    /// What the guest has counted so far, as soon as it has begun to.
    pub fn truth(&self) -> Truth {
        let vcpus = usize::from(self.vcpus);
        until("the guest counts its time", || {
            let truth = Truth::read(vcpus, |address, buffer| self.copy(address, buffer)).ok()?;
            let begun = truth.vcpus.iter().all(|vcpu| vcpu.updates > 2);
            begun.then_some(truth)
        })
    }

    /// The guest's counters, one for each vCPU.
    ///
    /// # Panics
    /// When guest memory can't be read.
    pub fn counters(&self) -> Vec<Counter> {
        let area = counters_area(self.vcpus.into()).unwrap();
        let mut bytes = vec![0; usize::try_from(area.end - area.start).unwrap()];
        assert!(self.copy(area.start, &mut bytes));
        counters(&bytes)
    }

    /// A new client.
    ///
    /// # Panics
    /// When it isn't let in.
    pub fn connect(&self) -> Connection {
        Connection::connect(&self.folder.path().join("socket")).unwrap()
    }

    /// Waits until every vCPU has counted so many rounds more, while `meanwhile` is called again
    /// and again.
    ///
    /// # Panics
    /// When a vCPU has seen a wrong value.
    pub fn until_rounds(&self, more: u64, mut meanwhile: impl FnMut()) {
        let before = self.counters();
        until("the guest has gone on", || {
            meanwhile();
            let now = self.counters();
            assert!(now.iter().all(|counter| counter.errors == 0), "{now:?}");
            let all = now.iter().zip(&before);
            all.map(|(now, before)| now.rounds - before.rounds)
                .all(|rounds| rounds >= more)
                .then_some(())
        });
    }

    /// Ends it.
    ///
    /// # Panics
    /// When it had ended otherwise.
    pub fn stop(self) {
        self.vm.stop();
        let end = self.vm.join().unwrap();
        assert!(matches!(end, VmEnd::Stopped), "{end:?}");
    }
}
