//! A bare-metal guest that runs under `kvmprof run`, or that `kvmprof attach` is attached to, for clients to connect to.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, PipeReader, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use kvmprof_client::Connection;
use kvmprof_recording::ConsumerLedger;
use kvmprof_recording::status::{ClockStatus, Status};
use rustix::fs::{CWD, FileType, Mode, OFlags, fcntl_setfl, mknodat, open};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::program::{example_path, kvmprof, python, run};
use crate::status::{status_of, until_recorded};
use crate::{Accounts, Boot, Pcs, Ran, until};

/// A bare-metal guest under `kvmprof run` or `kvmprof attach`. Dropping it kills that program.
pub struct Guest {
    child: Child,
    folder: TempDir,
    /// The other end of the program's standard error, if that isn't read.
    unread: Option<PipeReader>,
}

impl Guest {
    /// Starts the guest with further `options` of `kvmprof run`, and waits until its socket answers.
    ///
    /// # Panics
    /// If it ends instead.
    pub fn start<S: AsRef<OsStr>>(boot: Boot, options: impl IntoIterator<Item = S>) -> Self {
        Self::launch(boot, options).ready()
    }

    /// Like [`Guest::start`], but each write of kvmprof to standard error blocks forever, because standard error is a full pipe.
    ///
    /// # Panics
    /// If it ends instead.
    pub fn start_unheard<S: AsRef<OsStr>>(
        boot: Boot,
        options: impl IntoIterator<Item = S>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (reader, full) = full_pipe();
        let mut command = Self::command_of(boot, "64M", folder.path());
        let mut guest = Self::spawn(&mut command, options, folder, full.into());
        guest.unread = Some(reader);
        guest.ready()
    }

    /// Like [`Guest::start`], but the console isn't read: it is a full pipe. Returns the pipe's other end, whose reads don't block.
    ///
    /// # Panics
    /// If it ends instead.
    pub fn start_with_full_console<S: AsRef<OsStr>>(
        boot: Boot,
        options: impl IntoIterator<Item = S>,
    ) -> (Self, File) {
        let folder = tempfile::tempdir().unwrap();
        let path = console_file(folder.path());
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let end = |flags: OFlags| {
            let opened = open(&path, flags | OFlags::NONBLOCK, Mode::empty());
            File::from(opened.unwrap())
        };
        let console = end(OFlags::RDONLY);
        fill(&mut end(OFlags::WRONLY));
        let mut command = Self::command_of(boot, "64M", folder.path());
        let stderr = stderr_file(folder.path());
        let guest = Self::spawn(&mut command, options, folder, stderr).ready();
        (guest, console)
    }

    /// Attaches to the guest of process `pid` with further `options` of `kvmprof attach`, and waits until its socket answers. With `boot`,
    /// `kvmprof attach` gets that guest's kernel.
    ///
    /// # Panics
    /// If it ends instead.
    pub fn attach<S: AsRef<OsStr>>(
        pid: u32,
        boot: Option<Boot>,
        options: impl IntoIterator<Item = S>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(kvmprof());
        command.args(["attach", &pid.to_string()]);
        if let Some(boot) = boot {
            command
                .arg("--kernel")
                .arg(write_kernel(boot, folder.path()));
        }
        let stderr = stderr_file(folder.path());
        Self::spawn(&mut command, options, folder, stderr).ready()
    }

    /// This guest, whose socket answers.
    fn ready(mut self) -> Self {
        until("the guest's socket answers", || {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("kvmprof has ended: {status}, {}", self.stderr());
            }
            Connection::connect(&self.socket()).ok()
        });
        self
    }

    /// Starts the guest without waiting.
    ///
    /// # Panics
    /// If the program can't be started.
    pub fn launch<S: AsRef<OsStr>>(boot: Boot, options: impl IntoIterator<Item = S>) -> Self {
        Self::launch_with_memory(boot, "64M", options)
    }

    /// Like [`Guest::start`], with this `--memory`.
    ///
    /// # Panics
    /// If it ends instead.
    pub fn start_with_memory<S: AsRef<OsStr>>(
        boot: Boot,
        memory: &str,
        options: impl IntoIterator<Item = S>,
    ) -> Self {
        Self::launch_with_memory(boot, memory, options).ready()
    }

    fn launch_with_memory<S: AsRef<OsStr>>(
        boot: Boot,
        memory: &str,
        options: impl IntoIterator<Item = S>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Self::command_of(boot, memory, folder.path());
        let stderr = stderr_file(folder.path());
        Self::spawn(&mut command, options, folder, stderr)
    }

    /// Like [`Guest::start`], with another image than its own of `boot`: the file `kernel`.
    ///
    /// # Panics
    /// If it ends instead.
    pub fn start_kernel<S: AsRef<OsStr>>(
        boot: Boot,
        kernel: &Path,
        options: impl IntoIterator<Item = S>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Self::command_with(boot, kernel, "64M", folder.path());
        let stderr = stderr_file(folder.path());
        Self::spawn(&mut command, options, folder, stderr).ready()
    }

    fn command_of(boot: Boot, memory: &str, folder: &Path) -> Command {
        let kernel = write_kernel(boot, folder);
        Self::command_with(boot, &kernel, memory, folder)
    }

    fn command_with(boot: Boot, kernel: &Path, memory: &str, folder: &Path) -> Command {
        let console = format!("file:{}", console_file(folder).display());
        let mut command = Command::new(kvmprof());
        command
            .args(["run", "--memory", memory, "--cmdline"])
            .arg(boot.command_line())
            .args(["--console", &console])
            .arg("--kernel")
            .arg(kernel);
        command
    }

    fn spawn<S: AsRef<OsStr>>(
        command: &mut Command,
        options: impl IntoIterator<Item = S>,
        folder: TempDir,
        stderr: Stdio,
    ) -> Self {
        let child = command
            .arg("--socket")
            .arg(folder.path().join("socket"))
            .args(options)
            .stdin(Stdio::null())
            .stdout(File::create(folder.path().join("stdout")).unwrap())
            .stderr(stderr)
            .spawn()
            .unwrap();
        Self {
            child,
            folder,
            unread: None,
        }
    }

    /// The path of its socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// The folder of its socket.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The id of the process that runs it.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Bytes of the host's memory that kvmprof uses, including the guest's.
    ///
    /// # Panics
    /// If kvmprof has ended.
    pub fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes: u64 = line
            .and_then(|line| line.trim().trim_end_matches(" kB").parse().ok())
            .expect("a process with memory");
        kibibytes << 10
    }

    /// The guest's output on its serial port.
    pub fn console(&self) -> String {
        self.file("console")
    }

    /// kvmprof's output on standard error.
    pub fn stderr(&self) -> String {
        self.file("stderr")
    }

    fn file(&self, name: &str) -> String {
        let bytes = fs::read(self.folder.path().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Connects a new client.
    ///
    /// # Panics
    /// If the connection fails.
    pub fn connect(&self) -> Connection {
        Connection::connect(&self.socket()).unwrap()
    }

    /// pcs, opened by a new client.
    ///
    /// # Panics
    /// If this fails.
    pub fn open(&self) -> Pcs {
        Pcs::open(self.connect()).unwrap()
    }

    /// The status document.
    pub fn status(&self) -> Status {
        status_of(&self.connect())
    }

    /// Waits until the clock has taken this many samples. Returns its state, whose account balances.
    pub fn until_sampled(&self, samples: u64) -> ClockStatus {
        until("enough is sampled", || {
            let clock = self.status().clock;
            assert!(clock.ledger.balances(), "{clock:?}");
            (clock.ledger.sampled >= samples).then_some(clock)
        })
    }

    /// As [`until_recorded`](crate::until_recorded).
    pub fn until_recorded(&self, ticks: u64) -> ConsumerLedger {
        until_recorded(&self.connect(), ticks)
    }

    /// Waits until no client has pcs open: kvmprof detects a client's end after a moment.
    pub fn until_closed(&self) -> Accounts {
        let connection = self.connect();
        until("pcs is closed", || {
            let accounts = Accounts::of(&connection);
            (!accounts.open).then_some(accounts)
        })
    }

    /// Starts a kvmprof command with this guest's socket, whose output is read at its end.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn spawn_command(&self, words: &[&str]) -> Child {
        let mut command = Command::new(kvmprof());
        command.args(words).env("KVMPROF_SOCKET", self.socket());
        command.stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// Has `kvmprof control` do `action`, such as `pause`.
    ///
    /// # Panics
    /// If it fails or says something.
    #[track_caller]
    pub fn control(&self, action: &str) {
        assert_eq!(self.command("control", &[action]).quiet(), "", "{action}");
    }

    /// Runs a kvmprof command with this guest's `--socket`, and more arguments.
    pub fn command(&self, command: &str, arguments: &[&str]) -> Ran {
        let socket = self.socket();
        let mut all: Vec<&OsStr> = vec![command.as_ref(), "--socket".as_ref(), socket.as_ref()];
        all.extend(arguments.iter().map(OsStr::new));
        run(all)
    }

    /// Records with more `arguments` until the recorder has taken this many `ticks`, and returns the messages of `kvmprof record`. The guest has no
    /// other recorder.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn record(&self, ticks: u64, arguments: &[&str]) -> Ran {
        let mut command = Command::new(kvmprof());
        command.arg("record").arg("--socket").arg(self.socket());
        command.args(arguments).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        until("enough is recorded", || {
            let has_ended = child.try_wait().unwrap().is_some();
            let ledger = self.status().recorders().next().map(|it| it.ledger);
            let taken = ledger.map_or(0, |ledger| ledger.recorded + ledger.ungathered);
            (has_ended || taken >= ticks).then_some(())
        });
        // It may have ended by itself.
        let _ = kill_process(Pid::from_child(&child), Signal::TERM);
        Ran::from(child.wait_with_output().unwrap())
    }

    /// Sends `signal` to kvmprof.
    ///
    /// # Panics
    /// If kvmprof has ended.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Whether kvmprof has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for kvmprof's end.
    ///
    /// # Panics
    /// If it doesn't end.
    pub fn wait(&mut self) -> Ran {
        let status = until("kvmprof ends", || self.child.try_wait().unwrap());
        Ran {
            status: status.code().unwrap_or(-1),
            stdout: self.file("stdout"),
            stderr: self.stderr(),
        }
    }

    /// Ends the guest with SIGTERM, and checks that kvmprof succeeds.
    ///
    /// # Panics
    /// If it doesn't.
    pub fn stop(mut self) {
        self.signal(Signal::TERM);
        let ran = self.wait().without_slow_looks();
        assert_eq!((ran.status, ran.stderr.as_str()), (0, ""), "{ran:?}");
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // The program may have ended, and been waited for, already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The file with the console's output.
fn console_file(folder: &Path) -> PathBuf {
    folder.join("console")
}

fn stderr_file(folder: &Path) -> Stdio {
    File::create(folder.join("stderr")).unwrap().into()
}

/// Makes a pipe that is full. Returns its ends to read and to write.
fn full_pipe() -> (PipeReader, OwnedFd) {
    let (reader, writer) = io::pipe().unwrap();
    let writer = OwnedFd::from(writer);
    fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    fill(&mut File::from(writer.try_clone().unwrap()));
    fcntl_setfl(&writer, OFlags::empty()).unwrap();
    (reader, writer)
}

/// Fills a pipe whose writes don't block.
fn fill(pipe: &mut File) {
    while pipe.write(&[b'x'; 4096]).is_ok() {}
}

/// Writes the kernel of `boot` to a file in `folder`, and returns its path.
///
/// # Panics
/// If it can't be written.
pub fn write_kernel(boot: Boot, folder: &Path) -> PathBuf {
    let path = folder.join(boot.file_name());
    fs::write(&path, boot.image().elf()).unwrap();
    path
}

/// The example `script` in Python, with `arguments`, on the socket of `guest`.
pub fn python_client(script: &str, guest: &Guest, arguments: &[&str]) -> Command {
    let mut command = python();
    command
        .arg(example_path(script))
        .arg(guest.socket())
        .args(arguments)
        .stdin(Stdio::null());
    command
}
