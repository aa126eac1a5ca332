//! The devices of the guest: it has its own pcs and prf, and the host's clients have priority.

use std::task::Poll;

use kvmprof_abi::errno::Errno;
use kvmprof_devices::endpoint::{Backend, Handle, IoctlReply, Readiness};

use super::SharedProfiler;
use super::consumers::Client;

/// The profiler's devices for the guest.
///
/// The profiler is borrowed while a method is called.
pub struct GuestDevices(pub SharedProfiler);

impl Backend for GuestDevices {
    fn open(&mut self, device: u16, minor: u16) -> Result<Handle, Errno> {
        let mut profiler = self.0.borrow_mut();
        profiler.open_for(Client::Guest, device, minor)
    }

    fn opened(&mut self, handle: Handle) -> Poll<Result<(), Errno>> {
        self.0.borrow_mut().opened(handle)
    }

    fn read(&mut self, handle: Handle, limit: usize) -> Poll<Result<Vec<u8>, Errno>> {
        self.0.borrow_mut().read(handle, limit)
    }

    fn write(&mut self, handle: Handle, bytes: &[u8]) -> Result<usize, Errno> {
        self.0.borrow_mut().write(handle, bytes)
    }

    fn ioctl(
        &mut self,
        handle: Handle,
        command: u32,
        argument: i64,
        data: &[u8],
    ) -> Poll<Result<IoctlReply, Errno>> {
        let mut profiler = self.0.borrow_mut();
        profiler.ioctl(handle, command, argument, data)
    }

    fn poll(&mut self, handle: Handle) -> Readiness {
        self.0.borrow_mut().poll(handle)
    }

    fn close(&mut self, handle: Handle) -> Poll<()> {
        self.0.borrow_mut().close(handle)
    }
}
