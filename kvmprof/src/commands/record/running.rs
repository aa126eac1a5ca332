//! Recordings of guests that run already.

use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use kvmprof_abi::recorder::REC_STOP;
use kvmprof_abi::wire::{MAX_DATA, device};
use kvmprof_cli::command_line::{Console, PipeWriter, value};
use kvmprof_cli::interrupt::{Interrupt, WaitEnd};
use kvmprof_client::RemoteDevice;
use kvmprof_recording::file::NewFile;
use kvmprof_recording::{SamplingEvent, StackParts};
use kvmprof_vmm::attached::{CONSOLE_POLL, ConsoleFile, ConsoleLooks, ConsoleText};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::exits::ExitBlocks;
use super::limited::LimitedRecording;
use super::progress::Progress;
use crate::commands::record_limit::parse_limit;
use crate::commands::recorder;
use crate::commands::recordings::is_standard;
use crate::commands::targets::TargetArgs;
use crate::commands::units::{parse_look_ticks, parse_stacks};

/// What to do with a recording, for people who have no file for it.
pub const NAME_A_FILE: &str = "name a file with --output";

/// A recording of a guest that runs already; much of it is the same for one that is started.
#[derive(Clone, Debug, Args)]
pub struct RecordingOptions {
    #[command(flatten)]
    pub target: TargetArgs,
    /// How long the file may become, such as 1G (1M at least): there the recording ends, as a whole one
    #[arg(long, value_name = "SIZE", value_parser = parse_limit)]
    pub record_limit: Option<u64>,
    /// How long to record, in seconds; if not given, until the guest ends or Ctrl-C
    #[arg(long, value_name = "N", value_parser = value::seconds)]
    pub seconds: Option<Duration>,
    /// The parts of call stacks that are recorded: kernel, user, both with a comma between them, or
    /// none
    #[arg(long, value_name = "PARTS", default_value = "kernel,user", value_parser = parse_stacks)]
    pub stacks: StackParts,
    /// Record only these processes, by the guest's own pids (0: idle), separated by commas. Ticks of the others are only
    /// counted
    #[arg(long, value_name = "PID", value_parser = kvmprof_recording::parse_pid, value_delimiter = ',', allow_negative_numbers = true)]
    pub pid: Vec<i32>,
    /// Sample one of every N events of a vCPU instead of by the clock, to see what causes them. Exits of the guest to
    /// kvmprof: exits:N (all of them), port:N, port-read:N, port-write:N, mmio:N, mmio-read:N, mmio-write:N. What the host's
    /// kernel counts: halt:N, guest-time:1ms; also of guests of other programs page-faults:N (of guest memory) and kvm-exits:N (all exits to KVM).
    /// What its processor counts: cycles:N, instructions:N, branches:N, branch-misses:N, cache-references:N, cache-misses:N. If not
    /// given, by whatever the guest is sampled by already, else by the clock
    #[arg(long, value_name = "EVENT:N")]
    pub event: Option<SamplingEvent>,
    /// Look at all tasks of a Linux guest, too, once every so many ticks [default: 10]: what each waits for, with the kernel's stack.
    /// kvmprof report --tasks shows them
    #[arg(long, value_name = "EVERY", conflicts_with = "event", num_args = 0..=1, require_equals = true, default_missing_value = "10", value_parser = parse_look_ticks)]
    pub tasks: Option<u32>,
    /// Count the guest's exits to KVM, too, for each second: why it exits, how long that takes, and who takes its time. It needs what
    /// kvmprof exits does. kvmprof report --exits shows them
    #[arg(long, conflicts_with = "kernel")]
    pub exits: bool,
}

impl RecordingOptions {
    /// Records a running guest to the file `output`, `rate` times a second if that is given, and up to the text `until`. Returns a
    /// description of the recording.
    ///
    /// # Errors
    /// The guest can't be recorded, or the file can't be written.
    pub fn record(
        &self,
        output: &Path,
        rate: Option<u32>,
        until: Option<ConsoleText>,
        console: &mut Console<'_>,
    ) -> anyhow::Result<String> {
        let to_output = is_standard(output);
        let interrupt = Interrupt::on_signals().context("Cannot catch signals")?;
        let until = until.map(ConsoleEnd::open).transpose()?;
        // It looks at the guest before it counts.
        let exits = self
            .exits
            .then(|| ExitBlocks::start(&self.target.process()?));
        let mut exits = exits.transpose()?;
        let connection = self.target.connect(self.event.is_some(), console)?;
        let recorder = connection.open(device::RECORDER, 0)?;
        let file = (!to_output).then(|| NewFile::create_recording(output));
        let file = file.transpose().with_context(|| writing(output))?;
        recorder::choose(&recorder, &self.pid)?;
        if let Some(ticks) = self.tasks {
            recorder::choose_tasks(&recorder, ticks)?;
        }
        if let Some(hz) = rate {
            recorder::choose_rate(&connection, &recorder, hz)?;
        }
        let otherwise = "Cannot start to record";
        recorder::start(&connection, &recorder, self.stacks, self.event, otherwise)?;
        exits.as_mut().map(ExitBlocks::begin);
        let mut progress = Progress::on_terminal(self.seconds);
        std::thread::scope(|scope| {
            let (device, over, time) = (&recorder, interrupt.clone(), self.seconds);
            scope.spawn(move || stop_in_time(device, &over, time));
            if let Some(until) = until {
                let interrupt = interrupt.clone();
                scope.spawn(move || until.wait(&interrupt));
            }
            let mut copier = Copier {
                recorder: &recorder,
                path: output,
                limit: self.record_limit,
                exits,
                progress: &mut progress,
            };
            let result = match file {
                None => copier.copy_to(console.binary("a recording", NAME_A_FILE)?, |_| Ok(())),
                Some(file) => copier.copy_to_file(file),
            };
            interrupt.done();
            result
        })?;
        Ok(progress.finish())
    }
}

/// Copies a recorder's stream.
pub struct Copier<'a> {
    /// The recorder, which was started.
    pub recorder: &'a RemoteDevice,
    /// The destination, for errors.
    pub path: &'a Path,
    /// Maximum length of the copy, in bytes.
    pub limit: Option<u64>,
    /// The exits that are recorded, too.
    pub exits: Option<ExitBlocks>,
    /// Counts what comes.
    pub progress: &'a mut Progress,
}

/// Why a copy has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyEnd {
    /// The recorder has ended: the guest has, or a client has stopped it.
    Recorder,
    /// It is as long as it may be.
    Limit,
}

impl Copier<'_> {
    /// Copies the recording to `file`, which replaces an older one after the first ticks.
    fn copy_to_file(&mut self, file: NewFile) -> anyhow::Result<CopyEnd> {
        let mut file = PipeWriter(file);
        let end = self.copy_to(&mut file, |file| file.0.keep())?;
        if !self.progress.has_ticks() && file.0.would_replace() {
            bail!(
                "No tick came in this time: {} keeps the older recording",
                self.path.display()
            );
        }
        file.0.keep().with_context(|| writing(self.path))?;
        Ok(end)
    }

    /// Writes the whole stream to the recording's end. Calls `with_ticks` after the first ticks, and whatever comes after them.
    ///
    /// # Errors
    /// The connection has ended, or writing failed.
    pub fn copy_to<W: Write + ?Sized>(
        &mut self,
        output: &mut W,
        mut with_ticks: impl FnMut(&mut W) -> io::Result<()>,
    ) -> anyhow::Result<CopyEnd> {
        let is_changed = self.limit.is_some() || self.exits.is_some();
        let limit = self.limit.unwrap_or(u64::MAX);
        let mut limited = is_changed.then(|| LimitedRecording::new(limit));
        loop {
            let mut bytes = self.recorder.read(MAX_DATA).with_context(|| {
                format!(
                    "The guest's recorder broke off; {} has what came until then",
                    self.path.display()
                )
            })?;
            if bytes.is_empty() {
                return Ok(CopyEnd::Recorder);
            }
            let mut goes_on = true;
            if let Some(limited) = &mut limited {
                let mut passed = Vec::new();
                goes_on = limited.pass(&bytes, self.exits.as_mut(), &mut passed)?;
                bytes = passed;
            }
            self.progress.count(&bytes);
            let mut written = output.write_all(&bytes).and_then(|()| output.flush());
            if self.progress.has_ticks() {
                written = written.and_then(|()| with_ticks(output));
            }
            written.with_context(|| writing(self.path))?;
            if !goes_on {
                log::warn!("The recording has reached --record-limit, and ends here");
                return Ok(CopyEnd::Limit);
            }
        }
    }
}

/// Ends a recording at a text on the guest's console.
struct ConsoleEnd {
    looks: ConsoleLooks,
    found: EventFd,
}

impl ConsoleEnd {
    fn open(text: ConsoleText) -> anyhow::Result<Self> {
        let found = EventFd::new(EFD_NONBLOCK).context("Cannot make a descriptor")?;
        let other = found.try_clone().context("Cannot make a descriptor")?;
        let looks = ConsoleFile::open(text)?.looks(other);
        Ok(Self { looks, found })
    }

    /// Raises `interrupt` once the text has come; returns when the work is done.
    fn wait(mut self, interrupt: &Interrupt) {
        while !interrupt.comes_before(Instant::now().checked_add(CONSOLE_POLL)) {
            if let Err(error) = self.looks.look() {
                log::error!("The file of the guest's console can't be read any more: {error}");
                return;
            }
            if self.found.read().is_ok() {
                interrupt.stopper().stop();
                return;
            }
        }
    }
}

fn writing(path: &Path) -> String {
    format!("Cannot write {}", path.display())
}

/// Ends the recording when its time is over, or earlier on an interrupt.
fn stop_in_time(recorder: &RemoteDevice, interrupt: &Interrupt, time: Option<Duration>) {
    if interrupt.wait(time) == WaitEnd::Stop {
        // A guest that has ended has also ended its recordings.
        let _ = recorder.ioctl(REC_STOP, 0);
    }
}
