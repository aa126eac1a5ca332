//! Finds the port.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use kvmprof_client::stranger;

/// The name of kvmprof's port.
pub const PORT_NAME: &str = "kvmprof.0";

/// The folder in which the kernel lists ports, each with its name.
const LISTED: &str = "/sys/class/virtio-ports";

/// The folder in which udev makes links with the ports' names.
const LINKS: &str = "/dev/virtio-ports";

/// Why the port can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum PortLocationError {
    /// Nothing has the port's name.
    #[error(
        "No virtio console port is named {PORT_NAME}: is this a guest of kvmprof, is the module \
         virtio_console loaded, and /sys mounted? --port names another"
    )]
    NoPort,
    /// The port can't be opened.
    #[error("Cannot open {}", path.display())]
    Open {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The program that listens at the socket belongs to a user whom pcsd has no reason to trust.
    #[error("{} is served by user {user}, who is neither root nor the user of pcsd", path.display())]
    Stranger {
        /// Its path.
        path: PathBuf,
        /// The user's number.
        user: u32,
    },
}

/// Where the port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortLocation {
    /// The port with the name [`PORT_NAME`].
    Named,
    /// A device node, or a Unix socket.
    Path(PathBuf),
}

impl PortLocation {
    /// Opens the port for reading and writing without blocking. A socket must belong to root or to this program's own user: in a folder
    /// that everybody can write to, anybody can listen in kvmprof's place.
    ///
    /// # Errors
    /// [`PortLocationError`].
    pub fn open(&self) -> Result<OwnedFd, PortLocationError> {
        let path = match self {
            Self::Path(path) => path.clone(),
            Self::Named => {
                named(Path::new(LISTED), Path::new(LINKS)).ok_or(PortLocationError::NoPort)?
            }
        };
        open(&path)
    }
}

fn open(path: &Path) -> Result<OwnedFd, PortLocationError> {
    let failed = |source| PortLocationError::Open {
        path: path.into(),
        source,
    };
    let metadata = fs::metadata(path).map_err(failed)?;
    if metadata.file_type().is_socket() {
        let stream = UnixStream::connect(path).map_err(failed)?;
        if let Some(user) = stranger(&stream).map_err(failed)? {
            return Err(PortLocationError::Stranger {
                path: path.into(),
                user,
            });
        }
        stream.set_nonblocking(true).map_err(failed)?;
        return Ok(stream.into());
    }
    let port: File = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY)
        .open(path)
        .map_err(failed)?;
    Ok(port.into())
}

/// The node of the port with the name.
fn named(listed: &Path, links: &Path) -> Option<PathBuf> {
    let ports = fs::read_dir(listed).ok().into_iter().flatten().flatten();
    let mut found = ports.filter(|port| {
        fs::read_to_string(port.path().join("name")).is_ok_and(|name| name.trim_end() == PORT_NAME)
    });
    if let Some(port) = found.next() {
        return Some(Path::new("/dev").join(port.file_name()));
    }
    let link = links.join(PORT_NAME);
    link.exists().then_some(link)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    use std::thread;

    use rustix::process::Uid;

    use super::*;

    /// Nothing is sent to another user's program that listens in kvmprof's place.
    #[test]
    fn a_socket_of_another_user_is_refused_before_anything_is_sent() {
        if !rustix::process::geteuid().is_root() {
            return crate::not_run::not_run("only root can become another user");
        }
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let path = folder.path().join("socket");
        let listen_as = |user: Uid| {
            let path = path.clone();
            let listen = thread::spawn(move || {
                // This changes the credentials of this thread alone.
                rustix::thread::set_thread_res_uid(user, user, user).unwrap();
                UnixListener::bind(path).unwrap()
            });
            listen.join().unwrap()
        };
        let location = PortLocation::Path(path.clone());
        let listener = listen_as(Uid::from_raw(65534));
        let error = location.open().unwrap_err();
        let is_stranger = matches!(error, PortLocationError::Stranger { user: 65534, .. });
        assert!(is_stranger, "{error}");
        let (mut client, _) = listener.accept().unwrap();
        let mut sent = Vec::new();
        client.read_to_end(&mut sent).unwrap();
        assert!(sent.is_empty(), "{sent:?}");
        fs::remove_file(&path).unwrap();
        let _listener = listen_as(Uid::ROOT);
        location.open().unwrap();
    }

    #[test]
    fn a_port_is_found_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let (listed, links) = (folder.path().join("listed"), folder.path().join("links"));
        assert_eq!(named(&listed, &links), None);
        for (port, name) in [("vport1p1", "other\n"), ("vport1p2", "kvmprof.0\n")] {
            fs::create_dir_all(listed.join(port)).unwrap();
            fs::write(listed.join(port).join("name"), name).unwrap();
        }
        assert_eq!(named(&listed, &links), Some("/dev/vport1p2".into()));
        fs::remove_dir_all(&listed).unwrap();
        fs::create_dir(&links).unwrap();
        fs::write(links.join(PORT_NAME), "").unwrap();
        assert_eq!(named(&listed, &links), Some(links.join(PORT_NAME)));
    }

    #[test]
    fn a_missing_path_is_named() {
        let error = PortLocation::Path("/nonexistent/port".into())
            .open()
            .unwrap_err();
        assert!(error.to_string().contains("/nonexistent/port"), "{error}");
    }
}
