//! A device that is open on a connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvmprof_abi::wire::{HANG_UP, MAX_DATA, NONBLOCKING, READABLE, Request, WRITABLE};

use super::ClientError;
#[cfg(doc)]
use super::Connection;
use super::connection::{Closing, OwnedReply, PendingReply};

/// What a device is ready for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// A read would return at once.
    pub readable: bool,
    /// A write would return at once.
    pub writable: bool,
    /// The device has gone.
    pub hang_up: bool,
}

impl Readiness {
    fn events(self) -> u32 {
        let event = |is: bool, event: u32| if is { event } else { 0 };
        event(self.readable, READABLE) | event(self.writable, WRITABLE)
    }
}

/// A device that is open on a connection; closed when dropped.
pub struct RemoteDevice {
    connection: Arc<Closing>,
    handle: u32,
    /// Whether dropping has to close it.
    open: AtomicBool,
}

/// A read that hasn't been answered yet.
pub struct PendingRead(PendingReply);

impl PendingRead {
    /// The request's tag, for [`Connection::cancel`].
    pub fn tag(&self) -> u32 {
        self.0.tag()
    }

    /// Waits for the bytes that were read. An empty result is the end of file.
    ///
    /// # Errors
    /// As [`RemoteDevice::read`], and [`ClientError::Refused`] with EINTR when it was cancelled.
    pub fn wait(self) -> Result<Vec<u8>, ClientError> {
        let operation = "read";
        match self.0.wait()? {
            Ok(OwnedReply::Data(data)) => Ok(data),
            Ok(_) => Err(ClientError::WrongReply),
            Err(errno) => Err(ClientError::Refused { operation, errno }),
        }
    }
}

impl RemoteDevice {
    pub(super) fn new(connection: Arc<Closing>, handle: u32) -> Self {
        Self {
            connection,
            handle,
            open: AtomicBool::new(true),
        }
    }

    /// Reads at most `limit` bytes, and waits until there are any. An empty result is the end of file.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the device's errno; or what ended the connection.
    pub fn read(&self, limit: usize) -> Result<Vec<u8>, ClientError> {
        self.start_read(limit)?.wait()
    }

    /// Reads without waiting; [`ClientError::Refused`] with EAGAIN when there is nothing to read.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn try_read(&self, limit: usize) -> Result<Vec<u8>, ClientError> {
        self.start(limit, NONBLOCKING)?.wait()
    }

    /// Requests at most `limit` bytes, and doesn't wait for them.
    ///
    /// # Errors
    /// What ended the connection.
    pub fn start_read(&self, limit: usize) -> Result<PendingRead, ClientError> {
        self.start(limit, 0)
    }

    fn start(&self, limit: usize, flags: u32) -> Result<PendingRead, ClientError> {
        let request = Request::Read {
            handle: self.handle,
            limit: u32::try_from(limit.min(MAX_DATA)).unwrap_or(u32::MAX),
            flags,
        };
        Ok(PendingRead(self.connection.0.send(request)?))
    }

    /// Reads until the end of file.
    ///
    /// # Errors
    /// As [`read`](Self::read), and [`ClientError::TooMuch`] when there are more than `limit` bytes.
    pub fn read_to_end(&self, limit: usize) -> Result<Vec<u8>, ClientError> {
        let mut all = Vec::new();
        loop {
            let data = self.read(MAX_DATA)?;
            if data.is_empty() {
                return Ok(all);
            }
            all.extend_from_slice(&data);
            if all.len() > limit {
                return Err(ClientError::TooMuch { limit });
            }
        }
    }

    /// Writes `data` and returns how many bytes the device took.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the device's errno, [`ClientError::TooLarge`]; or what ended
    /// the connection.
    pub fn write(&self, data: &[u8]) -> Result<usize, ClientError> {
        let request = Request::Write {
            handle: self.handle,
            flags: 0,
            data,
        };
        match self.connection.0.call("write", request)? {
            OwnedReply::Number(count) => Ok(usize::try_from(count).unwrap_or(usize::MAX)),
            _ => Err(ClientError::WrongReply),
        }
    }

    /// Carries out `command` with a number as its argument.
    ///
    /// # Errors
    /// As [`ioctl_with`](Self::ioctl_with).
    pub fn ioctl(&self, command: u32, argument: i64) -> Result<i64, ClientError> {
        Ok(self.ioctl_with(command, argument, &[], 0)?.0)
    }

    /// Carries out `command`; `data` is what its argument points to, and at most `limit` bytes
    /// of what it stores there come back. Returns the value and those bytes.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the device's errno, [`ClientError::TooLarge`]; or what ended
    /// the connection.
    pub fn ioctl_with(
        &self,
        command: u32,
        argument: i64,
        data: &[u8],
        limit: usize,
    ) -> Result<(i64, Vec<u8>), ClientError> {
        let request = Request::Ioctl {
            handle: self.handle,
            command,
            argument,
            limit: u32::try_from(limit).unwrap_or(u32::MAX),
            data,
        };
        match self.connection.0.call("carry out the command", request)? {
            OwnedReply::Ioctl { value, data } => Ok((value, data)),
            _ => Err(ClientError::WrongReply),
        }
    }

    /// Waits until the device is ready for one of `wanted`, or gone. Returns what it is ready for.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with EINTR when cancelled; or what ended the connection.
    pub fn poll(&self, wanted: Readiness) -> Result<Readiness, ClientError> {
        self.poll_with(wanted, 0)
    }

    /// Which part of `wanted` the device is ready for now.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn readiness(&self, wanted: Readiness) -> Result<Readiness, ClientError> {
        self.poll_with(wanted, NONBLOCKING)
    }

    fn poll_with(&self, wanted: Readiness, flags: u32) -> Result<Readiness, ClientError> {
        let request = Request::Poll {
            handle: self.handle,
            events: wanted.events(),
            flags,
        };
        match self.connection.0.call("poll", request)? {
            OwnedReply::Number(events) => Ok(Readiness {
                readable: events & READABLE != 0,
                writable: events & WRITABLE != 0,
                hang_up: events & HANG_UP != 0,
            }),
            _ => Err(ClientError::WrongReply),
        }
    }

    /// Closes the device; reads that wait for it fail with EBADF. The device is free for others
    /// when this returns.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with EBADF when it was closed before; or what ended the
    /// connection.
    pub fn close(&self) -> Result<(), ClientError> {
        self.open.store(false, Ordering::Relaxed);
        let handle = self.handle;
        self.connection
            .0
            .call("close the device", Request::Close { handle })?;
        Ok(())
    }
}

impl Drop for RemoteDevice {
    fn drop(&mut self) {
        if self.open.load(Ordering::Relaxed) {
            // The error can be ignored: the end of the connection closes the device, too.
            let _ = self.close();
        }
    }
}
