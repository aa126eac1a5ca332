//! `kvmprof view --live`: the page of a guest that runs.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use kvmprof_abi::wire::device;
use kvmprof_cli::command_line::Console;
use kvmprof_cli::interrupt::Interrupt;
use kvmprof_client::RemoteDevice;
use kvmprof_recording::StackParts;
use kvmprof_report::graph::title;
use kvmprof_report::html::{BesideTicks, Counts, live_page};
use kvmprof_report::symbolize::SourceTexts;
use tempfile::{Builder, NamedTempFile};

use super::ViewArguments;
use super::response::Document;
use super::server::Server;
use crate::commands::record::{Copier, CopyEnd, Progress};
use crate::commands::recorder::{self, Disconnect};
use crate::commands::recordings;
use crate::commands::targets::TargetArgs;

/// The shortest pause between two pages. It is as long as the last one took to make, if that is longer.
const PERIOD: Duration = Duration::from_secs(1);
/// The pause between two looks for the first tick.
const POLL: Duration = Duration::from_millis(20);
/// Maximum length of the recording if no other is given, in bytes.
const LIMIT: u64 = 256 << 20;

/// The recording that pages are made of, while a thread writes it.
struct Feed {
    /// It is removed at the end.
    file: NamedTempFile,
    has_ticks: AtomicBool,
    /// Why nothing more comes.
    end: OnceLock<String>,
}

impl Feed {
    fn new() -> anyhow::Result<Self> {
        let mut builder = Builder::new();
        let builder = builder.prefix("kvmprof-live-").suffix(".kvmprof");
        Ok(Self {
            file: builder.tempfile().context("Cannot make a temporary file")?,
            has_ticks: AtomicBool::new(false),
            end: OnceLock::new(),
        })
    }

    /// Writes what `recorder` sends, `limit` bytes at most.
    fn copy(&self, recorder: &RemoteDevice, limit: u64) {
        let mut progress = Progress::unseen();
        let mut copier = Copier {
            recorder,
            path: self.file.path(),
            limit: Some(limit),
            exits: None,
            progress: &mut progress,
        };
        let ended = copier.copy_to(&mut self.file.as_file(), |_| {
            self.has_ticks.store(true, Ordering::Relaxed);
            Ok(())
        });
        let why = match ended {
            Ok(CopyEnd::Recorder) => "The guest has ended: this is all of it.".to_owned(),
            Ok(CopyEnd::Limit) => {
                "The recording is as long as --record-limit allows: nothing newer is shown."
                    .to_owned()
            }
            Err(error) => format!("{error:#}"),
        };
        // It is set here alone.
        let _ = self.end.set(why);
    }

    /// Waits for the first ticks; false if an interrupt comes first.
    ///
    /// # Errors
    /// The recording has ended without any.
    fn wait(&self, interrupt: &Interrupt, console: &mut Console<'_>) -> anyhow::Result<bool> {
        let begin = Instant::now();
        let mut has_said = false;
        while !self.has_ticks.load(Ordering::Relaxed) {
            if let Some(why) = self.end.get() {
                bail!("No tick came. {why}");
            }
            if interrupt.comes_before(Instant::now().checked_add(POLL)) {
                return Ok(false);
            }
            if !has_said && begin.elapsed() >= PERIOD {
                console.say("no tick has come yet: the page is there with the first one");
                has_said = true;
            }
        }
        Ok(true)
    }
}

impl ViewArguments {
    /// Records the guest that `target` names, and serves its page until an interrupt.
    pub(super) fn show_live(
        &self,
        target: Option<String>,
        interrupt: &Interrupt,
        console: &mut Console<'_>,
    ) -> anyhow::Result<()> {
        let texts = self.sources.texts(&self.input)?;
        let target = TargetArgs::of_option(target, self.socket.clone());
        let connection = target.connect(false, console)?;
        let recorder = connection.open(device::RECORDER, 0)?;
        let stacks = StackParts {
            kernel: true,
            user: true,
        };
        let otherwise = "Cannot start to record the guest";
        recorder::start(&connection, &recorder, stacks, None, otherwise)?;
        let feed = Feed::new()?;
        let limit = self.record_limit.unwrap_or(LIMIT);
        thread::scope(|scope| {
            let _end = Disconnect(&connection);
            let thread = thread::Builder::new().name("feed".into());
            let copying = thread.spawn_scoped(scope, || feed.copy(&recorder, limit));
            copying.context("Cannot start a thread")?;
            self.serve_live(&feed, &texts, interrupt, console)
        })
    }

    fn serve_live(
        &self,
        feed: &Feed,
        texts: &SourceTexts,
        interrupt: &Interrupt,
        console: &mut Console<'_>,
    ) -> anyhow::Result<()> {
        if !feed.wait(interrupt, console)? {
            return Ok(());
        }
        let mut is_last = feed.end.get().is_some();
        let first = self.document_of(feed, texts, interrupt)?;
        let server = Server::bind(self.port, first, None)?;
        let (address, document) = (server.address(), server.document());
        let _opened = self.show(server, "page", &address, interrupt, console)?;
        let mut pause = PERIOD;
        while !is_last {
            if interrupt.comes_before(Instant::now().checked_add(pause)) {
                return Ok(());
            }
            is_last = feed.end.get().is_some();
            // Nobody needs a page while nobody looks.
            if is_last || document.was_asked_for() {
                let begin = Instant::now();
                document.replace(self.document_of(feed, texts, interrupt)?);
                pause = PERIOD.max(begin.elapsed());
            }
        }
        interrupt.wait(None);
        Ok(())
    }

    /// The page of what there is by now.
    fn document_of(
        &self,
        feed: &Feed,
        texts: &SourceTexts,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Document> {
        // This comes first: a page that says so has everything.
        let end = feed.end.get();
        let progress = recordings::Progress::unseen(interrupt.clone());
        let path = feed.file.path();
        let (profile, seen) =
            (self.input).read_unfinished::<(Counts, BesideTicks)>(path, &progress)?;
        let page = live_page(
            &profile,
            seen,
            &title(&profile),
            texts,
            end.map(String::as_str),
        );
        Ok(Document::page(page.into_bytes()))
    }
}
