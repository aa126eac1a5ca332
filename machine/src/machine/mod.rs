//! The machine: memory, kernel, tables, vCPUs and devices, which are made from a [`MachineConfig`].

mod acpi;
mod boot;
mod boot_parameters;
mod cpuid;
mod devices;
pub mod failure;
mod firmware;
mod host;
mod image;
mod initial_state;
mod kernel_file;
mod kernel_notes;
mod kernel_part;
mod mp_table;
mod other_image;
mod registers;

use std::fmt::Write;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use kvm_bindings::{KVM_PIT_SPEAKER_DUMMY, kvm_pit_config};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

pub use devices::{MachineDevices, UnclaimedAccesses};
pub use host::{has_hardware_virtualization, open_kvm};
pub use image::{BundledKernel, Image, ImageKind, LoadedKernel};
pub use initial_state::VcpuState;
pub use kernel_file::{KernelFile, KernelSource};
pub use kernel_part::KernelPart;
pub use kvmprof_devices::legacy::power::PowerRequest;

use crate::console::{ConsoleOutput, SerialConsole};
use crate::error::{MachineError, kvm as kvm_error};
use crate::layout;
use crate::lock::lock;
use crate::memory::{self, GuestMemory, MemoryOptions};
use crate::virtio::{
    Assembled, ConsoleDevice, ConsolePorts, DeviceThread, MmioRegisters, VirtioParts, VirtioSlot,
    slots,
};
use boot::{Boot, Initrd};
use cpuid::{CpuidReader, CpuidTemplate};
use initial_state::ChipState;

/// The configuration of a machine.
#[derive(Clone, Debug)]
pub struct MachineConfig {
    /// The guest's initial RAM disk, if it has one.
    pub initrd: Option<PathBuf>,
    /// The kernel's command line: printable ASCII, at most [`layout::COMMAND_LINE_MAX`] bytes.
    pub command_line: String,
    /// Guest memory.
    pub memory: MemoryOptions,
    /// Number of vCPUs: 1 to [`layout::CPUS_MAX`].
    pub cpus: u16,
}

/// A machine that is ready to run: each vCPU only needs `KVM_RUN`.
pub struct Machine {
    /// The virtual machine. Closing it while vCPUs run is safe: they hold it open.
    pub vm: VmFd,
    /// Guest memory. Must live as long as any vCPU.
    pub memory: GuestMemory,
    /// The vCPUs, whose indexes are their APIC ids.
    pub vcpus: Vec<VcpuFd>,
    /// The initial state of each vCPU.
    pub vcpu_states: Vec<VcpuState>,
    /// The whole kernel file, for introspection.
    pub image: Arc<[u8]>,
    /// The way in which the kernel is entered.
    pub kind: ImageKind,
    /// Answers the vCPUs' I/O exits.
    pub devices: Arc<MachineDevices>,
    boot: Boot,
    chips: ChipState,
    power_button: EventFd,
    /// The threads of devices that have threads of their own.
    device_threads: Mutex<Vec<DeviceThread>>,
}

/// The virtio devices that a machine is to have.
#[derive(Default)]
pub struct VirtioDevices {
    /// The console device, which comes first.
    pub console: Option<ConsolePorts>,
    /// The other devices, in the order of their slots.
    pub others: Vec<Box<dyn VirtioParts>>,
}

/// What a machine has of the host besides KVM, its kernel and devices: its memory, and its initial RAM disk, which is open and hasn't been read. No more
/// files are opened to build the machine, or to restart it.
pub struct HostParts {
    cpus: u8,
    cpuid: CpuidReader,
    memory: GuestMemory,
    initrd: Option<Initrd>,
}

impl HostParts {
    /// Opens what the machine that `config` describes needs.
    ///
    /// # Errors
    /// A file can't be opened, or a number or the memory isn't usable. The message says which.
    pub fn open(kvm: &Arc<Kvm>, config: &MachineConfig) -> Result<Self, MachineError> {
        let cpus = host::check_cpus(kvm, config.cpus)?;
        Ok(Self {
            cpus,
            cpuid: CpuidReader::start(kvm, cpus)?,
            memory: memory::allocate(&config.memory)?,
            initrd: config.initrd.clone().map(Initrd::open).transpose()?,
        })
    }
}

impl Machine {
    /// Builds the machine that `config` describes of these parts, with the kernel `image` and these `virtio` devices. Its serial port's output goes to `console`.
    ///
    /// # Errors
    /// The configuration can't be met: a file, a size or a number isn't usable, or the host lacks something. The message says which.
    pub fn build(
        kvm: &Kvm,
        config: &MachineConfig,
        host: HostParts,
        image: Arc<Image>,
        console: ConsoleOutput,
        virtio: VirtioDevices,
    ) -> Result<Self, MachineError> {
        let HostParts {
            cpus,
            cpuid,
            initrd,
            memory,
        } = host;
        let virtio = virtio.assemble(&memory)?;
        let slots = slots(virtio.registers.len())?;
        let boot = Boot::new(config, image, initrd, cpus, slots.clone())?;
        let kernel = boot.load(&memory)?;
        memory::started(&memory);

        let vm = create_vm(kvm, &memory)?;
        let chips = ChipState::read(&vm)?;
        let serial = SerialConsole::new(console).map_err(MachineError::EventFd)?;
        vm.register_irqfd(serial.interrupt(), layout::COM1_IRQ)
            .map_err(kvm_error("the serial port's interrupt (KVM_IRQFD)"))?;
        for (device, slot) in virtio.registers.iter().zip(&slots) {
            device.connect(&vm, slot)?;
        }
        let power_button = EventFd::new(EFD_NONBLOCK).map_err(MachineError::EventFd)?;
        vm.register_irqfd(&power_button, layout::POWER_BUTTON_GSI)
            .map_err(kvm_error("the power button's interrupt (KVM_IRQFD)"))?;
        let vcpus = create_vcpus(&vm, cpus, &cpuid.table()?, boot.kind(), kernel.entry)?;
        let msrs = initial_state::model_specific_registers(kvm)?;
        let states = vcpus.iter().map(|vcpu| VcpuState::read(vcpu, &msrs));
        Ok(Self {
            vm,
            memory,
            vcpu_states: states.collect::<Result<_, _>>()?,
            vcpus,
            kind: boot.kind(),
            image: Arc::clone(boot.image().bytes()),
            devices: Arc::new(MachineDevices::new(
                serial,
                virtio.console,
                virtio.registers,
            )),
            device_threads: Mutex::new(virtio.threads),
            boot,
            chips,
            power_button,
        })
    }

    /// Ends the devices' threads, which finish their present work before. Call this when no vCPU runs any more.
    pub fn end_devices(&self) {
        let mut threads = lock(&self.device_threads);
        for thread in &*threads {
            thread.ask_to_end();
        }
        threads.clear();
    }

    /// Whether the guest's kernel has a driver for the power button's events: it has unmasked their interrupt.
    #[must_use]
    pub fn hears_power_button(&self) -> bool {
        initial_state::is_unmasked(&self.vm, layout::POWER_BUTTON_GSI)
    }

    /// Another descriptor of the initial RAM disk with which the machine starts. The descriptors share one position: read the file by
    /// offsets.
    ///
    /// # Errors
    /// The host has no descriptor left.
    pub fn initrd(&self) -> io::Result<Option<File>> {
        self.boot.initrd()
    }

    /// Presses the power button.
    pub fn press_power_button(&self) {
        // If the counter is full, the interrupt has been raised already.
        let _ = self.power_button.write(1);
    }

    /// Resets everything except the vCPUs to the machine's initial state. No vCPU may run meanwhile. Each vCPU has to be reset to its own
    /// initial state before it runs again.
    ///
    /// # Errors
    /// The host refuses a part of the reset, or the initial RAM disk can't be read any more.
    pub fn restart(&self) -> Result<(), MachineError> {
        // This comes before memory, because a device doesn't access memory after its reset.
        self.devices.reset();
        memory::clear(&self.memory)?;
        self.boot.load(&self.memory)?;
        self.chips.restore(&self.vm)
    }
}

/// The virtio devices of a machine, in the order of their slots.
struct AssembledDevices {
    console: Option<Arc<ConsoleDevice>>,
    registers: Vec<Arc<dyn MmioRegisters>>,
    threads: Vec<DeviceThread>,
}

impl VirtioDevices {
    fn assemble(self, memory: &GuestMemory) -> Result<AssembledDevices, MachineError> {
        let console = self
            .console
            .map(|ports| ConsoleDevice::new(ports, memory.clone()).map(Arc::new))
            .transpose()?;
        let mut all = AssembledDevices {
            registers: console.iter().map(|console| console.registers()).collect(),
            console,
            threads: Vec::new(),
        };
        for parts in self.others {
            let Assembled { registers, threads } = parts.assemble(memory)?;
            all.registers.push(registers);
            all.threads.extend(threads);
        }
        Ok(all)
    }
}

/// The kernel's command line. Linux finds virtio devices by ACPI, and would find them a second time, in vain, by words on the command line.
/// A kernel without ACPI needs a word for each device (kernel: Documentation/admin-guide/kernel-parameters.txt, `virtio_mmio.device`).
fn command_line(asked: &str, has_acpi: bool, virtio: &[VirtioSlot]) -> String {
    let word = |name: &str| asked.split_whitespace().any(|word| word.starts_with(name));
    let has_acpi = has_acpi && !word("acpi=off");
    if has_acpi || virtio.is_empty() || word("virtio_mmio.device=") {
        return asked.to_owned();
    }
    // The words come first, because those after a lone `--` aren't for the kernel.
    let mut line = String::new();
    for slot in virtio {
        let kibibytes = slot.size / 1024;
        let VirtioSlot { address, gsi, .. } = slot;
        let _ = write!(line, "virtio_mmio.device={kibibytes}K@{address:#x}:{gsi} ");
    }
    line.push_str(asked);
    line.trim_end().to_owned()
}

/// Makes a virtual machine with memory, and with interrupt controllers and a timer in KVM.
fn create_vm(kvm: &Kvm, memory: &GuestMemory) -> Result<VmFd, MachineError> {
    let vm = kvm
        .create_vm()
        .map_err(kvm_error("a virtual machine (KVM_CREATE_VM)"))?;
    // Memory comes first: a change of it waits for readers (SRCU) that the controllers add. That took 4 ms of the start.
    memory::register(&vm, memory)?;
    let tss = usize::try_from(layout::KVM_TSS).unwrap_or(usize::MAX);
    vm.set_identity_map_address(layout::KVM_IDENTITY_MAP)
        .map_err(kvm_error("KVM_SET_IDENTITY_MAP_ADDR"))?;
    vm.set_tss_address(tss)
        .map_err(kvm_error("KVM_SET_TSS_ADDR"))?;
    vm.create_irq_chip()
        .map_err(kvm_error("interrupt controllers (KVM_CREATE_IRQCHIP)"))?;
    // Guests that calibrate their clock by the timer also find port 0x61.
    vm.create_pit2(kvm_pit_config {
        flags: KVM_PIT_SPEAKER_DUMMY,
        ..Default::default()
    })
    .map_err(kvm_error("an interval timer (KVM_CREATE_PIT2)"))?;
    Ok(vm)
}

fn create_vcpus(
    vm: &VmFd,
    cpus: u8,
    cpuid: &CpuidTemplate,
    kind: ImageKind,
    address: u64,
) -> Result<Vec<VcpuFd>, MachineError> {
    let mut vcpus = Vec::with_capacity(usize::from(cpus));
    for index in 0..cpus {
        let vcpu = vm
            .create_vcpu(u64::from(index))
            .map_err(kvm_error("a vCPU (KVM_CREATE_VCPU)"))?;
        // This comes first, because it determines what else may be set.
        vcpu.set_cpuid2(&cpuid.for_vcpu(index)?)
            .map_err(kvm_error("the CPUID table (KVM_SET_CPUID2)"))?;
        registers::set_up(
            &vcpu,
            &registers::Entry {
                kind,
                address,
                vcpu: index,
                cpus,
            },
        )?;
        vcpus.push(vcpu);
    }
    Ok(vcpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORD: &str = "virtio_mmio.device=4K@0xd0000000:5";

    fn line(asked: &str, has_acpi: bool, devices: usize) -> String {
        command_line(asked, has_acpi, &slots(devices).unwrap())
    }

    #[test]
    fn linux_finds_the_devices_by_acpi_unless_that_is_off() {
        assert_eq!(line("quiet", true, 2), "quiet");
        let off = line("acpi=off -- acpi", true, 1);
        assert_eq!(off, format!("{WORD} acpi=off -- acpi"));
    }

    #[test]
    fn other_kernels_find_them_on_their_command_line() {
        assert_eq!(line("", false, 1), WORD);
        let two = format!("{WORD} virtio_mmio.device=4K@0xd0001000:6 quiet");
        assert_eq!(line("quiet", false, 2), two);
        let own = "virtio_mmio.device=4K@0xd0000000:5 mine";
        assert_eq!(line(own, false, 1), own);
        assert_eq!(line("workload=mixed", false, 0), "workload=mixed");
    }

    #[test]
    fn the_maximum_number_of_devices_fits_on_the_command_line() {
        let room = layout::COMMAND_LINE_MAX - line("", false, layout::VIRTIO_DEVICES_MAX).len();
        assert!(room > 512, "{room} bytes");
    }

    #[test]
    fn the_embedded_guest_is_not_linux() {
        let file = KernelFile::Embedded(kvmprof_demo_guest::ELF);
        let image = file.read(Image::parse).unwrap();
        assert!(!image.is_linux());
    }
}
