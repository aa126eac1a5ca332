//! `kvmprof exits`.

mod document;
mod explore;
mod host;
mod interval;
mod names;
mod tables;
mod waits;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use clap::{Args, ValueEnum};
use kvmprof_attach::exits::ExitCounter;
use kvmprof_attach::find_machines;
use kvmprof_cli::command_line::{Command, Console, ExitStatus, value};
use kvmprof_cli::table::{USUAL_ROWS, most_rows};
use kvmprof_cli::text::write_json;
use kvmprof_profiling::clock::monotonic_ns;
use kvmprof_profiling::kernel_events::{run_at_tracepoint, unavailable};
use kvmprof_profiling::signals::{block_signals, wait_for_end};
use kvmprof_recording::EventKind;
use kvmprof_recording::exits::{Counts, ExitInterval, Exits};
use kvmprof_recording::file::header;
use kvmprof_report::profile::Symbols;
use kvmprof_sandbox::Thread;
use kvmprof_vmm::attached::{GuestNames, contain};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::sandbox::SandboxMode;
use super::targets;
pub use document::document;
use explore::explore;
use host::HostCounts;
pub use tables::{duration, write as write_tables};

/// The pause between two looks whether the VMM has ended.
const LOOK: Duration = Duration::from_millis(250);
/// The length of an interval in a recording.
const RECORDED: Duration = Duration::from_secs(1);

/// What the rows of tables are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Sort {
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
            Self::Mean => exits.mean(),
        }
    }
}

/// The tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Table {
    /// Of reasons
    Reason,
    /// Of ports, addresses, registers and hypercalls
    Access,
    /// Of the guest's processes
    Process,
    /// Of its containers: those of processes that ran when the counting began
    Container,
    /// Of the guest's functions
    Function,
    /// Of vCPUs
    Vcpu,
    /// Of what ran on the host while vCPUs waited for a processor, or had one
    Thief,
}

/// Count why a guest leaves for the host, how long that takes, and who takes its time
///
/// The guest may be one of kvmprof run or of another program, such as QEMU. The host's kernel counts each exit at KVM's own tracepoints, by eBPF: by reason, by port,
/// address, register or hypercall, and by the guest's process and function. An exit lasts until the guest goes on. It counts, too, for how long vCPUs wait for a processor,
/// what runs there meanwhile, and for how long interrupts have a vCPU's processor. Nothing is stopped; before that, each vCPU is stopped for a moment, to find the guest's kernel and its processes.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0; 1 when there is no such guest, or the host's KVM or kernel doesn't let its exits be counted; 2 for wrong options.\n\n\
    Examples:\n  \
      kvmprof exits debian12 --seconds 10\n  \
      kvmprof exits 1234 --interval 1 --sort count"
)]
pub struct ExitsArguments {
    /// The guest, as for kvmprof attach; if not given, the only one that runs
    #[arg(value_name = "PID|PID:START_TIME|NAME")]
    guest: Option<String>,
    /// How long to count, in seconds; if not given, until Ctrl-C
    #[arg(long, value_name = "N", value_parser = value::seconds)]
    seconds: Option<Duration>,
    /// Print what was counted each time that so many seconds have passed, not only at the end
    #[arg(long, value_name = "SECONDS", value_parser = value::seconds_of_an_hour)]
    interval: Option<Duration>,
    /// Print only the table of these
    #[arg(long, value_name = "WHAT", value_enum, conflicts_with = "json")]
    by: Option<Table>,
    /// What the rows are sorted by
    #[arg(long, value_name = "BY", value_enum, default_value_t)]
    sort: Sort,
    /// The most rows of a table [default: 20; with --json, all]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Print a JSON document, one a line
    #[arg(long)]
    json: bool,
    /// Write blocks of a recording, for other programs, which say by the end of standard input when to begin
    #[arg(long, hide = true, conflicts_with_all = ["json", "interval"])]
    blocks: bool,
    #[command(flatten)]
    sandbox: SandboxMode,
}

/// What was counted in a part of the time, and how it is printed.
pub struct Part<'a> {
    pub interval: &'a ExitInterval,
    /// The functions of the guest's kernel, if they are known by now.
    pub symbols: Option<&'a Symbols>,
    /// The only table to print; `None` for all.
    pub by: Option<Table>,
    pub sort: Sort,
    /// The most rows of a table.
    pub rows: usize,
}

impl Command for ExitsArguments {
    /// Counts exits, and prints them.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        self.sandbox.close_inherited(&[]);
        let (host, machine) = targets::find_machine_or_only(self.guest.as_deref())?;
        if let Some(why) = unavailable(EventKind::KvmExits) {
            return Err(anyhow!(why).context("Cannot count the exits of guests on this host"));
        }
        let explored = match has_names(self.by) {
            true => explore(&machine, host, self.sandbox)?,
            false => Some((host, GuestNames::default())),
        };
        let Some((host, guest)) = explored else {
            return Ok(ExitStatus::SUCCESS);
        };
        let counter = ExitCounter::new(&host, &machine, &guest.places);
        let counter = counter.context("Cannot count the exits of the guest")?;
        let vmm = Pid::from_raw(machine.pid).context("The VMM has no pid")?;
        let vmm = pidfd_open(vmm, PidfdFlags::empty()).context("Cannot watch the VMM")?;
        block_signals().context("Cannot block signals")?;
        if self.blocks {
            wait_for_begin(console)?;
        }
        let each = self.blocks.then_some(RECORDED).or(self.interval);
        let attached = attach_all(&counter)?;
        let (start, began) = (Instant::now(), monotonic_ns());
        let end = self.seconds.and_then(|time| start.checked_add(time));
        if !self.blocks {
            eprintln!("Counting the exits of the guest of process {}", machine.pid);
        }
        let mut host_before = HostCounts::read(&machine);
        let mut before = (Counts::default(), start, began);
        loop {
            let next = each.and_then(|time| before.1.checked_add(time));
            let moment = [next, end].into_iter().flatten().min();
            let is_last = wait(moment, &vmm) || end.is_some() && end == moment;
            let (now, now_ns) = (Instant::now(), monotonic_ns());
            let counts = counter.read().context("Cannot read what was counted")?;
            let guests = find_machines(Ok(&host)).machines;
            let host_now = HostCounts::read(&machine);
            let interval = ExitInterval {
                begin: before.2,
                end: now_ns,
                host: host_now.since(&host_before),
                ..interval::of(
                    &counter,
                    counts.since(&before.0),
                    (&machine, &guest),
                    &guests,
                )
            };
            let part = self.part(&interval);
            if is_last {
                drop(attached);
                self.write_last(part, &guest.functions, console)?;
                return Ok(ExitStatus::SUCCESS);
            }
            self.write(&part, console)?;
            before = (counts, now, now_ns);
            host_before = host_now;
        }
    }
}

impl ExitsArguments {
    /// Writes the last part, with the guest's `functions`, which the guest has made: from here on nothing is counted, and this process has no rights.
    fn write_last(
        &self,
        part: Part<'_>,
        functions: &str,
        console: &mut Console<'_>,
    ) -> anyhow::Result<()> {
        self.sandbox.contain()?;
        contain(self.sandbox.restricts_paths())?;
        kvmprof_sandbox::enter(Thread::Main);
        let symbols = Symbols::parse(functions);
        let part = Part {
            symbols: (!functions.is_empty()).then_some(&symbols),
            ..part
        };
        self.write(&part, console)
    }

    /// What is printed of an interval.
    fn part<'a>(&self, interval: &'a ExitInterval) -> Part<'a> {
        Part {
            interval,
            symbols: None,
            by: self.by,
            sort: self.sort,
            rows: most_rows(self.top, USUAL_ROWS, self.json),
        }
    }

    fn write(&self, part: &Part<'_>, console: &mut Console<'_>) -> anyhow::Result<()> {
        let otherwise = "Cannot write the exits";
        if self.blocks {
            let output = blocks(console)?;
            let block = part.interval.to_block().unwrap_or_default();
            let written = output.write_all(&block).and_then(|()| output.flush());
            return written.context(otherwise);
        }
        let output = console.text();
        let written = match self.json {
            true => write_json(output, document(part)),
            false => write_tables(part, output),
        };
        let written = written.and_then(|()| output.flush());
        written.context(otherwise)
    }
}

/// Whether something of the guest has a name in this table, or in all of them.
fn has_names(by: Option<Table>) -> bool {
    matches!(
        by,
        None | Some(Table::Process | Table::Container | Table::Function)
    )
}

/// Where blocks go.
fn blocks<'a>(console: &'a mut Console<'_>) -> anyhow::Result<&'a mut dyn Write> {
    console.binary("a recording", "kvmprof record --exits writes one")
}

/// Says by a recording's header that all is ready, and waits until the counting is to begin.
fn wait_for_begin(console: &mut Console<'_>) -> anyhow::Result<()> {
    let output = blocks(console)?;
    let written = output.write_all(&header()).and_then(|()| output.flush());
    written.context("Cannot write the exits")?;
    let begin = io::copy(&mut io::stdin().lock(), &mut io::sink());
    begin.context("Cannot read when to begin").map(drop)
}

/// Waits until `moment`, or until a signal or the end of the process behind `vmm`, and then returns true.
fn wait(moment: Option<Instant>, vmm: &OwnedFd) -> bool {
    loop {
        let left = moment.map(|moment| moment.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return false;
        }
        if wait_for_end(left.map_or(LOOK, |left| left.min(LOOK))) || is_readable(vmm) {
            return true;
        }
    }
}

/// Whether a file is readable now; that of a process is when it has ended (pidfd_open(2)).
pub fn is_readable(file: &impl AsFd) -> bool {
    let mut watched = [PollFd::new(file, PollFlags::IN)];
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
