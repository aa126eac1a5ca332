//! The thread that packs and writes.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;

use kvmprof_recording::file::{Account, Block, Kind, NewFile, SampleBlock};

use super::facts::kernel_block;
use kvmprof_introspection::GuestKnowledge;
use kvmprof_recording::file::Delivered;

/// What there is to write.
pub enum Message {
    /// Samples.
    Samples(SampleBlock),
    /// A whole block.
    Block(Arc<[u8]>),
    /// The last block: the account of all ticks.
    End(Account),
}

/// What became of the ticks that were handed over, for the event thread to see.
#[derive(Debug, Default)]
pub struct Outcome {
    samples: AtomicU64,
    idle: AtomicU64,
    refused: AtomicU64,
    blocks_bytes: AtomicUsize,
    failed: AtomicBool,
}

impl Outcome {
    /// What is in the file, and what the disk refused.
    pub fn delivered(&self) -> Delivered {
        let load = |count: &AtomicU64| count.load(Ordering::Acquire);
        Delivered {
            samples: load(&self.samples),
            idle: load(&self.idle),
            refused: load(&self.refused),
        }
    }

    /// Bytes of whole blocks that have been written, or won't be.
    pub fn blocks_bytes(&self) -> usize {
        self.blocks_bytes.load(Ordering::Acquire)
    }

    /// Whether the disk has refused anything.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }
}

/// The file of a recording, which may have to get its name yet.
pub trait RecordingFile: Write {
    /// Gives the file its name: in the place of an older one only if the recording `is_worth_it`. Returns whether it
    /// has its name.
    ///
    /// # Errors
    /// What the system says.
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

/// Writes one recording.
pub struct Writer<W> {
    file: W,
    path: PathBuf,
    knowledge: Arc<GuestKnowledge>,
    has_symbols: bool,
    /// How much of the text of modules' functions has been written, in bytes.
    module_text: u64,
    outcome: Arc<Outcome>,
}

impl<W: RecordingFile> Writer<W> {
    /// Goes on after the facts in `file`; `path` is for messages.
    pub fn new(
        file: W,
        path: PathBuf,
        knowledge: Arc<GuestKnowledge>,
        outcome: Arc<Outcome>,
    ) -> Self {
        Self {
            file,
            path,
            knowledge,
            has_symbols: false,
            module_text: 0,
            outcome,
        }
    }

    /// Writes until nobody sends any more.
    pub fn run(mut self, messages: &Receiver<Message>) {
        for message in messages {
            self.write_symbols();
            self.write_module_functions();
            match message {
                Message::Samples(block) => self.write_samples(&block),
                Message::Block(block) => {
                    self.write_block(&block);
                    let done = &self.outcome.blocks_bytes;
                    done.fetch_add(block.len(), Ordering::Release);
                }
                Message::End(account) => {
                    if let Ok(json) = serde_json::to_vec(&account) {
                        self.write(Kind::End, &json);
                    }
                    self.keep(account.ticks > 0);
                }
            }
        }
    }

    fn write_samples(&mut self, block: &SampleBlock) {
        if block.bytes.is_empty() {
            return;
        }
        let outcome = Arc::clone(&self.outcome);
        if self.write(Kind::Samples, &block.bytes) && self.keep(true) {
            outcome.samples.fetch_add(block.samples, Ordering::Release);
            outcome.idle.fetch_add(block.idle, Ordering::Release);
        } else {
            let ticks = block.samples + block.idle;
            outcome.refused.fetch_add(ticks, Ordering::Release);
        }
    }

    /// Has the file take its name, unless an older one is worth more. False if the system refuses.
    fn keep(&mut self, is_worth_it: bool) -> bool {
        let path = self.path.display();
        match self.file.keep(is_worth_it) {
            Ok(true) => return true,
            Ok(false) => {
                log::warn!("No tick was recorded: {path} keeps the older recording");
                return true;
            }
            Err(error) => log::error!("The recording can't be named {path}: {error}"),
        }
        self.outcome.failed.store(true, Ordering::Release);
        false
    }

    /// The kernel's symbols, as soon as it is known where it runs.
    fn write_symbols(&mut self) {
        if !self.has_symbols
            && let Some(text) = self.knowledge.kallsyms()
        {
            if let Some(block) = kernel_block(&self.knowledge) {
                self.write_block(&block);
            }
            self.has_symbols = self.write(Kind::Symbols, text.as_bytes());
        }
    }

    /// The functions of modules that were learned of since the last call, behind the kernel's.
    fn write_module_functions(&mut self) {
        while self.has_symbols
            && let Some(modules) = self.knowledge.modules()
            && let Some(new) = modules.functions_after(self.module_text)
        {
            self.module_text = new.known;
            self.write(Kind::Symbols, new.text.as_bytes());
        }
    }

    /// Whether the block is in the file. After a failure nothing more is: behind half a block it couldn't be
    /// found.
    fn write(&mut self, kind: Kind, contents: &[u8]) -> bool {
        Block::encode(kind, contents).is_some_and(|block| self.write_block(&block))
    }

    fn write_block(&mut self, block: &[u8]) -> bool {
        if self.outcome.has_failed() {
            return false;
        }
        let written = self.file.write_all(block).and_then(|()| self.file.flush());
        if let Err(error) = written {
            log::error!("The recording {} ends here: {error}", self.path.display());
            self.outcome.failed.store(true, Ordering::Release);
            return false;
        }
        true
    }
}
