//! What an endpoint asks of the devices behind it.

use std::task::Poll;

use kvmprof_abi::errno::Errno;

/// Names one open device; chosen by the [`Backend`], never reused while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u32);

/// What an ioctl gives back: its return value, and the bytes it stored through its argument.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoctlReply {
    /// The return value of the call.
    pub value: i64,
    /// What the call wrote where its argument pointed to.
    pub data: Vec<u8>,
}

/// What could be done with an open device at once, without blocking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// A read would return at once (data, end of file or an error).
    pub readable: bool,
    /// A write would return at once.
    pub writable: bool,
    /// The device has gone: only close remains.
    pub hang_up: bool,
}

/// The devices behind an endpoint. No call blocks. [`Poll::Pending`] means that the device carries the request out:
/// the endpoint makes the same call again when it is woken, and no other ioctl, or no other read, of this handle until
/// it gets the result.
pub trait Backend {
    /// Begins to open minor `minor` of device number `device` (see `kvmprof_abi::wire`). Only
    /// [`opened`](Self::opened) and [`close`](Self::close) can be called with the handle until it is open.
    ///
    /// # Errors
    /// ENODEV for an unknown device, ENXIO for a minor that isn't there, EACCES when policy forbids it.
    fn open(&mut self, device: u16, minor: u16) -> Result<Handle, Errno>;

    /// Whether the device is open now. After an error the handle names nothing any more.
    ///
    /// # Errors
    /// ENXIO for a clock that isn't there, EBUSY when the device is open for exclusive use.
    fn opened(&mut self, handle: Handle) -> Poll<Result<(), Errno>>;

    /// Reads at most `limit` bytes; an empty vector is the end of file.
    ///
    /// # Errors
    /// EAGAIN when nothing is there yet; whatever the device's page promises.
    fn read(&mut self, handle: Handle, limit: usize) -> Poll<Result<Vec<u8>, Errno>>;

    /// Writes `bytes`, all or as many as the result says.
    ///
    /// # Errors
    /// Whatever the device's page promises.
    fn write(&mut self, handle: Handle, bytes: &[u8]) -> Result<usize, Errno>;

    /// Carries out `command`. `argument` is the third argument of ioctl(2) when that is a
    /// number; `data` is what it pointed to when it is a pointer (empty for NULL).
    ///
    /// # Errors
    /// Whatever the device's page promises.
    fn ioctl(
        &mut self,
        handle: Handle,
        command: u32,
        argument: i64,
        data: &[u8],
    ) -> Poll<Result<IoctlReply, Errno>>;

    /// What wouldn't block now.
    fn poll(&mut self, handle: Handle) -> Readiness;

    /// Closes the device and frees what it held. What was pending is given up. The device closes by itself after the
    /// first call; further calls tell when it has.
    fn close(&mut self, handle: Handle) -> Poll<()>;
}
