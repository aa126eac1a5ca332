//! The devices for clients that may open only some of them.

use std::task::Poll;

use kvmprof_abi::errno::Errno;
use kvmprof_devices::endpoint::{Backend, Handle, IoctlReply, Readiness};

/// A backend of which a client may open a part.
pub struct Restricted<'a> {
    /// The whole.
    pub backend: &'a mut dyn Backend,
    /// Whether a device, by its number, may be opened; the error is the client's.
    pub check: &'a dyn Fn(u16) -> Result<(), Errno>,
    /// Whether an ioctl's command may be made; the error is the client's.
    pub check_command: &'a dyn Fn(u32) -> Result<(), Errno>,
}

impl Backend for Restricted<'_> {
    fn open(&mut self, device: u16, minor: u16) -> Result<Handle, Errno> {
        (self.check)(device)?;
        self.backend.open(device, minor)
    }

    fn opened(&mut self, handle: Handle) -> Poll<Result<(), Errno>> {
        self.backend.opened(handle)
    }

    fn read(&mut self, handle: Handle, limit: usize) -> Poll<Result<Vec<u8>, Errno>> {
        self.backend.read(handle, limit)
    }

    fn write(&mut self, handle: Handle, bytes: &[u8]) -> Result<usize, Errno> {
        self.backend.write(handle, bytes)
    }

    fn ioctl(
        &mut self,
        handle: Handle,
        command: u32,
        argument: i64,
        data: &[u8],
    ) -> Poll<Result<IoctlReply, Errno>> {
        if let Err(errno) = (self.check_command)(command) {
            return Poll::Ready(Err(errno));
        }
        self.backend.ioctl(handle, command, argument, data)
    }

    fn poll(&mut self, handle: Handle) -> Readiness {
        self.backend.poll(handle)
    }

    fn close(&mut self, handle: Handle) -> Poll<()> {
        self.backend.close(handle)
    }
}
