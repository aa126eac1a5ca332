//! The encoder of recordings. It takes ticks and data about the guest, and makes blocks.

use std::collections::HashSet;
use std::sync::Arc;

use kvmprof_abi::pcs::Ledger;

use super::intake::Intake;
use super::{QueuedBlock, SampleBlock, Sink, SymbolText};
use crate::Ticks;
use crate::tasks::TaskLook;

/// Maximum number of bytes that may wait in a sink when samples come. Samples beyond that are lost, and counted.
pub const MAX_WAITING: usize = 16 << 20;

/// Maximum number of different locks that get names.
const MAX_LOCKS: usize = 256;

/// Makes one recording, and keeps its account.
#[derive(Debug)]
pub struct Encoder<S: Sink> {
    sink: S,
    intake: Intake,
    has_kernel: bool,
    /// How much of the text of modules' functions has been taken, in bytes.
    module_text: u64,
    /// How much of the text of the host's functions has been taken, in bytes.
    host_text: u64,
    /// The same of the firmware's names.
    firmware_text: u64,
    /// Addresses of locks that samples wait for.
    locks: HashSet<u64>,
    /// The locks whose names haven't been requested yet.
    unnamed: Vec<u64>,
    is_over: bool,
}

impl<S: Sink> Encoder<S> {
    /// A recording of all processes, or of `pids` if there are any. `sink` has its beginning already.
    pub fn new(sink: S, pids: &[i32]) -> Self {
        Self {
            sink,
            intake: Intake::new(pids),
            has_kernel: false,
            module_text: 0,
            host_text: 0,
            firmware_text: 0,
            locks: HashSet::new(),
            unnamed: Vec::new(),
            is_over: false,
        }
    }

    /// Has blocks of samples come right after multiples of `interval`, in s of CLOCK_REALTIME, instead of once a second.
    pub fn set_interval(&mut self, interval: u32) {
        self.intake.set_interval(interval);
    }

    /// The sink of the blocks.
    pub fn sink(&self) -> &S {
        &self.sink
    }

    /// The sink, to be read from.
    pub fn sink_mut(&mut self) -> &mut S {
        &mut self.sink
    }

    /// True until [`finish`](Self::finish), or until the sink has failed.
    pub fn is_recording(&self) -> bool {
        !self.is_over && self.sink.is_open()
    }

    /// Takes `ticks`, and the frames of their sample's stack.
    pub fn feed(&mut self, ticks: &Ticks, frames: &[u64]) {
        if self.is_over {
            return;
        }
        if let Some(lock) = ticks.sample.and_then(|sample| sample.lock)
            && self.locks.len() < MAX_LOCKS
            && self.locks.insert(lock.address)
        {
            self.unnamed.push(lock.address);
        }
        if let Some(block) = self.intake.feed(ticks, frames) {
            self.put_samples(block);
        }
    }

    /// Adds a look at the guest's tasks. A recording of some processes has only their tasks.
    pub fn feed_look(&mut self, look: &TaskLook) {
        if self.is_over {
            return;
        }
        if let Some(looks) = self.intake.feed_look(look) {
            self.put_looks(looks);
        }
    }

    /// Hands over ticks and looks that have waited for a second, or for the [interval](Self::set_interval). The caller calls it regularly.
    pub fn flush_due(&mut self) {
        if let Some(block) = self.intake.due() {
            self.put_samples(block);
        }
        if let Some(looks) = self.intake.due_looks() {
            self.put_looks(looks);
        }
    }

    /// Takes a whole block, made by [`Block::encode`](super::Block::encode), that later samples refer to. It is discarded if the sink is far
    /// beyond its limit.
    pub fn add_block(&mut self, block: Arc<[u8]>) {
        if !self.is_over {
            // The samples are kept, and have no names.
            let _ = self.sink.put(QueuedBlock::Encoded(block), S::CAPACITY);
        }
    }

    /// Takes a block with the time of a restart. Afterwards the encoder needs the kernel's functions again.
    pub fn add_restart(&mut self, block: Arc<[u8]>) {
        self.add_block(block);
        self.has_kernel = false;
        self.locks.clear();
        self.unnamed.clear();
    }

    /// The address of a lock that samples wait for. The caller passes its name to [`add_variables`](Self::add_variables) if it has one. Each
    /// address comes once, after the kernel's functions.
    pub fn next_lock(&mut self) -> Option<u64> {
        let can_take = self.has_kernel && self.is_recording();
        can_take.then(|| self.unnamed.pop())?
    }

    /// Takes names of addresses in variables of the kernel, in the form of `/proc/kallsyms`. The text may be empty.
    pub fn add_variables(&mut self, lines: String) {
        if !lines.is_empty() {
            self.add_symbols(lines.into());
        }
    }

    /// True until [`add_kernel`](Self::add_kernel).
    pub fn wants_kernel(&self) -> bool {
        !self.has_kernel && self.is_recording()
    }

    /// Takes the kernel's functions.
    pub fn add_kernel(&mut self, symbols: SymbolText) {
        self.has_kernel = true;
        self.add_symbols(symbols);
    }

    /// How many bytes of the text of modules' functions it has. `None` while it can't take more: it needs the kernel's
    /// first, and waits while the reader is far behind.
    pub fn module_text(&self) -> Option<u64> {
        (self.has_kernel && self.takes_symbols()).then_some(self.module_text)
    }

    /// How many bytes of the text of the host's functions it has. `None` while it can't take more.
    pub fn host_text(&self) -> Option<u64> {
        self.takes_symbols().then_some(self.host_text)
    }

    /// How many bytes of the text of the firmware's names it has. `None` while it can't take more.
    pub fn firmware_text(&self) -> Option<u64> {
        self.takes_symbols().then_some(self.firmware_text)
    }

    /// Takes names of the firmware's code, and how many bytes of their text it has now.
    pub fn add_firmware(&mut self, symbols: SymbolText, firmware_text: u64) {
        self.firmware_text = firmware_text;
        self.add_symbols(symbols);
    }

    /// Takes functions of the host, and how many bytes of their text it has now.
    pub fn add_host_functions(&mut self, symbols: SymbolText, host_text: u64) {
        self.host_text = host_text;
        self.add_symbols(symbols);
    }

    fn takes_symbols(&self) -> bool {
        self.is_recording() && self.sink.waiting() <= MAX_WAITING / 2
    }

    /// Takes functions of modules, and how many bytes of their text it has now.
    pub fn add_modules(&mut self, symbols: SymbolText, module_text: u64) {
        self.module_text = module_text;
        self.add_symbols(symbols);
    }

    fn add_symbols(&mut self, symbols: SymbolText) {
        if !self.is_over {
            // As for blocks.
            let _ = self.sink.put(QueuedBlock::Symbols(symbols), S::CAPACITY);
        }
    }

    fn put_samples(&mut self, block: SampleBlock) {
        if let Err(QueuedBlock::Samples(block)) =
            self.sink.put(QueuedBlock::Samples(block), MAX_WAITING)
        {
            self.intake.lose(&block);
        }
    }

    fn put_looks(&mut self, looks: Vec<u8>) {
        // Looks that don't fit are missing: no other look depends on them.
        let _ = self.sink.put(QueuedBlock::Looks(looks), MAX_WAITING);
    }

    /// The account at this moment: ticks that wait in the sink are pending, those that it refused are discarded.
    pub fn ledger(&self) -> Ledger {
        self.intake.ledger(self.sink.delivered())
    }

    /// Ends the recording: delivers the remaining ticks, and the account.
    pub fn finish(&mut self) {
        if self.is_over {
            return;
        }
        self.is_over = true;
        if let Some(looks) = self.intake.take_looks() {
            self.put_looks(looks);
        }
        // These two always fit: the account would be wrong without them.
        let last = QueuedBlock::Samples(self.intake.take());
        let end = QueuedBlock::End(self.intake.account());
        // A sink that refuses them has reported the reason. Its ticks stay pending.
        let _ = self.sink.put(last, usize::MAX);
        let _ = self.sink.put(end, usize::MAX);
        self.sink.finish();
    }
}

impl<S: Sink> Drop for Encoder<S> {
    fn drop(&mut self) {
        self.finish();
    }
}
