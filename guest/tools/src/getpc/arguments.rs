//! The command line of getpc.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use kvmprof_abi::pcs::{DEF_BUFNO, Format, MAX_BSIZE, MAX_BUFS, MAX_LIST, MIN_BSIZE};

use super::Plan;
use kvmprof_cli::command_line::{SocketArgs, value};

/// Gather program counter samples of the guest into a file for pcstat
///
/// getpc opens the device pcs: through kvmprof's socket on the host, at /dev/pcs in the guest. One program at a time can
/// have it open. Without --kernel, --pid and --group everything is sampled, as with --all; several of these options
/// select what any of them selects. Idle ticks, and ticks of what was not selected, are only counted. SIGINT and SIGTERM
/// end getpc; the file then has all samples until that moment.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exit status: 0, also when samples were lost (with a warning on standard error); 1 when the \
    device is in use or cannot be reached, or the file cannot be written; 2 for wrong options.\n\n\
    Examples:\n  getpc --all 5 | pcstat\n  getpc --kernel --buffers 10 -o samples 60\n  \
    getpc --pid 1,57 --hz 1000 -o samples"
)]
pub struct Arguments {
    /// Which guest
    #[command(flatten)]
    pub socket: SocketArgs,

    /// Sample the kernel
    #[arg(long, short)]
    pub kernel: bool,

    /// Sample the kernel and every process
    #[arg(long, short)]
    pub all: bool,

    /// Sample these processes in user mode: at most 5, separated by commas
    #[arg(
        long,
        short,
        visible_alias = "pids",
        value_name = "PID",
        value_parser = kvmprof_recording::parse_pid,
        value_delimiter = ','
    )]
    pub pid: Vec<i32>,

    /// Sample the processes of this process group in user mode
    #[arg(long, short, value_name = "GROUP")]
    pub group: Option<i32>,

    /// How many buffers the device has, 3 to 10; with more of them it loses fewer samples
    #[arg(long, short, value_name = "COUNT", default_value_t = 3,
        value_parser = clap::value_parser!(u8).range(3..=10))]
    pub buffers: u8,

    /// The size of a buffer in bytes: a power of two, 1024 to 65536
    #[arg(long, value_name = "BYTES", value_parser = parse_buffer_size)]
    pub buffer_size: Option<u32>,

    /// The form of the records
    #[arg(long, short, value_enum, default_value_t = FormatName::Native)]
    pub format: FormatName,

    /// The rate of the profiling clock, 1 to 10000 Hz [default: unchanged]
    #[arg(long, value_parser = value::rate)]
    pub hz: Option<u32>,

    /// The file that samples are written to; - is standard output [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// How long to sample, in seconds, such as 5 or 0.5 [default: until interrupted]
    #[arg(value_parser = value::seconds)]
    pub seconds: Option<Duration>,
}

/// The form of the records on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum FormatName {
    /// 16-byte records for 64-bit guests
    #[default]
    Native,
    /// The 8-byte records of the original pcs.h; pid and pc are truncated
    Classic,
}

impl From<FormatName> for Format {
    fn from(name: FormatName) -> Self {
        match name {
            FormatName::Native => Self::Native,
            FormatName::Classic => Self::Classic,
        }
    }
}

// The ranges above are literals because help texts show them.
const _: () = assert!(DEF_BUFNO == 3 && MAX_BUFS == 10 && MAX_LIST == 5);

fn parse_buffer_size(text: &str) -> Result<u32, String> {
    let size: usize = text.parse().map_err(|_| "not a number".to_owned())?;
    if size.is_power_of_two() && (MIN_BSIZE..=MAX_BSIZE).contains(&size) {
        u32::try_from(size).map_err(|error| error.to_string())
    } else {
        Err(format!(
            "not a power of two from {MIN_BSIZE} to {MAX_BSIZE}"
        ))
    }
}

impl Arguments {
    /// The requests to the device.
    ///
    /// # Errors
    /// A message about too many pids, or one that no process has.
    pub fn plan(&self) -> Result<Plan, String> {
        if self.pid.len() > MAX_LIST {
            let count = self.pid.len();
            return Err(format!(
                "{count} pids given: the device takes at most {MAX_LIST}"
            ));
        }
        if let Some(pid) = self.pid.iter().find(|pid| **pid < 1) {
            return Err(format!(
                "No process has pid {pid}: --pid takes those from 1 on, and --all has idle time too"
            ));
        }
        let selected = self.kernel || !self.pid.is_empty() || self.group.is_some();
        Ok(Plan {
            kernel: self.kernel,
            all: self.all || !selected,
            pids: self.pid.clone(),
            group: self.group,
            more_buffers: usize::from(self.buffers).saturating_sub(DEF_BUFNO),
            buffer_size: self.buffer_size,
            format: self.format.into(),
            hz: self.hz,
            duration: self.seconds,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(words: &[&str]) -> Result<Plan, String> {
        let words = ["getpc"].iter().chain(words);
        let command = Command::try_parse_from(words).map_err(|error| error.to_string())?;
        command.arguments.plan()
    }

    #[test]
    fn everything_is_sampled_unless_something_is_chosen() {
        assert!(parse(&[]).unwrap().all);
        assert!(!parse(&["--kernel"]).unwrap().all);
        assert!(!parse(&["--pid", "1,2"]).unwrap().all);
        assert!(!parse(&["--group", "7"]).unwrap().all);
        let both = parse(&["--kernel", "--all", "0.5"]).unwrap();
        assert!(both.all && both.kernel);
        assert_eq!(both.duration, Some(Duration::from_millis(500)));
    }

    #[test]
    fn wrong_uses_have_messages() {
        for (words, expected) in [
            (
                ["--pids", "1,2,3,4,5,6"],
                "6 pids given: the device takes at most 5",
            ),
            (["--buffers", "11"], "11 is not in 3..=10"),
            (
                ["--buffer-size", "1000"],
                "not a power of two from 1024 to 65536",
            ),
            (["--hz", "100000"], "from 1 to 10000"),
            (["--all", "0"], "more than 0"),
            (["--all", "NaN"], "a number of seconds is needed"),
            (["--format", "new"], "native, classic"),
            (["--pid", "dd"], "has to be a number"),
            (["--pid", "7,0"], "No process has pid 0"),
        ] {
            let error = parse(&words).unwrap_err();
            assert!(error.contains(expected), "{words:?}: {error}");
        }
    }
}
