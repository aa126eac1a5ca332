//! `kvmprof exits`.

mod document;
mod names;
mod tables;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use kvmprof_attach::exits::{Counts, ExitCounter, Exits, ReasonNames};
use kvmprof_cli::command_line::{Command, Console, ExitStatus, value};
use kvmprof_cli::interrupt::Interrupt;
use kvmprof_cli::table::{USUAL_ROWS, most_rows};
use kvmprof_cli::text::write_json;
use kvmprof_profiling::kernel_events::{run_at_tracepoint, unavailable};
use kvmprof_recording::EventKind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::attach;

/// The pause between two looks whether the VMM has ended.
const LOOK: Duration = Duration::from_millis(250);

/// What the rows of tables are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Sort {
    /// The time of all exits of a row together
    #[default]
    Time,
    /// Their number
    Count,
    /// Their mean time
    Mean,
}

impl Sort {
    /// The larger, the further up.
    fn key(self, exits: Exits) -> u64 {
        match self {
            Self::Time => exits.time,
            Self::Count => exits.count,
            Self::Mean => exits.time.checked_div(exits.count).unwrap_or_default(),
        }
    }
}

/// Count why a guest leaves for the host, and how long that takes
///
/// The guest may be one of kvmprof run or of another program, such as QEMU. The host's kernel counts each exit at KVM's own tracepoints, by eBPF: by reason, by port,
/// address, register or hypercall, and by the guest's instruction. An exit lasts until the guest goes on. Nothing is stopped.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0; 1 when there is no such guest, or the host's KVM or kernel doesn't let its exits be counted; 2 for wrong options.\n\n\
    Examples:\n  \
      kvmprof exits debian12 --seconds 10\n  \
      kvmprof exits 1234 --interval 1 --sort count"
)]
pub struct ExitsArguments {
    /// The guest, as for kvmprof attach
    #[arg(value_name = "PID|PID:START_TIME|NAME")]
    guest: String,
    /// How long to count, in seconds; if not given, until Ctrl-C
    #[arg(long, value_name = "N", value_parser = value::seconds)]
    seconds: Option<Duration>,
    /// Print what was counted each time that so many seconds have passed, not only at the end
    #[arg(long, value_name = "SECONDS", value_parser = value::seconds_of_an_hour)]
    interval: Option<Duration>,
    /// What the rows are sorted by
    #[arg(long, value_name = "BY", value_enum, default_value_t)]
    sort: Sort,
    /// The most rows of a table [default: 20; with --json, all]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Print a JSON document, one a line
    #[arg(long)]
    json: bool,
}

/// What was counted in a part of the time.
struct Part<'a> {
    counts: &'a Counts,
    names: &'a ReasonNames,
    /// The number of the guest's vCPUs.
    vcpus: usize,
    time: Duration,
    /// Tracepoints that the host lacks.
    missing: &'a [&'static str],
    sort: Sort,
    /// The most rows of a table.
    rows: usize,
}

impl Command for ExitsArguments {
    /// Counts exits, and prints them.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let (host, machine) = attach::find(&self.guest, false)?;
        if let Some(why) = unavailable(EventKind::KvmExits) {
            return Err(anyhow!(why).context("Cannot count the exits of guests on this host"));
        }
        let vcpus = machine.vcpus.len();
        let counter = ExitCounter::new(&host, machine.pid, vcpus);
        let counter = counter.context("Cannot count the exits of the guest")?;
        let vmm = Pid::from_raw(machine.pid).context("The VMM has no pid")?;
        let vmm = pidfd_open(vmm, PidfdFlags::empty()).context("Cannot watch the VMM")?;
        let interrupt = Interrupt::on_signals().context("Cannot catch signals")?;
        let attached = attach_all(&counter)?;
        let start = Instant::now();
        let end = self.seconds.and_then(|time| start.checked_add(time));
        eprintln!("Counting the exits of the guest of process {}", machine.pid);
        let mut before = (Counts::default(), start);
        loop {
            let next = self.interval.and_then(|time| before.1.checked_add(time));
            let moment = [next, end].into_iter().flatten().min();
            let is_last = wait(&interrupt, moment, &vmm) || end == moment && end.is_some();
            let now = Instant::now();
            let counts = counter.read().context("Cannot read what was counted")?;
            let part = Part {
                counts: &counts.since(&before.0),
                names: &counter.reason_names(counts.isa),
                vcpus,
                time: now - before.1,
                missing: counter.missing(),
                sort: self.sort,
                rows: most_rows(self.top, USUAL_ROWS, self.json),
            };
            let written = self.write(&part, console.text());
            written.context("Cannot write the exits")?;
            before = (counts, now);
            if is_last {
                drop(attached);
                return Ok(ExitStatus::SUCCESS);
            }
        }
    }
}

impl ExitsArguments {
    fn write(&self, part: &Part<'_>, output: &mut dyn Write) -> io::Result<()> {
        match self.json {
            true => write_json(output, document::document(part))?,
            false => tables::write(part, output)?,
        }
        output.flush()
    }
}

/// Waits until `moment`, or until an interrupt or the end of the process behind `vmm`, and then returns true.
fn wait(interrupt: &Interrupt, moment: Option<Instant>, vmm: &OwnedFd) -> bool {
    loop {
        let look = Instant::now() + LOOK;
        let next = moment.map_or(look, |moment| moment.min(look));
        if interrupt.comes_before(Some(next)) || has_ended(vmm) {
            return true;
        }
        if moment.is_some_and(|moment| Instant::now() >= moment) {
            return false;
        }
    }
}

/// Whether the process has ended (pidfd_open(2)).
fn has_ended(process: &OwnedFd) -> bool {
    let mut watched = [PollFd::new(process, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut watched, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Attaches the programs to their tracepoints. They run until the files are closed.
fn attach_all(counter: &ExitCounter) -> anyhow::Result<Vec<File>> {
    let attached = counter.programs().map(|(tracepoint, program)| {
        run_at_tracepoint(tracepoint, program)
            .map_err(|why| anyhow!(why).context("Cannot count the exits of the guest"))
    });
    attached.collect()
}
