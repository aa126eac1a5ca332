//! `kvmprof top`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use clap::Args;
use kvmprof_abi::wire::device;
use kvmprof_report::top::{TopOptions, run};
use kvmprof_tools::client::{ClientError, Connection, RemoteDevice};

use super::recorder;
use super::units::parse_stacks;
use crate::introspection::StackWish;

/// Bytes of the stream that are read at a time.
const PIECE: usize = 256 << 10;
/// Pieces that wait to be shown; the rest waits in the guest's recorder, which counts what it has to drop.
const PIECES: usize = 8;
/// Longest window and interval.
const LONGEST: Duration = Duration::from_secs(3600);

/// Options of `kvmprof top`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: kvmprof top --socket /run/guest.sock --count 1 --interval 5 | head -40"
)]
pub struct TopArguments {
    /// The socket of the running guest
    #[arg(long, value_name = "PATH", env = "KVMPROF_SOCKET")]
    socket: PathBuf,
    /// How many seconds back is looked
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_time)]
    window: Duration,
    /// The parts of call stacks that are taken: kernel, user, both with a comma between them, or none
    #[arg(long, value_name = "PARTS", default_value = "kernel,user", value_parser = parse_stacks)]
    stacks: StackWish,
    /// In a pipe: seconds between two tables
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = parse_time)]
    interval: Duration,
    /// In a pipe: end after so many tables
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// In a pipe: how many rows each table has at most
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,
    /// No colours, as with NO_COLOR in the environment
    #[arg(long, alias = "no-color")]
    no_colour: bool,
}

/// Shows a running guest until the user quits, or it ends (in a pipe).
///
/// # Errors
/// There is no guest at the socket, or it has no clock; the terminal can't be used.
pub fn top(arguments: &TopArguments) -> anyhow::Result<ExitCode> {
    let connection = Connection::connect(&arguments.socket)?;
    let recorder = connection.open(device::RECORDER, 0)?;
    recorder::start(&recorder, arguments.stacks, "Cannot start to look")?;
    let options = TopOptions {
        window: arguments.window,
        interval: arguments.interval,
        count: arguments.count,
        rows: arguments.top,
        // https://no-color.org
        colours: !arguments.no_colour
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
    };
    let device = &recorder;
    std::thread::scope(|scope| {
        // In here, so that it is gone when the view ends, whatever ends it: the reader must not wait for it.
        let (sender, feed) = sync_channel(PIECES);
        let _end = Disconnect(&connection);
        scope.spawn(move || read(device, &sender));
        run(&feed, &options)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Ends the connection when the view ends, also by a panic: the reader waits no longer then.
struct Disconnect<'a>(&'a Connection);

impl Drop for Disconnect<'_> {
    fn drop(&mut self) {
        self.0.disconnect();
    }
}

/// Hands on all that comes, to the recording's end.
fn read(recorder: &RemoteDevice, sender: &SyncSender<Result<Vec<u8>, ClientError>>) {
    loop {
        let result = recorder.read(PIECE);
        let (is_end, has_failed) = (result.as_ref().is_ok_and(Vec::is_empty), result.is_err());
        // Nobody takes it any more when the view has ended.
        if is_end || sender.send(result).is_err() || has_failed {
            return;
        }
    }
}

fn parse_time(word: &str) -> Result<Duration, String> {
    word.parse()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|time| !time.is_zero() && *time <= LONGEST)
        .ok_or_else(|| format!("'{word}' is no number of seconds above 0, at most 3600"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_bounded() {
        assert_eq!(parse_time("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "x", "", "inf", "1e9", "NaN"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }
}
