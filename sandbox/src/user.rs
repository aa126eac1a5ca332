//! The user that a process of root becomes after it has opened what only root may open.
//!
//! In the kernel each thread has a user of its own (credentials(7)); C libraries hide that. Here each thread becomes the user when it gets its
//! filter ([`crate::enter`]). [`acting`] makes files that belong to the user before that.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{Mode, mkdirat};
use rustix::process::{Gid, Uid, getgroups};
use rustix::thread::{
    CapabilitySet, capabilities, set_capabilities, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};

/// The user that `--user` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    uid: u32,
    gid: u32,
    /// Supplementary groups.
    groups: Vec<Gid>,
}

/// Why a process can't become that user.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// No user has this name.
    #[error("There is no user '{0}' in /etc/passwd: give a name from there, or UID:GID")]
    Unknown(String),
    /// The user isn't in /etc/passwd, so that the group isn't known.
    #[error("The user {0} isn't in /etc/passwd, where its group would be: give UID:GID")]
    NoGroup(u32),
    /// The argument is neither a name nor numbers.
    #[error("'{0}' isn't a user: give a name, UID or UID:GID, with numbers from 1 to 4294967294")]
    Invalid(String),
    /// The user or the group is root.
    #[error("User or group 0 is root, whose rights are to be given up: name another one")]
    Root,
    /// A file in which users are looked up can't be read.
    #[error("Cannot read {path}")]
    File {
        /// The file.
        path: &'static str,
        /// The system's answer.
        source: io::Error,
    },
}

const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";

impl User {
    /// The user with these ids and no supplementary groups.
    ///
    /// # Errors
    /// One of them is root's, or can't be an id.
    pub fn new(uid: u32, gid: u32) -> Result<Self, UserError> {
        // The last number means no id: setresuid(2).
        for number in [uid, gid] {
            match number {
                0 => return Err(UserError::Root),
                u32::MAX => return Err(UserError::Invalid(number.to_string())),
                _ => {}
            }
        }
        Ok(Self {
            uid,
            gid,
            groups: Vec::new(),
        })
    }

    /// The user that `words` name: `UID:GID`, or a number or a name, whose group is in /etc/passwd. A name has the supplementary groups
    /// of /etc/group, too.
    ///
    /// # Errors
    /// There is no such user, or it is root.
    pub fn find(words: &str) -> Result<Self, UserError> {
        let invalid = || UserError::Invalid(words.to_owned());
        if let Some((uid, gid)) = words.split_once(':') {
            let number = |word: &str| word.parse().map_err(|_| invalid());
            return Self::new(number(uid)?, number(gid)?);
        }
        if words.is_empty() {
            return Err(invalid());
        }
        let users = read(USERS)?;
        if let Ok(uid) = words.parse() {
            let found = (records(&users)).find(|user| number(user.get(2)) == Some(uid));
            let gid = found.and_then(|user| number(user.get(3)));
            return Self::new(uid, gid.ok_or(UserError::NoGroup(uid))?);
        }
        let found = records(&users).find(|user| user.first() == Some(&words));
        let numbers = found.and_then(|user| number(user.get(2)).zip(number(user.get(3))));
        let (uid, gid) = numbers.ok_or_else(|| UserError::Unknown(words.to_owned()))?;
        let mut user = Self::new(uid, gid)?;
        user.groups = groups_of(words, &read(GROUPS)?);
        Ok(user)
    }

    /// This thread, and no other one, permanently becomes the user, without any right of a superuser.
    ///
    /// # Errors
    /// The thread may not become another user.
    pub fn become_for_good(&self) -> io::Result<()> {
        // A thread that was started in `acting` has the user's effective id: it has to become root again first.
        set_thread_res_uid(KEEP_UID, Uid::ROOT, KEEP_UID)?;
        set_thread_groups(&self.groups)?;
        let (uid, gid) = self.ids();
        set_thread_res_gid(gid, gid, gid)?;
        Ok(set_thread_res_uid(uid, uid, uid)?)
    }

    fn ids(&self) -> (Uid, Gid) {
        (Uid::from_raw(self.uid), Gid::from_raw(self.gid))
    }

    /// Makes a folder called `name` in the open folder `above`. It belongs to the user from its first moment on, wherever root may make one. Were it given
    /// away afterwards, by its path, who owns the folder above could lead that path elsewhere meanwhile.
    ///
    /// # Errors
    /// The folder is there already, or can't be made.
    pub fn make_folder(&self, above: impl AsFd, name: &OsStr, mode: Mode) -> io::Result<()> {
        let rights = capabilities(None)?;
        // SAFETY: both calls take a number, and change this thread alone: setfsuid(2). They tell the former number, and no error.
        unsafe {
            libc::syscall(libc::SYS_setfsgid, self.gid);
            libc::syscall(libc::SYS_setfsuid, self.uid);
        }
        // The thread has lost root's rights to files with that.
        let made = set_capabilities(None, rights)
            .and_then(|()| mkdirat(above, name, mode))
            .map_err(io::Error::from);
        // SAFETY: as above.
        unsafe {
            libc::syscall(libc::SYS_setfsuid, 0);
            libc::syscall(libc::SYS_setfsgid, 0);
        }
        set_capabilities(None, rights)?;
        made
    }

    /// The user's id.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The id of the user's group.
    pub fn gid(&self) -> u32 {
        self.gid
    }
}

fn read(path: &'static str) -> Result<String, UserError> {
    fs::read_to_string(Path::new(path)).map_err(|source| UserError::File { path, source })
}

/// The records of a file in the form of passwd(5) or group(5).
fn records(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().map(|line| line.split(':').collect())
}

fn number(field: Option<&&str>) -> Option<u32> {
    field?.parse().ok()
}

fn groups_of(name: &str, groups: &str) -> Vec<Gid> {
    let has = |group: &Vec<&str>| {
        let mut members = group.get(3).into_iter().flat_map(|list| list.split(','));
        members.any(|member| !member.is_empty() && member == name)
    };
    let numbers = records(groups).filter(has);
    let numbers = numbers.filter_map(|group| number(group.get(2)));
    let numbers = numbers.filter(|gid| !matches!(*gid, 0 | u32::MAX));
    numbers.map(Gid::from_raw).collect()
}

/// The user that threads become.
static CHOSEN: OnceLock<User> = OnceLock::new();

/// From now on threads become `user` when they get their filters, and [`acting`] acts as that user.
///
/// # Errors
/// This process may not become another user.
pub fn choose(user: User) -> io::Result<()> {
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
    if !capabilities(None)?.effective.contains(needed) {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "only root can become another user",
        ));
    }
    // A second choice would come too late for threads that exist.
    let _ = CHOSEN.set(user);
    Ok(())
}

/// The user that threads become, if one has been chosen.
pub(crate) fn chosen() -> Option<&'static User> {
    CHOSEN.get()
}

/// Whether threads become another user, without any right of a superuser.
pub fn is_chosen() -> bool {
    chosen().is_some()
}

/// Runs `action` as the chosen user, if there is one: files that it makes belong to that user, and are made only where that user may make
/// them. Afterwards this thread is root again.
///
/// # Errors
/// The thread can't become the user.
pub fn acting<T>(action: impl FnOnce() -> T) -> io::Result<T> {
    let Some(user) = chosen() else {
        return Ok(action());
    };
    let groups = getgroups()?;
    let (uid, gid) = user.ids();
    set_thread_groups(&user.groups)?;
    set_thread_res_gid(KEEP_GID, gid, KEEP_GID)?;
    set_thread_res_uid(KEEP_UID, uid, KEEP_UID)?;
    let done = action();
    set_thread_res_uid(KEEP_UID, Uid::ROOT, KEEP_UID)?;
    set_thread_res_gid(KEEP_GID, Gid::ROOT, KEEP_GID)?;
    set_thread_groups(&groups)?;
    Ok(done)
}

/// Stand for ids that don't change: setresuid(2).
const KEEP_UID: Option<Uid> = None;
const KEEP_GID: Option<Gid> = None;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_named_by_numbers_and_names() {
        let user = User::find("1000:1001").unwrap();
        assert_eq!((user.uid(), user.gid()), (1000, 1001));
        assert!(user.groups.is_empty());
        let nobody = User::find("nobody").unwrap();
        assert_eq!(User::find(&nobody.uid().to_string()).unwrap(), nobody);
        for (words, expected) in [
            ("0:5", "is root"),
            ("5:0", "is root"),
            ("root", "is root"),
            ("", "isn't a user"),
            ("1:x", "isn't a user"),
            ("4294967295:1", "isn't a user"),
            ("4000000000", "UID:GID"),
            ("kvmprof-none", "no user 'kvmprof-none'"),
        ] {
            let error = User::find(words).unwrap_err().to_string();
            assert!(error.contains(expected), "{words}: {error}");
        }
    }

    #[test]
    fn a_folder_belongs_to_the_user_from_its_creation() {
        use std::os::unix::fs::MetadataExt;

        let place = tempfile::tempdir().unwrap();
        let user = User::new(65533, 65532).unwrap();
        let before = capabilities(None).unwrap();
        if !before.effective.contains(CapabilitySet::SETUID) {
            return crate::not_run::not_run("only root makes folders for others");
        }
        // That user may write neither here nor there.
        let above = fs::File::open(place.path()).unwrap();
        let make = || user.make_folder(&above, OsStr::new("its"), Mode::RWXU);
        let inner = place.path().join("its");
        make().unwrap();
        let made = fs::metadata(&inner).unwrap();
        let found = (made.uid(), made.gid(), made.mode() & 0o7777);
        assert_eq!(found, (65533, 65532, 0o700));
        let again = make().unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        // This thread is still root.
        assert_eq!(capabilities(None).unwrap(), before);
        let own = inner.join("roots");
        fs::create_dir(&own).unwrap();
        assert_eq!(fs::metadata(&own).unwrap().uid(), 0);
    }

    /// Who owns the folder above puts a link in the new one's place, again and again: root gives away nothing that it leads to.
    #[test]
    fn a_folder_that_is_swapped_for_a_link_gives_nothing_away() {
        use std::os::unix::fs::{MetadataExt, symlink};
        use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

        if !capabilities(None)
            .unwrap()
            .effective
            .contains(CapabilitySet::SETUID)
        {
            return crate::not_run::not_run("only root makes folders for others");
        }
        let place = tempfile::tempdir().unwrap();
        let [above, outside, swapped, old] =
            ["above", "outside", "above/its", "above/old"].map(|name| place.path().join(name));
        fs::create_dir(&above).unwrap();
        fs::create_dir(&outside).unwrap();
        let user = User::new(65533, 65532).unwrap();
        let (is_over, swaps) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    if fs::rename(&swapped, &old).is_ok() && symlink(&outside, &swapped).is_ok() {
                        swaps.fetch_add(1, Ordering::SeqCst);
                        fs::remove_file(&swapped).unwrap();
                        fs::remove_dir(&old).unwrap();
                    }
                    std::thread::yield_now();
                }
            });
            let above = fs::File::open(&above).unwrap();
            while swaps.load(Ordering::SeqCst) < 500 {
                let _ = user.make_folder(&above, OsStr::new("its"), Mode::RWXU);
                std::thread::yield_now();
            }
            is_over.store(true, Ordering::SeqCst);
        });
        assert_eq!(fs::metadata(&outside).unwrap().uid(), 0);
    }

    #[test]
    fn groups_are_those_of_the_user() {
        let groups = "root:x:0:a\nkvm:x:105:a,b\nusers:x:100:\nb:x:7:bb\nc:x:8:b\nbroken\nd:x:y:b";
        let numbers = |name| -> Vec<u32> {
            let groups = groups_of(name, groups).into_iter();
            groups.map(Gid::as_raw).collect()
        };
        assert_eq!(numbers("b"), [105, 8]);
        assert_eq!(numbers("a"), [105]);
        assert!(groups_of("", groups).is_empty());
    }
}
