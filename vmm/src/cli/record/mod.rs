//! `kvmprof record`.

mod progress;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use kvmprof_abi::recorder::REC_STOP;
use kvmprof_abi::wire::{MAX_DATA, device};
use kvmprof_tools::client::{Connection, RemoteDevice};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use progress::Progress;

use super::recorder;
use super::units::parse_stacks;
use crate::introspection::StackWish;

/// Options of `kvmprof record`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: kvmprof record --socket /run/guest.sock --output out.kvmprof --seconds 10 --pid 101 --pid 230"
)]
pub struct RecordArguments {
    /// The socket of the running guest
    #[arg(long, value_name = "PATH", env = "KVMPROF_SOCKET")]
    socket: PathBuf,
    /// The file, which is made anew
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// For how long; if not given, until the guest ends or by Ctrl-C
    #[arg(long, value_name = "N", value_parser = parse_seconds)]
    seconds: Option<Duration>,
    /// The parts of call stacks that are recorded: kernel, user, both with a comma between them, or
    /// none
    #[arg(long, value_name = "PARTS", default_value = "kernel,user", value_parser = parse_stacks)]
    stacks: StackWish,
    /// Only this process (by the guest's own pid; 0: idle); may be given more than once. Ticks of the others are only
    /// counted
    #[arg(long, value_name = "PID", allow_negative_numbers = true)]
    pid: Vec<i32>,
}

/// Records a running guest.
///
/// # Errors
/// There is no guest at the socket, or it has no clock, or the file can't be written.
pub fn record(arguments: &RecordArguments) -> anyhow::Result<ExitCode> {
    let (sender, over) = channel();
    end_by_signals(sender.clone()).context("Cannot catch signals")?;
    let connection = Connection::connect(&arguments.socket)?;
    let recorder = connection.open(device::RECORDER, 0)?;
    let output = arguments.output.as_path();
    let mut file = File::create(output).with_context(|| writing(output))?;
    recorder::choose(&recorder, &arguments.pid)?;
    recorder::start(&recorder, arguments.stacks, "Cannot start to record")?;
    let mut progress = Progress::on_terminal(arguments.seconds);
    let (device, time) = (&recorder, arguments.seconds);
    std::thread::scope(|scope| {
        scope.spawn(move || stop_in_time(device, &over, time));
        let result = copy(&recorder, &mut file, output, &mut progress);
        // Nobody waits any more when the time was up.
        let _ = sender.send(());
        result
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Ends the recording when its time is up, or earlier when it is told to.
fn stop_in_time(recorder: &RemoteDevice, over: &Receiver<()>, time: Option<Duration>) {
    match time {
        Some(time) => drop(over.recv_timeout(time)),
        None => drop(over.recv()),
    }
    // A guest that has ended has ended its recordings, too.
    let _ = recorder.ioctl(REC_STOP, 0);
}

/// Writes all that comes, to the recording's end.
fn copy(
    recorder: &RemoteDevice,
    file: &mut File,
    output: &Path,
    progress: &mut Progress,
) -> anyhow::Result<()> {
    loop {
        let bytes = recorder
            .read(MAX_DATA)
            .with_context(|| format!("The recording {} ends too early", output.display()))?;
        if bytes.is_empty() {
            progress.finish();
            return Ok(());
        }
        file.write_all(&bytes).with_context(|| writing(output))?;
        progress.show(&bytes);
    }
}

fn writing(output: &Path) -> String {
    format!("Cannot write {}", output.display())
}

/// SIGINT and SIGTERM end the recording.
fn end_by_signals(sender: Sender<()>) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for _ in signals.forever() {
                // Nobody waits any more when the recording has ended.
                let _ = sender.send(());
            }
        })?;
    Ok(())
}

fn parse_seconds(word: &str) -> Result<Duration, String> {
    word.parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|time| !time.is_zero())
        .ok_or_else(|| format!("'{word}' is no number of seconds above 0"))
}
