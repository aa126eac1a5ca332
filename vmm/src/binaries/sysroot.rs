//! A folder on the host that has the guest's files.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags};

/// Longest file that is read, in bytes.
const MAX_FILE: u64 = 512 << 20;

/// See the module's documentation.
#[derive(Debug)]
pub struct Sysroot {
    folder: OwnedFd,
}

impl Sysroot {
    /// The folder at `path`.
    ///
    /// # Errors
    /// It can't be opened, or is none.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self { folder })
    }

    /// The file that the guest has at `path`. The guest says what path that is: it leads nowhere outside the folder,
    /// by whatever links (openat2(2), RESOLVE_IN_ROOT).
    pub(super) fn read(&self, path: &str) -> Option<Vec<u8>> {
        let file = rustix::fs::openat2(
            &self.folder,
            path.trim_start_matches('/'),
            // A pipe there isn't waited for.
            OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
        );
        let file = File::from(file.ok()?);
        let about = file.metadata().ok()?;
        if !about.is_file() || about.len() > MAX_FILE {
            return None;
        }
        let mut contents = Vec::new();
        file.take(MAX_FILE).read_to_end(&mut contents).ok()?;
        Some(contents)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn reads_what_is_inside_and_nothing_else() {
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "secret").unwrap();
        let folder = outside.path().join("root");
        fs::create_dir_all(folder.join("usr/bin")).unwrap();
        fs::write(folder.join("usr/bin/tool"), "tool").unwrap();
        symlink("usr/bin", folder.join("bin")).unwrap();
        symlink("/usr/bin/tool", folder.join("absolute")).unwrap();
        symlink("../secret", folder.join("above")).unwrap();
        symlink(outside.path().join("secret"), folder.join("elsewhere")).unwrap();
        symlink("loop", folder.join("loop")).unwrap();
        let sysroot = Sysroot::open(&folder).unwrap();
        for path in ["/usr/bin/tool", "/bin/tool", "/absolute", "usr/bin/tool"] {
            assert_eq!(sysroot.read(path).as_deref(), Some(&b"tool"[..]), "{path}");
        }
        for path in [
            "/../secret",
            "/above",
            "/elsewhere",
            "/loop",
            "/usr",
            "/none",
            "",
            "/a\0b",
        ] {
            assert_eq!(sysroot.read(path), None, "{path}");
        }
        assert!(Sysroot::open(&folder.join("usr/bin/tool")).is_err());
    }
}
