//! `kvmprof record`.

mod limited;
mod progress;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use kvmprof_abi::recorder::REC_STOP;
use kvmprof_abi::wire::{MAX_DATA, device};
use kvmprof_client::RemoteDevice;
use kvmprof_recording::file::NewFile;
use kvmprof_tools::command_line::{
    Command, Console, ExitStatus, PipeWriter, SocketArgs, usage, value,
};
use kvmprof_tools::interrupt::{Interrupt, Woken};

use limited::Limited;
use progress::Progress;

use super::record_limit::parse_limit;
use super::recorder;
use super::recordings::is_standard;
use super::units::parse_stacks;
use kvmprof_recording::{SamplingEvent, StackParts};

/// Options of `kvmprof record`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0; 1 when there is no guest at the socket, it has no clock, its host \
    doesn't count the event, no tick came, or the file cannot be written; 2 for wrong options.\n\n\
    Examples:\n  kvmprof record --socket /run/guest.sock --output out.kvmprof --seconds 10 --pid 101,230\n  \
    kvmprof record --socket /run/guest.sock --output exits.kvmprof --seconds 10 --event exits:10"
)]
pub struct RecordArguments {
    #[command(flatten)]
    pub(super) socket: SocketArgs,
    /// The file; - is standard output. An older file is replaced when the first samples come
    #[arg(short, long, value_name = "FILE")]
    pub(super) output: PathBuf,
    /// How long the file may become, such as 1G (1M at least): there the recording ends, as a whole one
    #[arg(long, value_name = "SIZE", value_parser = parse_limit)]
    pub(super) record_limit: Option<u64>,
    /// How long to record, in seconds; if not given, until the guest ends or Ctrl-C
    #[arg(long, value_name = "N", value_parser = value::seconds)]
    pub(super) seconds: Option<Duration>,
    /// The parts of call stacks that are recorded: kernel, user, both with a comma between them, or
    /// none
    #[arg(long, value_name = "PARTS", default_value = "kernel,user", value_parser = parse_stacks)]
    pub(super) stacks: StackParts,
    /// Record only these processes, by the guest's own pids (0: idle), separated by commas. Ticks of the others are only
    /// counted
    #[arg(long, value_name = "PID", value_parser = value::pid, value_delimiter = ',', allow_negative_numbers = true)]
    pub(super) pid: Vec<i32>,
    /// Sample one of every N events of a vCPU instead of by the clock, to see what causes them. Exits of the guest to
    /// kvmprof: exits:N (all of them), port:N, port-read:N, port-write:N, mmio:N, mmio-read:N, mmio-write:N. What the host's
    /// kernel counts: halt:N, page-faults:N (of guest memory), kvm-exits:N (all exits to KVM), guest-time:1ms. What its
    /// processor counts: cycles:N, instructions:N, branches:N, branch-misses:N, cache-references:N, cache-misses:N. If not
    /// given, by whatever the guest is sampled by already, else by the clock
    #[arg(long, value_name = "EVENT:N")]
    pub(super) event: Option<SamplingEvent>,
}

impl Command for RecordArguments {
    /// Records a running guest.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let summary = self.record(console)?;
        if is_standard(&self.output) {
            console.say(summary);
        } else {
            let line = writeln!(console.output, "{}: {summary}", self.output.display());
            line.context("Cannot write to standard output")?;
        }
        Ok(ExitStatus::SUCCESS)
    }
}

impl RecordArguments {
    /// Records a running guest; returns what is in the recording, in words.
    ///
    /// # Errors
    /// What keeps it from being recorded, or written.
    pub(super) fn record(&self, console: &mut Console<'_>) -> anyhow::Result<String> {
        let to_output = is_standard(&self.output);
        self.check()?;
        let interrupt = Interrupt::on_signals().context("Cannot catch signals")?;
        let connection = self.socket.connect()?;
        let recorder = connection.open(device::RECORDER, 0)?;
        let file = (!to_output).then(|| NewFile::create(&self.output));
        let file = file.transpose().with_context(|| self.writing())?;
        recorder::choose(&recorder, &self.pid)?;
        let otherwise = "Cannot start to record";
        recorder::start(&connection, &recorder, self.stacks, self.event, otherwise)?;
        let mut progress = Progress::on_terminal(self.seconds);
        std::thread::scope(|scope| {
            let (device, over, time) = (&recorder, interrupt.clone(), self.seconds);
            scope.spawn(move || stop_in_time(device, &over, time));
            let result = match file {
                None => self.copy(&recorder, console.output, &mut progress, |_| Ok(())),
                Some(file) => self.copy_to_file(&recorder, file, &mut progress),
            };
            interrupt.done();
            result
        })?;
        Ok(progress.finish())
    }

    /// Checks what shows before there is a guest.
    fn check(&self) -> anyhow::Result<()> {
        if is_standard(&self.output) && io::stdout().is_terminal() {
            bail!(
                "Standard output is a terminal, and a recording isn't text: name a file with --output"
            );
        }
        if self.output.extension().is_some_and(|end| end == "gz") {
            return Err(usage(format_args!(
                "A recording is packed already: give {} a name without .gz",
                self.output.display()
            )));
        }
        Ok(())
    }

    /// Copies the recording to `file`, which replaces an older one as soon as there are ticks in it.
    fn copy_to_file(
        &self,
        recorder: &RemoteDevice,
        file: NewFile,
        progress: &mut Progress,
    ) -> anyhow::Result<()> {
        let mut file = PipeWriter(file);
        self.copy(recorder, &mut file, progress, |file| file.0.keep())?;
        if !progress.has_ticks() && file.0.would_replace() {
            bail!(
                "No tick came in this time: {} keeps the older recording",
                self.output.display()
            );
        }
        file.0.keep().with_context(|| self.writing())
    }

    /// Writes all that comes, to the recording's end; calls `with_ticks` when there are ticks in it.
    fn copy<W: Write + ?Sized>(
        &self,
        recorder: &RemoteDevice,
        output: &mut W,
        progress: &mut Progress,
        mut with_ticks: impl FnMut(&mut W) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        let mut limited = self.record_limit.map(Limited::new);
        loop {
            let mut bytes = recorder.read(MAX_DATA).with_context(|| {
                format!(
                    "The guest's recorder broke off; {} has what came until then",
                    self.output.display()
                )
            })?;
            if bytes.is_empty() {
                return Ok(());
            }
            let mut goes_on = true;
            if let Some(limited) = &mut limited {
                let mut passed = Vec::new();
                goes_on = limited.pass(&bytes, &mut passed)?;
                bytes = passed;
            }
            progress.count(&bytes);
            let mut written = output.write_all(&bytes).and_then(|()| output.flush());
            if progress.has_ticks() {
                written = written.and_then(|()| with_ticks(output));
            }
            written.with_context(|| self.writing())?;
            if !goes_on {
                log::warn!("The recording has reached --record-limit, and ends here");
                return Ok(());
            }
        }
    }

    fn writing(&self) -> String {
        format!("Cannot write {}", self.output.display())
    }
}

/// Ends the recording when its time is up, or earlier by an interrupt.
fn stop_in_time(recorder: &RemoteDevice, interrupt: &Interrupt, time: Option<Duration>) {
    if interrupt.wait(time) == Woken::Stop {
        // A guest that has ended has ended its recordings, too.
        let _ = recorder.ioctl(REC_STOP, 0);
    }
}
