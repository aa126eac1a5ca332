//! The status document of a running guest.

use kvmprof_abi::wire::device;
use kvmprof_client::Connection;
use kvmprof_recording::ConsumerLedger;
use kvmprof_recording::status::Status;

use crate::until;

/// Maximum number of bytes of a status document, which has some KiB.
const MAX_STATUS: usize = 1 << 20;

/// The status document that the host socket's device `status` gives a client.
///
/// # Panics
/// If it can't be read, or isn't a status document.
pub fn status_of(connection: &Connection) -> Status {
    let document = connection.snapshot(device::STATUS, MAX_STATUS).unwrap();
    read_status(&document)
}

/// A status document from the output of `kvmprof status --json` or of another client.
///
/// # Panics
/// If it isn't a status document.
pub fn read_status(document: impl AsRef<[u8]>) -> Status {
    let document = document.as_ref();
    Status::from_json(document)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(document)))
}

/// Waits until the only recorder has recorded this many ticks. Returns its account.
///
/// # Panics
/// If the account doesn't balance.
pub fn until_recorded(connection: &Connection, ticks: u64) -> ConsumerLedger {
    until("enough is recorded", || {
        let status = status_of(connection);
        let ledger = status.recorders().next()?.ledger;
        assert!(ledger.balances(), "{ledger:?}");
        (ledger.recorded + ledger.merged >= ticks).then_some(ledger)
    })
}
