//! The recorder of `run --record`: a recording of all processes, from the guest's first instruction to its end.

use std::io;
use std::sync::Arc;

use kvmprof_recording::Ticks;
use kvmprof_recording::file::{Encoder, FileOptions, FileSink, RecordingFile, RecordingInfo};
use kvmprof_recording::status::{ConsumerStatus, RecorderStatus};
use kvmprof_recording::tasks::TaskLook;
use kvmprof_sandbox::{Thread, enter};

use super::recording::{LookPace, SymbolSources, add_symbols};
use super::{ClockNeeds, Consumer};
use crate::clock::TickSource;
use crate::config::RecordPlan;

/// A recorder that clients can't stop.
#[derive(Debug)]
pub struct FileRecorder {
    encoder: Encoder<FileSink>,
    plan: RecordPlan,
    /// The source of its ticks; `None` after the end.
    source: Option<TickSource>,
    looks: Option<LookPace>,
}

impl FileRecorder {
    /// Records as `plan` says into `file`, which begins with `info`. An older file is replaced when the first samples are written; an older
    /// recording is kept under [another name](kvmprof_recording::file::NewFile::create_recording).
    ///
    /// # Errors
    /// The file can't be written to, or there is no thread that writes it.
    pub fn new(
        plan: RecordPlan,
        file: Box<dyn RecordingFile + Send>,
        info: &RecordingInfo,
    ) -> io::Result<Self> {
        let options = FileOptions {
            begin: Some(|| enter(Thread::Recorder)),
            ..plan.file.clone()
        };
        let sink = FileSink::to(file, &plan.path, info, options)?;
        let source = plan.source(info.hz);
        let looks = plan.looks.zip(source);
        Ok(Self {
            encoder: Encoder::new(sink, &[]),
            looks: looks.and_then(|(plan, source)| LookPace::new(plan, source)),
            source,
            plan,
        })
    }
}

impl Consumer for FileRecorder {
    fn needs(&self) -> ClockNeeds {
        // A recording that has ended early, by a full disk or its limit, needs no ticks.
        let source = self.source.filter(|_| self.encoder.is_recording());
        let looks = self.looks.as_ref().filter(|_| source.is_some());
        ClockNeeds {
            source,
            starts_guest: true,
            stacks: self.plan.stacks,
            processes: true,
            looks: looks.map(LookPace::needs),
            ..ClockNeeds::default()
        }
    }

    fn take(&mut self, ticks: &Ticks, frames: &[u64]) {
        self.encoder.feed(ticks, frames);
    }

    fn take_look(&mut self, look: &TaskLook) {
        if let Some(pace) = &mut self.looks
            && pace.takes(look.time)
        {
            self.encoder.feed_look(look);
        }
    }

    fn take_block(&mut self, block: &Arc<[u8]>) {
        self.encoder.add_block(Arc::clone(block));
    }

    fn take_restart(&mut self, block: &Arc<[u8]>) {
        self.encoder.add_restart(Arc::clone(block));
    }

    fn advance(&mut self, sources: &mut SymbolSources<'_>) {
        add_symbols(&mut self.encoder, sources);
        self.encoder.flush_due();
    }

    fn end(&mut self) {
        self.source = None;
        self.encoder.finish();
    }

    fn status(&self) -> Vec<ConsumerStatus> {
        vec![ConsumerStatus::Recorder(RecorderStatus {
            path: Some(self.plan.path.to_string_lossy().into_owned()),
            ..RecorderStatus::new(
                self.encoder.is_recording(),
                self.plan.stacks,
                self.encoder.ledger(),
            )
        })]
    }
}
