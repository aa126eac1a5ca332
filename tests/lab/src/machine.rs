//! The QEMU process: started, listened to, and ended on every way out.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::error::Traces;
use crate::qemu::Qemu;
use crate::quiet::{OwnTime, Quiet};
use crate::streams::{self, Counted, Progress};
use crate::{LabError, outfolder, tsc};

/// All that QEMU can emulate, but for XSAVE and what needs it: KVM in the
/// machine isn't told of its guest's XSETBV, so that the guest finds a CPUID
/// that contradicts itself. Some kernels crash of that. And without fast copies
/// of bytes, for which kernels use `rep movsb`: emulated, it is slower than their loops.
const CPU: &str = "max,-xsave,-avx,-avx2,-f16c,-fma,-pku,-vaes,-vpclmulqdq,-fsrm,-erms";
/// A fifth level makes each walk of the machine's and its guests' page tables longer by nearly half, and all of a guest slower by a tenth.
const FOUR_LEVELS: &str = ",-la57";

/// How long a machine may be silent until it is up. It takes 2 s, and one that hangs never comes up.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// How long a machine may be silent once its command was stopped, until it has sent the output folder.
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// How often the limits are looked at.
const LOOK: Duration = Duration::from_millis(200);
/// What the first process understands as the end of the command.
const STOP: &[u8] = b"stop\n";
/// Tells the machine that the output folder is here.
const TAKEN: &[u8] = b"taken\n";

/// Kernel command line. A panic ends the machine; TCG's TSC is the host's, so
/// it needs no watchdog. Nor does RCU: a stall is a busy host's, and its report
/// interrupts the other CPU by an NMI, which QEMU's emulated SVM doesn't survive
/// while that runs a guest. The rest saves time that emulation makes long.
const COMMAND_LINE: &str = "console=ttyS0 quiet panic=-1 oops=panic tsc=reliable nokaslr \
    mitigations=off cryptomgr.notests ipv6.disable=1 audit=0 random.trust_cpu=on \
    rcupdate.rcu_expedited=1 rcupdate.rcu_cpu_stall_suppress=1 nowatchdog 8250.nr_uarts=1 no_timer_check";

/// Console, standard output, standard error, output folder, control: in the
/// order in which QEMU is given them and the first process numbers its ports.
type Streams = [UnixStream; 5];

/// The stream that is the serial console and no virtio port.
const CONSOLE: usize = 0;
/// The stream that is the control port.
const CONTROL: usize = 4;

/// A machine to start.
pub(crate) struct Machine<'a> {
    /// What emulates it.
    pub qemu: &'a Qemu,
    /// The bzImage.
    pub kernel: &'a Path,
    /// The whole initramfs, in a file that needs no name.
    pub initramfs: std::fs::File,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory: u64,
    /// Whether its processors have page tables with five levels.
    pub has_five_levels: bool,
}

/// How long the machine runs, and what to do with what comes back.
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

/// How it went.
pub(crate) struct Finished {
    pub status: u8,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub console: String,
}

/// Runs the machine until it ends by itself, sends what it must not, is silent for
/// too long, or the time is up.
pub(crate) fn run(machine: &Machine, options: &RunOptions) -> Result<Finished, LabError> {
    let (ours, theirs) = stream_pairs()?;
    let child = start(machine, &theirs)?;
    // Only QEMU's own copies may be left, so that its end is seen.
    drop(theirs);
    follow(child, ours, options)
}

/// [`COMMAND_LINE`] with the rate of the time-stamp counter, in kHz. On a busy host a kernel that measures that itself, by devices that QEMU
/// emulates, has been seen to be wrong by a factor of 40: all guests of such a machine have clocks that run too fast by as much,
/// and get nowhere for timers.
fn command_line() -> String {
    format!("{COMMAND_LINE} tsc_early_khz={}", tsc::rate_khz())
}

fn stream_pairs() -> Result<(Streams, Streams), LabError> {
    let pair = || UnixStream::pair().map_err(LabError::file("create", "a socket pair"));
    let (a, b, c, d, e) = (pair()?, pair()?, pair()?, pair()?, pair()?);
    Ok(([a.0, b.0, c.0, d.0, e.0], [a.1, b.1, c.1, d.1, e.1]))
}

fn start(machine: &Machine, streams: &[UnixStream]) -> Result<Child, LabError> {
    let mut inherited: Vec<RawFd> = streams.iter().map(AsRawFd::as_raw_fd).collect();
    let initramfs = machine.initramfs.as_raw_fd();
    let levels = if machine.has_five_levels {
        ""
    } else {
        FOUR_LEVELS
    };
    let cpu = format!("{CPU}{levels}");
    let mut qemu = machine.qemu.command();
    // Not microvm, though it boots quicker: one boot in ten hangs there.
    qemu.args(["-machine", "q35,sata=off,smm=off,smbus=off,vmport=off"])
        .args(["-accel", "tcg,thread=multi", "-cpu", &cpu])
        .args(["-smp", &machine.cpus.to_string()])
        .args(["-m", &format!("{}M", machine.memory)])
        .args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
        ])
        .args(["-monitor", "none", "-append", &command_line()])
        .arg("-kernel")
        .arg(machine.kernel)
        .args(["-initrd", &format!("/proc/self/fd/{initramfs}")])
        .args(["-device", "virtio-serial-pci"]);
    for (number, stream) in inherited.iter().enumerate() {
        qemu.args(["-chardev", &format!("socket,id=stream{number},fd={stream}")]);
        if number == CONSOLE {
            qemu.args(["-serial", &format!("chardev:stream{number}")]);
        } else {
            let port = format!("virtserialport,nr={number},chardev=stream{number}");
            qemu.args(["-device", &port]);
        }
    }
    inherited.push(initramfs);
    qemu.stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    // SAFETY: the closure runs between fork and exec and makes only system
    // calls, which are async-signal-safe; it allocates nothing. The descriptors
    // are those of `streams` and `initramfs`, which outlive the spawn.
    unsafe { qemu.pre_exec(move || prepare_child(&inherited)) };
    let spawned = qemu.spawn();
    spawned.map_err(LabError::file("run", machine.qemu.program()))
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

/// What the threads tell the one that waits.
enum Event {
    /// The machine is up.
    Ready,
    /// A stream came to its end.
    Closed,
    /// A stream could not be taken any further.
    Failed,
}

/// How the waiting ended.
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

fn follow(mut child: Child, ours: Streams, options: &RunOptions) -> Result<Finished, LabError> {
    let bytes = AtomicU64::new(0);
    let mut orders = ours[CONTROL]
        .try_clone()
        .map_err(LabError::file("share", "the control port"))?;
    let mut acknowledgement = orders
        .try_clone()
        .map_err(LabError::file("share", "the control port"))?;
    let [console, stdout, stderr, out, control] = ours.map(|stream| Counted::new(stream, &bytes));
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
            // Nobody listens any more once a stream has failed.
            streams::progress(control, || drop(ready.send(Event::Ready)))
        }));
        drop(sender);

        let mut watch = Watch {
            events,
            run: OwnTime::new(child.id()),
            quiet: Quiet::new(child.id(), &bytes),
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
        let ended = child.wait().map_err(LabError::file("wait for", "QEMU"))?;

        let mut tail = joined(console)?;
        let said = joined(messages)?;
        if !said.is_empty() {
            tail = format!("{tail}\nqemu: {said}");
        }
        let streams = Taken {
            console: tail,
            stdout: joined(stdout),
            stderr: joined(stderr),
            out: joined(out),
            progress: joined(control),
        };
        streams.finished(end, ended, options)
    })
}

/// Waits for what the threads tell, and looks at the limits.
struct Watch<'a> {
    events: Receiver<Event>,
    run: OwnTime,
    quiet: Quiet<'a>,
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
    fn stop(&mut self, orders: &mut UnixStream) -> End {
        // A machine that has ended doesn't read any more.
        let _ = orders.write_all(STOP);
        self.quiet.begin();
        self.wait(None, STOP_LIMIT)
    }
}

/// All that came from a machine.
struct Taken {
    console: String,
    stdout: Result<Vec<u8>, LabError>,
    stderr: Result<Vec<u8>, LabError>,
    out: Result<(), LabError>,
    progress: Result<Progress, LabError>,
}

impl Taken {
    /// What the run amounts to. The first cause of a failure comes first: streams of a machine that was ended are cut short.
    fn finished(
        self,
        end: End,
        ended: ExitStatus,
        options: &RunOptions,
    ) -> Result<Finished, LabError> {
        let Self {
            console,
            stdout,
            stderr,
            out,
            progress,
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
            // QEMU's way to refuse; a machine that reboots or hangs ends otherwise.
            (_, None) if ended.code().is_some_and(|code| code != 0) => {
                Err(LabError::Refused { console })
            }
            (_, None) => Err(LabError::NotUp { console }),
        }
    }
}

/// Tells of the job's end, and whether it went well, before handing it over.
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
        // Nobody listens any more once one of them has failed.
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
        // Nobody asked for it, so the machine has nothing to say here.
        None => streams::capture(stream, 0, "output folder").map(drop),
    }
}
