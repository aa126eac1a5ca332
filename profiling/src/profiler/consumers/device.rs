//! Devices that clients open: requests to them, and what the server prepares for these.

use kvmprof_abi::errno::Errno;
use kvmprof_devices::endpoint::{Handle, IoctlReply, Readiness};

use super::Context;

/// A request to a device that a client opens, or has open.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// Open this minor.
    Open { minor: u16 },
    /// Read at most this many bytes.
    Read { limit: usize },
    /// Execute a command.
    Ioctl(Command<'a>),
    /// Close the device.
    Close,
}

/// A command of a device, with its argument, and the bytes to which the argument points if it is a pointer.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    pub number: u32,
    pub argument: i64,
    pub data: &'a [u8],
}

/// The result of a request.
#[derive(Debug)]
pub enum Reply {
    /// The device is open, or closed.
    Done,
    /// The bytes that were read.
    Read(Vec<u8>),
    /// The command's reply.
    Ioctl(IoctlReply),
}

/// Which ticks have to be collected before a request is carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TicksBefore {
    /// None: the request acts on the ticks that have been collected.
    #[default]
    Any,
    /// All ticks until now, so that the request acts at its own time.
    All,
    /// All ticks until now. Every vCPU also checks which processes that consumers know have ended.
    AllAndEnds,
    /// All ticks until now, because the consumer stops counting with this request. Unless other consumers count, the clocks stop first,
    /// so that they count the same ticks as their last consumer. `others`: this consumer continues to count for other clients.
    Last { others: bool },
}

/// The preparation of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Preparation {
    /// Which ticks have to be collected.
    pub ticks: TicksBefore,
    /// Whether the files that processes have mapped have to be read.
    pub files: bool,
}

impl From<TicksBefore> for Preparation {
    /// A preparation with these ticks, and without files.
    fn from(ticks: TicksBefore) -> Self {
        Self {
            ticks,
            files: false,
        }
    }
}

/// A device that clients open. No call blocks.
///
/// The server asks for the preparation of an open, a read, an ioctl and a close first. That changes nothing, and its error is the request's, which
/// isn't carried out then. The errors are those of the device's page.
pub trait Device {
    /// The preparation of an open of minor `minor`.
    ///
    /// # Errors
    /// ENXIO for another minor than 0, or if the guest has ended, in most devices.
    fn before_open(&self, minor: u16, context: &Context<'_>) -> Result<Preparation, Errno> {
        if minor != 0 || context.has_ended {
            return Err(Errno::ENXIO);
        }
        Ok(Preparation::default())
    }

    /// The preparation of a read.
    ///
    /// # Errors
    /// As the device's page says.
    fn before_read(&self, _handle: Handle) -> Result<Preparation, Errno> {
        Ok(Preparation::default())
    }

    /// The preparation of a command.
    ///
    /// # Errors
    /// As the device's page says.
    fn before_ioctl(
        &self,
        handle: Handle,
        command: &Command<'_>,
        context: &Context<'_>,
    ) -> Result<Preparation, Errno>;

    /// The preparation of a close.
    fn before_close(&self, _handle: Handle) -> Preparation {
        Preparation::default()
    }

    /// Opens minor `minor` as `handle`.
    ///
    /// # Errors
    /// As the device's page says.
    fn open(&mut self, handle: Handle, minor: u16, context: &Context<'_>) -> Result<(), Errno>;

    /// Reads at most `limit` bytes.
    ///
    /// # Errors
    /// As the device's page says.
    fn read(
        &mut self,
        handle: Handle,
        limit: usize,
        context: &Context<'_>,
    ) -> Result<Vec<u8>, Errno>;

    /// Writes `bytes`. Returns how many of them were written.
    ///
    /// # Errors
    /// As the device's page says; EBADF, as of write(2), for a device that can only be read.
    fn write(&mut self, _handle: Handle, _bytes: &[u8]) -> Result<usize, Errno> {
        Err(Errno::EBADF)
    }

    /// Executes `command`.
    ///
    /// # Errors
    /// As the device's page says.
    fn ioctl(
        &mut self,
        handle: Handle,
        command: &Command<'_>,
        context: &Context<'_>,
    ) -> Result<IoctlReply, Errno>;

    /// Closes `handle`.
    fn close(&mut self, handle: Handle);

    /// The operations that wouldn't block now: in most devices no request ever waits.
    fn readiness(&self, _handle: Handle) -> Readiness {
        Readiness {
            readable: true,
            ..Readiness::default()
        }
    }
}

impl dyn Device + '_ {
    /// The preparation that `request` needs. Changes nothing.
    ///
    /// # Errors
    /// The error of the request, which isn't carried out then.
    pub fn prepare(
        &self,
        handle: Handle,
        request: &Request<'_>,
        context: &Context<'_>,
    ) -> Result<Preparation, Errno> {
        match request {
            Request::Open { minor } => self.before_open(*minor, context),
            Request::Read { .. } => self.before_read(handle),
            Request::Ioctl(command) => self.before_ioctl(handle, command, context),
            Request::Close => Ok(self.before_close(handle)),
        }
    }

    /// Carries out `request`.
    ///
    /// # Errors
    /// As the device's page says.
    pub fn carry_out(
        &mut self,
        handle: Handle,
        request: &Request<'_>,
        context: &Context<'_>,
    ) -> Result<Reply, Errno> {
        match request {
            Request::Open { minor } => self.open(handle, *minor, context).map(|()| Reply::Done),
            Request::Read { limit } => self.read(handle, *limit, context).map(Reply::Read),
            Request::Ioctl(command) => self.ioctl(handle, command, context).map(Reply::Ioctl),
            Request::Close => {
                self.close(handle);
                Ok(Reply::Done)
            }
        }
    }
}
