//! pmc as a client has it open.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pmc::{Call, CounterId, Function, PMC_ACCOUNT, PMC_CALL};
use kvmprof_abi::wire::device;
use kvmprof_client::{ClientError, Connection, RemoteDevice};
use kvmprof_recording::counters::{Counters, ProcessCounters};

use crate::errno_of;

/// A document of counters is some KiB.
const MAX_DOCUMENT: usize = 4 << 20;

/// pmc, open.
pub struct Pmc(pub RemoteDevice);

/// A call of `function` for process `pid`, which configures or asks for `counter`.
pub fn pmc_call(function: Function, pid: i32, counter: CounterId) -> Call {
    let number = u32::try_from(counter.number()).unwrap();
    Call {
        event: number,
        ..Call::new(function, pid, number.cast_signed())
    }
}

impl Pmc {
    /// Opens it.
    ///
    /// # Panics
    /// When that fails.
    pub fn open(connection: &Connection) -> Self {
        Self(connection.open(device::PMC, 0).unwrap())
    }

    /// Makes `call`: what the function returns, and the value.
    ///
    /// # Errors
    /// What the device says.
    pub fn try_call(&self, call: &Call) -> Result<(i64, u64), ClientError> {
        let (returned, data) = self.0.ioctl_with(PMC_CALL, 0, &call.encode(), Call::SIZE)?;
        let value = Call::decode(&data).unwrap().value;
        Ok((returned, value))
    }

    /// Makes `call`, which succeeds.
    ///
    /// # Panics
    /// When it fails.
    pub fn call(&self, call: &Call) -> (i64, u64) {
        self.try_call(call).unwrap()
    }

    /// Why `call` fails.
    ///
    /// # Panics
    /// When it doesn't.
    pub fn refused(&self, call: &Call) -> Errno {
        errno_of(self.try_call(call))
    }

    /// Counts these counters of all processes from now on.
    ///
    /// # Panics
    /// When that fails.
    pub fn account(&self, counters: &[CounterId]) {
        let bits = counters.iter().fold(0, |bits, id| bits | id.bit());
        self.0.ioctl(PMC_ACCOUNT, bits.into()).unwrap();
    }

    /// What was counted until now.
    ///
    /// # Panics
    /// When the document isn't there.
    pub fn document(&self) -> Counters {
        let document = self.0.read_to_end(MAX_DOCUMENT).unwrap();
        Counters::from_json(&document).unwrap()
    }
}

/// What `counter` has counted for the processes `pid`.
///
/// # Panics
/// When processes weren't counted.
pub fn count_of(counters: &Counters, pid: i32, counter: CounterId) -> u64 {
    let processes = counters.processes.as_ref().unwrap();
    let of_pid = processes.iter().filter(|process| process.pid == pid);
    let count = |process: &ProcessCounters| process.counts[counter.number()].unwrap();
    of_pid.map(count).sum()
}
