//! Errors of shared folders.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::options::SHARES_MAX;
use super::session::ANSWER_LIMIT;
use super::start_limit::{AT_ONCE, PAUSE};

/// The reason why a folder can't be shared with the guest.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ShareError {
    /// The guest would have too many folders.
    #[error("{asked} shared folders are too many: at most {SHARES_MAX} are possible")]
    TooMany {
        /// The number of folders on the command line.
        asked: usize,
    },
    /// Two folders have the same name.
    #[error("Two shared folders have the tag {0}: each needs its own")]
    SameTag(String),
    /// The folder can't be opened.
    #[error("Cannot share the folder {}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The host's error.
        #[source]
        source: io::Error,
    },
    /// virtiofsd isn't installed where it is searched for.
    #[error("Shared folders need virtiofsd, which isn't at {}: install it (Debian: virtiofsd, before Debian 13 qemu-system-common), or say where it is by --virtiofsd PATH", .0.join(" or "))]
    NoProgram(Vec<String>),
    /// The program isn't virtiofsd, or can't be executed.
    #[error("{} is no virtiofsd that can be used: {why}", path.display())]
    Program {
        /// The program.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// virtiofsd can't be started.
    #[error("Cannot start {}", path.display())]
    Start {
        /// The program.
        path: PathBuf,
        /// The host's error.
        #[source]
        source: io::Error,
    },
    /// A folder can't be shared read-only.
    #[error("{} has no option --readonly, without which only root can share a folder read-only: use virtiofsd 1.11 or later", .0.display())]
    ReadOnly(PathBuf),
    /// The program is QEMU's version, and this user isn't root.
    #[error("{} is QEMU's virtiofsd, which only root can use: install the one in Rust (package virtiofsd, or cargo install virtiofsd), and give its path by --virtiofsd PATH", .0.display())]
    NeedsRoot(PathBuf),
    /// The socket of the program that serves the folder can't be used.
    #[error("Cannot connect to the socket {}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The host's error.
        #[source]
        source: io::Error,
    },
    /// The program that serves the folder has ended. The text is the last line of its standard error.
    #[error("the program that serves the folder has ended{}", said(.0))]
    Gone(String),
    /// The program that serves the folder doesn't answer in time.
    #[error("the program that serves the folder hasn't answered within {} s", ANSWER_LIMIT.as_secs())]
    Silent,
    /// The program that serves the folder isn't a proper vhost-user back end.
    #[error("the program that serves the folder breaks the protocol (vhost-user): {0}")]
    Protocol(String),
    /// The guest has had the program started too often.
    #[error("the guest has reset the device more than {AT_ONCE} times, and faster than once in {} s", PAUSE.as_secs())]
    TooOften,
    /// The host refuses a resource.
    #[error("the host refuses {what}")]
    Host {
        /// What the host refuses.
        what: &'static str,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// The program that serves a folder can't be started or used.
    #[error("The folder {tag} can't be shared")]
    Share {
        /// Its tag.
        tag: String,
        /// What is wrong.
        #[source]
        why: Box<ShareError>,
    },
}

impl ShareError {
    /// For `map_err`: the host refuses `what`.
    pub(super) fn host(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Host { what, source }
    }

    /// The error, with its folder.
    pub(super) fn of(self, tag: &str) -> Self {
        Self::Share {
            tag: tag.to_owned(),
            why: Box::new(self),
        }
    }
}

/// The last line of the program's standard error, if there is one, as the end of a message.
fn said(last: &str) -> String {
    match last {
        "" => String::new(),
        last => format!(": {last}"),
    }
}
