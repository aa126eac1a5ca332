//! A recording in a file. A thread packs and writes it, so that no other thread waits for the disk.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::thread::{Builder, JoinHandle};

use super::{Delivered, QueuedBlock, Sink, beginning};
use crate::file::{Account, NewFile, RecordingInfo};

/// Maximum size of the account at a recording's end, in bytes.
pub const END_ROOM: u64 = 1 << 10;

/// How a recording's file is written.
#[derive(Clone, Debug, Default)]
pub struct FileOptions {
    /// Maximum size of the file in bytes. The recording ends before it exceeds that, and is complete.
    pub limit: Option<u64>,
    /// Learns why the file isn't whole, if it can't be written.
    pub failure: RecordingFailure,
    /// Woken when the file can't be written any more, after `failure` has learned why.
    pub waker: Option<Waker>,
    /// The thread that writes calls this first.
    pub begin: Option<fn()>,
}

/// Why a recording's file isn't complete, for those that have waited for the recording's end.
#[derive(Clone, Debug, Default)]
pub struct RecordingFailure(Arc<OnceLock<String>>);

impl RecordingFailure {
    /// The first error; `None` if there was none.
    pub fn message(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

/// Hands a recording's blocks to the thread that writes them.
#[derive(Debug)]
pub struct FileSink {
    /// `None` after the end.
    queue: Option<Sender<QueuedBlock>>,
    /// The number of bytes that were delivered.
    handed_over: usize,
    progress: Arc<Progress>,
    thread: Option<JoinHandle<()>>,
}

impl FileSink {
    /// Writes to `file`, which begins with `info`; `path` is for messages. A [`NewFile`] replaces an older file when the first samples are written.
    ///
    /// # Errors
    /// The file can't be written to, or there is no thread.
    pub fn to<W: RecordingFile + Send + 'static>(
        mut file: W,
        path: &Path,
        info: &RecordingInfo,
        options: FileOptions,
    ) -> io::Result<Self> {
        let beginning = beginning(info);
        file.write_all(&beginning)?;
        file.flush()?;
        let progress = Arc::new(Progress::default());
        let (queue, parts) = channel();
        let begin = options.begin;
        let mut writer = Writer {
            file,
            path: path.to_owned(),
            progress: Arc::clone(&progress),
            written: beginning.len() as u64,
            account: Account::default(),
            options,
        };
        let thread = Builder::new().name("recorder".into()).spawn(move || {
            if let Some(begin) = begin {
                begin();
            }
            writer.run(&parts);
        })?;
        Ok(Self {
            queue: Some(queue),
            handed_over: 0,
            progress,
            thread: Some(thread),
        })
    }
}

impl Sink for FileSink {
    const CAPACITY: usize = 64 << 20;

    fn put(&mut self, part: QueuedBlock, limit: usize) -> Result<(), QueuedBlock> {
        let size = part.size();
        match &self.queue {
            Some(queue) if size <= limit.saturating_sub(self.waiting()) => {
                // Sending fails if that thread has panicked, which has been reported already.
                queue.send(part).map_err(|unsent| unsent.0)?;
                self.handed_over += size;
                Ok(())
            }
            _ => Err(part),
        }
    }

    fn waiting(&self) -> usize {
        self.handed_over - self.progress.done.load(Ordering::Acquire)
    }

    fn delivered(&self) -> Delivered {
        self.progress.delivered()
    }

    fn is_open(&self) -> bool {
        self.queue.is_some() && !self.progress.is_over()
    }

    /// Waits for the disk, and closes the file.
    fn finish(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // A panic of that thread has been reported already.
            let _ = thread.join();
        }
    }
}

impl Drop for FileSink {
    fn drop(&mut self) {
        self.finish();
    }
}

/// The progress of the thread.
#[derive(Debug, Default)]
struct Progress {
    samples: AtomicU64,
    idle: AtomicU64,
    refused: AtomicU64,
    /// The number of bytes of parts that have been written, or never will be.
    done: AtomicUsize,
    /// Nothing is written any more: writing has failed, or the file has its maximum size.
    over: AtomicBool,
}

impl Progress {
    fn delivered(&self) -> Delivered {
        let load = |count: &AtomicU64| count.load(Ordering::Acquire);
        Delivered {
            samples: load(&self.samples),
            idle: load(&self.idle),
            refused: load(&self.refused),
        }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    fn end(&self) {
        self.over.store(true, Ordering::Release);
    }
}

/// The file of a recording. It may still have a temporary name.
pub trait RecordingFile: Write {
    /// Gives the file its name. It replaces an older file only if the recording `is_worth_it`. Returns whether it
    /// has its name.
    ///
    /// # Errors
    /// The file can't be renamed.
    fn keep(&mut self, is_worth_it: bool) -> io::Result<bool>;
}

impl RecordingFile for NewFile {
    fn keep(&mut self, is_worth_it: bool) -> io::Result<bool> {
        if !is_worth_it && self.would_replace() {
            return Ok(false);
        }
        NewFile::keep(self).map(|()| true)
    }
}

impl<F: RecordingFile + ?Sized> RecordingFile for Box<F> {
    fn keep(&mut self, is_worth_it: bool) -> io::Result<bool> {
        (**self).keep(is_worth_it)
    }
}

/// The state of the thread.
struct Writer<W> {
    file: W,
    path: PathBuf,
    progress: Arc<Progress>,
    /// The size of the file, in bytes.
    written: u64,
    /// The account of the ticks in the file.
    account: Account,
    options: FileOptions,
}

impl<W: RecordingFile> Writer<W> {
    /// Writes parts until the sender is dropped.
    fn run(&mut self, parts: &Receiver<QueuedBlock>) {
        for part in parts {
            let is_written = self.write(&part) && self.name_file(&part);
            let (samples, idle) = part.counts();
            let progress = &self.progress;
            if is_written {
                progress.samples.fetch_add(samples, Ordering::Release);
                progress.idle.fetch_add(idle, Ordering::Release);
            } else {
                progress
                    .refused
                    .fetch_add(samples + idle, Ordering::Release);
            }
            progress.done.fetch_add(part.size(), Ordering::Release);
        }
    }

    /// Writes a block. Returns whether it is in the file. After a failure no more are: a reader couldn't find them after half a block.
    fn write(&mut self, part: &QueuedBlock) -> bool {
        if self.progress.is_over() {
            return false;
        }
        let Some(block) = part.encode() else {
            return true;
        };
        let end = self.written.saturating_add(block.len() as u64);
        let is_end = matches!(part, QueuedBlock::End(_));
        let limit = self.options.limit.unwrap_or(u64::MAX);
        if !is_end && end > limit.saturating_sub(END_ROOM) {
            self.end_at_limit();
            return false;
        }
        if !self.append(&block) {
            return false;
        }
        if let QueuedBlock::Samples(samples) = part {
            self.account.add(samples);
        }
        true
    }

    fn append(&mut self, block: &[u8]) -> bool {
        let written = self.file.write_all(block).and_then(|()| self.file.flush());
        if let Err(error) = written {
            log::error!("The recording {} ends here: {error}", self.path.display());
            self.fail(&error);
            return false;
        }
        self.written += block.len() as u64;
        true
    }

    /// Ends writing.
    fn fail(&mut self, error: &io::Error) {
        let why = format!("The recording {} isn't whole: {error}", self.path.display());
        // Only the first error is kept.
        let _ = self.options.failure.0.set(why);
        self.progress.end();
        if let Some(waker) = &self.options.waker {
            waker.wake_by_ref();
        }
    }

    /// Ends the recording with the account of what is in it.
    fn end_at_limit(&mut self) {
        log::warn!(
            "The recording {} has reached its limit, and ends here",
            self.path.display()
        );
        if let Some(block) = self.account.to_block()
            && self.append(&block)
        {
            self.name_file(&QueuedBlock::End(self.account));
        }
        self.progress.end();
    }

    /// Gives the file its name once there are samples in it, and at its end unless an older file is worth more.
    /// False if the system refuses.
    fn name_file(&mut self, part: &QueuedBlock) -> bool {
        let is_worth_it = match part {
            QueuedBlock::Samples(block) if block.bytes.is_empty() => return true,
            QueuedBlock::Samples(_) | QueuedBlock::Looks(_) => true,
            QueuedBlock::End(account) => account.ticks > 0,
            QueuedBlock::Symbols(_) | QueuedBlock::Encoded(_) => return true,
        };
        let path = self.path.display();
        let error = match self.file.keep(is_worth_it) {
            Ok(true) => return true,
            Ok(false) => {
                log::warn!("No tick was recorded: {path} keeps the older recording");
                return true;
            }
            Err(error) => error,
        };
        log::error!("The recording can't be named {path}: {error}");
        self.fail(&error);
        false
    }
}
