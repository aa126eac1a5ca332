//! `kvmprof record`.

mod exits;
mod help;
mod limited;
mod progress;
mod running;
mod started;

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::builder::Resettable;
use clap::{Arg, Args};
use kvmprof_cli::command_line::{Command, Console, ExitStatus, usage};
use kvmprof_machine::console::Console as Place;
use kvmprof_profiling::LookPlan;
use kvmprof_profiling::clock::DEFAULT_HZ;
use kvmprof_recording::file::{Account, Contents, Recording, give_to_invoker};
use kvmprof_recording::{misleads, without_sample};
use kvmprof_vmm::attached::ConsoleText;

use super::browser;
use super::guest::{GuestOptions, parse_console_text, with_kernel};
use super::recordings::{NO_OUTPUT, Naming, check_output, is_standard, write_page};

use progress::summary;

pub use help::with_groups;
pub use progress::Progress;
use running::NAME_A_FILE;
pub use running::{Copier, CopyEnd, RecordingOptions};
pub use started::{Ended, Outcome, Started};

/// The heading of the options that apply only to a guest that is started.
const STARTED: &str = "Options of a guest that is started (see kvmprof run)";

/// Makes the options of a guest that is started require `--kernel`, except `--console`: that is of any guest.
fn of_started(option: Arg) -> Arg {
    match option.get_id() == "console" {
        true => option,
        false => with_kernel(STARTED)(option),
    }
}

/// Allows the option `--hz` for any guest, including one that runs already.
fn with_every_guest(option: Arg) -> Arg {
    option
        .short('F')
        .help_heading(Resettable::Reset)
        .default_value(Resettable::Reset)
        .help(format!(
            "Ticks of the clock a second on each vCPU. If not given, for a guest that runs already whatever it is sampled by, \
             else the rate that it was started with; for one that is started {DEFAULT_HZ}. With 0 one that is started has \
             no clock"
        ))
}

/// Record every tick of a guest to a file, with call stacks
///
/// TARGET is a guest that runs, under kvmprof or another VMM such as QEMU; --kernel starts a new one. Any number of recordings can
/// run at once, beside pcs and prf. Ctrl-C ends the recording and closes its file. A file that was cut off can be read up to that
/// point.
#[derive(Debug, Args)]
#[command(
    mut_arg("hz", with_every_guest),
    mut_args(of_started),
    after_help = "Exit status: 0; 1 when there is no such guest, it has no clock, its host \
    doesn't count the event, no tick came, or a file cannot be written; 2 for wrong options. With --kernel also as kvmprof \
    run.\n\n\
    Examples:\n  kvmprof record --seconds 10 --open\n  \
    kvmprof record debian12 --seconds 10 -F 99 --pid 101,230\n  \
    kvmprof record guest --output exits.kvmprof --seconds 10 --event exits:10\n  \
    kvmprof record --kernel vmlinuz --initrd initrd.img --until \"login:\" --open"
)]
pub struct RecordArguments {
    #[command(flatten)]
    recording: RecordingOptions,
    /// The file; - is standard output. An older file is replaced when the first samples come; an older recording is kept, with .old
    /// at the end of its name
    #[arg(short, long, value_name = "FILE", default_value = "out.kvmprof")]
    output: PathBuf,
    /// Then show the recording as a page, too, which is written to this file (see kvmprof html)
    #[arg(long, value_name = "PATH")]
    html: Option<PathBuf>,
    /// Then open the page in the browser; without --html it is the recording's name with .html in place of its ending
    #[arg(long)]
    open: bool,
    /// Start a guest with this kernel, a Linux bzImage or an ELF file, and record it from its first instruction
    #[arg(long, value_name = "FILE", conflicts_with = "pid")]
    kernel: Option<PathBuf>,
    /// End when the guest's console says this; of a guest that runs already, with --console file:PATH
    #[arg(long, value_name = "TEXT", value_parser = parse_console_text)]
    until: Option<String>,
    #[command(flatten, next_help_heading = STARTED)]
    guest: GuestOptions,
}

impl Command for RecordArguments {
    /// Records a guest, and shows the recording as a page if requested.
    fn execute(&self, console: &mut Console<'_>) -> anyhow::Result<ExitStatus> {
        self.check(console)?;
        let (summary, status) = match &self.kernel {
            Some(kernel) => match self.started(kernel)?.record()? {
                Outcome::GuestProcess(status) | Outcome::NoRecording(status) => return Ok(status),
                Outcome::Recorded(Ended { status, .. }) => {
                    // The process that has written it has no right to.
                    give_to_invoker(&self.output);
                    (self.summary()?, status)
                }
            },
            None => {
                let rate = self.guest.rate();
                let until = self.until_of_running()?;
                let summary = self.recording.record(&self.output, rate, until, console)?;
                (summary, ExitStatus::SUCCESS)
            }
        };
        if is_standard(&self.output) {
            console.say(summary);
        } else {
            let line = writeln!(console.text(), "{}: {summary}", self.output.display());
            line.context(NO_OUTPUT)?;
            let contents = Recording::open(&self.output)?.contents()?;
            // What wasn't known of the guest's kernel.
            for gap in contents.kernel.iter().flat_map(|kernel| &kernel.gaps) {
                console.say(gap);
            }
            if console.is_terminal() {
                self.advise(&contents, console);
            }
        }
        self.show(console)?;
        Ok(status)
    }
}

impl RecordArguments {
    /// The guest to start with this `kernel`.
    fn started<'a>(&'a self, kernel: &'a Path) -> anyhow::Result<Started<'a>> {
        if self.recording.target.is_named() {
            return Err(usage(
                "--kernel starts a guest, and TARGET or --socket is one that runs already: give one of them (kvmprof run \
                 --socket --record does both)",
            ));
        }
        Ok(Started {
            guest: &self.guest,
            kernel,
            output: &self.output,
            stacks: self.recording.stacks,
            event: self.recording.event,
            looks: self.recording.tasks.map(LookPlan::all),
            limit: self.recording.record_limit,
            time: self.recording.seconds,
            until: self.until.as_deref(),
        })
    }

    /// The text that ends the recording of a guest that runs already.
    fn until_of_running(&self) -> anyhow::Result<Option<ConsoleText>> {
        match (&self.until, self.guest.console()) {
            (None, None) => Ok(None),
            (Some(text), Some(Place::File(file))) => Ok(Some(ConsoleText {
                text: text.clone(),
                file: file.clone(),
            })),
            _ => Err(usage(
                "Of a guest that runs already, --until needs --console file:PATH, the file to which its VMM writes its \
                 console, and --console is for nothing else",
            )),
        }
    }

    /// A description of the recording.
    fn summary(&self) -> anyhow::Result<String> {
        let recording = Recording::open(&self.output)?;
        let contents = recording.contents()?;
        let account = match contents.closed {
            Some(account) => account,
            // The recording was truncated, so its samples have to be counted.
            None => recording.read(|_, _| {})?.account,
        };
        let size = self.output.metadata().map_or(0, |found| found.len());
        Ok(summary(&account, contents.info.event, size))
    }

    /// Says what the recording can't tell, if that is much, and what to do with it.
    fn advise(&self, contents: &Contents, console: &mut Console<'_>) {
        let account = contents.closed.filter(|_| contents.info.event.is_none());
        if let Some(Account {
            ticks,
            lost,
            stolen,
            ..
        }) = account
            && misleads(ticks, lost, stolen)
        {
            console.warn(format_args!(
                "{}: what the guest did in them isn't known",
                without_sample(ticks, lost, stolen)
            ));
        }
        if self.page().is_none() {
            let file = self.output.display();
            console.say(format_args!(
                "next: kvmprof report {file}, or kvmprof view {file}"
            ));
        }
    }

    /// Checks the options before a guest is started or contacted.
    fn check(&self, console: &mut Console<'_>) -> anyhow::Result<()> {
        let to_output = is_standard(&self.output);
        if to_output {
            console.binary("a recording", NAME_A_FILE)?;
        }
        if self.output.extension().is_some_and(|end| end == "gz") {
            return Err(usage(format_args!(
                "A recording is packed already: give {} a name without .gz",
                self.output.display()
            )));
        }
        if self.kernel.is_none() {
            self.until_of_running()?;
        }
        if self.kernel.is_none() && self.guest.rate() == Some(0) {
            return Err(usage(
                "--hz 0 is for a guest that is started, by --kernel: a recording of one that runs needs a clock or an --event",
            ));
        }
        if self.kernel.is_none() && self.guest.rate().is_some() && self.recording.event.is_some() {
            return Err(usage(
                "--event makes the ticks of a guest that runs already instead of its clock: give it without --hz",
            ));
        }
        if to_output && (self.html.is_some() || self.open || self.kernel.is_some()) {
            return Err(usage(
                "--html, --open and --kernel need the recording in a file: name one with --output",
            ));
        }
        if let Some(page) = self.page() {
            let naming = Naming {
                option: "--html",
                force: None,
            };
            check_output(&page, &[&self.output], naming)?;
        }
        Ok(())
    }

    /// The page's file, if a page is requested.
    fn page(&self) -> Option<PathBuf> {
        let by_name = || self.output.with_extension("html");
        self.html.clone().or_else(|| self.open.then(by_name))
    }

    /// Writes the page, and opens it.
    fn show(&self, console: &mut Console<'_>) -> anyhow::Result<()> {
        let Some(page) = self.page() else {
            return Ok(());
        };
        let sysroot = self.guest.sysroot().map(Path::to_owned);
        write_page(&self.output, sysroot, &page, console)?;
        if !is_standard(&page) {
            let line = writeln!(console.text(), "page: {}", page.display());
            line.context(NO_OUTPUT)?;
        }
        if self.open {
            match browser::open(&page.display().to_string()) {
                Ok(opened) => opened.give_time(),
                Err(error) => console.warn(format_args!("{error:#}")),
            }
        }
        Ok(())
    }
}
