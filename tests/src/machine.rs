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
    pub fn start(command_line: &str, vcpus: u16, hz: u32, clock_source: ClockSource) -> Self {
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
            hz,
            clock_source,
            jitter: false,
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
        let socket = self.folder.path().join("socket");
        Pcs::open(Connection::connect(&socket).unwrap()).unwrap()
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
