//! The program counter sampling device, `pcs(7)`, as a plain state machine: ticks and requests
//! in, bytes and error numbers out.
//!
//! The manual page is the specification. What it leaves open is settled like this:
//!
//! - **Opening** is exclusive (EBUSY), and fails with ENXIO where there is no clock. Until the
//!   first `PROF_*` nothing is gathered.
//! - **Selection.** `PROF_*` calls OR together; a new list or group replaces the old one.
//!   `PROF_KERNEL` asks for KERNEL and KERNELI records, `PROF_LIST` and `PROF_GROUP` for the
//!   USER records of their processes, `PROF_ALL` for all three. An unknown pid or group (-1)
//!   is in no list and no group. Everything else is merged, and IDLE always.
//! - **Merging** is per vCPU over 100 of its own ticks, whatever became of them; the classic
//!   format, whose records name no CPU, sums over the vCPUs and puts the sums out once in
//!   100 ticks times the number of vCPUs. Counts come in the order IDLE, MKERNEL, MKERNELI, MUSER, zero
//!   counts left out. What finds no free buffer stays and is put out with the next hundred.
//! - **Loss.** A sample for which no buffer is free is lost, and so is a tick that the clock
//!   itself lost while something was gathered: both are in `h_numlost` of the next buffer. What doesn't fit
//!   into that field goes into the one after it, so that the sum is exact.
//! - **Reading.** A buffer can be read once it is full, and takes up its place until its last
//!   byte has been read. A read returns what there is, up to its limit, whatever the bounds
//!   of the buffers.
//! - **The ledger** balances after every call. A tick is `recorded` or `merged` once the last
//!   byte of its record has been read, and `pending` until then; close turns what is pending
//!   into `discarded`. Ticks before the first `PROF_*` are `ungathered`.
//! - **`PCS_STOP`** and the end of the VM ([`Pcs::stop`]) end the counting: the ledger's ticks
//!   are final. Merged counts, the partly filled buffer and counts of lost samples are handed over as the
//!   reader makes room; the end of file follows.
//! - **`PCS_FLUSH`** seals the partly filled buffer, or an empty one when only a count of lost
//!   samples is waiting; merged counts wait for their hundred.
//! - **Order of checks.** A bad argument is EINVAL whatever the state; then `PCS_SETFORMAT` and
//!   `PCS_SETBSIZE` after the first `PROF_*` are EBUSY. After `PCS_STOP` everything that
//!   would change the sampling is EINVAL.

mod buffers;
mod ioctl;
mod merge;
mod selection;
mod session;

use kvmprof_abi::errno::Errno;

use self::session::Session;
use crate::endpoint::IoctlReply;
use kvmprof_recording::{ConsumerLedger, Ticks};

pub use self::ioctl::ClockWish;

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

    /// Opens the device with the clock at `hz` Hz per vCPU; the ledger starts anew.
    ///
    /// # Errors
    /// EBUSY when it is open already, ENXIO when `hz` is 0: there is no clock.
    pub fn open(&mut self, hz: u32) -> Result<(), Errno> {
        if self.session.is_some() {
            return Err(Errno::EBUSY);
        }
        if hz == 0 {
            return Err(Errno::ENXIO);
        }
        self.session = Some(Session::new(self.vcpus, hz));
        Ok(())
    }

    /// Closes the device: what sits in buffers and counts is thrown away, and counted. Does
    /// nothing when it isn't open.
    pub fn close(&mut self) {
        if let Some(session) = self.session.take() {
            self.last_ledger = session.close();
        }
    }

    /// Takes in ticks of the clock. They are ignored while the device isn't open, and after
    /// `PCS_STOP`.
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

    /// Carries out `command`; see `kvmprof_abi::pcs` for each one's argument and errors.
    /// `PCS_SETHZ` notes the clock's new rate only: [`Pcs::clock_wish`] comes first.
    ///
    /// # Errors
    /// EINVAL, EBUSY and EFAULT as documented there, EBADF when the device isn't open.
    pub fn ioctl(&mut self, command: u32, argument: i64, data: &[u8]) -> Result<IoctlReply, Errno> {
        self.session
            .as_mut()
            .ok_or(Errno::EBADF)?
            .ioctl(command, argument, data)
    }

    /// What the owner of the clock has to do before it calls [`Pcs::ioctl`] with the same
    /// arguments, if anything. When it can't, it answers the client itself (EBUSY) and leaves that call out.
    ///
    /// # Errors
    /// What the ioctl would fail with; then there is nothing to do.
    pub fn clock_wish(&self, command: u32, argument: i64) -> Result<Option<ClockWish>, Errno> {
        self.session
            .as_ref()
            .ok_or(Errno::EBADF)?
            .clock_wish(command, argument)
    }

    /// Ends the sampling as `PCS_STOP` does; for the end of the VM. Settle the clock first.
    pub fn stop(&mut self) {
        if let Some(session) = &mut self.session {
            session.stop();
        }
    }

    /// The rate at which it counts, in Hz per vCPU; 0 when it isn't open.
    pub fn hz(&self) -> u32 {
        self.session.as_ref().map_or(0, Session::hz)
    }

    /// True when a read would return at once: with data or the end of file.
    pub fn readable(&self) -> bool {
        self.session.as_ref().is_some_and(Session::readable)
    }

    /// True while it is open.
    pub fn is_open(&self) -> bool {
        self.session.is_some()
    }

    /// True while it counts ticks, so that the clock has to run: from open to `PCS_STOP` or close.
    pub fn wants_ticks(&self) -> bool {
        self.session.as_ref().is_some_and(Session::wants_ticks)
    }

    /// True while samples are gathered: from the first `PROF_*` to `PCS_STOP` or close.
    pub fn is_gathering(&self) -> bool {
        self.session.as_ref().is_some_and(Session::is_gathering)
    }

    /// True while samples are chosen by their process group, so that capture has to look it up.
    pub fn wants_process_group(&self) -> bool {
        self.session
            .as_ref()
            .is_some_and(Session::wants_process_group)
    }

    /// The account of this open, or of the last one when it is closed.
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
        assert_eq!(pcs.clock_wish(0, 0), Err(Errno::EBADF));
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
