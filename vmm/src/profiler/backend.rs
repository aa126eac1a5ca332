//! What endpoints can open, and how their requests reach the devices.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::PCS_STOP;
use kvmprof_abi::wire::device;
use kvmprof_devices::endpoint::{Backend, Handle, IoctlReply, Readiness};
use kvmprof_devices::profiling::ClockWish;

use super::Profiler;

/// One open device.
#[derive(Debug)]
pub(super) enum Open {
    /// The program counter sampling device.
    Pcs,
    /// A text that was made at open, and how much of it has been read.
    Snapshot { text: Vec<u8>, read: usize },
}

impl Backend for Profiler {
    fn open(&mut self, number: u16, minor: u16) -> Result<Handle, Errno> {
        let known = matches!(number, device::PCS | device::STATUS | device::PROCESSES);
        if known && minor != 0 {
            return Err(Errno::ENXIO);
        }
        let open = match number {
            device::PCS => self.open_pcs()?,
            device::STATUS => {
                self.settle();
                snapshot(self.status().to_string())
            }
            device::PROCESSES => {
                self.drain();
                snapshot(self.names.table())
            }
            _ => return Err(Errno::ENODEV),
        };
        let handle = self.free_handle();
        self.open.insert(handle, open);
        Ok(handle)
    }

    fn read(&mut self, handle: Handle, limit: usize) -> Result<Vec<u8>, Errno> {
        match self.open.get_mut(&handle).ok_or(Errno::EBADF)? {
            Open::Pcs => {
                let mut bytes = Vec::new();
                self.pcs.read(limit, &mut bytes)?;
                Ok(bytes)
            }
            Open::Snapshot { text, read } => {
                let rest = text.get(*read..).unwrap_or_default();
                let bytes = rest[..limit.min(rest.len())].to_vec();
                *read += bytes.len();
                Ok(bytes)
            }
        }
    }

    fn write(&mut self, handle: Handle, _bytes: &[u8]) -> Result<usize, Errno> {
        // pcs is read-only (its manual page), and so are the snapshots: write(2) says EBADF then.
        self.open.get(&handle).ok_or(Errno::EBADF)?;
        Err(Errno::EBADF)
    }

    fn ioctl(
        &mut self,
        handle: Handle,
        command: u32,
        argument: i64,
        data: &[u8],
    ) -> Result<IoctlReply, Errno> {
        match self.open.get(&handle).ok_or(Errno::EBADF)? {
            Open::Pcs => self.ioctl_pcs(command, argument, data),
            Open::Snapshot { .. } => Err(Errno::EINVAL),
        }
    }

    fn poll(&mut self, handle: Handle) -> Readiness {
        match self.open.get(&handle) {
            Some(Open::Pcs) => Readiness {
                readable: self.pcs.readable(),
                writable: false,
                hang_up: false,
            },
            Some(Open::Snapshot { .. }) => Readiness {
                readable: true,
                ..Readiness::default()
            },
            None => Readiness {
                hang_up: true,
                ..Readiness::default()
            },
        }
    }

    fn close(&mut self, handle: Handle) {
        if let Some(Open::Pcs) = self.open.remove(&handle) {
            let process_group = self.pcs.wants_process_group();
            self.stop_clocks();
            self.pcs.close();
            self.follow_consumers(process_group);
        }
    }
}

impl Profiler {
    fn open_pcs(&mut self) -> Result<Open, Errno> {
        if self.ended {
            return Err(Errno::ENXIO);
        }
        // Ticks from before the open belong to nobody.
        self.settle();
        self.pcs.open(self.plan.hz)?;
        // An earlier client's PCS_SETHZ was for itself.
        self.rate = self.plan.hz;
        self.follow_consumers(false);
        Ok(Open::Pcs)
    }

    fn ioctl_pcs(&mut self, command: u32, argument: i64, data: &[u8]) -> Result<IoctlReply, Errno> {
        match self.pcs.clock_wish(command, argument)? {
            Some(ClockWish::Settle) if command == PCS_STOP => self.stop_clocks(),
            Some(ClockWish::Settle) => self.settle(),
            // pcs is the only consumer there is, so the clock is its own.
            Some(ClockWish::Rate(hz)) => {
                self.rate = hz;
                self.set_clocks(hz);
            }
            None => {}
        }
        let process_group = self.pcs.wants_process_group();
        let reply = self.pcs.ioctl(command, argument, data);
        self.follow_consumers(process_group);
        reply
    }

    fn free_handle(&mut self) -> Handle {
        loop {
            self.next_handle = self.next_handle.wrapping_add(1);
            let handle = Handle(self.next_handle);
            if !self.open.contains_key(&handle) {
                return handle;
            }
        }
    }
}

fn snapshot(text: String) -> Open {
    Open::Snapshot {
        text: text.into_bytes(),
        read: 0,
    }
}
