//! Collects ticks of a process until the user, the process or the guest ends it.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use indicatif::ProgressBar;
use kvmprof_abi::profil::{Call, State, Status};
use kvmprof_abi::recorder::REC_STOP;
use kvmprof_abi::wire::device;
use kvmprof_cli::command_line::Console;
use kvmprof_cli::interrupt::Interrupt;
use kvmprof_client::{ClientError, Connection, RemoteDevice};
use kvmprof_recording::StackParts;

use super::arguments::ProcessArguments;
use super::device::ProcessProfile;
use super::process::{Knowledge, Process};
use crate::commands::live_line::live_line;
use crate::commands::recorder;

/// The period at which the profile's state is checked.
const INTERVAL: Duration = Duration::from_millis(100);
/// After this time, the user is told that the command waits for a process.
const SILENCE: Duration = Duration::from_secs(2);
/// Minimum time to wait for a running process, even if it is to be profiled for a shorter time, because the recorder
/// writes about once a second.
const LEAST_WAIT: Duration = Duration::from_secs(5);
/// Maximum number of pieces of the recorder's stream that wait to be read.
const PIECES: usize = 8;

/// Why collecting has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The user has ended it, or the time is over.
    Wanted,
    /// The profile has stopped by itself.
    Stopped(State),
    /// The recorder has shown another program of the process earlier than the profile.
    Executed,
    /// The guest has ended.
    GuestEnded,
}

impl Ending {
    /// A description; `None` if the user has requested the end.
    pub fn describe(self) -> Option<&'static str> {
        match self {
            Self::Wanted | Self::Stopped(State::Full) => None,
            Self::GuestEnded => Some("the guest has ended"),
            Self::Stopped(state) => Some(state.describe().trim_start_matches("off: ")),
            Self::Executed => Some(
                "the process has executed another program; up to a second of that may be counted",
            ),
        }
    }
}

/// A connection to the guest, with a recorder for information about the process.
pub struct Session<'a> {
    arguments: &'a ProcessArguments,
    connection: &'a Connection,
    recorder: &'a RemoteDevice,
    feed: &'a Receiver<Result<Vec<u8>, ClientError>>,
    interrupt: Interrupt,
    /// The known part of the process.
    pub process: Process,
    /// The process's profile.
    pub profile: ProcessProfile,
    has_ended: bool,
}

/// Connects to the guest and runs `work`.
///
/// # Errors
/// The guest can't be reached, or has no clock; or as of `work`.
pub fn with_session<T>(
    arguments: &ProcessArguments,
    work: impl FnOnce(&mut Session<'_>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let process = Process::new(arguments.pid, arguments.sysroot.as_deref())?;
    let interrupt = Interrupt::on_signals().context("Cannot catch signals")?;
    let connection = arguments.target.connect_own("profil")?;
    // The profile has to be opened first. Then the recorder shows the same program, or the profile's state shows another one.
    let profile = ProcessProfile::open(&connection, arguments.pid)?;
    let device = connection.open(device::RECORDER, 0)?;
    recorder::choose(&device, &[arguments.pid])?;
    recorder::start(
        &connection,
        &device,
        StackParts::default(),
        None,
        "Cannot look at the process",
    )?;
    let (connection, device) = (&connection, &device);
    std::thread::scope(|scope| {
        let (sender, feed) = sync_channel(PIECES);
        let _end = recorder::Disconnect(connection);
        scope.spawn(move || recorder::read(device, &sender));
        work(&mut Session {
            arguments,
            connection,
            recorder: device,
            feed: &feed,
            interrupt,
            process,
            profile,
            has_ended: false,
        })
    })
}

impl Session<'_> {
    /// Waits until the process runs in user mode, and its code is known.
    ///
    /// # Errors
    /// This takes too long, the code stays unknown, or the guest can't be reached any more.
    pub fn wait_for_code(&mut self, console: &mut Console<'_>) -> anyhow::Result<()> {
        let begin = Instant::now();
        let end = end_of(self.arguments.seconds.map(|time| time.max(LEAST_WAIT)));
        let mut has_reported = false;
        loop {
            match self.profile.status()?.state {
                State::Ended if !self.guest_has_ended() => bail!(
                    "The guest has no process {} any more, if it had one: kvmprof top shows those that run",
                    self.arguments.pid
                ),
                State::Executed => {
                    self.profile = ProcessProfile::open(self.connection, self.arguments.pid)?;
                    self.process.restart();
                }
                _ => {}
            }
            match self.process.knowledge() {
                Knowledge::Known => return Ok(()),
                Knowledge::Hopeless => bail!(
                    "Nothing is known of the code of process {}: give --offset ADDRESS and --bufsiz BYTES",
                    self.arguments.pid
                ),
                Knowledge::Unseen | Knowledge::Unknown => {}
            }
            if self.interrupt.is_raised() || is_past(end) || self.has_ended {
                return Err(self.nothing_found());
            }
            if !has_reported && begin.elapsed() >= SILENCE {
                has_reported = true;
                console.say(format_args!(
                    "waiting until process {} runs in user mode (Ctrl-C ends it)",
                    self.arguments.pid
                ));
            }
            self.receive()?;
        }
    }

    /// Runs the profile of `call` to its end.
    ///
    /// # Errors
    /// The profile can't be started, or the guest can't be reached any more.
    pub fn collect(&mut self, call: &Call) -> anyhow::Result<Ending> {
        self.profile.start(call)?;
        let end = end_of(self.arguments.seconds);
        let what = format!("profiling process {}", self.arguments.pid);
        let line = live_line(&what, self.arguments.seconds);
        let ending = self.collect_until(end, line.as_ref());
        if let Some(line) = line {
            line.finish_and_clear();
        }
        ending
    }

    fn collect_until(
        &mut self,
        end: Option<Instant>,
        line: Option<&ProgressBar>,
    ) -> anyhow::Result<Ending> {
        loop {
            let status = self.profile.status()?;
            if let Some(line) = line {
                line.set_message(format!("{} ticks", status.ticks));
            }
            if self.has_ended {
                return Ok(Ending::GuestEnded);
            }
            match status.state {
                State::On => {}
                State::Ended if self.guest_has_ended() => return Ok(Ending::GuestEnded),
                state => return Ok(Ending::Stopped(state)),
            }
            if self.process.has_executed() {
                return Ok(Ending::Executed);
            }
            if self.interrupt.is_raised() || is_past(end) {
                return Ok(Ending::Wanted);
            }
            self.receive()?;
        }
    }

    /// Reads the rest of the recorder's stream, because the functions of the process's files may come last.
    ///
    /// # Errors
    /// The guest can't be reached any more, or no tick of `status` found the process until `ending`.
    pub fn finish(&mut self, status: &Status, ending: Ending) -> anyhow::Result<()> {
        match (status.ticks, ending) {
            (0, Ending::Stopped(State::Ended)) => bail!(
                "Process {} has ended before a tick found it in user mode, if the guest had one: kvmprof top shows those that \
                 run",
                self.arguments.pid
            ),
            (0, _) => return Err(self.nothing_found()),
            _ => {}
        }
        // A guest that has ended has also ended its recordings.
        let _ = self.recorder.ioctl(REC_STOP, 0);
        while !self.has_ended {
            self.receive()?;
        }
        Ok(())
    }

    /// Prints why collecting has ended, and which names are missing.
    pub fn say_ending(&self, ending: Ending, console: &mut Console<'_>) {
        if let Some(words) = ending.describe() {
            console.say(format_args!("ended early: {words}"));
        }
        for note in self.process.resolver.take_notes() {
            console.say(note);
        }
    }

    /// Reads the recorder's stream, or waits for a moment.
    fn receive(&mut self) -> anyhow::Result<()> {
        match self.feed.recv_timeout(INTERVAL) {
            Ok(bytes) => self.process.feed(&bytes?)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => self.has_ended = true,
        }
        Ok(())
    }

    /// Whether the guest has ended, after a process has ended.
    fn guest_has_ended(&self) -> bool {
        // ENXIO, or the connection is closed.
        self.connection.open(device::PROFIL, 0).is_err()
    }

    fn nothing_found(&self) -> anyhow::Error {
        anyhow::anyhow!(
            "Process {} did not run in user mode in this time, if the guest has one: kvmprof top shows those that run",
            self.arguments.pid
        )
    }
}

/// The end of `time` from now on. `None` also for a time that the clock can't represent.
fn end_of(time: Option<Duration>) -> Option<Instant> {
    time.and_then(|time| Instant::now().checked_add(time))
}

fn is_past(moment: Option<Instant>) -> bool {
    moment.is_some_and(|moment| Instant::now() >= moment)
}
