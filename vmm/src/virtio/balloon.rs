//! The machine's memory balloon: pages that the guest doesn't need go back to the host.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use kvmprof_devices::virtio::TransportCounts;
use kvmprof_devices::virtio::balloon::{Balloon, BalloonCounts};
use kvmprof_recording::status::GuestMemoryStatus;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::{Assembled, DeviceThread, Notifications, VirtioMmio, VirtioParts, borrowed};
use crate::machine::{GuestMemory, MachineError, give_back};

/// Between two questions for the guest's statistics.
const STATISTICS_PERIOD: Duration = Duration::from_secs(5);

/// The balloon of a machine, for whoever looks at it or sets it.
#[derive(Clone, Default)]
pub struct BalloonControl(Arc<OnceLock<Arc<VirtioMmio<Balloon>>>>);

/// What there is to know of the balloon.
#[derive(Clone, Copy, Debug, Default)]
pub struct BalloonRecord {
    /// What it is to hold, in bytes.
    pub target: u64,
    /// What the guest says that it holds, in bytes.
    pub actual: u64,
    /// What was done.
    pub counts: BalloonCounts,
    /// What the guest has said of its memory last.
    pub statistics: GuestMemoryStatus,
    /// What the guest's driver has done with the device as a whole.
    pub transport: TransportCounts,
}

impl BalloonControl {
    /// All of it until now. Waits for whoever works on the device's queues.
    #[must_use]
    pub fn record(&self) -> BalloonRecord {
        let device = self.0.get();
        device.map_or_else(BalloonRecord::default, |device| {
            device.with(|transport, _| {
                let balloon = transport.device();
                BalloonRecord {
                    target: balloon.target(),
                    actual: balloon.actual(),
                    counts: balloon.counts(),
                    statistics: balloon.statistics(),
                    transport: transport.counts(),
                }
            })
        })
    }

    /// Sets what it is to hold, in bytes, of which whole pages of 4 KiB count. The guest follows when it can.
    pub fn set_target(&self, bytes: u64) {
        if let Some(device) = self.0.get() {
            device.with(|transport, _| transport.set_target(bytes));
        }
    }
}

/// The balloon that a machine is to have.
#[derive(Default)]
pub struct BalloonParts {
    control: BalloonControl,
}

impl BalloonParts {
    /// What looks at it and sets it later.
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
        let _ = self.control.0.set(Arc::clone(&mmio));
        let served = Arc::clone(&mmio);
        let thread =
            DeviceThread::start("balloon", kvmprof_sandbox::Thread::Balloon, move |ending| {
                let mut asked = Instant::now();
                while !ending.or_readable_within(&[borrowed(&mine)], STATISTICS_PERIOD) {
                    // Somebody else can't have read it.
                    let _ = mine.read();
                    let is_time = asked.elapsed() >= STATISTICS_PERIOD;
                    if is_time {
                        asked = Instant::now();
                    }
                    served.with(|transport, memory| {
                        let mut give_back = |address, bytes| give_back(memory, address, bytes);
                        if transport.serve(memory, &mut give_back) {
                            served.ask_for_service();
                        }
                        if is_time {
                            transport.ask_for_statistics(memory);
                        }
                    });
                }
            });
        Ok(Assembled {
            registers: mmio,
            threads: vec![thread.map_err(MachineError::DeviceThread)?],
        })
    }
}
