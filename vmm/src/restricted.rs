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

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that does all.
    struct Whole;

    impl Backend for Whole {
        fn open(&mut self, device: u16, _minor: u16) -> Result<Handle, Errno> {
            Ok(Handle(device.into()))
        }

        fn opened(&mut self, _handle: Handle) -> Poll<Result<(), Errno>> {
            Poll::Ready(Ok(()))
        }

        fn read(&mut self, _handle: Handle, _limit: usize) -> Poll<Result<Vec<u8>, Errno>> {
            Poll::Ready(Ok(Vec::new()))
        }

        fn write(&mut self, _handle: Handle, bytes: &[u8]) -> Result<usize, Errno> {
            Ok(bytes.len())
        }

        fn ioctl(
            &mut self,
            _handle: Handle,
            command: u32,
            _argument: i64,
            _data: &[u8],
        ) -> Poll<Result<IoctlReply, Errno>> {
            Poll::Ready(Ok(IoctlReply {
                value: command.into(),
                data: Vec::new(),
            }))
        }

        fn poll(&mut self, _handle: Handle) -> Readiness {
            Readiness::default()
        }

        fn close(&mut self, _handle: Handle) -> Poll<()> {
            Poll::Ready(())
        }
    }

    #[test]
    fn only_what_is_allowed_is_opened_and_commanded() {
        let refused = |is_refused| {
            if is_refused {
                Err(Errno::EACCES)
            } else {
                Ok(())
            }
        };
        let mut part = Restricted {
            backend: &mut Whole,
            check: &|device| refused(device == 3),
            check_command: &|command| refused(command == 5),
        };
        assert_eq!(part.open(3, 0), Err(Errno::EACCES));
        let handle = part.open(4, 0).unwrap();
        assert_eq!(handle, Handle(4));
        let mut value = |command| {
            part.ioctl(handle, command, 0, &[])
                .map_ok(|reply| reply.value)
        };
        assert_eq!(value(5), Poll::Ready(Err(Errno::EACCES)));
        assert_eq!(value(6), Poll::Ready(Ok(6)));
    }
}
