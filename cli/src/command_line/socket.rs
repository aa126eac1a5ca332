//! Selects a guest on the command line.

use std::env;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use kvmprof_client::{ClientError, Connection, live_sockets};

use super::usage;

/// The environment variable that names a socket.
const VARIABLE: &str = "KVMPROF_SOCKET";

/// The option `--socket` of each command that connects to a guest.
#[derive(Args, Clone, Debug, Default)]
pub struct SocketArgs {
    /// The socket of the running guest: the path that kvmprof run was given as --socket. Without it, the only guest that runs
    /// with a --name
    ///
    /// In the guest itself getpc and the prf tools need none: without it they use the guest's own device nodes.
    #[arg(long, short, env = VARIABLE, value_name = "PATH",
        value_parser = OsStringValueParser::new().map(PathBuf::from))]
    socket: Option<PathBuf>,
    /// Trust the program at the socket if it is of this user, by number, too, and not only if it is root's or your own user's
    #[arg(long, value_name = "UID")]
    allow_owner: Option<u32>,
}

impl SocketArgs {
    /// The socket's path. An empty option or environment variable counts as missing.
    pub fn path(&self) -> Option<&Path> {
        self.socket
            .as_deref()
            .filter(|path| !path.as_os_str().is_empty())
    }

    /// The path that an option has named; `None` for one that only the environment names.
    pub fn named(&self) -> Option<&Path> {
        let by_environment = env::var_os(VARIABLE).map(PathBuf::from);
        self.path()
            .filter(|path| by_environment.as_deref() != Some(path))
    }

    /// Connects to the socket at the path, if one is named.
    ///
    /// # Errors
    /// [`ClientError`] if no guest answers at it.
    pub fn connect_by_path(&self) -> Result<Option<Connection>, ClientError> {
        self.path().map(|path| self.connect_to(path)).transpose()
    }

    /// Connects to the socket at `path`, with the owner that the options allow.
    ///
    /// # Errors
    /// [`ClientError`] if no guest answers at it.
    pub fn connect_to(&self, path: &Path) -> Result<Connection, ClientError> {
        Connection::connect_to(path, self.allow_owner)
    }

    /// Connects to the guest; without a socket, to the only one in this user's folder of sockets.
    ///
    /// # Errors
    /// [`UsageError`](super::UsageError) without a socket, if there isn't just one; [`ClientError`] if no guest answers at it.
    pub fn connect(&self) -> anyhow::Result<Connection> {
        if let Some(connection) = self.connect_by_path()? {
            return Ok(connection);
        }
        Ok(Connection::connect(&only(live_sockets())?)?)
    }
}

/// The only one of `sockets`.
fn only(mut sockets: Vec<PathBuf>) -> anyhow::Result<PathBuf> {
    match (sockets.pop(), sockets.is_empty()) {
        (Some(socket), true) => Ok(socket),
        (None, _) => Err(usage(
            "No guest is named: give --socket PATH or set KVMPROF_SOCKET=PATH, where PATH is the --socket of kvmprof \
             run; a guest that runs with a --name is found without",
        )),
        (Some(last), false) => {
            sockets.push(last);
            let paths: Vec<String> = sockets
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            Err(usage(format_args!(
                "{} guests run: give --socket with one of {}",
                paths.len(),
                paths.join(", ")
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::UsageError;
    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        socket: SocketArgs,
    }

    fn path(arguments: &[&str]) -> Option<PathBuf> {
        let words = ["status"].iter().chain(arguments);
        let line = Line::try_parse_from(words).unwrap();
        line.socket.path().map(Path::to_owned)
    }

    #[test]
    fn an_empty_path_selects_no_socket() {
        assert_eq!(path(&["--socket", ""]), None);
        for option in ["--socket", "-s"] {
            assert_eq!(path(&[option, "/run/guest"]), Some("/run/guest".into()));
        }
    }

    #[test]
    fn without_a_socket_the_error_says_what_to_do() {
        let error = only(Vec::new()).unwrap_err();
        assert!(error.is::<UsageError>());
        for word in ["--socket", "KVMPROF_SOCKET", "kvmprof run"] {
            assert!(error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn several_guests_need_a_name() {
        let sockets = || vec![PathBuf::from("/run/a.sock"), PathBuf::from("/run/b.sock")];
        assert_eq!(only(sockets()[..1].to_vec()).unwrap(), sockets()[0]);
        let error = only(sockets()).unwrap_err();
        assert!(error.is::<UsageError>());
        let message = error.to_string();
        assert_eq!(
            message,
            "2 guests run: give --socket with one of /run/a.sock, /run/b.sock"
        );
    }
}
