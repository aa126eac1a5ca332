//! The errors of connections to kvmprof.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use kvmprof_abi::errno::Errno;
use kvmprof_abi::wire::WireError;

/// Why a connection couldn't be made or used.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no file at the path.
    #[error("No socket at {}: is kvmprof running with this --socket?", path.display())]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// There is a socket, and no program listens on it.
    #[error("Nobody listens on {}: the kvmprof that made it has ended", path.display())]
    NobodyListens {
        /// The path.
        path: PathBuf,
    },
    /// There is something else at the path.
    #[error("{} is {kind} and no socket: give the path that kvmprof has as --socket", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// The file's mode or kvmprof forbids the connection.
    #[error("No permission for {}: only root and the user who runs kvmprof may connect", path.display())]
    Permission {
        /// The path.
        path: PathBuf,
    },
    /// The program that listens belongs to another user than root and this one.
    #[error(
        "{} is served by user {user}, who is neither root nor you: if that is the guest's user, give --allow-owner {user}",
        path.display()
    )]
    WrongServer {
        /// The path.
        path: PathBuf,
        /// The user's number.
        user: u32,
    },
    /// Another failure of connect(2).
    #[error("Cannot connect to {}", path.display())]
    Connect {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The server closed the connection without an answer to the hello.
    #[error("Connection to {} was turned away: wrong user, or too many open files", path.display())]
    TurnedAway {
        /// The path.
        path: PathBuf,
    },
    /// Client and server have no version of the protocol in common.
    #[error(
        "Server speaks versions {lowest} to {highest} of the protocol, this program {ours}: use tools and kvmprof of one release"
    )]
    Version {
        /// The server's lowest.
        lowest: u16,
        /// The server's highest.
        highest: u16,
        /// The version of this program.
        ours: u16,
    },
    /// The server's answer isn't part of the protocol.
    #[error("Server sent a frame that isn't of the protocol")]
    Malformed(#[source] WireError),
    /// The server's answer doesn't fit the request.
    #[error("Server's reply doesn't belong to the request")]
    WrongReply,
    /// The request is too large for a frame.
    #[error("Request doesn't fit into a frame")]
    TooLarge(#[source] WireError),
    /// A device has more data than the caller allows.
    #[error("Device gives more than {limit} bytes")]
    TooMuch {
        /// The maximum that was allowed, in bytes.
        limit: usize,
    },
    /// The connection ended: kvmprof has ended, or has disconnected this client.
    #[error("Connection to kvmprof is closed")]
    Closed,
    /// Sending or receiving failed.
    #[error("Connection to kvmprof failed")]
    Io(#[source] io::Error),
    /// The thread that receives couldn't be started.
    #[error("Cannot start a thread")]
    Thread(#[source] io::Error),
    /// The server refused the request.
    #[error("Cannot {operation}: {errno}")]
    Refused {
        /// The request.
        operation: &'static str,
        /// Why it was refused.
        errno: Errno,
    },
}

impl ClientError {
    /// The errno with which the server refused the request; `None` for other errors.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { errno, .. } => Some(*errno),
            _ => None,
        }
    }

    pub(super) fn connect(path: &Path, source: io::Error) -> Self {
        let path = path.into();
        match source.kind() {
            io::ErrorKind::NotFound => Self::NoSocket { path },
            io::ErrorKind::ConnectionRefused => match other_kind(&path) {
                Some(kind) => Self::NotASocket { path, kind },
                None => Self::NobodyListens { path },
            },
            io::ErrorKind::PermissionDenied => Self::Permission { path },
            _ => Self::Connect { path, source },
        }
    }
}

/// What is at `path`, if that is no socket.
fn other_kind(path: &Path) -> Option<&'static str> {
    let found = path.metadata().ok()?.file_type();
    match found {
        _ if found.is_socket() => None,
        _ if found.is_dir() => Some("a folder"),
        _ if found.is_file() => Some("a file"),
        _ => Some("a device or a pipe"),
    }
}
