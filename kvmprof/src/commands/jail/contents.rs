//! The contents of a jail: which files the guest's kvmprof needs, and whether the jail can have them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use kvmprof_cli::command_line::usage;
use kvmprof_machine::share::ShareOptions;
use kvmprof_sandbox::user::User;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};

use super::error::{failed, failed_with};

/// A file or folder that has the same path in the jail as outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Its path.
    pub path: PathBuf,
    /// Whether it may be written to.
    pub writable: bool,
}

impl FromStr for Bind {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        let (path, writable) = match word.strip_suffix(":rw") {
            Some(path) => (path, true),
            None => (word, false),
        };
        match path {
            "" => Err("a path has to be there".to_owned()),
            "/" => Err("/ would be the host's whole root: name what is needed of it".to_owned()),
            path => Ok(Self {
                path: path.into(),
                writable,
            }),
        }
    }
}

impl Bind {
    /// The file or folder at `path`.
    pub fn new(path: &Path, writable: bool) -> Self {
        Self {
            path: path.to_owned(),
            writable,
        }
    }
}

/// The needs of the options of `kvmprof run`.
#[derive(Debug, Default)]
pub struct Needs {
    /// Files and folders that have to be there.
    pub inputs: Vec<Bind>,
    /// Options and the files that they create.
    pub outputs: Vec<(&'static str, PathBuf)>,
    /// Whether taps are opened.
    pub taps: bool,
    /// Folders that are served from outside, and sockets of programs that serve folders already.
    pub shares: Vec<ShareOptions>,
    /// The program that serves folders; `None` to search for it.
    pub virtiofsd: Option<PathBuf>,
}

impl Needs {
    /// Adds the file at `path`, if there is one, which `option` creates.
    pub fn output(&mut self, option: &'static str, path: Option<&PathBuf>) {
        let path = path.map(|path| (option, path.clone()));
        self.outputs.extend(path);
    }
}

/// The contents of a jail.
#[derive(Debug)]
pub struct Contents {
    /// The folder that may be written to.
    pub folder: PathBuf,
    /// The working folder, in the jail and outside.
    pub working: PathBuf,
    /// Other files and folders, with absolute paths: each folder before its contents.
    pub binds: Vec<Bind>,
    /// Devices below /dev.
    pub devices: Vec<&'static str>,
}

impl Contents {
    /// Checks that a jail with this folder can have everything that is needed. Creates the folder if it doesn't exist.
    ///
    /// # Errors
    /// Something is missing, or has to be elsewhere.
    pub fn new(folder: &Path, binds: &[Bind], needs: &Needs, user: &User) -> anyhow::Result<Self> {
        let working = std::env::current_dir();
        let working = working.map_err(failed("cannot find", Path::new("the current folder")))?;
        let folder = own_folder(&working.join(folder), user)?;
        for (option, path) in &needs.outputs {
            let path = real(&working.join(path))?;
            if !path.starts_with(&folder) {
                return Err(usage(format_args!(
                    "{option} {} isn't in the jail, whose folder is {}: give a path in there",
                    path.display(),
                    folder.display()
                )));
            }
        }
        let mut all: Vec<Bind> = Vec::new();
        for bind in binds.iter().chain(&needs.inputs) {
            let path = real(&working.join(&bind.path))?;
            fs::metadata(&path).map_err(failed("cannot find", &path))?;
            if folder.starts_with(&path) {
                return Err(usage(format_args!(
                    "{} has the jail's folder in it: name what is needed of it",
                    path.display()
                )));
            }
            if [Path::new("/dev"), Path::new("/proc")].contains(&path.as_path()) {
                return Err(usage(format_args!(
                    "{} is the jail's own: name files that are needed of it",
                    path.display()
                )));
            }
            match all.iter_mut().find(|other| other.path == path) {
                // The path is named twice. The first one is from --bind, and takes precedence.
                Some(_) => {}
                None if path.starts_with(&folder) => {}
                None => all.push(Bind {
                    path,
                    writable: bind.writable,
                }),
            }
        }
        // Each folder before its contents.
        all.sort_by(|one, other| one.path.cmp(&other.path));
        let mut devices = vec!["kvm", "null", "urandom"];
        if needs.taps {
            devices.push("net/tun");
        }
        Ok(Self {
            folder,
            working,
            binds: outermost(all),
            devices,
        })
    }
}

/// Without those that are inside of others, which already provide them.
fn outermost(sorted: Vec<Bind>) -> Vec<Bind> {
    let mut kept: Vec<Bind> = Vec::new();
    for bind in sorted {
        let has_it =
            |outer: &Bind| bind.path.starts_with(&outer.path) && (outer.writable || !bind.writable);
        if !kept.iter().any(has_it) {
            kept.push(bind);
        }
    }
    kept
}

/// The folder at `path`, created if necessary.
fn own_folder(path: &Path, user: &User) -> anyhow::Result<PathBuf> {
    let path = real(path)?;
    // The folder above is looked up once, and without links: its owner can't lead this elsewhere.
    let (folder, name) = (path.parent().unwrap_or(&path), path.file_name());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = openat2(CWD, folder, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
        .map_err(failed("cannot open", folder))?;
    let name = name.unwrap_or_default();
    match user.make_folder(&folder, name, Mode::RWXU) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => Err(failed("cannot make", &path)(error))?,
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = openat(&folder, name, flags, Mode::empty()).map_err(io::Error::from);
    let found = found.and_then(|found| File::from(found).metadata());
    let found = found.map_err(failed("cannot look at", &path))?;
    let shown = path.display();
    if !found.is_dir() {
        return Err(usage(format_args!(
            "--root {shown} has to be a folder of its own, and no link"
        )));
    }
    if found.uid() != user.uid() {
        let (uid, gid) = (user.uid(), user.gid());
        return Err(usage(format_args!(
            "--root {shown} belongs to user {}: give it to the jail's, chown {uid}:{gid} {shown}",
            found.uid()
        )));
    }
    Ok(path)
}

/// `path`, if its folder has no symbolic links in its path, because the jail has none of them.
fn real(path: &Path) -> anyhow::Result<PathBuf> {
    let path: PathBuf = path.components().collect();
    let (Some(folder), Some(Component::Normal(name))) =
        (path.parent(), path.components().next_back())
    else {
        return Err(usage(format_args!(
            "{} is no name of a file",
            path.display()
        )));
    };
    let advice = "it has to be there";
    let found = folder
        .canonicalize()
        .map_err(failed_with("cannot find", folder, advice))?;
    if found != folder {
        return Err(usage(format_args!(
            "A link leads to {}: name it as {}",
            path.display(),
            found.join(name).display()
        )));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(word: &str) -> Bind {
        word.parse().unwrap()
    }

    #[test]
    fn binds_are_read_only_by_default() {
        assert!(bind("/a:rw").writable);
        assert_eq!(
            (bind("/a:b").path, bind("/a:b").writable),
            ("/a:b".into(), false)
        );
        for wrong in ["", ":rw", "/", "/:rw"] {
            assert!(wrong.parse::<Bind>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_folder_includes_its_contents() {
        let all = ["/a", "/a/b", "/a/c:rw", "/ab", "/c/d"];
        let kept = outermost(all.map(bind).to_vec());
        let paths: Vec<_> = kept
            .iter()
            .map(|bind| bind.path.to_str().unwrap())
            .collect();
        assert_eq!(paths, ["/a", "/a/c", "/ab", "/c/d"]);
    }

    #[test]
    fn links_are_resolved_to_their_targets() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        fs::create_dir(folder.join("real")).unwrap();
        std::os::unix::fs::symlink("real", folder.join("link")).unwrap();
        assert_eq!(
            real(&folder.join("real/./x")).unwrap(),
            folder.join("real/x")
        );
        let refusal = |path: &str| real(&folder.join(path)).unwrap_err().to_string();
        assert!(refusal("link/x").contains("real/x"));
        assert!(refusal("real/../real/x").contains("name it as"));
        assert!(refusal("none/x").contains("it has to be there"));
        assert!(refusal("real/..").contains("no name"));
    }
}
