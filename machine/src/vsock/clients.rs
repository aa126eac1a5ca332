//! Clients that connect to the guest, until they have sent the port that they ask for.

use std::collections::BTreeMap;
use std::io;

use kvmprof_devices::virtio::vsock::Stream;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::streams::HostStream;

/// Maximum number of clients at a time. A further client replaces the oldest.
const CLIENTS_MAX: usize = 64;
/// Maximum size of a request with its newline, in bytes: more than `CONNECT 4294967295` has.
const REQUEST_MAX: usize = 32;

/// The clients whose request isn't complete.
#[derive(Default)]
pub struct Clients {
    by_name: BTreeMap<u64, HostStream>,
    /// Number of clients that have left without a request, have sent something else, or were turned away.
    pub turned_away: u64,
}

/// The state of a client's request.
enum Request {
    Incomplete,
    Port(u32),
    Nonsense,
}

impl Clients {
    /// Adds a client.
    pub fn add(&mut self, stream: HostStream) {
        while self.by_name.len() >= CLIENTS_MAX && self.by_name.pop_first().is_some() {
            self.turned_away += 1;
        }
        self.by_name.insert(stream.name(), stream);
    }

    /// Whether a client has this name.
    pub fn has(&self, name: u64) -> bool {
        self.by_name.contains_key(&name)
    }

    /// Reads what the client with this name has sent. Once that is a whole request, returns the client and the port that it asks for.
    pub fn request(&mut self, name: u64) -> Option<(HostStream, u32)> {
        let request = read(self.by_name.get(&name)?);
        if matches!(request, Request::Incomplete) {
            return None;
        }
        let client = self.by_name.remove(&name)?;
        if let Request::Port(port) = request {
            return Some((client, port));
        }
        self.turned_away += 1;
        None
    }
}

/// Reads a whole request. Bytes after it stay in the socket for the guest.
fn read(client: &HostStream) -> Request {
    let mut bytes = [0; REQUEST_MAX];
    let length = match rustix::net::recv(client.socket(), &mut bytes, RecvFlags::PEEK) {
        Ok((0, _)) => return Request::Nonsense,
        Ok((length, _)) => length,
        Err(Errno::AGAIN | Errno::INTR) => return Request::Incomplete,
        Err(_) => return Request::Nonsense,
    };
    let said = bytes.get(..length).unwrap_or_default();
    let Some(line) = said.split_inclusive(|byte| *byte == b'\n').next() else {
        return Request::Nonsense;
    };
    if !line.ends_with(b"\n") {
        return if length < REQUEST_MAX {
            Request::Incomplete
        } else {
            Request::Nonsense
        };
    }
    let Some(port) = parse(line) else {
        return Request::Nonsense;
    };
    match take(client, line.len()) {
        Ok(()) => Request::Port(port),
        Err(_) => Request::Nonsense,
    }
}

/// Removes `length` bytes from the socket. They have been read before.
fn take(client: &HostStream, length: usize) -> io::Result<()> {
    let mut bytes = [0; REQUEST_MAX];
    let line = bytes.get_mut(..length).unwrap_or_default();
    let (taken, _) = rustix::net::recv(client.socket(), line, RecvFlags::empty())?;
    if taken == length {
        Ok(())
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// The port of `CONNECT PORT` and a newline.
fn parse(line: &[u8]) -> Option<u32> {
    let line = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let number = line.strip_prefix("CONNECT ")?;
    let is_plain = number.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| number.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_have_a_port() {
        assert_eq!(parse(b"CONNECT 52\n"), Some(52));
        assert_eq!(parse(b"CONNECT 4294967295\n"), Some(u32::MAX));
        for port in ["52\r", " 52", "+52", "-1", "4294967296", ""] {
            let line = format!("CONNECT {port}\n");
            assert_eq!(parse(line.as_bytes()), None, "{line:?}");
        }
        for line in ["CONNECT 52", "connect 52\n", "\n"] {
            assert_eq!(parse(line.as_bytes()), None, "{line:?}");
        }
        assert_eq!(parse(b"CONNECT \xff\n"), None);
    }
}
