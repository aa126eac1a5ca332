//! The virtio-mmio transport, version 2: registers by which a driver identifies a device, negotiates features, sets up
//! its queues and receives notifications (section 4.2).

use virtio_bindings::bindings::virtio_config::{
    VIRTIO_CONFIG_S_DRIVER_OK, VIRTIO_CONFIG_S_FAILED, VIRTIO_CONFIG_S_FEATURES_OK,
    VIRTIO_CONFIG_S_NEEDS_RESET, VIRTIO_F_VERSION_1,
};
use virtio_bindings::bindings::virtio_mmio::{
    VIRTIO_MMIO_CONFIG, VIRTIO_MMIO_CONFIG_GENERATION, VIRTIO_MMIO_DEVICE_FEATURES,
    VIRTIO_MMIO_DEVICE_FEATURES_SEL, VIRTIO_MMIO_DEVICE_ID, VIRTIO_MMIO_DRIVER_FEATURES,
    VIRTIO_MMIO_DRIVER_FEATURES_SEL, VIRTIO_MMIO_INT_CONFIG, VIRTIO_MMIO_INT_VRING,
    VIRTIO_MMIO_INTERRUPT_ACK, VIRTIO_MMIO_INTERRUPT_STATUS, VIRTIO_MMIO_MAGIC_VALUE,
    VIRTIO_MMIO_QUEUE_AVAIL_HIGH, VIRTIO_MMIO_QUEUE_AVAIL_LOW, VIRTIO_MMIO_QUEUE_DESC_HIGH,
    VIRTIO_MMIO_QUEUE_DESC_LOW, VIRTIO_MMIO_QUEUE_NOTIFY, VIRTIO_MMIO_QUEUE_NUM,
    VIRTIO_MMIO_QUEUE_NUM_MAX, VIRTIO_MMIO_QUEUE_READY, VIRTIO_MMIO_QUEUE_SEL,
    VIRTIO_MMIO_QUEUE_USED_HIGH, VIRTIO_MMIO_QUEUE_USED_LOW, VIRTIO_MMIO_SHM_BASE_HIGH,
    VIRTIO_MMIO_SHM_BASE_LOW, VIRTIO_MMIO_SHM_LEN_HIGH, VIRTIO_MMIO_SHM_LEN_LOW,
    VIRTIO_MMIO_STATUS, VIRTIO_MMIO_VENDOR_ID, VIRTIO_MMIO_VERSION,
};

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::queue::{QueueError, QueueLayout, Virtqueue};
use super::{GuestMemory, VirtioDevice};

/// Size of the registers in guest-physical address space, in bytes.
pub const REGISTERS_SIZE: u32 = 0x1000;

/// Offset of the register for a driver's notification of a queue.
pub const QUEUE_NOTIFY: u32 = VIRTIO_MMIO_QUEUE_NOTIFY;

/// Offset of the register for the device's status, by which a driver that writes 0 resets the device (section 4.2.2).
pub const STATUS: u32 = VIRTIO_MMIO_STATUS;

/// Offset of the register by which a driver sets up a queue, and takes it away (section 4.2.2).
pub const QUEUE_READY: u32 = VIRTIO_MMIO_QUEUE_READY;

const MAGIC: u32 = u32::from_le_bytes(*b"virt");
const VERSION: u32 = 2;
const VENDOR: u32 = u32::from_le_bytes(*b"KVMP");

/// The action that the caller must take after a write to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// Serve the device.
    Serve,
}

/// The two registers that a driver's interrupt handler accesses. Usable from any thread during any work on the device:
/// a vCPU in its handler must not wait for a thread that may be waiting for that vCPU.
#[derive(Clone, Debug, Default)]
pub struct InterruptStatus {
    pending: Arc<AtomicU32>,
    /// Reasons that every read shows.
    always: u32,
}

impl InterruptStatus {
    /// Reads at `offset` from the first register; false if that isn't the status.
    pub fn read(&self, offset: u64, data: &mut [u8]) -> bool {
        let is_status = offset == u64::from(VIRTIO_MMIO_INTERRUPT_STATUS);
        if let (true, Ok(data)) = (is_status, <&mut [u8; 4]>::try_from(data)) {
            *data = self.get().to_le_bytes();
            return true;
        }
        false
    }

    /// Writes at `offset` from the first register; false if that isn't the acknowledgement.
    pub fn write(&self, offset: u64, data: &[u8]) -> bool {
        let is_acknowledgement = offset == u64::from(VIRTIO_MMIO_INTERRUPT_ACK);
        if let (true, Ok(data)) = (is_acknowledgement, <[u8; 4]>::try_from(data)) {
            self.acknowledge(u32::from_le_bytes(data));
            return true;
        }
        false
    }

    /// The registers of a device whose used buffers another program announces, by an interrupt that goes to the guest directly.
    /// So each interrupt may be about used buffers, and the status always shows that reason. The driver has to look, and may find
    /// no used buffer, as after any interrupt that came for two uses (section 2.7.7.2).
    #[must_use]
    pub fn of_used_buffers_elsewhere(&self) -> Self {
        Self {
            pending: Arc::clone(&self.pending),
            always: VIRTIO_MMIO_INT_VRING,
        }
    }

    fn get(&self) -> u32 {
        self.pending.load(Ordering::SeqCst) | self.always
    }

    fn acknowledge(&self, bits: u32) {
        self.pending.fetch_and(!bits, Ordering::SeqCst);
    }

    fn raise(&self, bits: u32) {
        self.pending.fetch_or(bits, Ordering::SeqCst);
    }

    fn clear(&self) {
        self.pending.store(0, Ordering::SeqCst);
    }
}

/// A device with its registers.
#[derive(Debug)]
pub struct MmioTransport<D> {
    device: D,
    queues: Vec<Virtqueue>,
    /// The driver's settings for each queue so far.
    layouts: Vec<QueueLayout>,
    selected: u32,
    device_features_page: u32,
    driver_features_page: u32,
    driver_features: u64,
    status: u32,
    interrupt_status: InterruptStatus,
    /// An interrupt is due.
    interrupt: bool,
    generation: u32,
    counts: TransportCounts,
}

/// Counts of a driver's actions since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportCounts {
    /// Resets.
    pub resets: u64,
    /// Queues with invalid addresses.
    pub refused_queues: u64,
}

impl<D: VirtioDevice> MmioTransport<D> {
    /// The registers of `device` after power-on.
    ///
    /// # Errors
    /// The device's queues have an invalid size.
    pub fn new(device: D) -> Result<Self, QueueError> {
        let count = device.queue_count();
        let queues: Result<Vec<_>, _> = (0..count)
            .map(|_| Virtqueue::new(device.queue_size_max()))
            .collect();
        Ok(Self {
            queues: queues?,
            layouts: vec![QueueLayout::default(); count],
            device,
            selected: 0,
            device_features_page: 0,
            driver_features_page: 0,
            driver_features: 0,
            status: 0,
            interrupt_status: InterruptStatus::default(),
            interrupt: false,
            generation: 0,
            counts: TransportCounts::default(),
        })
    }

    /// The registers that an interrupt handler accesses.
    pub fn interrupt_status(&self) -> &InterruptStatus {
        &self.interrupt_status
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// The mutable device.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// Counts of the driver's actions since the start.
    pub fn counts(&self) -> TransportCounts {
        self.counts
    }

    /// The device and its queues while the driver runs it; `None` before that, after a reset, and after a failure of
    /// one of them.
    pub fn running(&mut self) -> Option<(&mut D, &mut [Virtqueue])> {
        let given_up = VIRTIO_CONFIG_S_FAILED;
        let runs = self.status & VIRTIO_CONFIG_S_DRIVER_OK != 0 && self.status & given_up == 0;
        runs.then_some((&mut self.device, &mut self.queues))
    }

    /// Informs the driver about used buffers.
    pub fn note_used(&mut self, memory: &GuestMemory) {
        let mut any = false;
        for queue in &mut self.queues {
            any |= queue.take_interrupt(memory);
        }
        if any {
            self.raise(VIRTIO_MMIO_INT_VRING);
        }
    }

    /// Informs the driver that the device's configuration has changed.
    pub fn note_configuration(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        if self.status & VIRTIO_CONFIG_S_DRIVER_OK != 0 {
            self.raise(VIRTIO_MMIO_INT_CONFIG);
        }
    }

    /// Stops the device until the driver resets it (section 2.1.2).
    pub fn need_reset(&mut self) {
        if self.status & VIRTIO_CONFIG_S_NEEDS_RESET == 0 {
            self.status |= VIRTIO_CONFIG_S_NEEDS_RESET;
            if self.status & VIRTIO_CONFIG_S_DRIVER_OK != 0 {
                self.raise(VIRTIO_MMIO_INT_CONFIG);
            }
        }
    }

    /// Whether an interrupt has become due since the last call.
    pub fn take_interrupt(&mut self) -> bool {
        std::mem::take(&mut self.interrupt)
    }

    /// Reads at `offset` from the first register. Registers have 32 bits; other accesses read zero. The device's
    /// configuration can be read with any width.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        if let Some(offset) = offset.checked_sub(VIRTIO_MMIO_CONFIG.into()) {
            let configuration = self.device.configuration();
            let start = usize::try_from(offset).unwrap_or(usize::MAX);
            let rest = configuration.get(start..).unwrap_or_default();
            for (byte, value) in data.iter_mut().zip(rest) {
                *byte = *value;
            }
        } else if let (Ok(data), Ok(register)) =
            (<&mut [u8; 4]>::try_from(data), u32::try_from(offset))
        {
            *data = self.register(register).to_le_bytes();
        }
    }

    /// Writes at `offset` from the first register. Writes other than to a 32-bit register are ignored, as are those to the device's
    /// configuration.
    pub fn write(&mut self, offset: u64, data: &[u8], memory: &GuestMemory) -> Effect {
        let (Ok(data), Ok(register)) = (<[u8; 4]>::try_from(data), u32::try_from(offset)) else {
            return Effect::None;
        };
        self.set_register(register, u32::from_le_bytes(data), memory)
    }

    fn register(&self, register: u32) -> u32 {
        let selected = self.selected_queue();
        match register {
            VIRTIO_MMIO_MAGIC_VALUE => MAGIC,
            VIRTIO_MMIO_VERSION => VERSION,
            VIRTIO_MMIO_DEVICE_ID => self.device.device_id(),
            VIRTIO_MMIO_VENDOR_ID => VENDOR,
            VIRTIO_MMIO_DEVICE_FEATURES => page(self.features(), self.device_features_page),
            VIRTIO_MMIO_QUEUE_NUM_MAX => selected.map_or(0, |(queue, _)| queue.size_max().into()),
            VIRTIO_MMIO_QUEUE_READY => selected.map_or(0, |(queue, _)| queue.is_ready().into()),
            VIRTIO_MMIO_INTERRUPT_STATUS => self.interrupt_status.get(),
            VIRTIO_MMIO_STATUS => self.status,
            VIRTIO_MMIO_CONFIG_GENERATION => self.generation,
            // There is no shared memory (section 4.2.2.1).
            VIRTIO_MMIO_SHM_LEN_LOW
            | VIRTIO_MMIO_SHM_LEN_HIGH
            | VIRTIO_MMIO_SHM_BASE_LOW
            | VIRTIO_MMIO_SHM_BASE_HIGH => u32::MAX,
            _ => 0,
        }
    }

    fn set_register(&mut self, register: u32, value: u32, memory: &GuestMemory) -> Effect {
        match register {
            VIRTIO_MMIO_DEVICE_FEATURES_SEL => self.device_features_page = value,
            VIRTIO_MMIO_DRIVER_FEATURES_SEL => self.driver_features_page = value,
            VIRTIO_MMIO_DRIVER_FEATURES => self.set_driver_features(value),
            VIRTIO_MMIO_QUEUE_SEL => self.selected = value,
            VIRTIO_MMIO_QUEUE_READY => return self.set_queue_ready(value, memory),
            VIRTIO_MMIO_QUEUE_NOTIFY => return Effect::Serve,
            VIRTIO_MMIO_INTERRUPT_ACK => self.interrupt_status.acknowledge(value),
            VIRTIO_MMIO_STATUS => return self.set_status(value),
            _ => self.set_place(register, value),
        }
        Effect::None
    }

    fn features(&self) -> u64 {
        self.device.features() | 1 << VIRTIO_F_VERSION_1
    }

    /// The features that the driver has accepted: none before it has set FEATURES_OK.
    fn accepted_features(&self) -> u64 {
        if self.status & VIRTIO_CONFIG_S_FEATURES_OK == 0 {
            0
        } else {
            self.driver_features
        }
    }

    fn set_driver_features(&mut self, value: u32) {
        if self.status & VIRTIO_CONFIG_S_FEATURES_OK == 0 && self.driver_features_page < 2 {
            set_half(
                &mut self.driver_features,
                value,
                self.driver_features_page == 1,
            );
        }
    }

    /// The driver reports its progress. Bits can only be added; zero resets.
    fn set_status(&mut self, value: u32) -> Effect {
        if value == 0 {
            self.reset();
            return Effect::Serve;
        }
        let mut added = value & !self.status & 0xff & !VIRTIO_CONFIG_S_NEEDS_RESET;
        let features = self.driver_features;
        let acceptable =
            features & !self.features() == 0 && features >> VIRTIO_F_VERSION_1 & 1 == 1;
        if added & VIRTIO_CONFIG_S_FEATURES_OK != 0 && !acceptable {
            added &= !VIRTIO_CONFIG_S_FEATURES_OK;
        }
        let agreed = (self.status | added) & VIRTIO_CONFIG_S_FEATURES_OK != 0;
        if !agreed {
            added &= !VIRTIO_CONFIG_S_DRIVER_OK;
        }
        self.status |= added;
        if added & VIRTIO_CONFIG_S_DRIVER_OK != 0 {
            for queue in &mut self.queues {
                queue.accept(features);
            }
            self.device.driver_ok(features);
            return Effect::Serve;
        }
        Effect::None
    }

    fn reset(&mut self) {
        for queue in &mut self.queues {
            queue.reset();
        }
        self.layouts.fill(QueueLayout::default());
        self.selected = 0;
        self.device_features_page = 0;
        self.driver_features_page = 0;
        self.driver_features = 0;
        self.status = 0;
        self.interrupt_status.clear();
        self.interrupt = false;
        self.counts.resets += 1;
        self.device.reset();
    }

    fn selected_queue(&self) -> Option<(&Virtqueue, &QueueLayout)> {
        let index = usize::try_from(self.selected).ok()?;
        Some((self.queues.get(index)?, self.layouts.get(index)?))
    }

    fn set_place(&mut self, register: u32, value: u32) {
        let Ok(index) = usize::try_from(self.selected) else {
            return;
        };
        let (Some(queue), Some(layout)) = (self.queues.get(index), self.layouts.get_mut(index))
        else {
            return;
        };
        if queue.is_ready() {
            return;
        }
        match register {
            VIRTIO_MMIO_QUEUE_NUM => layout.size = value,
            VIRTIO_MMIO_QUEUE_DESC_LOW => set_half(&mut layout.descriptors, value, false),
            VIRTIO_MMIO_QUEUE_DESC_HIGH => set_half(&mut layout.descriptors, value, true),
            VIRTIO_MMIO_QUEUE_AVAIL_LOW => set_half(&mut layout.available, value, false),
            VIRTIO_MMIO_QUEUE_AVAIL_HIGH => set_half(&mut layout.available, value, true),
            VIRTIO_MMIO_QUEUE_USED_LOW => set_half(&mut layout.used, value, false),
            VIRTIO_MMIO_QUEUE_USED_HIGH => set_half(&mut layout.used, value, true),
            _ => {}
        }
    }

    fn set_queue_ready(&mut self, value: u32, memory: &GuestMemory) -> Effect {
        let Ok(index) = usize::try_from(self.selected) else {
            return Effect::None;
        };
        let Some(&layout) = self.layouts.get(index) else {
            return Effect::None;
        };
        let overlaps = self.queues.iter().any(|queue| queue.overlaps(&layout));
        let features = self.accepted_features();
        let Some(queue) = self.queues.get_mut(index) else {
            return Effect::None;
        };
        if value == 0 {
            queue.reset();
            return Effect::Serve;
        }
        if queue.is_ready() {
            return Effect::None;
        }
        let result = if overlaps {
            Err(QueueError::Overlap)
        } else {
            queue.set_up(layout, memory)
        };
        queue.accept(features);
        if let Err(error) = result {
            self.counts.refused_queues += 1;
            // Log only the first: a hostile guest must not be able to fill the log.
            if self.counts.refused_queues == 1 {
                log::warn!("virtio: the guest's driver has set up queue {index} wrongly: {error}");
            }
            self.need_reset();
        }
        Effect::Serve
    }

    fn raise(&mut self, why: u32) {
        self.interrupt_status.raise(why);
        self.interrupt = true;
    }
}

/// The 32 bits number `page` of feature bits.
fn page(features: u64, page: u32) -> u32 {
    let [low, high] = [features & u64::from(u32::MAX), features >> 32];
    let bits = match page {
        0 => low,
        1 => high,
        _ => 0,
    };
    u32::try_from(bits).unwrap_or(0)
}

fn set_half(whole: &mut u64, value: u32, high: bool) {
    let value = u64::from(value);
    *whole = if high {
        *whole & u64::from(u32::MAX) | value << 32
    } else {
        *whole & !u64::from(u32::MAX) | value
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interrupt_status_is_shared_with_the_device() {
        let status = InterruptStatus::default();
        status.raise(VIRTIO_MMIO_INT_VRING | VIRTIO_MMIO_INT_CONFIG);
        let mut data = [0xff; 4];
        assert!(status.read(VIRTIO_MMIO_INTERRUPT_STATUS.into(), &mut data));
        assert_eq!(u32::from_le_bytes(data), 3);
        assert!(status.write(VIRTIO_MMIO_INTERRUPT_ACK.into(), &1_u32.to_le_bytes()));
        assert_eq!(status.get(), VIRTIO_MMIO_INT_CONFIG);
        // All other registers are the transport's.
        assert!(!status.read(VIRTIO_MMIO_STATUS.into(), &mut data));
        assert!(!status.read(VIRTIO_MMIO_INTERRUPT_STATUS.into(), &mut data[..2]));
        assert!(!status.write(VIRTIO_MMIO_INTERRUPT_STATUS.into(), &[0xff; 4]));
        assert!(!status.write(VIRTIO_MMIO_INTERRUPT_ACK.into(), &[0xff; 8]));
        assert_eq!(status.get(), VIRTIO_MMIO_INT_CONFIG);
    }
}
