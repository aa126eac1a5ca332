//! A client's open pmc.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pmc::{Call, CounterId, Function, PMC_ACCOUNT, PMC_CALL};
use kvmprof_abi::wire::device;
use kvmprof_client::{ClientError, Connection, RemoteDevice};
use kvmprof_recording::counters::{Counters, ProcessCounters};

use crate::errno_of;

/// Maximum number of bytes of a document of counters, which has some KiB.
const MAX_DOCUMENT: usize = 4 << 20;

/// An open pmc.
pub struct Pmc(pub RemoteDevice);

/// A call of `function` for process `pid`, which configures or reads `counter`.
pub fn pmc_call(function: Function, pid: i32, counter: CounterId) -> Call {
    let number = u32::try_from(counter.number()).unwrap();
    Call {
        event: number,
        ..Call::new(function, pid, number.cast_signed())
    }
}

impl Pmc {
    /// Opens pmc.
    ///
    /// # Panics
    /// If that fails.
    pub fn open(connection: &Connection) -> Self {
        Self(connection.open(device::PMC, 0).unwrap())
    }

    /// Makes `call`. Returns the function's result, and the value.
    ///
    /// # Errors
    /// The device's error.
    pub fn try_call(&self, call: &Call) -> Result<(i64, u64), ClientError> {
        let (returned, data) = self.0.ioctl_with(PMC_CALL, 0, &call.encode(), Call::SIZE)?;
        let value = Call::decode(&data).unwrap().value;
        Ok((returned, value))
    }

    /// Makes `call`, which has to succeed.
    ///
    /// # Panics
    /// If it fails.
    pub fn call(&self, call: &Call) -> (i64, u64) {
        self.try_call(call).unwrap()
    }

    /// Makes `call`, which has to fail. Returns its errno.
    ///
    /// # Panics
    /// If it succeeds.
    pub fn refused(&self, call: &Call) -> Errno {
        errno_of(self.try_call(call))
    }

    /// Counts these counters of all processes from now on.
    ///
    /// # Panics
    /// If that fails.
    pub fn account(&self, counters: &[CounterId]) {
        let bits = counters.iter().fold(0, |bits, id| bits | id.bit());
        self.0.ioctl(PMC_ACCOUNT, bits.into()).unwrap();
    }

    /// The counts until now.
    ///
    /// # Panics
    /// If there is no document.
    pub fn document(&self) -> Counters {
        let document = self.0.read_to_end(MAX_DOCUMENT).unwrap();
        Counters::from_json(&document).unwrap()
    }
}

/// The count of `counter` for the process `pid`.
///
/// # Panics
/// If processes weren't counted.
pub fn count_of(counters: &Counters, pid: i32, counter: CounterId) -> u64 {
    let processes = counters.processes.as_ref().unwrap();
    let of_pid = processes.iter().filter(|process| process.pid == pid);
    let count = |process: &ProcessCounters| process.counts[counter.number()].unwrap();
    of_pid.map(count).sum()
}
