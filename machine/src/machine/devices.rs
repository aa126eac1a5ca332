//! The machine's devices, as vCPU threads see them.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use kvmprof_devices::legacy::power::{self, PowerRequest};
use kvmprof_devices::virtio::REGISTERS_SIZE;

use crate::console::SerialConsole;
use crate::layout;
use crate::lock::lock;
use crate::virtio::{ConsoleDevice, MmioRegisters};

/// Numbers of accesses that no device answered. Such reads return all ones, and such writes have no effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnclaimedAccesses {
    /// Reads of I/O ports.
    pub port_reads: u64,
    /// Writes to I/O ports.
    pub port_writes: u64,
    /// Reads of guest-physical addresses without memory.
    pub mmio_reads: u64,
    /// Writes to guest-physical addresses without memory.
    pub mmio_writes: u64,
}

#[derive(Debug, Default)]
struct UnclaimedCounts {
    port_reads: AtomicU64,
    port_writes: AtomicU64,
    mmio_reads: AtomicU64,
    mmio_writes: AtomicU64,
}

/// Answers the I/O exits of all vCPUs. All methods may be called from any thread.
pub struct MachineDevices {
    serial: Arc<SerialConsole>,
    console: Option<Arc<ConsoleDevice>>,
    /// The devices by slot. The first has the first registers.
    virtio: Vec<Arc<dyn MmioRegisters>>,
    unclaimed: UnclaimedCounts,
    /// The exit status that the guest has reported, if it has.
    exit_status: Mutex<Option<u8>>,
}

impl MachineDevices {
    /// `virtio` are the registers of all virtio devices by slot, those of `console` among them.
    pub fn new(
        serial: SerialConsole,
        console: Option<Arc<ConsoleDevice>>,
        virtio: Vec<Arc<dyn MmioRegisters>>,
    ) -> Self {
        Self {
            serial: Arc::new(serial),
            console,
            virtio,
            unclaimed: UnclaimedCounts::default(),
            exit_status: Mutex::default(),
        }
    }

    /// The exit status that the guest has reported since its last start, if it has.
    #[must_use]
    pub fn exit_status(&self) -> Option<u8> {
        *lock(&self.exit_status)
    }

    /// The serial port.
    #[must_use]
    pub fn serial(&self) -> &Arc<SerialConsole> {
        &self.serial
    }

    /// The virtio console device, if there is one.
    #[must_use]
    pub fn virtio_console(&self) -> Option<&Arc<ConsoleDevice>> {
        self.console.as_ref()
    }

    /// Resets all devices to their state after power-on. Their connections on the host stay.
    pub(super) fn reset(&self) {
        self.serial.reset();
        *lock(&self.exit_status) = None;
        for device in &self.virtio {
            device.reset();
        }
    }

    /// The virtio device with registers at this address, and the offset of the address from its first register.
    fn virtio_at(&self, address: u64) -> Option<(&dyn MmioRegisters, u64)> {
        let offset = address.checked_sub(layout::VIRTIO_MMIO.into())?;
        let size = u64::from(REGISTERS_SIZE);
        let device = self.virtio.get(usize::try_from(offset / size).ok()?)?;
        Some((&**device, offset % size))
    }

    /// Answers a read of an I/O port (`KVM_EXIT_IO`, in). `data` has one byte for each byte
    /// read: all of them come from `port`, as with `rep insb`.
    pub fn port_read(&self, port: u16, data: &mut [u8]) {
        if let Some(register) = serial_register(port) {
            self.serial.read(register, data);
        } else if power::claims(port) {
            data.fill(0);
        } else {
            count(&self.unclaimed.port_reads);
            data.fill(0xff);
        }
    }

    /// Answers a write to an I/O port (`KVM_EXIT_IO`, out). All bytes of `data` go to `port`, as
    /// with `rep outsb`. Breaks if the guest asked the machine to stop.
    pub fn port_write(&self, port: u16, data: &[u8]) -> ControlFlow<PowerRequest> {
        if let Some(register) = serial_register(port) {
            self.serial.write(register, data);
        } else if port == power::EXIT_STATUS_PORT {
            *lock(&self.exit_status) = data.last().copied();
        } else if power::claims(port) {
            if let Some(request) = data.iter().find_map(|byte| power::write(port, *byte)) {
                return ControlFlow::Break(request);
            }
        } else {
            count(&self.unclaimed.port_writes);
        }
        ControlFlow::Continue(())
    }

    /// Answers a read of a guest-physical address that is no memory (`KVM_EXIT_MMIO`).
    pub fn mmio_read(&self, address: u64, data: &mut [u8]) {
        if let Some((device, offset)) = self.virtio_at(address) {
            device.read(offset, data);
        } else {
            count(&self.unclaimed.mmio_reads);
            data.fill(0xff);
        }
    }

    /// Answers a write to a guest-physical address that is no memory (`KVM_EXIT_MMIO`). Breaks
    /// if the guest asked the machine to stop.
    pub fn mmio_write(&self, address: u64, data: &[u8]) -> ControlFlow<PowerRequest> {
        if let Some((device, offset)) = self.virtio_at(address) {
            device.write(offset, data);
        } else {
            count(&self.unclaimed.mmio_writes);
        }
        ControlFlow::Continue(())
    }

    /// Numbers of accesses that no device has answered until now.
    #[must_use]
    pub fn unclaimed_accesses(&self) -> UnclaimedAccesses {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        UnclaimedAccesses {
            port_reads: get(&self.unclaimed.port_reads),
            port_writes: get(&self.unclaimed.port_writes),
            mmio_reads: get(&self.unclaimed.mmio_reads),
            mmio_writes: get(&self.unclaimed.mmio_writes),
        }
    }
}

fn serial_register(port: u16) -> Option<u8> {
    let offset = port.checked_sub(layout::COM1)?;
    (offset < layout::COM1_PORTS)
        .then(|| u8::try_from(offset).ok())
        .flatten()
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::ConsoleOutput;
    use crate::virtio::{ConsolePorts, GuestAccess};
    use kvmprof_devices::endpoint::HelloInfo;
    use std::io;

    fn devices() -> io::Result<MachineDevices> {
        let serial = SerialConsole::new(ConsoleOutput::discard())?;
        Ok(MachineDevices::new(serial, None, Vec::new()))
    }

    #[test]
    fn unclaimed_places_read_all_ones_and_are_counted() {
        let devices = devices().unwrap();
        let (mut port, mut memory) = ([0; 4], [0; 8]);
        devices.port_read(0xcf8, &mut port);
        devices.mmio_read(0xd000_0000, &mut memory);
        assert_eq!((port, memory), ([0xff; 4], [0xff; 8]));
        assert!(devices.port_write(0x80, &[1]).is_continue());
        assert!(devices.mmio_write(u64::MAX, &[]).is_continue());
        let expected = UnclaimedAccesses {
            port_reads: 1,
            port_writes: 1,
            mmio_reads: 1,
            mmio_writes: 1,
        };
        assert_eq!(devices.unclaimed_accesses(), expected);
        // Accesses without a byte are harmless.
        devices.port_read(0x3f8, &mut []);
        assert!(devices.port_write(0x600, &[]).is_continue());
    }

    #[test]
    fn each_virtio_device_has_its_registers_and_no_more() {
        let options = crate::memory::MemoryOptions::private(layout::MEMORY_MIN);
        let memory = crate::memory::allocate(&options).unwrap();
        let device = || {
            let ports = ConsolePorts::new(None, GuestAccess::All, HelloInfo::default()).unwrap();
            let device = ConsoleDevice::new(ports.unwrap(), memory.clone()).unwrap();
            device.registers()
        };
        let serial = SerialConsole::new(ConsoleOutput::discard()).unwrap();
        let devices = MachineDevices::new(serial, None, vec![device(), device()]);
        let first = u64::from(layout::VIRTIO_MMIO);
        let size = u64::from(REGISTERS_SIZE);
        let read = |address| {
            let mut data = [0; 4];
            devices.mmio_read(address, &mut data);
            data
        };
        for start in [first, first + size] {
            assert_eq!(&read(start), b"virt");
            assert_eq!(read(start + 8), [3, 0, 0, 0]);
        }
        let status = |device| first + device * size + 0x70;
        assert!(devices.mmio_write(status(1), &[1, 0, 0, 0]).is_continue());
        assert_eq!(read(status(1)), [1, 0, 0, 0]);
        assert_eq!(read(status(0)), [0; 4]);
        assert_eq!(devices.unclaimed_accesses(), UnclaimedAccesses::default());
        assert_eq!(read(first - 1), [0xff; 4]);
        assert_eq!(read(first + 2 * size), [0xff; 4]);
        assert_eq!(devices.unclaimed_accesses().mmio_reads, 2);
    }

    #[test]
    fn power_requests_stop_the_machine() {
        let devices = devices().unwrap();
        for (port, value, request) in [
            (power::RESET_PORT, 1, PowerRequest::Reset),
            (power::SLEEP_CONTROL_PORT, 0x34, PowerRequest::PowerOff),
        ] {
            let ended = devices.port_write(port, &[value]);
            assert_eq!(ended, ControlFlow::Break(request));
        }
    }

    #[test]
    fn the_exit_port_gives_the_kind_of_end() {
        let devices = devices().unwrap();
        assert_eq!(devices.exit_status(), None);
        let written = devices.port_write(power::EXIT_STATUS_PORT, &[7]);
        assert!(written.is_continue());
        assert_eq!(devices.exit_status(), Some(7));
        devices.reset();
        assert_eq!(devices.exit_status(), None);
    }

    #[test]
    fn the_serial_port_ends_after_its_eight_registers() {
        let registers = [0x3f7, 0x3f8, 0x3ff, 0x400].map(serial_register);
        assert_eq!(registers, [None, Some(0), Some(7), None]);
    }
}
