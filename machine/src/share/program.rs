//! virtiofsd: its path, its version, and how it is started.
//!
//! There is a version in C, part of QEMU before 8.0 (Debian 12: package qemu-system-common), and a newer one in Rust
//! (package virtiofsd). Both serve one client on a socket that they inherit, and end when that client closes the connection.

use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::{env, fs, ptr};

use kvmprof_abi::text::is_visible;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use vmm_sys_util::syscall::SyscallReturnCode;

use super::{ShareError, ShareHelper};

/// Paths at which distributions install it. `PATH` is searched first.
const PLACES: [&str; 3] = [
    "/usr/libexec/virtiofsd",
    "/usr/lib/virtiofsd",
    "/usr/lib/qemu/virtiofsd",
];
/// The folder at which the root is mounted for a process that shares the root. All systems have it, and only that process sees the mount.
const ROOT_PLACE: &str = "/tmp";
const NAME: &str = "virtiofsd";
/// Maximum number of bytes of the program's output that are looked at.
const TEXT_MAX: u64 = 64 << 10;
/// Maximum number of characters of a line of that output that are shown.
const LINE_MAX: usize = 200;

/// The version of a virtiofsd, which determines its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    /// QEMU's version.
    C,
    /// The version in Rust.
    Rust { has_readonly: bool },
}

/// A virtiofsd that can be started.
#[derive(Clone, Debug)]
pub(super) struct Program {
    path: PathBuf,
    version: Version,
}

impl Program {
    /// The program at `path`. Without a path, the first that is found in `PATH` and [`PLACES`].
    pub fn find(path: Option<&Path>) -> Result<Self, ShareError> {
        let path = match path {
            Some(path) => path.to_owned(),
            None => search()?,
        };
        let version = Version::of(&path)?;
        Ok(Self { path, version })
    }

    /// Starts it for `folder`. Also returns the connection to it. It ends when the connection is closed, when [`Daemon`] is dropped, and
    /// when the calling thread ends, which therefore has to live as long as the folder is used.
    pub fn start(&self, folder: &Path, readonly: bool) -> Result<(Daemon, UnixStream), ShareError> {
        let failed = |source| ShareError::Start {
            path: self.path.clone(),
            source,
        };
        let has_option = matches!(self.version, Version::Rust { has_readonly: true });
        let is_privileged = rustix::process::geteuid().is_root();
        if self.version == Version::C && !is_privileged {
            return Err(ShareError::NeedsRoot(self.path.clone()));
        }
        if readonly && !has_option && !is_privileged {
            return Err(ShareError::ReadOnly(self.path.clone()));
        }
        let mounts = Mounts {
            protect: readonly && is_privileged,
            // virtiofsd can't change its root to the root itself.
            move_root: is_privileged && folder.canonicalize().map_err(failed)? == Path::new("/"),
        };
        let folder = match mounts.move_root {
            true => Path::new(ROOT_PLACE),
            false => folder,
        };
        let (listener, stream) = connected_pair().map_err(failed)?;
        let socket = listener.as_raw_fd();
        let mut command = Command::new(&self.path);
        command
            .args(self.version.arguments(folder, socket, readonly))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C in the terminal is for kvmprof or the guest, not for virtiofsd.
            .process_group(0);
        // SAFETY: `prepare` only makes system calls that are allowed after fork(2): it takes no lock and allocates nothing.
        unsafe { command.pre_exec(move || prepare(socket, mounts)) };
        let mut child = command.spawn().map_err(failed)?;
        let output = child.stderr.take();
        let process = Process::Child(child);
        let daemon = Daemon { process, output };
        daemon.read_without_waiting().map_err(failed)?;
        Ok((daemon, stream))
    }

    /// The program in the form that [`decode`](Self::decode) reads.
    pub fn encode(&self) -> Vec<u8> {
        let version = match self.version {
            Version::C => 0,
            Version::Rust { has_readonly } => 1 + u8::from(has_readonly),
        };
        let mut bytes = vec![version];
        bytes.extend(self.path.as_os_str().as_bytes());
        bytes
    }

    /// The program that was [encoded](Self::encode).
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (version, path) = bytes.split_first()?;
        let version = match version {
            0 => Version::C,
            version => Version::Rust {
                has_readonly: *version == 2,
            },
        };
        let path = std::ffi::OsString::from_vec(path.to_vec()).into();
        Some(Self { path, version })
    }
}

/// Starts virtiofsd for one folder, each time that it is needed.
#[derive(Clone, Debug)]
pub(super) enum Starter {
    /// This process starts it.
    Own(Program),
    /// The helper starts it in this process's place; the number is the folder's.
    Helper(Arc<ShareHelper>, u8),
}

impl Starter {
    /// Whether the folder is where this process can't see it.
    pub fn is_outside(&self) -> bool {
        matches!(self, Self::Helper(helper, _) if helper.is_outside())
    }

    /// As [`Program::start`].
    pub fn start(&self, folder: &Path, readonly: bool) -> Result<(Daemon, UnixStream), ShareError> {
        let (helper, number) = match self {
            Self::Own(program) => return program.start(folder, readonly),
            Self::Helper(helper, number) => (helper, number),
        };
        let failed = |source| ShareError::Start {
            path: NAME.into(),
            source,
        };
        let (stream, output) = helper.start(*number).map_err(failed)?;
        let daemon = Daemon {
            process: Process::OfHelper(Arc::clone(helper), *number),
            output: Some(output.into()),
        };
        Ok((daemon, stream.into()))
    }
}

impl Version {
    /// Finds out the version by asking the program itself.
    fn of(path: &Path) -> Result<Self, ShareError> {
        let wrong = |why: String| ShareError::Program {
            path: path.to_owned(),
            why,
        };
        let mut child = Command::new(path)
            .arg("--help")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| wrong(error.to_string()))?;
        let mut text = Vec::new();
        if let Some(output) = child.stdout.take() {
            // If the read fails, the text up to there is used, which may name no version.
            let _ = output.take(TEXT_MAX).read_to_end(&mut text);
        }
        let _ = child.kill();
        let _ = child.wait();
        Self::of_help(&String::from_utf8_lossy(&text))
            .ok_or_else(|| wrong("its --help has none of virtiofsd's options".to_owned()))
    }

    fn of_help(text: &str) -> Option<Self> {
        if text.contains("--shared-dir") && text.contains("--fd") {
            let has_readonly = text.contains("--readonly");
            return Some(Self::Rust { has_readonly });
        }
        (text.contains("-o source=") && text.contains("--fd")).then_some(Self::C)
    }

    fn arguments(self, folder: &Path, socket: i32, readonly: bool) -> Vec<std::ffi::OsString> {
        let mut arguments: Vec<std::ffi::OsString> = vec![format!("--fd={socket}").into()];
        match self {
            Self::C => {
                let mut source = std::ffi::OsString::from("source=");
                source.push(folder);
                // In the foreground, with its sandbox of namespaces and seccomp, which is the default.
                arguments.extend(["-f", "-o", "log_level=err", "-o"].map(Into::into));
                arguments.push(source);
            }
            Self::Rust { has_readonly } => {
                arguments.push("--shared-dir".into());
                arguments.push(folder.into());
                arguments
                    .extend(["--log-level", "error", "--sandbox", "namespace"].map(Into::into));
                if readonly && has_readonly {
                    arguments.push("--readonly".into());
                }
            }
        }
        arguments
    }
}

/// A virtiofsd that runs. When this is dropped, it is ended and waited for.
pub(super) struct Daemon {
    process: Process,
    output: Option<ChildStderr>,
}

/// virtiofsd's process: a child of this process, or of the helper.
enum Process {
    Child(Child),
    OfHelper(Arc<ShareHelper>, u8),
}

impl Daemon {
    /// Its standard error, which becomes readable when it writes something.
    pub fn output(&self) -> Option<&ChildStderr> {
        self.output.as_ref()
    }

    /// Gives its standard error to the caller.
    pub fn take_output(&mut self) -> Option<ChildStderr> {
        self.output.take()
    }

    /// The last line of its standard error that hasn't been read yet.
    pub fn last_words(&mut self) -> String {
        let mut text = Vec::new();
        if let Some(output) = &mut self.output {
            // The read doesn't wait: it ends where there is no more text.
            let _ = output.take(TEXT_MAX).read_to_end(&mut text);
        }
        let text = String::from_utf8_lossy(&text);
        let mut lines = text.lines().rev().map(str::trim);
        let line = lines.find(|line| !line.is_empty()).unwrap_or_default();
        line.chars()
            .filter(|character| is_visible(*character))
            .take(LINE_MAX)
            .collect()
    }

    /// Waits until it has ended, for 1 s at most: it may write the reason to standard error before it ends.
    pub fn ends_soon(&mut self) {
        let child = match &mut self.process {
            Process::Child(child) => child,
            Process::OfHelper(helper, number) => return helper.wait(*number),
        };
        for _ in 0..100 {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    fn read_without_waiting(&self) -> io::Result<()> {
        if let Some(output) = &self.output {
            let flags = fcntl_getfl(output)?;
            fcntl_setfl(output, flags | OFlags::NONBLOCK)?;
        }
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        match &mut self.process {
            Process::Child(child) => {
                // It may have ended already.
                let _ = child.kill();
                let _ = child.wait();
            }
            Process::OfHelper(helper, number) => helper.end(*number),
        }
    }
}

fn search() -> Result<PathBuf, ShareError> {
    let path = env::var_os("PATH").unwrap_or_default();
    let in_path = env::split_paths(&path).map(|folder| folder.join(NAME));
    let mut places = in_path.chain(PLACES.map(PathBuf::from));
    places
        .find(|place| fs::metadata(place).is_ok_and(|found| found.is_file()))
        .ok_or_else(|| {
            let places = PLACES.map(str::to_owned);
            ShareError::NoProgram(["PATH".to_owned()].into_iter().chain(places).collect())
        })
}

/// A listening socket, and the client's end of a connection to it. No other program can connect: the socket was in a folder that only
/// this user can enter, and the folder has been removed.
fn connected_pair() -> io::Result<(UnixListener, UnixStream)> {
    let folder = tempfile::Builder::new().prefix("kvmprof-").tempdir()?;
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path)?;
    let stream = UnixStream::connect(&path)?;
    Ok((listener, stream))
}

/// The mounts of the new process, in its own mount namespace.
#[derive(Clone, Copy, Debug)]
struct Mounts {
    /// All mounts become read-only.
    protect: bool,
    /// The root is also mounted at [`ROOT_PLACE`].
    move_root: bool,
}

/// Runs in the new process before it executes its program: closes all open files except the socket, makes the process end with the thread
/// that started it, and makes its mounts.
fn prepare(socket: i32, mounts: Mounts) -> io::Result<()> {
    let check = |result: libc::c_long| SyscallReturnCode(result).into_empty_result();
    // SAFETY: system calls on numbers; no memory is involved but a constant string and a structure on this stack.
    unsafe {
        // A kernel before 5.11 doesn't have this flag; all files of this program are close-on-exec anyway.
        libc::syscall(
            libc::SYS_close_range,
            3,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        );
        check(libc::fcntl(socket, libc::F_SETFD, 0).into())?;
        check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL).into())?;
        let root = c"/".as_ptr();
        let mount = |source, target, flags| {
            check(libc::mount(source, target, ptr::null(), flags, ptr::null()).into())
        };
        if mounts.protect || mounts.move_root {
            check(libc::unshare(libc::CLONE_NEWNS).into())?;
            mount(ptr::null(), root, libc::MS_REC | libc::MS_PRIVATE)?;
        }
        if mounts.move_root {
            let place = c"/tmp".as_ptr();
            mount(root, place, libc::MS_BIND | libc::MS_REC)?;
        }
        if mounts.protect {
            let attributes = libc::mount_attr {
                attr_set: libc::MOUNT_ATTR_RDONLY,
                attr_clr: 0,
                propagation: 0,
                userns_fd: 0,
            };
            check(libc::syscall(
                libc::SYS_mount_setattr,
                libc::AT_FDCWD,
                root,
                libc::AT_RECURSIVE,
                &raw const attributes,
                size_of::<libc::mount_attr>(),
            ))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_are_recognised_by_their_help() {
        let c = "    --fd=FDNUM    fd\n    -o source=PATH    shared directory tree\n";
        assert_eq!(Version::of_help(c), Some(Version::C));
        let rust = "  --shared-dir <SHARED_DIR>\n  --fd <FD>\n";
        for (has_readonly, more) in [(false, ""), (true, "  --readonly\n")] {
            let version = Version::of_help(&format!("{rust}{more}"));
            assert_eq!(version, Some(Version::Rust { has_readonly }));
        }
        assert_eq!(Version::of_help("usage: cat [OPTION]... [FILE]..."), None);
    }

    #[test]
    fn a_helper_gets_its_program() {
        let rust = [false, true].map(|has_readonly| Version::Rust { has_readonly });
        for version in rust.into_iter().chain([Version::C]) {
            let path = PathBuf::from("/usr/lib/virtiofsd");
            let program = Program { path, version };
            let decoded = Program::decode(&program.encode()).unwrap();
            assert_eq!(decoded.path, program.path);
            assert_eq!(decoded.version, program.version);
        }
    }

    #[test]
    fn another_program_is_refused() {
        for (path, expected) in [
            ("/bin/cat", "/bin/cat is no virtiofsd"),
            ("/nowhere", "No such file"),
        ] {
            let error = Program::find(Some(Path::new(path))).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
