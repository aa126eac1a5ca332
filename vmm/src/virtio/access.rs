//! What the guest may do with the profiling devices.

use std::str::FromStr;
use std::task::Poll;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::device;
use kvmprof_devices::endpoint::{Backend, Handle, IoctlReply, Readiness};
use thiserror::Error;

/// Which devices the guest may open through its ports. Everything else that the host socket
/// serves (status, processes, symbols) tells of the host, or is the guest's own knowledge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GuestAccess {
    /// None; there are no ports either.
    None,
    /// Only pcs.
    Pcs,
    /// Only prf.
    Prf,
    /// pcs and prf.
    #[default]
    All,
}

/// A word that is no [`GuestAccess`].
#[derive(Debug, Error)]
#[error("'{0}' is no guest access: it must be none, pcs, prf or all")]
pub struct UnknownGuestAccess(String);

impl FromStr for GuestAccess {
    type Err = UnknownGuestAccess;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "none" => Ok(Self::None),
            "pcs" => Ok(Self::Pcs),
            "prf" => Ok(Self::Prf),
            "all" => Ok(Self::All),
            _ => Err(UnknownGuestAccess(text.to_owned())),
        }
    }
}

impl GuestAccess {
    /// Whether device number `number` (see [`device`]) may be opened.
    fn allows(self, number: u16) -> bool {
        match number {
            device::PCS => matches!(self, Self::Pcs | Self::All),
            device::PRF => matches!(self, Self::Prf | Self::All),
            _ => false,
        }
    }
}

/// The devices, as far as the guest may open them.
pub(super) struct Restricted<'a> {
    pub backend: &'a mut dyn Backend,
    pub access: GuestAccess,
}

impl Backend for Restricted<'_> {
    fn open(&mut self, device: u16, minor: u16) -> Result<Handle, Errno> {
        if !self.access.allows(device) {
            return Err(Errno::EACCES);
        }
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

    /// Opens everything, and knows how often it was asked.
    #[derive(Default)]
    struct Everything {
        opened: Vec<u16>,
    }

    impl Backend for Everything {
        fn open(&mut self, device: u16, _minor: u16) -> Result<Handle, Errno> {
            self.opened.push(device);
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
            _: Handle,
            _: u32,
            _: i64,
            _: &[u8],
        ) -> Poll<Result<IoctlReply, Errno>> {
            Poll::Ready(Ok(IoctlReply::default()))
        }

        fn poll(&mut self, _handle: Handle) -> Readiness {
            Readiness::default()
        }

        fn close(&mut self, _handle: Handle) -> Poll<()> {
            Poll::Ready(())
        }
    }

    /// The devices up to number 9 that can be opened.
    fn opened(access: GuestAccess) -> Vec<u16> {
        let mut backend = Everything::default();
        let mut restricted = Restricted {
            backend: &mut backend,
            access,
        };
        for number in 0..10 {
            let result = restricted.open(number, 0);
            assert!(matches!(result, Ok(_) | Err(Errno::EACCES)), "{result:?}");
        }
        backend.opened
    }

    #[test]
    fn only_what_is_allowed_reaches_the_devices() {
        assert!(opened(GuestAccess::None).is_empty());
        assert_eq!(opened(GuestAccess::Pcs), [device::PCS]);
        assert_eq!(opened(GuestAccess::Prf), [device::PRF]);
        assert_eq!(opened(GuestAccess::All), [device::PCS, device::PRF]);
    }

    #[test]
    fn the_words_are_those_of_the_option() {
        assert_eq!("none".parse::<GuestAccess>().unwrap(), GuestAccess::None);
        assert_eq!("prf".parse::<GuestAccess>().unwrap(), GuestAccess::Prf);
        let error = "status".parse::<GuestAccess>().unwrap_err();
        assert!(error.to_string().contains("none, pcs, prf or all"));
    }
}
