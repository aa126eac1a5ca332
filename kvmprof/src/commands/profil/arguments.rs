//! The common options of profil and pcsample, and their values.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use kvmprof_abi::profil::{Call, Function, MAX_KEPT, RATE_HZ, WORD_SIZE};
use kvmprof_cli::command_line::value;
use kvmprof_cli::table::{USUAL_ROWS, most_rows};
use kvmprof_recording::SamplingEvent;

use super::device::off;
use super::process::Process;
use crate::commands::targets::TargetArgs;
use crate::commands::units::{format_memory, parse_memory};

/// Which process, for how long, and where names come from.
#[derive(Debug, Args)]
pub struct ProcessArguments {
    #[command(flatten)]
    pub target: TargetArgs,
    /// The process, by the guest's own pid
    #[arg(long, short, value_name = "PID", value_parser = process_id, allow_negative_numbers = true)]
    pub pid: i32,
    /// How long to collect, in seconds; if not given, until Ctrl-C, or the guest or the process's program ends
    #[arg(long, value_name = "N", value_parser = value::seconds, allow_negative_numbers = true)]
    pub seconds: Option<Duration>,
    /// Take every tick of the clock instead of 100 a second on each vCPU
    #[arg(long)]
    pub every_tick: bool,
    /// Print a JSON document instead of the table
    #[arg(long)]
    pub json: bool,
    /// The most rows that the table has [default: 20; all of a JSON document's]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub top: Option<usize>,
    /// A folder with the guest's files, for the functions of programs that the guest has no symbols of
    #[arg(long, value_name = "DIR")]
    pub sysroot: Option<PathBuf>,
}

/// The id of a process that can be profiled.
fn process_id(text: &str) -> Result<i32, String> {
    let pid = kvmprof_recording::parse_pid(text)?;
    if pid < 1 {
        return Err("a process id above 0 is needed: idle time and what runs in the kernel alone have no user mode".to_owned());
    }
    Ok(pid)
}

/// An address or a scale: hexadecimal after 0x, otherwise decimal.
fn number(text: &str) -> Option<u64> {
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    match hexadecimal {
        // from_str_radix also accepts a sign.
        Some(digits) if digits.starts_with('+') => None,
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The first address of a region. Other tools print addresses without 0x, so that digits alone would be a wrong address.
pub fn address(text: &str) -> Result<u64, String> {
    let is_marked = text.starts_with("0x") || text.starts_with("0X");
    let address = number(text).filter(|_| is_marked);
    address
        .ok_or_else(|| "an address is needed, in hexadecimal with 0x, such as 0x401000".to_owned())
}

/// The number of program counters that an array has room for.
pub fn samples(text: &str) -> Result<u64, String> {
    let most = MAX_KEPT / WORD_SIZE;
    let samples = text.parse().ok();
    let samples = samples.filter(|samples| (1..=most).contains(samples));
    samples.ok_or_else(|| format!("a number from 1 to {most} is needed"))
}

/// A scale with which ticks are stored.
pub fn scale(text: &str) -> Result<u32, String> {
    let scale = number(text).and_then(|scale| u32::try_from(scale).ok());
    let scale = scale.filter(|scale| (2..=0xffff).contains(scale));
    scale.ok_or_else(|| {
        "a scale is a number from 2 (all code in one count) to 0xffff (2 bytes of code in each); 0x4000 stands for 8 bytes"
            .to_owned()
    })
}

/// The bytes of a histogram.
pub fn buffer_size(text: &str) -> Result<u64, String> {
    let size = parse_memory(text)?;
    if (2..=MAX_KEPT).contains(&size) {
        Ok(size)
    } else {
        let most = format_memory(MAX_KEPT);
        Err(format!(
            "a histogram has 2 bytes for each count, and at most {most}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;

    #[test]
    fn addresses_are_hexadecimal_and_scales_may_be_decimal() {
        assert_eq!(address("0x401000"), Ok(0x40_1000));
        assert_eq!(address("0X40100A"), Ok(0x40_100a));
        assert_eq!(scale("0xFFFF"), Ok(0xffff));
        assert_eq!(scale("16384"), Ok(0x4000));
        for wrong in [
            "",
            "401000h",
            "600000",
            "0x",
            "0x+1",
            "-1",
            "main",
            "0x10000000000000000",
        ] {
            assert!(address(wrong).unwrap_err().contains("address"), "{wrong}");
        }
        for wrong in ["0", "1", "0x10000", "1/8", "-2"] {
            assert!(scale(wrong).unwrap_err().contains("from 2"), "{wrong}");
        }
    }

    #[test]
    fn an_array_has_a_bounded_number_of_program_counters() {
        assert_eq!(samples("524288"), Ok(524_288));
        for wrong in ["-1", "0", "524289", "many"] {
            assert!(
                samples(wrong).unwrap_err().contains("from 1 to 524288"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn sizes_are_bounded() {
        assert_eq!(buffer_size("4K"), Ok(4096));
        assert_eq!(buffer_size("4M"), Ok(4 << 20));
        for wrong in ["0", "1", "5M"] {
            assert!(
                buffer_size(wrong).unwrap_err().contains("at most 4M"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_process_has_a_pid_above_0() {
        assert_eq!(process_id("101"), Ok(101));
        for wrong in ["0", "-1"] {
            assert!(
                process_id(wrong).unwrap_err().contains("above 0"),
                "{wrong}"
            );
        }
        assert!(process_id("weaver").unwrap_err().contains("number"));
    }

    /// A program parses the document, and expects all rows.
    #[test]
    fn documents_are_complete_and_tables_short() {
        let rows = |words: &[&str]| {
            let words = [&["pcsample", "--pid", "7"], words].concat();
            let program = ProcessArguments::augment_args(clap::Command::new("pcsample"));
            let matches = program.get_matches_from(words);
            ProcessArguments::from_arg_matches(&matches)
                .unwrap()
                .most_rows()
        };
        assert_eq!(rows(&[]), 20);
        assert_eq!(rows(&["--json"]), usize::MAX);
        assert_eq!(rows(&["--json", "--top", "5"]), 5);
    }
}

/// Which ticks are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredTicks {
    /// This number of the clock's ticks a second on each vCPU.
    Rate(u32),
    /// The ticks of an event.
    Event(SamplingEvent),
}

impl StoredTicks {
    /// The number of ticks a second on each vCPU, in Hz; `None` for those of an event.
    pub fn hz(self) -> Option<u32> {
        match self {
            Self::Rate(hz) => Some(hz),
            Self::Event(_) => None,
        }
    }

    /// A description.
    pub fn describe(self) -> String {
        match self {
            Self::Rate(hz) => format!("{hz} ticks a second on each vCPU"),
            Self::Event(event) => format!("ticks are {}", event.describe()),
        }
    }
}

impl ProcessArguments {
    /// A call of `function` with a buffer of this size, which the guest's kvmprof keeps.
    pub fn call(&self, function: Function, size: u64) -> Call {
        let every_tick = if self.every_tick { Call::EVERY_TICK } else { 0 };
        Call {
            function,
            flags: Call::KEEP | every_tick,
            size,
            ..off(self.pid)
        }
    }

    /// Which ticks of `process` are stored.
    pub fn stored_ticks(&self, process: &Process) -> StoredTicks {
        match process.info.event {
            Some(event) => StoredTicks::Event(event),
            None if self.every_tick => StoredTicks::Rate(process.info.hz),
            None => StoredTicks::Rate(RATE_HZ),
        }
    }

    /// Maximum number of printed rows.
    pub fn most_rows(&self) -> usize {
        most_rows(self.top, USUAL_ROWS, self.json)
    }
}
