//! The folder of the sockets that have a name instead of a path: `/run/kvmprof` of root, `$XDG_RUNTIME_DIR/kvmprof` of others.

use std::env;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Maximum length of a guest's name, in bytes.
const MAX_NAME: usize = 64;
/// The extension of sockets.
const END: &str = "sock";
/// The mode of the folder: other users must not be able to put a socket into it.
const MODE: u32 = 0o700;
const OTHERS: u32 = 0o077;

/// Why a socket can't have a name.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeFolderError {
    /// The environment names no folder.
    #[error(
        "XDG_RUNTIME_DIR names no folder for sockets: log in by a session that sets it, or give --socket PATH"
    )]
    Unset,
    /// The name isn't allowed.
    #[error("'{}' is no name of a guest: it may have letters, digits, '-', '_' and '.', 64 at most, and begins with none of the last three", .0.escape_default())]
    Name(String),
    /// The folder can't be made.
    #[error("Cannot make the folder {}", path.display())]
    Make {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another user can change the contents of the folder.
    #[error("{} isn't a folder of your own with mode 0700: remove it, or give --socket PATH", .0.display())]
    NotOwn(PathBuf),
}

/// The folder of this user's sockets; `None` if the environment names none.
pub fn runtime_folder() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some("/run/kvmprof".into());
    }
    let parent = PathBuf::from(env::var_os("XDG_RUNTIME_DIR")?);
    parent.is_absolute().then(|| parent.join("kvmprof"))
}

/// The path of the socket called `name`. Its folder is made if it doesn't exist.
///
/// # Errors
/// [`RuntimeFolderError`].
pub fn named_socket(name: &str) -> Result<PathBuf, RuntimeFolderError> {
    named_socket_in(&runtime_folder().ok_or(RuntimeFolderError::Unset)?, name)
}

fn named_socket_in(folder: &Path, name: &str) -> Result<PathBuf, RuntimeFolderError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let begins_well = name
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_alphanumeric());
    if !begins_well || name.len() > MAX_NAME || !name.bytes().all(is_plain) {
        return Err(RuntimeFolderError::Name(name.to_owned()));
    }
    let failed = |source| RuntimeFolderError::Make {
        path: folder.to_owned(),
        source,
    };
    match DirBuilder::new().mode(MODE).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    // It must not be a link, nor made by another user before.
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(folder);
    let found = opened.and_then(|folder| folder.metadata());
    let is_own = found.is_ok_and(|found| {
        found.uid() == rustix::process::geteuid().as_raw() && found.mode() & OTHERS == 0
    });
    if !is_own {
        return Err(RuntimeFolderError::NotOwn(folder.to_owned()));
    }
    Ok(folder.join(format!("{name}.{END}")))
}

/// The sockets in this user's folder on which a program listens, by name.
pub fn live_sockets() -> Vec<PathBuf> {
    runtime_folder().map_or_else(Vec::new, |folder| live_sockets_in(&folder))
}

fn live_sockets_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sockets = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket()));
    let paths = sockets.map(|socket| socket.path());
    let mut live: Vec<PathBuf> = paths
        .filter(|path| path.extension() == Some(OsStr::new(END)))
        // A kvmprof that was killed leaves its socket behind.
        .filter(|path| UnixStream::connect(path).is_ok())
        .collect();
    live.sort();
    live
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn the_folder_is_the_users_alone() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("kvmprof");
        for _ in 0..2 {
            let socket = named_socket_in(&folder, "db-1").unwrap();
            assert_eq!(socket, folder.join("db-1.sock"));
            assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, MODE);
        }
        let refused = |folder: &Path| {
            let error = named_socket_in(folder, "db").unwrap_err();
            assert!(matches!(error, RuntimeFolderError::NotOwn(_)), "{error}");
        };
        let link = place.path().join("link");
        symlink(&folder, &link).unwrap();
        refused(&link);
        fs::set_permissions(&folder, Permissions::from_mode(0o770)).unwrap();
        refused(&folder);
        fs::write(place.path().join("file"), "").unwrap();
        refused(&place.path().join("file"));
        let missing = named_socket_in(&place.path().join("none/kvmprof"), "db");
        assert!(matches!(missing, Err(RuntimeFolderError::Make { .. })));
    }

    #[test]
    fn names_cannot_leave_the_folder() {
        let place = tempfile::tempdir().unwrap();
        for name in [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            ".hidden",
            "-s",
            "a b",
            "é",
            "a\n",
            &"x".repeat(65),
        ] {
            let error = named_socket_in(place.path(), name).unwrap_err();
            assert!(matches!(error, RuntimeFolderError::Name(_)), "{name:?}");
        }
    }

    #[test]
    fn sockets_without_a_program_are_passed_over() {
        let place = tempfile::tempdir().unwrap();
        let path = |name| place.path().join(name);
        drop(UnixListener::bind(path("killed.sock")).unwrap());
        let _other = UnixListener::bind(path("other")).unwrap();
        fs::write(path("file.sock"), "").unwrap();
        assert!(live_sockets_in(place.path()).is_empty());
        let _two = UnixListener::bind(path("two.sock")).unwrap();
        let _one = UnixListener::bind(path("one.sock")).unwrap();
        assert_eq!(
            live_sockets_in(place.path()),
            [path("one.sock"), path("two.sock")]
        );
        assert!(live_sockets_in(&path("none")).is_empty());
    }
}
