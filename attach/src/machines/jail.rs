//! The name of the jail that a VMM runs in, for guests whose command line has no name.

use super::processes;

/// The guest's name by the root folder of process `pid`, the VMM; `None` if the folder isn't the root of a jail.
///
/// Firecracker's jailer makes `.../ID/root` the root, by a mount namespace, and others do so by chroot(2); containers have `.../ID/rootfs`. `kvmprof
/// jail` names its folder as the source of the root's file system. Control groups aren't asked: what they are called says who has started a
/// process (`session-3.scope`), in a jail or not.
pub fn name_of(pid: i32) -> Option<Vec<u8>> {
    // If the root isn't the root of a mount, only this link names it. A root outside of this process's own tree of mounts looks like its own root.
    let root = processes::root(pid)?;
    if root != b"/" {
        return above_root(&root).map(<[u8]>::to_vec);
    }
    let own = i32::try_from(std::process::id()).ok()?;
    let (theirs, own) = (processes::mounts(pid), processes::mounts(own));
    name_by_mounts(&theirs, &own)
}

/// The guest's name by the mounts of the VMM and of this process (`/proc/PID/mountinfo`).
fn name_by_mounts(theirs: &[u8], own: &[u8]) -> Option<Vec<u8>> {
    let root = Root::find(theirs)?;
    let is_own =
        Root::find(own).is_some_and(|own| (own.device, own.folder) == (root.device, root.folder));
    if is_own {
        return None;
    }
    let source = unescaped(root.source);
    if root.kind == b"tmpfs" && source.starts_with(b"/") {
        let name = above_root(&source).or_else(|| parts(&source).next());
        return name.map(<[u8]>::to_vec);
    }
    above_root(&unescaped(root.folder)).map(<[u8]>::to_vec)
}

/// The file system at a process's root, as `/proc/PID/mountinfo` describes it.
struct Root<'a> {
    device: &'a [u8],
    /// The folder of the file system that is mounted.
    folder: &'a [u8],
    kind: &'a [u8],
    source: &'a [u8],
}

impl<'a> Root<'a> {
    fn find(mounts: &'a [u8]) -> Option<Self> {
        let mut lines = mounts.split(|byte| *byte == b'\n');
        lines.find_map(Self::of_line)
    }

    /// The fields of proc_pid_mountinfo(5); `None` if something is mounted elsewhere.
    fn of_line(line: &'a [u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let device = fields.nth(2)?;
        let folder = fields.next()?;
        let is_root = fields.next()? == b"/";
        is_root.then_some(())?;
        fields.find(|field| *field == b"-")?;
        Some(Self {
            device,
            folder,
            kind: fields.next()?,
            source: fields.next()?,
        })
    }
}

/// The parts of a path, the last one first.
fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let parts = path.rsplit(|byte| *byte == b'/');
    parts.filter(|part| !part.is_empty())
}

/// The name of the folder in which `path` is, if it is called as roots are.
fn above_root(path: &[u8]) -> Option<&[u8]> {
    let mut parts = parts(path);
    let is_root = matches!(parts.next()?, b"root" | b"rootfs");
    if is_root { parts.next() } else { None }
}

/// A field with the characters that separate fields, which the kernel has written as a backslash and three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, behind)) = rest.split_first() {
        let escaped = behind.split_at_checked(3).filter(|_| byte == b'\\');
        let escaped = escaped.and_then(|(digits, behind)| Some((octal(digits)?, behind)));
        let (byte, behind) = escaped.unwrap_or((byte, behind));
        bytes.push(byte);
        rest = behind;
    }
    bytes
}

fn octal(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Mounts whose root folder has these fields.
    fn mounts(device: &str, folder: &str, kind: &str, source: &str) -> Vec<u8> {
        format!(
            "29 28 0:5 / /dev ro,nosuid shared:2 - devtmpfs udev rw\n\
             28 1 {device} {folder} / rw,relatime shared:1 master:3 - {kind} {source} rw\n\
             30 28 0:6 / /proc rw - proc proc rw\n"
        )
        .into_bytes()
    }

    fn name(folder: &str, kind: &str, source: &str) -> Option<String> {
        let own = mounts("254:1", "/", "ext4", "/dev/vda1");
        let name = name_by_mounts(&mounts("0:40", folder, kind, source), &own);
        name.map(|name| String::from_utf8(name).unwrap())
    }

    #[test]
    fn jails_are_recognised_by_their_root_folder() {
        for (folder, kind, source, expected) in [
            (
                "/srv/jailer/firecracker/vm-7/root",
                "ext4",
                "/dev/vda1",
                "vm-7",
            ),
            (
                "/var/lib/lxc/db\\0401\\134/rootfs",
                "ext4",
                "/dev/vda1",
                "db 1\\",
            ),
            ("/", "tmpfs", "/srv/guest", "guest"),
            ("/", "tmpfs", "/srv/guest/root", "guest"),
            ("/", "ext4", "/dev/vda2", ""),
            ("/", "tmpfs", "tmpfs", ""),
            ("/", "tmpfs", "/", ""),
            ("/root", "btrfs", "/dev/vda1", ""),
            ("/newroot", "tmpfs", "tmpfs", ""),
            ("/var/empty", "ext4", "/dev/vda1", ""),
        ] {
            let found = name(folder, kind, source).unwrap_or_default();
            assert_eq!(found, expected, "{folder} {kind} {source}");
        }
        // That is the host's own root.
        let host = mounts("0:20", "/@/root", "btrfs", "/dev/vda1");
        assert_eq!(name_by_mounts(&host, &host), None);
        assert_eq!(name_by_mounts(b"", &host), None);
        assert_eq!(name_by_mounts(b"1 2 3:4 /a/root / rw -", &host), None);
    }

    proptest! {
        #[test]
        fn unescaping_never_lengthens(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(unescaped(&bytes).len() <= bytes.len());
            prop_assert!(name_by_mounts(&bytes, b"").is_none_or(|name| !name.is_empty()));
        }
    }
}
