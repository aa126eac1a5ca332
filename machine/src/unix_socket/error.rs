//! Errors of socket files.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Why a socket file can't be made.
#[derive(Debug, thiserror::Error)]
pub enum SocketFileError {
    /// The path doesn't fit into a socket address.
    #[error("Socket path {} has {length} bytes, {maximum} are the most: choose a shorter one", path.display())]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
        /// The longest that is possible, in bytes.
        maximum: usize,
    },
    /// The path names no file.
    #[error("Socket path {path:?} doesn't end in a file name")]
    NotAFileName {
        /// The path.
        path: PathBuf,
    },
    /// The socket's folder doesn't exist.
    #[error("No folder {} for the socket {}: create it or choose another path", folder.display(), path.display())]
    NoFolder {
        /// The path.
        path: PathBuf,
        /// The missing folder.
        folder: PathBuf,
    },
    /// The path is taken by something that isn't a socket.
    #[error("{} exists and isn't a socket: remove it or choose another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// Another program listens at the path.
    #[error("Another program listens on {}: stop it or choose another path", path.display())]
    Live {
        /// The path.
        path: PathBuf,
    },
    /// The lock's file isn't this user's alone, so that another user may have locked it.
    #[error("{} isn't kvmprof's own, with mode 0600: remove it, or choose a socket in a folder that only you can write to", path.display())]
    StrangeLock {
        /// The lock's path.
        path: PathBuf,
    },
    /// The lock stays held.
    #[error("Another kvmprof holds {} for too long: end it, or choose another socket", path.display())]
    Locked {
        /// The lock's path.
        path: PathBuf,
    },
    /// The process that makes sockets has refused, for one of these reasons.
    #[error("{0}")]
    Refused(String),
    /// The system refused.
    #[error("Cannot {action} {}", path.display())]
    System {
        /// The operation.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl SocketFileError {
    /// The system refused to do `action` with `path`.
    pub fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::System {
            action,
            path: path.into(),
            source,
        }
    }

    /// For `map_err` on a call that gives an errno.
    pub(super) fn os(action: &'static str, path: &Path) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::io(action, path, errno.into())
    }
}
