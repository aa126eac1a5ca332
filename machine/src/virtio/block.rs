//! The guest's disks. Each is a block device with a thread for each of its queues, so that no request waits for one of another queue.
//!
//! Data goes through a buffer, so that the device isn't locked while the host's disk works, and guest memory isn't accessed after a reset
//! by the driver.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::{io, mem};

use kvmprof_devices::virtio::block::{
    Answer, Block, BlockSettings, Next, Operation, Request, SECTOR, SERIAL_MAX,
};
use kvmprof_recording::status::{DiskStatus, MachineStatus};

use super::{
    Assembled, DeviceMonitor, DeviceThread, Ending, Notifications, VirtioMmio, VirtioParts,
    borrowed, queue_events,
};
use crate::disk::{Disk, DiskDescription, Image};
use crate::error::MachineError;
use crate::memory::GuestMemory;

/// Maximum number of queues of a disk, and of its threads.
const QUEUES_MAX: u16 = 4;
/// Maximum size in bytes of a buffer for reads that is kept after use.
const KEPT_BUFFER: usize = 1 << 20;

/// A disk that is to become a device.
pub struct BlockParts {
    index: usize,
    image: Arc<Image>,
    queues: u16,
    monitor: Arc<BlockMonitor>,
}

/// A disk's state and counts.
struct BlockMonitor {
    description: DiskDescription,
    device: OnceLock<Arc<VirtioMmio<Block>>>,
}

impl DeviceMonitor for BlockMonitor {
    /// Waits for threads that work on the device's queues.
    fn enter(&self, machine: &mut MachineStatus) {
        let device = self.device.get();
        let counts = device.map(|device| device.with(|transport, _| transport.device().counts()));
        machine.disks.push(DiskStatus {
            path: self.description.path.display().to_string(),
            format: self.description.format.name().to_owned(),
            bytes: self.description.sectors * SECTOR,
            readonly: self.description.readonly,
            serial: self.description.serial.clone(),
            counts: counts.unwrap_or_default(),
        });
    }
}

impl BlockParts {
    /// Disk number `index` of a machine with `vcpus` vCPUs. The disk has a queue for each vCPU, up to its maximum number of queues.
    #[must_use]
    pub fn new(index: usize, disk: Disk, vcpus: u16) -> Self {
        Self {
            index,
            image: Arc::new(disk.image),
            queues: vcpus.clamp(1, QUEUES_MAX),
            monitor: Arc::new(BlockMonitor {
                description: disk.description,
                device: OnceLock::new(),
            }),
        }
    }

    /// The disk's content, while its device exists.
    #[must_use]
    pub fn content(&self) -> Weak<Image> {
        Arc::downgrade(&self.image)
    }
}

impl VirtioParts for BlockParts {
    fn monitor(&self) -> Arc<dyn DeviceMonitor> {
        self.monitor.clone()
    }

    fn assemble(self: Box<Self>, memory: &GuestMemory) -> Result<Assembled, MachineError> {
        let description = &self.monitor.description;
        let mut serial = [0; SERIAL_MAX];
        for (byte, given) in serial.iter_mut().zip(description.serial.bytes()) {
            *byte = given;
        }
        let device = Block::new(BlockSettings {
            sectors: description.sectors,
            readonly: description.readonly,
            queues: self.queues,
            serial,
        });
        let notifications = Notifications::EachQueue(queue_events(self.queues.into())?);
        let mmio = Arc::new(VirtioMmio::new(device, memory.clone(), notifications)?);
        let _ = self.monitor.device.set(Arc::clone(&mmio));
        let host = Arc::new(HostDisk {
            image: self.image,
            readonly: description.readonly,
            path: description.path.clone(),
            has_logged_failure: AtomicBool::new(false),
        });
        let threads: Result<Vec<_>, _> = (0..usize::from(self.queues))
            .map(|queue| {
                let server = QueueServer {
                    mmio: Arc::clone(&mmio),
                    host: Arc::clone(&host),
                    queue,
                    buffer: Vec::new(),
                };
                let name = format!("disk{}.{queue}", self.index);
                DeviceThread::start(&name, kvmprof_sandbox::Thread::Disk, |ending| {
                    server.serve(ending)
                })
            })
            .collect();
        Ok(Assembled {
            registers: mmio,
            threads: threads.map_err(MachineError::Thread)?,
        })
    }
}

/// The host's side of a disk. The last of the disk's threads drops it.
struct HostDisk {
    image: Arc<Image>,
    path: PathBuf,
    readonly: bool,
    has_logged_failure: AtomicBool,
}

impl HostDisk {
    /// Performs `request`. Data that it reads goes into `buffer`.
    fn perform(&self, request: &Request, buffer: &mut Vec<u8>) -> io::Result<()> {
        buffer.clear();
        match &request.operation {
            Operation::Read { offset, length } => {
                buffer.resize(*length, 0);
                self.image.read(buffer, *offset)?;
            }
            Operation::Write { offset, data } => self.image.write(data, *offset)?,
            Operation::Flush => self.image.flush()?,
            Operation::Discard(extents) => {
                (extents.iter()).try_for_each(|extent| self.image.discard(*extent))?;
            }
            Operation::WriteZeroes(extents) => {
                (extents.iter()).try_for_each(|extent| self.image.zero(*extent))?;
            }
        }
        if request.write_through {
            self.image.flush()?;
        }
        Ok(())
    }

    /// Logs the first failure. Further ones are only counted.
    fn log_first_failure(&self, error: &io::Error) {
        if !self.has_logged_failure.swap(true, Ordering::Relaxed) {
            log::error!(
                "The disk {} has failed a request, which the guest sees: {error}",
                self.path.display()
            );
        }
    }
}

impl Drop for HostDisk {
    /// Flushes the image, because the process may end before another reader of the image drops it.
    fn drop(&mut self) {
        if self.readonly {
            return;
        }
        if let Err(error) = self.image.flush() {
            log::error!(
                "The disk {} isn't all written: {error}",
                self.path.display()
            );
        }
    }
}

/// The server of one queue.
struct QueueServer {
    mmio: Arc<VirtioMmio<Block>>,
    host: Arc<HostDisk>,
    queue: usize,
    buffer: Vec<u8>,
}

impl QueueServer {
    fn serve(mut self, ending: &Ending) {
        let mmio = Arc::clone(&self.mmio);
        let Some(work) = mmio.work(self.queue) else {
            return;
        };
        while !ending.or_readable(&[borrowed(work)]) {
            // The event has to be read before the queue is, or a notification could be missed.
            let _ = work.read();
            while self.serve_one() && !ending.is_requested() {}
        }
    }

    /// Serves a request. Returns false if there is none.
    fn serve_one(&mut self) -> bool {
        let queue = self.queue;
        let next = (self.mmio).with(|transport, memory| transport.next(queue, memory));
        let request = match next {
            Next::Nothing => return false,
            Next::More => return true,
            Next::Request(request) => request,
        };
        let result = self.host.perform(&request, &mut self.buffer);
        if let Err(error) = &result {
            self.host.log_first_failure(error);
        }
        let answer = match result {
            Ok(()) => Answer::Done(&self.buffer),
            Err(_) => Answer::Failed,
        };
        let ticket = request.ticket();
        let freed = (self.mmio).with(|transport, memory| transport.answer(ticket, answer, memory));
        if freed {
            self.mmio.ask_for_service();
        }
        if self.buffer.capacity() > KEPT_BUFFER {
            mem::take(&mut self.buffer);
        }
        true
    }
}
