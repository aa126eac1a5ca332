//! The program counter sampling device, `pcs(7)`, as a plain state machine: ticks and requests
//! in, bytes and error numbers out.
//!
//! The manual page is the specification. It leaves some details open, which this device defines:
//!
//! - **Opening** is exclusive (EBUSY), and fails with ENXIO where there is no clock. Until the
//!   first `PROF_*` nothing is gathered.
//! - **Selection.** `PROF_*` calls OR together; a new list or group replaces the old one. `PROF_KERNEL` selects KERNEL
//!   and KERNELI records, `PROF_LIST` and `PROF_GROUP` the USER records of their processes, `PROF_ALL` all three. An
//!   unknown pid or group (-1) is in no list and no group. All other ticks are merged, and IDLE always.
//! - **Merging** is per vCPU over 100 of its own ticks of any kind. The classic format has no CPU in its records, so it
//!   sums over the vCPUs and outputs the sums once in 100 ticks times the number of vCPUs. Counts come in the order
//!   IDLE, MKERNEL, MKERNELI, MUSER, without zero counts. Counts without a free buffer are output with the next
//!   hundred.
//! - **Loss.** A sample without a free buffer is lost, and so is a tick that the clock itself lost while something was
//!   gathered: both are in `h_numlost` of the next buffer. What exceeds that field goes into the next header, so that
//!   the sum is exact.
//! - **Reading.** A buffer can be read once it is full, and is free again after its last byte has been read. A read
//!   returns what there is, up to its limit, across buffers.
//! - **The ledger** balances after every call. A tick is `recorded` or `merged` once the last byte of its record has
//!   been read, and `pending` until then; close makes pending ticks `discarded`. Ticks before the first `PROF_*` are
//!   `ungathered`.
//! - **`PCS_STOP`** and the end of the VM ([`Pcs::stop`]) end the counting: the ledger's ticks
//!   are final. Merged counts, the partly filled buffer and counts of lost samples are delivered as the
//!   reader makes room; the end of file follows.
//! - **`PCS_FLUSH`** seals the partly filled buffer, or an empty one if there is only a count of lost samples; merged
//!   counts wait for their hundred.
//! - **Order of checks.** A bad argument is EINVAL in any state; then `PCS_SETFORMAT` and `PCS_SETBSIZE` after the
//!   first `PROF_*` are EBUSY. After `PCS_STOP` everything that would change the sampling is EINVAL.

mod buffers;
mod ioctl;
mod merge;
mod selection;
mod session;

use kvmprof_abi::errno::Errno;

use self::session::Session;
use crate::endpoint::IoctlReply;
use kvmprof_recording::{ConsumerLedger, Ticks};

pub use self::ioctl::ClockRequest;

/// The device.
#[derive(Debug)]
pub struct Pcs {
    vcpus: u16,
    session: Option<Session>,
    last_ledger: ConsumerLedger,
}

impl Pcs {
    /// The device of a guest with `vcpus` vCPUs, not open.
    pub fn new(vcpus: u16) -> Self {
        Self {
            vcpus,
            session: None,
            last_ledger: ConsumerLedger::default(),
        }
    }

    /// Opens the device with the clock at `hz` Hz per vCPU, and clears the ledger.
    ///
    /// # Errors
    /// EBUSY if it is already open, ENXIO if `hz` is 0: there is no clock.
    pub fn open(&mut self, hz: u32) -> Result<(), Errno> {
        self.check_closed()?;
        if hz == 0 {
            return Err(Errno::ENXIO);
        }
        self.session = Some(Session::new(self.vcpus, hz));
        Ok(())
    }

    /// Opens the device while an event of the guest makes the ticks, and clears the ledger. The clock is stopped: its
    /// rate is 0.
    ///
    /// # Errors
    /// EBUSY if it is already open.
    pub fn open_by_event(&mut self) -> Result<(), Errno> {
        self.check_closed()?;
        self.session = Some(Session::new(self.vcpus, 0));
        Ok(())
    }

    fn check_closed(&self) -> Result<(), Errno> {
        if self.is_open() {
            return Err(Errno::EBUSY);
        }
        Ok(())
    }

    /// Closes the device and discards what is in buffers and counts, with an entry in the ledger. Does nothing if the
    /// device isn't open.
    pub fn close(&mut self) {
        if let Some(session) = self.session.take() {
            self.last_ledger = session.close();
        }
    }

    /// Takes ticks of the clock. They are ignored while the device isn't open, and after `PCS_STOP`.
    pub fn feed(&mut self, ticks: &Ticks) {
        if let Some(session) = &mut self.session {
            session.feed(ticks);
        }
    }

    /// Appends at most `limit` bytes to `out` and returns how many; 0 is the end of file
    /// (unless `limit` is 0).
    ///
    /// # Errors
    /// EAGAIN while there is nothing to read yet, EBADF when the device isn't open.
    pub fn read(&mut self, limit: usize, out: &mut Vec<u8>) -> Result<usize, Errno> {
        self.session.as_mut().ok_or(Errno::EBADF)?.read(limit, out)
    }

    /// Executes `command`; see `kvmprof_abi::pcs` for its argument and errors. `PCS_SETHZ` only stores the clock's new
    /// rate: call [`Pcs::clock_request`] first.
    ///
    /// # Errors
    /// EINVAL, EBUSY and EFAULT as documented there, EBADF when the device isn't open.
    pub fn ioctl(&mut self, command: u32, argument: i64, data: &[u8]) -> Result<IoctlReply, Errno> {
        self.session
            .as_mut()
            .ok_or(Errno::EBADF)?
            .ioctl(command, argument, data)
    }

    /// What the owner of the clock must do before it calls [`Pcs::ioctl`] with the same arguments, if anything. If it
    /// can't do that, it answers the client with EBUSY and doesn't make the call.
    ///
    /// # Errors
    /// The ioctl's error. The owner then has nothing to do.
    pub fn clock_request(
        &self,
        command: u32,
        argument: i64,
    ) -> Result<Option<ClockRequest>, Errno> {
        self.session
            .as_ref()
            .ok_or(Errno::EBADF)?
            .clock_request(command, argument)
    }

    /// Ends the sampling like `PCS_STOP`, at the end of the VM. Flush the clock first.
    pub fn stop(&mut self) {
        if let Some(session) = &mut self.session {
            session.stop();
        }
    }

    /// The device's rate, in Hz per vCPU; 0 if it isn't open.
    pub fn hz(&self) -> u32 {
        self.session.as_ref().map_or(0, Session::hz)
    }

    /// True when a read would return at once: with data or the end of file.
    pub fn readable(&self) -> bool {
        self.session.as_ref().is_some_and(Session::readable)
    }

    /// True while the device is open.
    pub fn is_open(&self) -> bool {
        self.session.is_some()
    }

    /// True while the device needs ticks, so that the clock must run: from open to `PCS_STOP` or close.
    pub fn wants_ticks(&self) -> bool {
        self.session.as_ref().is_some_and(Session::wants_ticks)
    }

    /// True while samples are gathered: from the first `PROF_*` to `PCS_STOP` or close.
    pub fn is_gathering(&self) -> bool {
        self.session.as_ref().is_some_and(Session::is_gathering)
    }

    /// True while samples are selected by process group, so that capture must look it up.
    pub fn wants_process_group(&self) -> bool {
        self.session
            .as_ref()
            .is_some_and(Session::wants_process_group)
    }

    /// The account of this open, or of the last one if the device is closed.
    pub fn ledger(&self) -> ConsumerLedger {
        self.session
            .as_ref()
            .map_or(self.last_ledger, Session::ledger)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_open_refuses_everything() {
        let mut pcs = Pcs::new(1);
        assert_eq!(pcs.read(1, &mut Vec::new()), Err(Errno::EBADF));
        assert_eq!(pcs.ioctl(0, 0, &[]), Err(Errno::EBADF));
        assert_eq!(pcs.clock_request(0, 0), Err(Errno::EBADF));
        pcs.close();
        pcs.stop();
        pcs.feed(&Ticks {
            idle: 5,
            ..Ticks::default()
        });
        assert_eq!(pcs.ledger(), ConsumerLedger::default());
        assert!(!pcs.readable() && !pcs.is_open() && !pcs.wants_ticks());
    }
}
