//! A bare-metal guest in this process, whose own count of its time can be read.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use kvmprof_client::Connection;
use kvmprof_demo_guest::{Image, Truth};
use kvmprof_machine::connector::{PortConnector, SocketConnector};
use kvmprof_machine::output_names::OutputNames;
use kvmprof_machine::virtio::GuestAccess;
use kvmprof_machine::{KernelSource, MachineConfig, MemoryOptions};
use kvmprof_profiling::clock::ClockSource;
use kvmprof_profiling::kernel_capture::CaptureHelper;
use kvmprof_profiling::{ProfilingConfig, RecordPlan};
use kvmprof_recording::file::FileOptions;
use kvmprof_recording::status::Status;
use kvmprof_recording::{SamplingEvent, StackParts};
use kvmprof_sandbox::Mode;
use kvmprof_test_guest::{
    AttackResults, Counter, DiskResults, NetworkResults, PortResults, Stage, allow_stage,
    attack_results_area, counters, counters_area, disk_results_area, network_results_area,
    port_results_area,
};
use kvmprof_vmm::vm::{Vm, VmConfig, VmEnd, sockets_of_devices, sockets_to_make};
use tempfile::TempDir;
use vm_memory::{Bytes, GuestAddress};

use crate::capabilities::make_perfmon_enough_in_lab;
use crate::status::status_of;
use crate::{Boot, Pcs, until};

const MEMORY_BYTES: u64 = 64 << 20;

/// The clock of a [`Machine`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// Ticks a second on each vCPU.
    pub hz: u32,
    /// The clock's source.
    pub source: ClockSource,
    /// Whether ticks have a random phase.
    pub jitter: bool,
}

impl Clock {
    /// A clock of the vCPUs' threads, with ticks in step.
    pub fn at(hz: u32) -> Self {
        Self {
            hz,
            ..Self::default()
        }
    }

    /// The same with a random phase. Otherwise the demo guest's own timer would run in step.
    pub fn jittered(hz: u32) -> Self {
        Self {
            jitter: true,
            ..Self::at(hz)
        }
    }
}

/// Installs the sandbox's filters for the threads of guests in this process, unless `KVMPROF_TESTS_SANDBOX` says `log` or `off`. So the
/// tests find system calls that the filters have to allow.
fn contain_threads() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        make_perfmon_enough_in_lab();
        let mode =
            std::env::var("KVMPROF_TESTS_SANDBOX").map_or(Mode::On, |mode| mode.parse().unwrap());
        kvmprof_sandbox::filters::prepare(mode, || {}).unwrap();
    });
}

/// Makes threads outside the sandbox do what its threads may not: connect, make and remove files, and have the host's kernel take samples.
fn with_helpers(config: VmConfig) -> VmConfig {
    let devices = sockets_of_devices(&config);
    let connector = || Arc::new(SocketConnector::on_thread(devices).unwrap());
    let ports = config.vsock.as_ref();
    let ports = ports.map(|vsock| PortConnector::on_thread(&vsock.path).unwrap());
    let recording = config.profiling.record.as_ref();
    let recording = recording.map(|plan| plan.path.as_path());
    let names = OutputNames::on_thread(sockets_to_make(&config), recording).unwrap();
    let captures = || Arc::new(CaptureHelper::on_thread().unwrap());
    let is_kernel = config.profiling.source == ClockSource::Kernel;
    VmConfig {
        socket_connector: (!config.networks.is_empty()).then(connector),
        port_connector: ports.map(Arc::new),
        capture_helper: is_kernel.then(captures),
        output_names: Some(Arc::new(names)),
        ..config
    }
}

/// A bare-metal guest that this process runs.
pub struct Machine {
    vm: Vm,
    image: &'static Image,
    vcpus: u16,
    folder: TempDir,
}

impl Machine {
    /// Starts the guest, held until a client gathers.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn start(boot: Boot, vcpus: u16, clock: Clock) -> Self {
        Self::launch(boot, vcpus, clock, |config| VmConfig {
            hold: true,
            ..config
        })
    }

    /// Starts the guest, neither held nor sampled, without ports, and waits until it counts its time, if it does.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn unwatched(boot: Boot, vcpus: u16) -> Self {
        let machine = Self::start_with_ports(boot, vcpus, Clock::default(), GuestAccess::None);
        if matches!(boot, Boot::Demo) {
            machine.truth();
        }
        machine
    }

    /// Starts the guest with a recorder, which lets it run.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn recorded(boot: Boot, vcpus: u16, clock: Clock, path: &Path) -> Self {
        Self::recorded_by(boot, vcpus, clock, None, path)
    }

    /// Like [`Self::recorded`], with `event` in place of the clock.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn recorded_by(
        boot: Boot,
        vcpus: u16,
        clock: Clock,
        event: Option<SamplingEvent>,
        path: &Path,
    ) -> Self {
        let plan = RecordPlan {
            path: path.to_owned(),
            stacks: StackParts {
                kernel: true,
                user: true,
            },
            event,
            looks: None,
            file: FileOptions::default(),
        };
        Self::launch(boot, vcpus, clock, |mut config| {
            config.profiling.record = Some(plan);
            config
        })
    }

    /// Starts the guest, not held, with this access for its own ports.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn start_with_ports(boot: Boot, vcpus: u16, clock: Clock, access: GuestAccess) -> Self {
        Self::launch(boot, vcpus, clock, |config| VmConfig {
            guest_access: access,
            ..config
        })
    }

    /// Starts the guest, not held, with what `adapt` changes of its configuration.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn launch(
        boot: Boot,
        vcpus: u16,
        clock: Clock,
        adapt: impl FnOnce(VmConfig) -> VmConfig,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let machine = MachineConfig {
            initrd: None,
            command_line: boot.command_line().to_owned(),
            memory: MemoryOptions::private(MEMORY_BYTES),
            cpus: vcpus,
        };
        let config = VmConfig {
            profiling: ProfilingConfig {
                hz: clock.hz,
                source: clock.source,
                jitter: clock.jitter,
                socket: Some(folder.path().join("socket")),
                ..ProfilingConfig::default()
            },
            ..VmConfig::new(KernelSource::Embedded(boot.image().elf()), machine)
        };
        contain_threads();
        let vm = Vm::start(with_helpers(adapt(config))).unwrap();
        Self {
            vm,
            image: boot.image(),
            vcpus,
            folder,
        }
    }

    /// pcs, opened by a new client.
    ///
    /// # Panics
    /// If this fails.
    pub fn open(&self) -> Pcs {
        Pcs::open(self.connect()).unwrap()
    }

    fn copy(&self, address: u64, buffer: &mut [u8]) -> bool {
        let memory = self.vm.memory();
        memory.read_slice(buffer, GuestAddress(address)).is_ok()
    }

    /// The guest's count of its time, as soon as it has begun to count.
    pub fn truth(&self) -> Truth {
        let vcpus = usize::from(self.vcpus);
        until("the guest counts its time", || {
            let copy = |address, buffer: &mut [u8]| self.copy(address, buffer);
            let truth = self.image.truth(vcpus, copy).ok()?;
            let begun = truth.vcpus.iter().all(|vcpu| vcpu.updates > 2);
            begun.then_some(truth)
        })
    }

    /// Copies a part of the test guest's memory.
    fn area(&self, area: Range<u64>) -> Vec<u8> {
        let is_test_guest = std::ptr::eq(self.image, &kvmprof_test_guest::IMAGE);
        assert!(is_test_guest, "another guest has something else there");
        let mut bytes = vec![0; usize::try_from(area.end - area.start).unwrap()];
        assert!(self.copy(area.start, &mut bytes));
        bytes
    }

    /// The present bytes in memory of an object of the guest's image.
    ///
    /// # Panics
    /// If there is no such object.
    pub fn object(&self, name: &'static str) -> Vec<u8> {
        let area = self.image.area(name).unwrap();
        let mut bytes = vec![0; usize::try_from(area.end - area.start).unwrap()];
        assert!(self.copy(area.start, &mut bytes));
        bytes
    }

    /// Overwrites the start of an object of the guest's image, while the guest runs.
    ///
    /// # Panics
    /// If there is no such object.
    pub fn overwrite(&self, name: &'static str, offset: u64, bytes: &[u8]) {
        let area = self.image.area(name).unwrap();
        let address = GuestAddress(area.start + offset);
        self.vm.memory().write_slice(bytes, address).unwrap();
    }

    /// The results of the workloads `network` and `hostile-network` so far.
    ///
    /// # Panics
    /// If guest memory can't be read, or another guest runs.
    pub fn network(&self) -> NetworkResults {
        NetworkResults::parse(&self.area(network_results_area().unwrap())).unwrap()
    }

    /// The results of the workload `port` so far.
    ///
    /// # Panics
    /// If guest memory can't be read, or another guest runs.
    pub fn port(&self) -> PortResults {
        PortResults::parse(&self.area(port_results_area().unwrap())).unwrap()
    }

    /// Waits until `is` returns true for the results of the workload `port`.
    ///
    /// # Panics
    /// If the workload fails instead.
    pub fn until_port(&self, mut is: impl FnMut(&PortResults) -> bool) -> PortResults {
        until("the guest has got that far", || {
            let results = self.port();
            assert_ne!(results.stage, Some(Stage::Failed), "{results:?}");
            is(&results).then_some(results)
        })
    }

    /// Waits until the workload `port` has reached this stage.
    pub fn until_stage(&self, stage: Stage) -> PortResults {
        self.until_port(|results| results.stage >= Some(stage))
    }

    /// Lets the workload `port` leave this stage.
    ///
    /// # Panics
    /// If guest memory can't be written.
    pub fn allow(&self, stage: Stage) {
        let (address, bytes) = allow_stage(stage).unwrap();
        let memory = self.vm.memory();
        memory.write_slice(&bytes, GuestAddress(address)).unwrap();
    }

    /// The final results of the workload `disk`.
    ///
    /// # Panics
    /// If guest memory can't be read, or another guest runs.
    pub fn until_disk_is_tried(&self) -> DiskResults {
        until("the guest has tried its disk", || {
            let area = self.area(disk_results_area().unwrap());
            let results = DiskResults::parse(&area).unwrap();
            results.finished.then_some(results)
        })
    }

    /// The results of the workload `hostile-queues` so far.
    ///
    /// # Panics
    /// If guest memory can't be read, or another guest runs.
    pub fn attacks(&self) -> AttackResults {
        AttackResults::parse(&self.area(attack_results_area().unwrap())).unwrap()
    }

    /// The test guest's counters, one for each vCPU.
    ///
    /// # Panics
    /// If guest memory can't be read, or another guest runs.
    pub fn counters(&self) -> Vec<Counter> {
        counters(&self.area(counters_area(self.vcpus.into()).unwrap()))
    }

    /// Connects a new client.
    ///
    /// # Panics
    /// If the connection fails.
    pub fn connect(&self) -> Connection {
        Connection::connect(&self.socket()).unwrap()
    }

    /// The path of its socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// The status document.
    pub fn status(&self) -> Status {
        status_of(&self.connect())
    }

    /// Waits until every vCPU has counted `more` further rounds, and calls `meanwhile` repeatedly.
    ///
    /// # Panics
    /// If a vCPU has seen a wrong value.
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

    /// Ends the guest.
    ///
    /// # Panics
    /// If it has ended for another reason.
    pub fn stop(self) {
        self.vm.stop();
        let end = self.vm.join().unwrap();
        assert!(matches!(end, VmEnd::Stopped), "{end:?}");
    }
}
