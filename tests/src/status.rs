//! The status document of a running guest.

use kvmprof_abi::wire::device;
use kvmprof_client::Connection;
use kvmprof_recording::status::Status;

/// A status document is some KiB.
const MAX_STATUS: usize = 1 << 20;

/// The status document, as the host socket's device `status` gives it to a client.
///
/// # Panics
/// When it can't be read, or isn't one.
pub fn status_of(connection: &Connection) -> Status {
    let document = connection.snapshot(device::STATUS, MAX_STATUS).unwrap();
    read_status(&document)
}

/// A status document that was printed, by `kvmprof status --json` or another client.
///
/// # Panics
/// When it isn't one.
pub fn read_status(document: impl AsRef<[u8]>) -> Status {
    let document = document.as_ref();
    Status::from_json(document)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(document)))
}
