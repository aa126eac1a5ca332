//! `kvmprof-collect demo`: runs two guests, a collector, Prometheus and a folder of Parquet files on this machine, and prints the results.

mod ask;
mod prometheus;
mod tables;

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::net::TcpListener;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use kvmprof_abi::wire::device;
use kvmprof_cli::command_line::{Command, Console, ExitStatus, value};
use kvmprof_cli::interrupt::Interrupt;
use kvmprof_client::Connection;
use kvmprof_recording::ClockLedger;
use kvmprof_recording::status::Status;

use crate::child::{Child, program};
use crate::config::Config;
use crate::work::Prepared;
use prometheus::Prometheus;
use tables::Truth;

/// The guests.
const GUESTS: [&str; 2] = ["one", "two"];
/// Maximum time of the start of a guest or the collector.
const STARTING: Duration = Duration::from_secs(60);
/// Maximum time of the collector's end, which waits for the ends of recordings and for sinks.
const ENDING: Duration = Duration::from_secs(60);
/// Maximum length of a status document in bytes.
const MAX_STATUS: usize = 1 << 20;
/// The interval at which conditions are checked.
const POLL: Duration = Duration::from_millis(50);

/// Demonstrate the collector on this machine, with two demo guests, Parquet files, and Prometheus if it is installed
///
/// Collects from two guests of kvmprof demo for some seconds. Then it prints the functions in which the guests spent their time, by a query to the
/// Parquet files, next to each guest's own counts, and the guests' processes by Prometheus.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Exit status: 0; 1 when something failed, such as for want of a KVM; 2 for wrong options.\n\n\
    Example: kvmprof-collect demo --seconds 60 --folder /tmp/fleet"
)]
pub struct DemoArguments {
    /// Time to collect, in seconds; Ctrl-C ends it earlier
    #[arg(long, value_name = "N", default_value = "20", value_parser = value::seconds_of_a_day)]
    seconds: Duration,
    /// Ticks per second on each vCPU
    #[arg(long, short = 'F', value_name = "HZ", default_value_t = 100, value_parser = value::rate)]
    hz: u32,
    /// A new folder for the configuration, the Parquet files and all others, which is kept [default: a temporary one]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
}

/// The folder for all files: one that the user has named, or a temporary one.
enum DemoFolder {
    Given(PathBuf),
    Own(tempfile::TempDir),
}

impl DemoFolder {
    fn new(folder: Option<&Path>) -> anyhow::Result<Self> {
        let Some(folder) = folder else {
            let folder = tempfile::Builder::new().prefix("kvmprof-fleet-").tempdir();
            return Ok(Self::Own(folder.context("Cannot make a folder")?));
        };
        let made = DirBuilder::new().mode(0o700).create(folder);
        made.with_context(|| format!("Cannot make the folder {}", folder.display()))?;
        // Other programs get absolute paths.
        Ok(Self::Given(folder.canonicalize()?))
    }

    fn path(&self, name: &str) -> PathBuf {
        match self {
            Self::Given(folder) => folder.join(name),
            Self::Own(folder) => folder.path().join(name),
        }
    }
}

impl Command for DemoArguments {
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let interrupt = Interrupt::on_signals()?;
        let folder = DemoFolder::new(self.folder.as_deref())?;
        let guests = GUESTS
            .iter()
            .map(|name| start_guest(name, &folder))
            .collect::<anyhow::Result<Vec<Child>>>()?;
        let metrics = free_address()?;
        let config = self.configure(&folder, &metrics)?;
        let collector = Child::start(program("kvmprof-collect"), [Path::new("--config"), &config])
            .context("Cannot run kvmprof-collect")?;
        let prometheus = Prometheus::start(&folder, &metrics);
        self.tell(&folder, &metrics, &prometheus, console);
        let until = Instant::now() + self.seconds;
        while Instant::now() < until && !interrupt.is_raised() {
            sleep(POLL);
        }
        let by_process = match &prometheus {
            Ok(prometheus) => prometheus.by_process(&interrupt)?,
            Err(_) => Vec::new(),
        };
        end("The collector", collector)?;
        // Delivers batches that waited in the spool when the collector ended.
        Prepared::new(Config::read(&config)?)?.hand_over()?;
        let ledgers = GUESTS.map(|name| ledger(&folder, name));
        for (name, guest) in GUESTS.into_iter().zip(guests) {
            end(&format!("Guest {name}"), guest)?;
        }
        print(&folder, ledgers, console.text())?;
        if prometheus.is_ok() {
            tables::processes(&by_process, console.text())?;
        }
        Ok(ExitStatus::SUCCESS)
    }
}

/// Queries the Parquet files, and prints the answer next to the guests' own counts.
fn print(
    folder: &DemoFolder,
    ledgers: [anyhow::Result<ClockLedger>; GUESTS.len()],
    output: &mut dyn Write,
) -> anyhow::Result<()> {
    let parquet = folder.path("parquet");
    if ask::is_empty(&parquet) {
        bail!("Nothing was collected: collect for longer (--seconds)");
    }
    let (by, rows) = ask::ask(&parquet)?;
    writeln!(
        output,
        "Functions of the fleet, by {by}:\n\n  {}\n",
        ask::QUERY
    )?;
    tables::functions(&rows, output)?;
    for (name, ledger) in GUESTS.into_iter().zip(ledgers) {
        let truth = Truth::read(&truth_of(folder, name))?;
        tables::compare(name, &truth, &rows, output)?;
        let ClockLedger {
            ticks,
            stolen,
            lost,
            ..
        } = ledger?;
        writeln!(
            output,
            "\n  {stolen} of {ticks} ticks were stolen by the host, and {lost} lost: of these nothing is known."
        )?;
    }
    Ok(())
}

impl DemoArguments {
    /// Writes the collector's configuration. Returns its path.
    fn configure(&self, folder: &DemoFolder, metrics: &str) -> anyhow::Result<PathBuf> {
        let shown = |name: &str| toml::Value::String(folder.path(name).display().to_string());
        let text = format!(
            "sockets = [{}]\nhz = {}\nwindow = 2\nhost = 'demo'\n\n[spool]\nfolder = {}\n\n[metrics]\nlisten = '{metrics}'\n\n\
             [[sink]]\nname = 'lake'\ntype = 'parquet'\nfolder = {}\nseconds = 10\n",
            shown("*.sock"),
            self.hz,
            shown("spool"),
            shown("parquet"),
        );
        let path = folder.path("collect.toml");
        fs::write(&path, text).context("Cannot write the configuration")?;
        Ok(path)
    }

    fn tell(
        &self,
        folder: &DemoFolder,
        metrics: &str,
        prometheus: &anyhow::Result<Prometheus>,
        console: &mut Console<'_>,
    ) {
        console.say(format_args!(
            "two guests run, and are collected from at {} Hz for {} s; all of it is in {}",
            self.hz,
            self.seconds.as_secs(),
            folder.path("").display()
        ));
        console.say(format_args!("metrics are at http://{metrics}/metrics"));
        match prometheus {
            Ok(prometheus) => console.say(format_args!(
                "Prometheus is at http://{}/",
                prometheus.address()
            )),
            Err(error) => console.warn(format_args!("{error:#}")),
        }
    }
}

fn truth_of(folder: &DemoFolder, name: &str) -> PathBuf {
    folder.path(&format!("{name}.json"))
}

/// Starts a guest that waits for the collector, which finds it by its socket.
fn start_guest(name: &str, folder: &DemoFolder) -> anyhow::Result<Child> {
    let socket = folder.path(&format!("{name}.sock"));
    let truth = truth_of(folder, name);
    // The guest's work is periodic, so that a periodic clock would be in step with it.
    let words = [
        "demo".as_ref(),
        "--jitter".as_ref(),
        "--socket".as_ref(),
        socket.as_os_str(),
        "--truth".as_ref(),
        truth.as_os_str(),
    ];
    let mut guest = Child::start(program("kvmprof"), words).context("Cannot run kvmprof")?;
    let until = Instant::now() + STARTING;
    while !socket.exists() {
        if let Some((status, said)) = guest.ended()? {
            bail!("Guest {name} can't be started: {}, {status}", said.trim());
        }
        if Instant::now() >= until {
            bail!("Guest {name} isn't there after {} s", STARTING.as_secs());
        }
        sleep(POLL);
    }
    Ok(guest)
}

/// The account of all ticks of a guest: the collector has counted only those that it received.
fn ledger(folder: &DemoFolder, name: &str) -> anyhow::Result<ClockLedger> {
    let connection = Connection::connect(&folder.path(&format!("{name}.sock")))?;
    let document = connection.snapshot(device::STATUS, MAX_STATUS)?;
    let status: Status = serde_json::from_slice(&document)?;
    Ok(status.clock.ledger)
}

/// Ends a program, and checks that it succeeded.
fn end(what: &str, child: Child) -> anyhow::Result<()> {
    match child.end(ENDING) {
        Some((status, _)) if status.success() => Ok(()),
        Some((status, said)) => bail!("{what} has failed: {}, {status}", said.trim()),
        None => bail!("{what} doesn't end"),
    }
}

/// An address on the loopback interface that isn't in use at the moment.
fn free_address() -> io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    Ok(listener.local_addr()?.to_string())
}
