//! `kvmprof-collect export`: one recording as Parquet files of the collector's data set.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use foldhash::fast::RandomState;
use kvmprof_cli::command_line::{Command, Console, ExitStatus, usage};
use kvmprof_recording::file::{Account, Recording, RecordingInfo, Unobserved};
use kvmprof_report::export::{Event, ExportError, Source};
use kvmprof_report::profile::SelectionArguments;
use kvmprof_report::symbolize::Resolver;

use crate::batch::{Batch, Function, IDLE, Row, Tables, Window};
use crate::config::system_name;
use crate::gather::LABELS_OF_GROUPS;
use crate::sinks::parquet;

/// Memory of a frame in the tables without its name, of a row with its names, and of a window with its tables and its part of a file, in bytes.
const FRAME: usize = 64;
const ROW: usize = 256;
const WINDOW: usize = 8 << 10;

/// Write a recording as Parquet files, with the columns of what is collected
///
/// The files go to date=YYYY-MM-DD/host=NAME/guest=NAME/ below the folder. A recording that is exported again under the same name of the guest replaces
/// its former files.
#[derive(Args, Debug)]
#[command(after_help = "Example: kvmprof-collect export --output lake --guest db-1 out.kvmprof")]
pub struct ExportArguments {
    /// The recording
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The folder of the data set
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    /// Length of a window in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    window: u32,
    /// The host's name [default: this host's]
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// The guest's name [default: the file's name without its extension]
    #[arg(long, value_name = "NAME")]
    guest: Option<String>,
    /// Maximum number of bytes of the recording that are kept in memory [default: 128 MiB and 1024 times its size]
    #[arg(long, value_name = "BYTES")]
    output_limit: Option<u64>,
    #[command(flatten)]
    selection: SelectionArguments,
}

impl Command for ExportArguments {
    fn execute(&self, _console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        let recording = Recording::open(&self.file)?;
        let resolver = Resolver::from_contents(&recording.contents()?);
        let selection = self.selection.selection().map_err(usage)?;
        let limit = self.output_limit;
        let source = Source::read(recording, selection, resolver, limit, &Unobserved)
            .context("Cannot export the recording")?;
        let batches = self.batches(&source)?;
        if batches.is_empty() {
            bail!(
                "{} has nothing that the options select",
                self.file.display()
            );
        }
        let folder = parquet::Folder(self.output.clone());
        parquet::write(&folder, &batches)?;
        Ok(ExitStatus::SUCCESS)
    }
}

impl ExportArguments {
    fn batches(&self, source: &Source) -> anyhow::Result<Vec<Batch>> {
        let contents = &source.profile().contents;
        let info = &contents.info;
        if let Some(event) = info.event {
            bail!(
                "{} has ticks of an event ({}), and rows are of time",
                self.file.display(),
                event.describe()
            );
        }
        let stem = self.file.file_stem().unwrap_or_default();
        let guest = self.guest.clone();
        let guest = guest.unwrap_or_else(|| stem.to_string_lossy().into_owned());
        let mut open: BTreeMap<u64, WindowBuilder> = BTreeMap::new();
        source
            .for_each(|event| {
                let start = self.start(info, event.time);
                if !open.contains_key(&start) {
                    source.budget().take(WINDOW)?;
                }
                open.entry(start).or_default().add(source, event)
            })
            .context("Cannot export the recording")?;
        let kernel = contents.kernel.as_ref();
        let batches = open.into_iter().map(|(start, part)| {
            let mut batch = Batch {
                start,
                length: self.window,
                boot: identity(info),
                host: self.host.clone().unwrap_or_else(system_name),
                windows: vec![Window {
                    guest: guest.clone(),
                    kernel: kernel
                        .map(|kernel| kernel.release.clone())
                        .unwrap_or_default(),
                    hz: info.hz,
                    jitter: Some(info.jitter),
                    account: part.account,
                    rows: part.rows(info.knows_interrupts()),
                }],
                ..Batch::default()
            };
            part.tables.into_batch(&mut batch);
            batch
        });
        Ok(batches.collect())
    }

    /// The start, in s since 1970, of the window that contains `time` (CLOCK_MONOTONIC, in ns).
    fn start(&self, info: &RecordingInfo, time: u64) -> u64 {
        let after = time.saturating_sub(info.began_monotonic_ns);
        let length = u64::from(self.window.max(1));
        info.began_ns.saturating_add(after) / 1_000_000_000 / length * length
    }
}

/// Identifies the recording by the time at which it began.
fn identity(info: &RecordingInfo) -> String {
    let word = info.began_ns ^ info.began_monotonic_ns.rotate_left(32);
    format!("{word:016x}")
}

/// Process, thread, mode, stack and labels.
type RowKey = (u32, u32, u8, Option<u32>, Option<u32>);

/// A window that is being filled.
#[derive(Default)]
struct WindowBuilder {
    account: Account,
    tables: Tables,
    /// The indexes of stacks in the tables, by their numbers.
    stacks: HashMap<u32, u32, RandomState>,
    rows: BTreeMap<RowKey, Row>,
}

impl WindowBuilder {
    fn add(&mut self, source: &Source, event: &Event) -> Result<(), ExportError> {
        let stack = event.stack.map(|stack| self.stack(source, stack));
        let stack = stack.transpose()?;
        let of = source.thread(event);
        self.account.ticks = self.account.ticks.saturating_add(event.ticks);
        let (process, thread) = if stack.is_none() {
            self.account.idle = self.account.idle.saturating_add(event.ticks);
            (IDLE, IDLE)
        } else {
            self.account.samples = self.account.samples.saturating_add(event.ticks);
            let process = source.profile().processes.get(&of.pid);
            let process = process.map_or("", |process| process.shown_name(of.pid));
            (process, of.comm.as_str())
        };
        let process = if process.is_empty() {
            "[unknown]"
        } else {
            process
        };
        let (process, thread) = (self.tables.name(process), self.tables.name(thread));
        // As the collector does by default.
        let labels = source.labels(event);
        let labels = labels.filter(|(key, _)| LABELS_OF_GROUPS.contains(key));
        let labels = self.tables.labels(labels);
        let key = (process, thread, event.mode as u8, stack, labels);
        if !self.rows.contains_key(&key) {
            source.budget().take(ROW)?;
        }
        let row = self.rows.entry(key).or_insert(Row {
            process,
            thread,
            mode: event.mode as u8,
            stack,
            ticks: 0,
            interrupts_off: Some(0),
            labels,
        });
        row.ticks = row.ticks.saturating_add(event.ticks);
        if event.has_interrupts_off {
            let off = row.interrupts_off.unwrap_or_default();
            row.interrupts_off = Some(off.saturating_add(event.ticks));
        }
        Ok(())
    }

    /// Its rows, with the number of ticks with interrupts off if `knows_interrupts`.
    fn rows(&self, knows_interrupts: bool) -> Vec<Row> {
        let rows = self.rows.values();
        rows.map(|row| Row {
            interrupts_off: row.interrupts_off.filter(|_| knows_interrupts),
            ..*row
        })
        .collect()
    }

    fn stack(&mut self, source: &Source, number: u32) -> Result<u32, ExportError> {
        if let Some(place) = self.stacks.get(&number) {
            return Ok(*place);
        }
        let mut places = Vec::new();
        let profile = source.profile();
        let frames = profile.stacks.get(number as usize).into_iter();
        for frame in frames.flat_map(|stack| profile.frames(stack)) {
            source.budget().take(FRAME + frame.name.len())?;
            places.push(self.tables.frame(&Function {
                name: &**frame.name,
                module: frame.module,
                build_id: frame.code.build_id,
                is_kernel: frame.is_kernel,
            }));
        }
        let place = self.tables.stack(places);
        self.stacks.insert(number, place);
        Ok(place)
    }
}
