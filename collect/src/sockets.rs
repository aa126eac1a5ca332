//! Finds the sockets of guests, and receives the guests' recordings.

use std::fs;
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kvmprof_abi::errno::Errno;
use kvmprof_abi::recorder::{
    REC_HZ, REC_INTERVAL, REC_START, REC_STOP, REC_YIELD, STACK_KERNEL, STACK_USER,
};
use kvmprof_abi::wire::device;
use kvmprof_client::{ClientError, Connection, RemoteDevice};
use kvmprof_recording::counters::Counters;
use kvmprof_recording::exits::ExitInterval;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno as SystemError;

use crate::config::Config;
use crate::launcher::message::{LauncherMessage, MAX_NAME, Process, cut};

/// Maximum number of bytes of a recording that are read at once.
const PIECE: usize = 256 << 10;
/// Maximum number of paths that match a pattern. Further ones are ignored.
const MAX_PATHS: usize = 16 << 10;
/// Maximum interval at which a guest sends its ticks, in s.
const LONGEST_INTERVAL: u32 = 10;
/// Maximum length of the document with a guest's counters, in bytes.
const MAX_COUNTERS: usize = 1 << 20;

/// A message of a thread to the collector.
#[derive(Debug)]
pub enum Message {
    /// Bytes of the recording of the guest with this number.
    Bytes(u64, Vec<u8>),
    /// Counters of the guest with this number since its start: exits and other events.
    Counts(u64, Counters),
    /// The exits of the guest of this name in a part of the time.
    Exits(String, Box<ExitInterval>),
    /// The connection to the guest with this number has ended. There is an error unless the recording has ended.
    Gone(u64, Option<anyhow::Error>),
    /// A folder of sockets has changed.
    Changed,
    /// The launcher has told something. The pipe with a guest's recording comes along.
    FromLauncher(LauncherMessage, Option<OwnedFd>),
    /// There is no connection to the launcher, for this reason.
    NoLauncher(String),
}

/// A socket with its path and its identity: a guest that is started again makes another socket at the same path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Socket {
    /// Its path.
    pub path: PathBuf,
    identity: (u64, u64),
}

/// The socket at `path`, if there is one.
pub fn socket_at(path: PathBuf) -> Option<Socket> {
    let metadata = fs::metadata(&path).ok()?;
    let identity = (metadata.dev(), metadata.ino());
    let is_socket = metadata.file_type().is_socket();
    is_socket.then_some(Socket { path, identity })
}

/// The sockets at the paths that match `patterns`, in the order of their paths.
pub fn find(patterns: &[String]) -> Vec<Socket> {
    let mut found = Vec::new();
    for pattern in patterns {
        let Ok(paths) = glob::glob(pattern) else {
            continue;
        };
        let paths = paths.take(MAX_PATHS).flatten();
        found.extend(paths.filter_map(socket_at));
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found.dedup();
    found
}

/// The name of the guest at `socket`: the socket's file name without its extension, or the whole path if another guest has that name (`is_taken`).
pub fn guest_name(socket: &Socket, is_taken: impl Fn(&str) -> bool) -> String {
    let stem = socket.path.file_stem().unwrap_or_default();
    let name = shown(&stem.to_string_lossy());
    if name.is_empty() || is_taken(&name) {
        let path = socket.path.to_string_lossy();
        let start = path.len().saturating_sub(MAX_NAME);
        let start = (start..path.len()).find(|start| path.is_char_boundary(*start));
        return shown(&path[start.unwrap_or_default()..]);
    }
    name
}

/// The name of the guest of another VMM, which the launcher calls `own`. If another guest has that name (`is_taken`), the process precedes it.
pub fn attached_name(process: Process, own: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let name = shown(own);
    match is_taken(&name) {
        true => shown(&format!("{process}-{own}")),
        false => name,
    }
}

fn shown(name: &str) -> String {
    cut(&kvmprof_report::text::visible(name), MAX_NAME).to_owned()
}

/// The settings of a guest's recorder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecorderSettings {
    hz: u32,
    parts: i64,
    owners: Vec<u32>,
    /// The length of a window in s: how often the guest's counters are read.
    window: u32,
}

impl RecorderSettings {
    /// The settings that `config` has.
    pub fn new(config: &Config) -> Self {
        let part = |wanted, part| if wanted { part } else { 0 };
        Self {
            hz: config.hz,
            parts: part(config.kernel_stacks, STACK_KERNEL) | part(config.user_stacks, STACK_USER),
            owners: config.owners.clone(),
            window: config.window,
        }
    }

    /// The interval at which the guest sends its ticks, in s. It divides the window's length, so that a window's ticks come right after its end.
    fn interval(&self) -> u32 {
        let mut divisors = (1..=LONGEST_INTERVAL).rev();
        let found = divisors.find(|interval| self.window.is_multiple_of(*interval));
        found.unwrap_or(1)
    }
}

/// An open recording.
struct Recording {
    connection: Connection,
    recorder: RemoteDevice,
}

/// The state of a thread that follows a guest.
#[derive(Default)]
enum Stage {
    #[default]
    Starting,
    /// The server has been asked for a recording. Its answer may never come.
    Connected(UnixStream),
    Live(Arc<Recording>),
    /// A recording that comes by a pipe. A write to this ends the wait for more of it.
    Piped(OwnedFd),
    /// The collector has dropped the guest.
    Dropped,
}

/// State that a guest's thread and the collector share.
#[derive(Default)]
struct Shared {
    stage: Mutex<Stage>,
    /// Whether bytes of the recording have come.
    is_heard: AtomicBool,
}

impl Shared {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the next stage. False if the collector has dropped the guest.
    fn reach(&self, next: Stage) -> bool {
        let mut stage = self.stage();
        let is_wanted = !matches!(*stage, Stage::Dropped);
        if is_wanted {
            *stage = next;
        }
        is_wanted
    }
}

/// A guest that a thread follows. When this is dropped, the connection and the thread end.
pub struct FollowedGuest {
    shared: Arc<Shared>,
    since: Instant,
}

impl FollowedGuest {
    /// Follows the guest at `path` on a thread of its own, which sends messages with this `number`.
    ///
    /// # Errors
    /// The host gives no thread.
    pub fn start(
        path: PathBuf,
        number: u64,
        wanted: RecorderSettings,
        sender: SyncSender<Message>,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        Builder::new().name("guest".into()).spawn(move || {
            let result = follow(&path, number, &wanted, &own, &sender);
            // The collector may have ended.
            let _ = sender.send(Message::Gone(number, result.err()));
        })?;
        Ok(Self {
            shared,
            since: Instant::now(),
        })
    }

    /// Reads the recording that comes by `pipe`, as [`start`](Self::start).
    ///
    /// # Errors
    /// The host gives no thread or descriptor.
    pub fn read(pipe: OwnedFd, number: u64, sender: SyncSender<Message>) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let end = eventfd(0, EventfdFlags::CLOEXEC)?;
        shared.reach(Stage::Piped(end.try_clone()?));
        let own = Arc::clone(&shared);
        Builder::new().name("guest".into()).spawn(move || {
            let result = read(&pipe, &end, number, &own, &sender);
            let error = result.err().map(anyhow::Error::from);
            // The collector may have ended.
            let _ = sender.send(Message::Gone(number, error));
        })?;
        Ok(Self {
            shared,
            since: Instant::now(),
        })
    }

    /// Whether the guest has been followed for `time` and no bytes of the recording have come.
    pub fn is_silent(&self, time: Duration) -> bool {
        self.since.elapsed() >= time && !self.shared.is_heard.load(Ordering::Relaxed)
    }

    /// Ends the recording, unless it comes by a pipe. The rest of it still comes. The recorder may take a second for the answer, so that another thread waits for it.
    pub fn stop(&self) {
        if let Stage::Live(recording) = &*self.shared.stage() {
            let recording = Arc::clone(recording);
            let stop = move || recording.recorder.ioctl(REC_STOP, 0);
            // Without a thread, the recording ends with the connection.
            let _ = Builder::new().name("stop".into()).spawn(stop);
        }
    }
}

impl Drop for FollowedGuest {
    fn drop(&mut self) {
        let before = std::mem::replace(&mut *self.shared.stage(), Stage::Dropped);
        match before {
            Stage::Live(recording) => recording.connection.disconnect(),
            Stage::Connected(stream) => {
                // The server may have closed it already.
                let _ = stream.shutdown(Shutdown::Both);
            }
            Stage::Piped(end) => {
                // The write doesn't block: the counter is 0.
                let _ = rustix::io::write(&end, &1_u64.to_ne_bytes());
            }
            Stage::Starting | Stage::Dropped => {}
        }
    }
}

/// Passes on what comes by `pipe`, until its end or until `end` is readable.
fn read(
    pipe: &OwnedFd,
    end: &OwnedFd,
    number: u64,
    shared: &Shared,
    sender: &SyncSender<Message>,
) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    loop {
        let mut ready = [end, pipe].map(|file| PollFd::new(file, PollFlags::IN));
        match poll(&mut ready, None) {
            Ok(_) => {}
            Err(SystemError::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        if !ready[0].revents().is_empty() {
            return Ok(());
        }
        let length = rustix::io::read(pipe, &mut buffer)?;
        let bytes = buffer.get(..length).unwrap_or_default();
        shared.is_heard.store(true, Ordering::Relaxed);
        let message = Message::Bytes(number, bytes.to_vec());
        if bytes.is_empty() || sender.send(message).is_err() {
            return Ok(());
        }
    }
}

fn follow(
    path: &Path,
    number: u64,
    wanted: &RecorderSettings,
    shared: &Shared,
    sender: &SyncSender<Message>,
) -> anyhow::Result<()> {
    let connection = connect(path, &wanted.owners, shared)?;
    let recorder = start(&connection, wanted)?;
    let recording = Arc::new(Recording {
        connection,
        recorder,
    });
    if !shared.reach(Stage::Live(Arc::clone(&recording))) {
        return Ok(());
    }
    let mut next_counts = Some(Instant::now());
    loop {
        if next_counts.is_some_and(|next| Instant::now() >= next) {
            let counts = counts(&recording.connection);
            // A guest without counters, such as that of another VMM, isn't asked again.
            let window = Duration::from_secs(wanted.window.into());
            next_counts = counts.as_ref().map(|_| Instant::now() + window);
            if let Some(counts) = counts
                && sender.send(Message::Counts(number, counts)).is_err()
            {
                return Ok(());
            }
        }
        let bytes = recording.recorder.read(PIECE)?;
        shared.is_heard.store(true, Ordering::Relaxed);
        let is_end = bytes.is_empty();
        if is_end || sender.send(Message::Bytes(number, bytes)).is_err() {
            return Ok(());
        }
    }
}

/// The guest's counters, if it has any.
fn counts(connection: &Connection) -> Option<Counters> {
    let document = connection.snapshot(device::PMC, MAX_COUNTERS).ok()?;
    serde_json::from_slice(&document).ok()
}

/// Connects to the socket. The program there has to belong to root, this program's user, or one of the `owners`.
fn connect(path: &Path, owners: &[u32], shared: &Shared) -> Result<Connection, ClientError> {
    let connect = |owner| {
        Connection::connect_noting(path, owner, |stream| {
            let is_wanted = shared.reach(Stage::Connected(stream.try_clone()?));
            is_wanted
                .then_some(())
                .ok_or_else(|| io::ErrorKind::ConnectionAborted.into())
        })
    };
    match connect(None) {
        Err(ClientError::WrongServer { user, .. }) if owners.contains(&user) => connect(Some(user)),
        result => result,
    }
}

/// Starts a recording at the wanted rate. If another client samples the guest already, the recording has that client's rate. It ends when another client
/// changes the rate.
fn start(connection: &Connection, wanted: &RecorderSettings) -> anyhow::Result<RemoteDevice> {
    if connection.hello().hz == 0 {
        bail!("The guest's clock is off: it was started with --hz 0");
    }
    let open = || -> Result<RemoteDevice, ClientError> {
        let recorder = connection.open(device::RECORDER, 0)?;
        // A recorder of an earlier release refuses it, and sends once a second.
        let _ = recorder.ioctl(REC_INTERVAL, wanted.interval().into());
        Ok(recorder)
    };
    let recorder = open()?;
    // An earlier release refuses these, too.
    let _ = recorder.ioctl(REC_HZ, wanted.hz.into());
    let _ = recorder.ioctl(REC_YIELD, 1);
    let Err(error) = recorder.ioctl(REC_START, wanted.parts) else {
        return Ok(recorder);
    };
    if error.errno() != Some(Errno::EBUSY) {
        return Err(error).context("Cannot start to record the guest");
    }
    let recorder = open()?;
    recorder
        .ioctl(REC_START, wanted.parts)
        .context("Cannot start to record the guest beside others")?;
    Ok(recorder)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn sockets_are_found_by_patterns() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let listeners = ["b.sock", "a.sock", "c.other"].map(|name| UnixListener::bind(path(name)));
        assert!(listeners.iter().all(Result::is_ok));
        fs::write(path("file.sock"), "").unwrap();
        let pattern = |name: &str| path(name).display().to_string();
        let find = |names: &[&str]| -> Vec<PathBuf> {
            let patterns: Vec<String> = names.iter().map(|name| pattern(name)).collect();
            super::find(&patterns)
                .into_iter()
                .map(|socket| socket.path)
                .collect()
        };
        assert_eq!(find(&["*.sock"]), [path("a.sock"), path("b.sock")]);
        assert_eq!(find(&["*.sock", "a*"]), [path("a.sock"), path("b.sock")]);
        assert_eq!(find(&["none/*"]), [] as [PathBuf; 0]);
        // Another socket at the same path is another guest.
        let before = super::find(&[pattern("a.sock")]);
        fs::rename(path("b.sock"), path("a.sock")).unwrap();
        assert_ne!(super::find(&[pattern("a.sock")]), before);
    }

    #[test]
    fn ticks_arrive_right_after_each_window() {
        for (window, interval) in [(1, 1), (7, 7), (10, 10), (11, 1), (60, 10), (3600, 10)] {
            let wanted = RecorderSettings {
                hz: 19,
                parts: 0,
                owners: Vec::new(),
                window,
            };
            assert_eq!(wanted.interval(), interval);
        }
    }

    #[test]
    fn guests_are_named_after_their_sockets() {
        let socket = |path: &str| Socket {
            path: path.into(),
            identity: (0, 0),
        };
        let name = |path: &str, taken: &str| guest_name(&socket(path), |name| name == taken);
        assert_eq!(name("/run/kvmprof/db-1.sock", ""), "db-1");
        assert_eq!(
            name("/run/kvmprof/db-1.sock", "db-1"),
            "/run/kvmprof/db-1.sock"
        );
        let process = Process {
            pid: 4711,
            start_time: 7,
        };
        assert_eq!(attached_name(process, "db-1", |_| false), "db-1");
        let taken = |name: &str| name == "db-1";
        assert_eq!(attached_name(process, "db-1", taken), "4711:7-db-1");
        assert_eq!(name("/x/a\u{202e}b\n.sock", ""), "a\u{fffd}b\u{fffd}");
        let long = format!("/x/{}.sock", "é".repeat(100));
        assert!(name(&long, "").len() <= MAX_NAME);
        assert!(name(&long, &name(&long, "")).ends_with(".sock"));
    }
}
