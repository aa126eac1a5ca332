//! A client's open pmc.

use kvmprof_abi::pmc::{CounterId, PMC_ACCOUNT};
use kvmprof_abi::wire::device;
use kvmprof_client::{Connection, RemoteDevice};
use kvmprof_recording::counters::{Counters, ProcessCounters};

/// Maximum number of bytes of a document of counters, which has some KiB.
const MAX_DOCUMENT: usize = 4 << 20;

/// An open pmc.
pub struct Pmc(pub RemoteDevice);

impl Pmc {
    /// Opens pmc.
    ///
    /// # Panics
    /// If that fails.
    pub fn open(connection: &Connection) -> Self {
        Self(connection.open(device::PMC, 0).unwrap())
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
