//! What an endpoint asks of the devices behind it.

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

/// The devices behind an endpoint. No call blocks: what has to wait says `EAGAIN`, and the
/// endpoint asks again when it is woken.
pub trait Backend {
    /// Opens minor `minor` of device number `device` (see `kvmprof_abi::wire`).
    ///
    /// # Errors
    /// ENODEV for an unknown device, ENXIO for a minor or a clock that isn't there, EBUSY when
    /// it is open for exclusive use, EACCES when policy forbids it.
    fn open(&mut self, device: u16, minor: u16) -> Result<Handle, Errno>;

    /// Reads at most `limit` bytes; an empty vector is the end of file.
    ///
    /// # Errors
    /// EAGAIN when nothing is there yet; whatever the device's page promises.
    fn read(&mut self, handle: Handle, limit: usize) -> Result<Vec<u8>, Errno>;

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
    ) -> Result<IoctlReply, Errno>;

    /// What wouldn't block now.
    fn poll(&mut self, handle: Handle) -> Readiness;

    /// Closes the device and frees what it held.
    fn close(&mut self, handle: Handle);
}
