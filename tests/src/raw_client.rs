//! Frames of the wire protocol, for clients that use a connection in ways that `kvmprof_client` doesn't.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use kvmprof_abi::wire::{HEADER_LENGTH, Request, RequestFrame, VERSION};

/// Length of kvmprof's answer to the first request, in bytes.
pub const LENGTH_OF_HELLO: usize = 48;

/// An encoded request.
///
/// # Panics
/// If it exceeds the maximum length of a request.
pub fn encode(tag: u32, request: Request<'_>) -> Vec<u8> {
    let frame = RequestFrame { tag, request };
    let mut bytes = vec![0; frame.encoded_length()];
    frame.encode(&mut bytes).unwrap();
    bytes
}

/// The first request of a connection.
pub fn hello() -> Vec<u8> {
    let (lowest, highest) = (VERSION, VERSION);
    encode(0, Request::Hello { lowest, highest })
}

/// A connection on which the first request has been sent and answered. Its writes and reads fail after `limit`, if there is one.
///
/// # Errors
/// The socket's error.
pub fn connect(socket: &Path, limit: Option<Duration>) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_write_timeout(limit)?;
    stream.set_read_timeout(limit)?;
    stream.write_all(&hello())?;
    stream.read_exact(&mut [0; LENGTH_OF_HELLO])?;
    Ok(stream)
}

/// Opens a device, and returns its handle.
///
/// # Errors
/// As of the connection.
pub fn open(stream: &mut UnixStream, device: u16, minor: u16) -> io::Result<u32> {
    let flags = 0;
    let open = Request::Open {
        device,
        minor,
        flags,
    };
    stream.write_all(&encode(1, open))?;
    let mut reply = [0; HEADER_LENGTH + 4];
    stream.read_exact(&mut reply)?;
    Ok(u32::from_le_bytes([
        reply[16], reply[17], reply[18], reply[19],
    ]))
}

/// Requests to read at most `limit` bytes, for [`encode`].
pub fn read(handle: u32, limit: usize) -> Request<'static> {
    let limit = u32::try_from(limit).unwrap_or(u32::MAX);
    Request::Read {
        handle,
        limit,
        flags: 0,
    }
}
