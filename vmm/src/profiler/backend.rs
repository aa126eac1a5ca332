//! What endpoints can open, and how their requests reach the devices.

use std::rc::Rc;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::PCS_STOP;
use kvmprof_abi::wire::device;
use kvmprof_devices::endpoint::{Backend, Handle, IoctlReply, Readiness};
use kvmprof_devices::profiling::ClockWish;

use super::Profiler;
use super::recorder::StreamRecorder;

/// One open device.
#[derive(Debug)]
pub(super) enum Open {
    /// The program counter sampling device.
    Pcs,
    /// A minor of the kernel profiler.
    Prf(u16),
    /// A recording, once it was started; then the processes that are wanted don't change any more.
    Recorder { pids: Vec<i32> },
    /// A text that was made at open, and how much of it has been read.
    Snapshot { text: Rc<[u8]>, read: usize },
}

impl Backend for Profiler {
    fn open(&mut self, number: u16, minor: u16) -> Result<Handle, Errno> {
        let single = matches!(
            number,
            device::PCS | device::STATUS | device::PROCESSES | device::KALLSYMS | device::RECORDER
        );
        if single && minor != 0 {
            return Err(Errno::ENXIO);
        }
        let open = match number {
            device::PCS => self.open_pcs()?,
            device::PRF => {
                self.prf.check_minor(minor)?;
                Open::Prf(minor)
            }
            device::STATUS => {
                self.settle();
                snapshot(self.status().to_string().into_bytes())
            }
            device::PROCESSES => {
                self.drain();
                snapshot(self.names.table().into_bytes())
            }
            device::KALLSYMS => snapshot(self.kallsyms()?),
            device::RECORDER if self.ended => return Err(Errno::ENXIO),
            device::RECORDER => Open::Recorder { pids: Vec::new() },
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
            Open::Prf(minor) => {
                let minor = *minor;
                self.read_prf(minor, limit)
            }
            Open::Recorder { .. } => self.read_stream(handle, limit),
            Open::Snapshot { text, read } => {
                let rest = text.get(*read..).unwrap_or_default();
                let bytes = rest[..limit.min(rest.len())].to_vec();
                *read += bytes.len();
                Ok(bytes)
            }
        }
    }

    fn write(&mut self, handle: Handle, bytes: &[u8]) -> Result<usize, Errno> {
        match self.open.get(&handle).ok_or(Errno::EBADF)? {
            Open::Prf(minor) => self.prf.write(*minor, bytes),
            // pcs is read-only (its manual page), and so are the others: write(2) says EBADF then.
            Open::Pcs | Open::Recorder { .. } | Open::Snapshot { .. } => Err(Errno::EBADF),
        }
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
            Open::Prf(minor) => self.ioctl_prf(*minor, command, argument),
            Open::Recorder { .. } => self.ioctl_recorder(handle, command, argument, data),
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
            // Always ready (its manual page).
            Some(Open::Prf(_)) => Readiness {
                readable: true,
                writable: true,
                hang_up: false,
            },
            Some(Open::Recorder { .. }) => Readiness {
                // Before it was started a read fails, and doesn't wait.
                readable: self
                    .streams
                    .get(&handle)
                    .is_none_or(StreamRecorder::readable),
                ..Readiness::default()
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
        match self.open.remove(&handle) {
            Some(Open::Pcs) => {
                let process_group = self.pcs.wants_process_group();
                self.settle_before_leaving(self.others_than_pcs_want_ticks());
                self.pcs.close();
                self.follow_consumers(process_group);
            }
            Some(Open::Recorder { .. }) => self.close_stream(handle),
            Some(Open::Prf(_) | Open::Snapshot { .. }) | None => {}
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
        let rate = self.rate_for_another();
        self.pcs.open(rate)?;
        self.rate = rate;
        self.follow_consumers(false);
        Ok(Open::Pcs)
    }

    fn ioctl_pcs(&mut self, command: u32, argument: i64, data: &[u8]) -> Result<IoctlReply, Errno> {
        match self.pcs.clock_wish(command, argument)? {
            Some(ClockWish::Settle) if command == PCS_STOP => {
                self.settle_before_leaving(self.others_than_pcs_want_ticks());
            }
            Some(ClockWish::Settle) => self.settle(),
            // Somebody else's clock too.
            Some(ClockWish::Rate(_)) if self.others_than_pcs_want_ticks() => {
                return Err(Errno::EBUSY);
            }
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

fn snapshot(text: impl Into<Rc<[u8]>>) -> Open {
    Open::Snapshot {
        text: text.into(),
        read: 0,
    }
}
