//! The interface between an endpoint and its devices.

use std::task::Poll;

use kvmprof_abi::errno::Errno;

use super::Client;

/// The number of an open device. The [`Backend`] chooses it, and doesn't reuse it while the device is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u32);

/// The result of an ioctl: its return value, and the bytes it stored through its argument.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoctlReply {
    /// The return value of the call.
    pub value: i64,
    /// The bytes that the call stored through its argument.
    pub data: Vec<u8>,
}

/// What an open device can do at once, without blocking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// A read would return at once (data, end of file or an error).
    pub readable: bool,
    /// A write would return at once.
    pub writable: bool,
    /// The device is gone: only close remains.
    pub hang_up: bool,
}

/// The devices of an endpoint. No call blocks. [`Poll::Pending`] means that the device has started the request: the
/// endpoint makes the same call again when it is woken, and no other ioctl, or no other read, of this handle until it
/// gets the result.
pub trait Backend {
    /// Begins to open minor `minor` of device number `device` (see `kvmprof_abi::wire`) for `client`, which may open it. Only
    /// [`opened`](Self::opened) and [`close`](Self::close) can be called with the handle until it is open.
    ///
    /// # Errors
    /// ENODEV for an unknown device, ENXIO for an unknown minor.
    fn open(&mut self, client: Client, device: u16, minor: u16) -> Result<Handle, Errno>;

    /// Whether the device is open now. After an error the handle is invalid.
    ///
    /// # Errors
    /// ENXIO without a clock, EBUSY if the device is open for exclusive use.
    fn opened(&mut self, handle: Handle) -> Poll<Result<(), Errno>>;

    /// Reads at most `limit` bytes; an empty vector is the end of file.
    ///
    /// # Errors
    /// EAGAIN while there is nothing to read; other errors as the device's page says.
    fn read(&mut self, handle: Handle, limit: usize) -> Poll<Result<Vec<u8>, Errno>>;

    /// Writes `bytes`. Returns how many of them were written.
    ///
    /// # Errors
    /// As the device's page says.
    fn write(&mut self, handle: Handle, bytes: &[u8]) -> Result<usize, Errno>;

    /// Executes `command`. `argument` is the third argument of ioctl(2) if it is a number; `data` is what it points to
    /// if it is a pointer (empty for NULL).
    ///
    /// # Errors
    /// As the device's page says.
    fn ioctl(
        &mut self,
        handle: Handle,
        command: u32,
        argument: i64,
        data: &[u8],
    ) -> Poll<Result<IoctlReply, Errno>>;

    /// What the device can do without blocking.
    fn poll(&mut self, handle: Handle) -> Readiness;

    /// Closes the device, drops its pending requests and frees its resources. The first call starts the close; further calls
    /// only return whether it is done.
    fn close(&mut self, handle: Handle) -> Poll<()>;
}
