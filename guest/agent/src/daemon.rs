//! Runs in the background, reports that the nodes are ready, and stops on signals.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// How this process reports that it is ready.
#[derive(Debug)]
pub enum Readiness {
    /// The process stays in the foreground.
    Foreground,
    /// The process that was started waits at the other end.
    Background(UnixStream),
}

/// Which of the two processes this is after [`go_to_background`].
#[derive(Debug)]
pub enum Process {
    /// The process that was started. Its exit status has to be success if the nodes are there.
    Started {
        /// Whether the nodes are there.
        success: bool,
    },
    /// The process in the background.
    Background(Readiness),
}

/// Forks. The process that was started waits until the one in the background has reported whether it could start.
///
/// # Errors
/// If fork(2) fails, or this process has several threads: the new process would have only the calling thread, and locks that other threads
/// hold would stay locked.
pub fn go_to_background() -> io::Result<Process> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        let why = "it has several threads already";
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
    }
    let (mut ours, theirs) = UnixStream::pair()?;
    // SAFETY: this is the only thread, so the new process can do whatever this one could.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(ours);
            // It can't fail, because a new process leads no group.
            let _ = rustix::process::setsid();
            Ok(Process::Background(Readiness::Background(theirs)))
        }
        _ => {
            drop(theirs);
            let mut word = [0];
            let success = ours.read_exact(&mut word).is_ok();
            Ok(Process::Started { success })
        }
    }
}

impl Readiness {
    /// Reports that the nodes are there, also to systemd if it asks for that (sd_notify(3)). A process in the background closes the
    /// terminal.
    ///
    /// # Errors
    /// If there is no `/dev/null`, or its descriptor can't be duplicated.
    pub fn tell(self) -> io::Result<()> {
        if let Some(path) = std::env::var_os("NOTIFY_SOCKET")
            && let Err(error) = notify_systemd(&path)
        {
            log::warn!("systemd can't be told: {error}");
        }
        if let Self::Background(mut starter) = self {
            std::env::set_current_dir("/")?;
            let null = OpenOptions::new()
                .read(true)
                .write(true)
                .open("/dev/null")?;
            rustix::stdio::dup2_stdin(&null)?;
            rustix::stdio::dup2_stdout(&null)?;
            rustix::stdio::dup2_stderr(&null)?;
            // The starter may have been killed meanwhile. The nodes are there nevertheless.
            let _ = starter.write_all(b"1");
        }
        Ok(())
    }
}

/// Sends `READY=1` to the socket at `path`.
fn notify_systemd(path: &OsStr) -> io::Result<()> {
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address)?;
    Ok(())
}

/// A stream that becomes readable when a signal asks the program to stop.
///
/// # Errors
/// If the handlers can't be set up.
pub fn stop_signals() -> io::Result<UnixStream> {
    let (ours, handlers) = UnixStream::pair()?;
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, handlers.try_clone()?)?;
    }
    Ok(ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_does_not_fork() {
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || wait.recv().is_err());
        let error = go_to_background().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        drop(end);
        assert!(other.join().unwrap());
    }

    #[test]
    fn systemd_is_notified_by_a_path_or_an_abstract_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let name = format!("pcsd-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        let sockets = [
            (UnixDatagram::bind(&path).unwrap(), path.into_os_string()),
            (
                UnixDatagram::bind_addr(&abstract_name).unwrap(),
                format!("@{name}").into(),
            ),
        ];
        for (socket, path) in sockets {
            notify_systemd(&path).unwrap();
            let mut word = [0; 16];
            let length = socket.recv(&mut word).unwrap();
            assert_eq!(&word[..length], b"READY=1");
        }
        assert!(notify_systemd(OsStr::new("/nonexistent/notify")).is_err());
    }
}
