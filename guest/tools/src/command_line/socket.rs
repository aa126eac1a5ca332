//! Selects a guest on the command line.

use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use kvmprof_client::{ClientError, Connection};

use super::usage;

/// The option `--socket` of each command that connects to a guest.
#[derive(Args, Clone, Debug, Default)]
pub struct SocketArgs {
    /// The socket of the running guest: the path that kvmprof run was given as --socket
    ///
    /// In the guest itself getpc and the prf tools need none: without it they use the guest's own device nodes.
    #[arg(long, short, env = "KVMPROF_SOCKET", value_name = "PATH",
        value_parser = OsStringValueParser::new().map(PathBuf::from))]
    socket: Option<PathBuf>,
}

impl SocketArgs {
    /// The socket's path. An empty option or environment variable counts as missing.
    pub fn path(&self) -> Option<&Path> {
        self.socket
            .as_deref()
            .filter(|path| !path.as_os_str().is_empty())
    }

    /// Connects to the guest.
    ///
    /// # Errors
    /// [`UsageError`](super::UsageError) without a socket; [`ClientError`] if no guest answers at it.
    pub fn connect(&self) -> anyhow::Result<Connection> {
        let path = self.path().ok_or_else(|| {
            usage(
                "No guest is named: give --socket PATH or set KVMPROF_SOCKET=PATH, where PATH is the --socket of \
                 kvmprof run",
            )
        })?;
        let connection: Result<_, ClientError> = Connection::connect(path);
        Ok(connection?)
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
    fn an_empty_path_is_none() {
        assert_eq!(path(&["--socket", ""]), None);
        for option in ["--socket", "-s"] {
            assert_eq!(path(&[option, "/run/guest"]), Some("/run/guest".into()));
        }
    }

    #[test]
    fn without_a_socket_the_error_says_what_to_do() {
        let Err(error) = SocketArgs::default().connect() else {
            panic!("connected to nothing");
        };
        assert!(error.is::<UsageError>());
        for word in ["--socket", "KVMPROF_SOCKET", "kvmprof run"] {
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
