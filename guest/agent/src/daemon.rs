//! Going to the background, telling that the nodes are there, and being stopped.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// What tells the process that was started how the one in the background has fared.
#[derive(Debug)]
pub enum Readiness {
    /// It stays in the foreground.
    Foreground,
    /// The process that was started waits at the other end.
    Background(UnixStream),
}

/// Which process this is after [`go_to_background`].
#[derive(Debug)]
pub enum Process {
    /// The one that was started; it has to end with success if the nodes are there.
    Started {
        /// Whether they are.
        success: bool,
    },
    /// The one in the background.
    Background(Readiness),
}

/// Forks. The process that was started waits until the one in the background has said whether it
/// could start.
///
/// # Errors
/// When there can't be another process, or this one has several threads: the new one would have only the calling one, and locks that others hold would
/// stay so.
pub fn go_to_background() -> io::Result<Process> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        let why = "it has several threads already";
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
    }
    let (mut ours, theirs) = UnixStream::pair()?;
    // SAFETY: this is the only thread, so the new process can go on with whatever this one could.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(ours);
            // SAFETY: takes no memory. It can't fail: a new process leads no group.
            unsafe { libc::setsid() };
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
    /// Tells that the nodes are there, also systemd if that asks for it (sd_notify(3)), and lets go of
    /// the terminal if in the background.
    ///
    /// # Errors
    /// When there is no `/dev/null`.
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
            // It may have been killed meanwhile; the nodes are there all the same.
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

/// A stream that becomes readable when the program should stop.
///
/// # Errors
/// When the handlers can't be set up.
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
    fn systemd_is_told_at_a_path_or_an_abstract_name() {
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
