//! The machine's memory balloon, by which the guest returns pages that it doesn't need to the host.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use kvmprof_devices::virtio::balloon::{Balloon, BalloonCounts, PAGE};
use kvmprof_devices::virtio::{MmioTransport, TransportCounts};
use kvmprof_recording::status::GuestMemoryStatus;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::{Assembled, DeviceThread, Notifications, VirtioMmio, VirtioParts, borrowed};
use crate::lock::lock;
use crate::machine::{GuestMemory, MachineError, give_back};

/// The time between two requests for the guest's statistics.
const STATISTICS_PERIOD: Duration = Duration::from_secs(5);

/// The balloon of a machine, for threads that read its state or set it. They never wait for the thread that serves the device's queues,
/// which may take long to return pages to the host.
#[derive(Clone, Default)]
pub struct BalloonControl(Arc<Shared>);

#[derive(Default)]
struct Shared {
    device: OnceLock<Arc<VirtioMmio<Balloon>>>,
    /// The balloon's size from when it is served next, in bytes. Lock this before the record.
    wanted: Mutex<Option<u64>>,
    /// The device's state when it was served last.
    record: Mutex<BalloonRecord>,
}

/// The balloon's state and counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct BalloonRecord {
    /// The size that the balloon is to have, in bytes.
    pub target: u64,
    /// The balloon's size as the guest reports it, in bytes.
    pub actual: u64,
    /// The counts of what the device has done.
    pub counts: BalloonCounts,
    /// The statistics of its memory that the guest has sent last.
    pub statistics: GuestMemoryStatus,
    /// The counts of what the guest's driver has done with the device as a whole.
    pub transport: TransportCounts,
}

impl BalloonRecord {
    fn of(transport: &MmioTransport<Balloon>) -> Self {
        let balloon = transport.device();
        Self {
            target: balloon.target(),
            actual: balloon.actual(),
            counts: balloon.counts(),
            statistics: balloon.statistics(),
            transport: transport.counts(),
        }
    }
}

impl BalloonControl {
    /// The state and the counts until now, without those of a service that is still running.
    #[must_use]
    pub fn record(&self) -> BalloonRecord {
        let device = self.0.device.get();
        let now =
            device.and_then(|device| device.try_with(|transport, _| BalloonRecord::of(transport)));
        let wanted = lock(&self.0.wanted);
        let record = now.unwrap_or_else(|| *lock(&self.0.record));
        BalloonRecord {
            target: wanted.map_or(record.target, whole_pages),
            ..record
        }
    }

    /// Sets the balloon's size in bytes, rounded down to whole pages of 4 KiB. The guest follows when it can.
    pub fn set_target(&self, bytes: u64) {
        *lock(&self.0.wanted) = Some(bytes);
        if let Some(device) = self.0.device.get() {
            device.ask_for_service();
        }
    }
}

impl Shared {
    /// Serves the device for a bounded time.
    fn serve(&self, device: &VirtioMmio<Balloon>, asks_for_statistics: bool) {
        device.with(|transport, memory| {
            let mut wanted = lock(&self.wanted);
            if let Some(bytes) = *wanted {
                transport.set_target(bytes);
                *lock(&self.record) = BalloonRecord::of(transport);
                *wanted = None;
            }
            drop(wanted);
            let mut give_back = |address, bytes| give_back(memory, address, bytes);
            if transport.serve(memory, &mut give_back) {
                device.ask_for_service();
            }
            if asks_for_statistics {
                transport.ask_for_statistics(memory);
            }
            *lock(&self.record) = BalloonRecord::of(transport);
        });
    }
}

/// The size of a balloon that is to have `bytes` bytes: whole pages, as many as it can have.
fn whole_pages(bytes: u64) -> u64 {
    (bytes / PAGE).min(u32::MAX.into()) * PAGE
}

/// The balloon that a machine is to have.
#[derive(Default)]
pub struct BalloonParts {
    control: BalloonControl,
}

impl BalloonParts {
    /// The balloon's control, for threads that read its state and set it later.
    #[must_use]
    pub fn control(&self) -> BalloonControl {
        self.control.clone()
    }
}

impl VirtioParts for BalloonParts {
    fn assemble(self: Box<Self>, memory: &GuestMemory) -> Result<Assembled, MachineError> {
        let work = EventFd::new(EFD_NONBLOCK).map_err(MachineError::EventFd)?;
        let mine = work.try_clone().map_err(MachineError::EventFd)?;
        let notifications = Notifications::Together(work);
        let mmio = VirtioMmio::new(Balloon::default(), memory.clone(), notifications)?;
        let mmio = Arc::new(mmio);
        let shared = self.control.0;
        let _ = shared.device.set(Arc::clone(&mmio));
        let served = Arc::clone(&mmio);
        let thread =
            DeviceThread::start("balloon", kvmprof_sandbox::Thread::Balloon, move |ending| {
                let mut asked = Instant::now();
                while !ending.or_readable_within(&[borrowed(&mine)], STATISTICS_PERIOD) {
                    // No other thread reads it.
                    let _ = mine.read();
                    let is_time = asked.elapsed() >= STATISTICS_PERIOD;
                    if is_time {
                        asked = Instant::now();
                    }
                    shared.serve(&served, is_time);
                }
            });
        Ok(Assembled {
            registers: mmio,
            threads: vec![thread.map_err(MachineError::DeviceThread)?],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{MemoryOptions, allocate_memory};

    /// The asking thread holds the device's lock here, so that it would wait for itself.
    #[test]
    fn nobody_waits_for_a_turn_to_look_at_it_or_to_set_it() {
        let memory = allocate_memory(&MemoryOptions::private(64 << 20)).unwrap();
        let event = EventFd::new(EFD_NONBLOCK).unwrap();
        let notifications = Notifications::Together(event);
        let device = VirtioMmio::new(Balloon::default(), memory, notifications).unwrap();
        let device = Arc::new(device);
        let control = BalloonControl::default();
        let _ = control.0.device.set(Arc::clone(&device));
        let held = device.with(|transport, _| {
            control.set_target(3 * PAGE + 1);
            assert_eq!(control.record().target, 3 * PAGE);
            transport.device().target()
        });
        assert_eq!(held, 0);
        // The device hasn't got the size yet.
        assert_eq!(control.record().target, 3 * PAGE);
        control.0.serve(&device, false);
        let target = device.with(|transport, _| transport.device().target());
        assert_eq!((target, control.record().target), (3 * PAGE, 3 * PAGE));
        device.with(|_, _| assert_eq!(control.record().target, 3 * PAGE));
    }
}
