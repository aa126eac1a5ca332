//! The emulator's process: its start, its output, and its end on every path.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::error::Traces;
use crate::qemu::Qemu;
use crate::quiet::{OwnTime, SilenceTimer};
use crate::streams::{self, CountingStream, Progress};
use crate::{LabError, bochs, outfolder, qemu};

/// How long a machine may be silent until it is up. It takes 2 s in QEMU and 20 s in Bochs, and one that hangs never comes up.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// How long a machine may be silent once its command was stopped, until it has sent the output folder.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// How often the limits are looked at.
const LOOK: Duration = Duration::from_millis(200);
/// The command to the first process to end the command.
const STOP: &[u8] = b"stop\n";
/// Tells the machine that the output folder was received.
const TAKEN: &[u8] = b"taken\n";

/// Kernel command line in each emulator. A panic ends the machine. The time-stamp counter is steady, so
/// it needs no watchdog. Nor does RCU: a stall is a busy host's, and its report interrupts the other
/// CPU by an NMI, which QEMU's emulated SVM doesn't survive while that runs a guest. The rest saves
/// time that emulation makes long.
pub(crate) const COMMAND_LINE: &str = "console=ttyS0 quiet panic=-1 oops=panic tsc=reliable nokaslr \
    mitigations=off cryptomgr.notests ipv6.disable=1 audit=0 random.trust_cpu=on \
    rcupdate.rcu_expedited=1 rcupdate.rcu_cpu_stall_suppress=1 nowatchdog no_timer_check";

/// Console, standard output, standard error, output folder, control.
pub(crate) type Streams = [File; 5];

/// The stream that is the control port.
const CONTROL: usize = 4;

/// A machine to start.
pub(crate) struct Machine<'a> {
    /// What emulates it.
    pub emulator: Emulator,
    /// The bzImage.
    pub kernel: &'a Path,
    /// The whole initramfs, in a file that needs no name.
    pub initramfs: File,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory: u64,
    /// Whether its processors have page tables with five levels.
    pub has_five_levels: bool,
}

/// A program that emulates machines.
pub(crate) enum Emulator {
    /// With SVM.
    Qemu(Qemu),
    /// With VT-x.
    Bochs,
}

/// What a machine's first process needs in an emulator.
pub(crate) struct InsideNeeds {
    /// Modules of the kernel: KVM, and what the streams need.
    pub modules: &'static [&'static str],
    /// A script that defines how the streams are written.
    pub streams: &'static str,
    /// A program, and its place.
    pub program: (&'static str, &'static [u8]),
}

/// A machine's process, and the host's ends of its streams.
pub(crate) struct RunningMachine {
    pub child: Child,
    pub streams: Streams,
}

impl Emulator {
    /// Its name, as in messages.
    fn name(&self) -> &'static str {
        match self {
            Self::Qemu(_) => "qemu",
            Self::Bochs => "bochs",
        }
    }

    /// What the first process needs.
    pub fn inside(&self) -> InsideNeeds {
        match self {
            Self::Qemu(_) => qemu::INSIDE,
            Self::Bochs => bochs::INSIDE,
        }
    }

    /// How often a machine is started to come up once. QEMU's processors make a kernel fall over its own patching now and then. Bochs does
    /// the same each time.
    pub fn boots_max(&self) -> u32 {
        match self {
            Self::Qemu(_) => 3,
            Self::Bochs => 1,
        }
    }
}

/// How long the machine runs, and the treatment of its output.
pub(crate) struct RunOptions {
    /// Pass output on to this process's own streams instead of keeping it.
    pub forward: bool,
    /// Bytes of standard output and of standard error that are kept.
    pub output_limit: u64,
    /// Where the output folder goes.
    pub out: Option<PathBuf>,
    /// Bytes of the output folder that are taken.
    pub out_limit: u64,
    /// After how long the machine is ended, and when that is.
    pub timeout: Option<(Duration, Instant)>,
    /// For how long the machine may run, of the time in which the host lets it.
    pub run_limit: Option<Duration>,
    /// For how long the machine may be silent once it is up.
    pub quiet_limit: Duration,
}

/// The result.
pub(crate) struct Finished {
    pub status: u8,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub console: String,
}

/// Runs the machine until it ends by itself, sends what it must not, is silent for too long, or the time is up.
pub(crate) fn run(machine: &Machine, options: &RunOptions) -> Result<Finished, LabError> {
    let started = match &machine.emulator {
        Emulator::Qemu(qemu) => qemu.start(machine)?,
        Emulator::Bochs => bochs::start(machine)?,
    };
    follow(started, machine.emulator.name(), options)
}

/// Lets the program inherit these descriptors, which have to outlive the start, and die with the thread that starts it.
pub(crate) fn hand_over(command: &mut Command, descriptors: Vec<RawFd>) {
    // The caller keeps the descriptors open until the program is started.
    // SAFETY: between fork and exec the closure makes only system calls, which are async-signal-safe; it allocates nothing.
    unsafe { command.pre_exec(move || prepare_child(&descriptors)) };
}

/// Lets the child inherit its streams, and die with the thread that started it
/// even where that one is killed.
fn prepare_child(inherited: &[RawFd]) -> io::Result<()> {
    for descriptor in inherited {
        // SAFETY: the descriptor is open: the child has a copy of its parent's.
        let descriptor = unsafe { BorrowedFd::borrow_raw(*descriptor) };
        fcntl_setfd(descriptor, FdFlags::empty())?;
    }
    set_parent_process_death_signal(Some(Signal::KILL))?;
    Ok(())
}

/// Events of the threads for the waiting one.
enum Event {
    /// The machine is up.
    Ready,
    /// A stream came to its end.
    Closed,
    /// A stream could not be taken any further.
    Failed,
}

/// The reason for the end of waiting.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// All streams came to their end.
    Closed,
    /// A stream could not be taken any further.
    Failed,
    /// The machine was silent for this long.
    Silent(Duration),
    /// The time was up.
    Late(Duration),
}

fn follow(
    started: RunningMachine,
    emulator: &str,
    options: &RunOptions,
) -> Result<Finished, LabError> {
    let (mut child, ours) = (started.child, started.streams);
    let bytes = AtomicU64::new(0);
    let mut orders = ours[CONTROL]
        .try_clone()
        .map_err(LabError::file("share", "the control port"))?;
    let mut acknowledgement = orders
        .try_clone()
        .map_err(LabError::file("share", "the control port"))?;
    let [console, stdout, stderr, out, control] =
        ours.map(|stream| CountingStream::new(stream, &bytes));
    let messages = child.stderr.take();
    thread::scope(|scope| {
        let (sender, events) = mpsc::channel();
        let console = scope.spawn(watched(&sender, move || Ok(streams::tail(console))));
        let messages = scope.spawn(watched(&sender, move || {
            Ok(messages.map(streams::tail).unwrap_or_default())
        }));
        let stdout = scope.spawn(watched(&sender, move || {
            take(stdout, io::stdout(), options, "standard output")
        }));
        let stderr = scope.spawn(watched(&sender, move || {
            take(stderr, io::stderr(), options, "standard error")
        }));
        let out = scope.spawn(watched(&sender, move || {
            // A machine that has ended doesn't read any more.
            let taken = || drop(acknowledgement.write_all(TAKEN));
            take_folder(out, options, taken)
        }));
        let ready = sender.clone();
        let control = scope.spawn(watched(&sender, move || {
            // There is no receiver after a stream has failed.
            streams::progress(control, || drop(ready.send(Event::Ready)))
        }));
        drop(sender);

        let mut watch = Watch {
            events,
            run: OwnTime::new(child.id()),
            quiet: SilenceTimer::new(child.id(), &bytes),
            is_up: false,
        };
        let end = watch.wait(Some(options), options.quiet_limit);
        let stopped = match end {
            End::Silent(_) | End::Late(_) if watch.is_up => watch.stop(&mut orders),
            _ => end,
        };
        if stopped != End::Closed {
            // It may just have ended by itself.
            let _ = child.kill();
        }
        let ended = child.wait().map_err(LabError::file("wait for", emulator))?;

        let mut tail = joined(console)?;
        let said = joined(messages)?;
        let refused = tail.is_empty() && ended.code().is_some_and(|code| code != 0);
        if !said.is_empty() {
            tail = format!("{tail}\n{emulator}: {said}");
        }
        let streams = MachineOutput {
            console: tail,
            stdout: joined(stdout),
            stderr: joined(stderr),
            out: joined(out),
            progress: joined(control),
            refused,
        };
        streams.finished(end, options)
    })
}

/// Waits for events of the threads, and checks the limits.
struct Watch<'a> {
    events: Receiver<Event>,
    run: OwnTime,
    quiet: SilenceTimer<'a>,
    is_up: bool,
}

impl Watch<'_> {
    /// Waits until every sender is gone, or a limit is reached; that of silence or, if given, one of `limits`.
    fn wait(&mut self, limits: Option<&RunOptions>, quiet_limit: Duration) -> End {
        loop {
            match self.events.recv_timeout(LOOK) {
                Ok(Event::Ready) => self.is_up = true,
                Ok(Event::Closed) => {}
                Ok(Event::Failed) => return End::Failed,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return End::Closed,
            }
            if let Some(limit) = limits.and_then(|limits| self.reached(limits)) {
                return End::Late(limit);
            }
            let quiet_limit = if self.is_up { quiet_limit } else { BOOT_LIMIT };
            if self.quiet.time() >= quiet_limit {
                return End::Silent(quiet_limit);
            }
        }
    }

    /// The limit of the machine's time that is reached.
    fn reached(&self, limits: &RunOptions) -> Option<Duration> {
        let timeout = limits.timeout.filter(|(_, end)| Instant::now() >= *end);
        let run_limit = || limits.run_limit.filter(|it| self.run.elapsed() >= *it);
        timeout.map(|(limit, _)| limit).or_else(run_limit)
    }

    /// Has the command ended and the output folder sent.
    fn stop(&mut self, orders: &mut File) -> End {
        // A machine that has ended doesn't read any more.
        let _ = orders.write_all(STOP);
        self.quiet.begin();
        self.wait(None, STOP_LIMIT)
    }
}

/// The machine's complete output.
struct MachineOutput {
    console: String,
    stdout: Result<Vec<u8>, LabError>,
    stderr: Result<Vec<u8>, LabError>,
    out: Result<(), LabError>,
    progress: Result<Progress, LabError>,
    /// Whether the emulator failed before the machine said anything. One that hangs or reboots ends otherwise.
    refused: bool,
}

impl MachineOutput {
    /// The result of the run. The first cause of a failure precedes others: streams of a machine that was ended are truncated.
    fn finished(self, end: End, options: &RunOptions) -> Result<Finished, LabError> {
        let Self {
            console,
            stdout,
            stderr,
            out,
            progress,
            refused,
        } = self;
        if end == End::Failed {
            let first = [stdout.err(), stderr.err(), out.err(), progress.err()];
            return Err(first
                .into_iter()
                .flatten()
                .next()
                .unwrap_or(LabError::NotUp { console }));
        }
        let progress = progress?;
        let traces = |stderr: &[u8]| {
            Box::new(Traces {
                console: console.clone(),
                stderr: streams::tail(stderr),
                out: options.out.clone(),
                out_failure: match (&out, progress.status) {
                    (Err(error), _) => Some(error.to_string()),
                    (Ok(()), None) => Some("the machine did not send it".to_owned()),
                    (Ok(()), Some(_)) => None,
                },
            })
        };
        let said = stderr.as_deref().unwrap_or_default();
        match (end, progress.status) {
            (End::Late(limit), _) => Err(LabError::Timeout {
                limit,
                traces: traces(said),
            }),
            (End::Silent(limit), _) if progress.ready => Err(LabError::Silent {
                limit,
                traces: traces(said),
            }),
            (_, Some(status)) => {
                out?;
                Ok(Finished {
                    status,
                    stdout: stdout?,
                    stderr: stderr?,
                    console,
                })
            }
            (_, None) if progress.ready => Err(LabError::WentDown {
                traces: traces(said),
            }),
            (_, None) if refused => Err(LabError::Refused { console }),
            (_, None) => Err(LabError::NotUp { console }),
        }
    }
}

/// Reports the job's end, and whether it succeeded, before passing its result on.
fn watched<T, Job: FnOnce() -> Result<T, LabError>>(
    sender: &Sender<Event>,
    job: Job,
) -> impl FnOnce() -> Result<T, LabError> + use<T, Job> {
    let sender = sender.clone();
    move || {
        let result = job();
        let event = match result {
            Ok(_) => Event::Closed,
            Err(_) => Event::Failed,
        };
        // There is no receiver after one of them has failed.
        let _ = sender.send(event);
        result
    }
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn take(
    stream: impl Read,
    sink: impl Write,
    options: &RunOptions,
    what: &'static str,
) -> Result<Vec<u8>, LabError> {
    if options.forward {
        streams::forward(stream, sink, what)?;
        return Ok(Vec::new());
    }
    streams::capture(stream, options.output_limit, what)
}

/// `taken` is called when the folder is there and the stream still open.
fn take_folder(
    stream: impl Read,
    options: &RunOptions,
    taken: impl FnOnce(),
) -> Result<(), LabError> {
    match &options.out {
        Some(folder) => outfolder::unpack(stream, folder, options.out_limit, taken),
        // It wasn't requested, so the machine has nothing to say here.
        None => streams::capture(stream, 0, "output folder").map(drop),
    }
}
