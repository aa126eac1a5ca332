//! A recorder whose file is a client's: the recording is what the client reads.

use std::collections::VecDeque;

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::Ledger;
use kvmprof_recording::Ticks;
use kvmprof_recording::file::{Block, Facts, Kind, SampleBlock, header};

use super::facts::RecordWish;
use kvmprof_introspection::Modules;
use kvmprof_recording::file::{Delivered, Intake};

/// Bytes that may wait for the client; what comes then is lost.
const MAX_WAITING: usize = 16 << 20;

/// Bytes that may wait for the client when a block comes that is about many samples.
const MAX_WAITING_BLOCKS: usize = 2 * MAX_WAITING;

/// Bytes of the recording, and the ticks that they account for.
#[derive(Debug, Default)]
struct Part {
    bytes: Vec<u8>,
    samples: u64,
    idle: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct StreamRecorder {
    wish: RecordWish,
    intake: Intake,
    waiting: VecDeque<Part>,
    waiting_bytes: usize,
    /// How much of the first part has been read.
    read: usize,
    delivered: Delivered,
    has_symbols: bool,
    /// How much of the text of modules' functions has been taken, in bytes.
    module_text: u64,
    is_over: bool,
}

impl StreamRecorder {
    /// A recording that begins with `facts`, of what `wish` says.
    pub fn new(facts: &Facts, wish: RecordWish) -> Self {
        let mut recorder = Self {
            intake: Intake::new(&wish.pids),
            wish,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            read: 0,
            delivered: Delivered::default(),
            has_symbols: false,
            module_text: 0,
            is_over: false,
        };
        let facts = serde_json::to_vec(facts).unwrap_or_default();
        let facts = Block::encode(Kind::Facts, &facts).unwrap_or_default();
        recorder.add(Part {
            bytes: [header().as_slice(), &facts].concat(),
            ..Part::default()
        });
        recorder
    }

    /// What it takes.
    pub fn wish(&self) -> &RecordWish {
        &self.wish
    }

    /// True until it is stopped.
    pub fn wants_ticks(&self) -> bool {
        !self.is_over
    }

    /// Takes `ticks`, and the frames of their sample's stack.
    pub fn feed(&mut self, ticks: &Ticks, frames: &[u64]) {
        if self.is_over {
            return;
        }
        if let Some(block) = self.intake.feed(ticks, frames) {
            self.add_samples(&block);
        }
    }

    /// To be called now and then: hands over what has waited for long enough.
    pub fn tend(&mut self) {
        if let Some(block) = self.intake.due() {
            self.add_samples(&block);
        }
    }

    /// True while the kernel's symbols should be given as soon as they are known.
    pub fn wants_symbols(&self) -> bool {
        !self.has_symbols && !self.is_over
    }

    /// Takes the kernel's symbols, in the form of `/proc/kallsyms`.
    pub fn give_symbols(&mut self, text: &[u8]) {
        self.has_symbols = true;
        self.add_symbols(text);
    }

    /// Takes the functions of modules that were learned of since the last call. They follow the kernel's.
    pub fn take_module_functions(&mut self, modules: &Modules) {
        // There is more to come where that waits for the client to read.
        if !self.has_symbols || self.is_over || self.waiting_bytes > MAX_WAITING / 2 {
            return;
        }
        let Some(new) = modules.functions_after(self.module_text) else {
            return;
        };
        self.module_text = new.known;
        self.add_symbols(new.text.as_bytes());
    }

    fn add_symbols(&mut self, text: &[u8]) {
        if let Some(bytes) = Block::encode(Kind::Symbols, text) {
            self.add(Part {
                bytes,
                ..Part::default()
            });
        }
    }

    /// Takes a whole block; one for which there is no room by far is thrown away.
    pub fn add_block(&mut self, block: &[u8]) {
        if !self.is_over && self.waiting_bytes + block.len() <= MAX_WAITING_BLOCKS {
            self.add(Part {
                bytes: block.to_vec(),
                ..Part::default()
            });
        }
    }

    fn add_samples(&mut self, block: &SampleBlock) {
        if block.bytes.is_empty() {
            return;
        }
        match Block::encode(Kind::Samples, &block.bytes) {
            Some(bytes) if self.waiting_bytes + bytes.len() <= MAX_WAITING => self.add(Part {
                bytes,
                samples: block.samples,
                idle: block.idle,
            }),
            _ => self.intake.lose(block),
        }
    }

    fn add(&mut self, part: Part) {
        self.waiting_bytes += part.bytes.len();
        self.waiting.push_back(part);
    }

    /// No more ticks: what is left can be read, then the end of file.
    pub fn stop(&mut self) {
        if self.is_over {
            return;
        }
        let last = self.intake.take();
        self.add_samples(&last);
        // Were that lost for want of room, it would be in the account that follows.
        let account = serde_json::to_vec(&self.intake.account()).unwrap_or_default();
        self.is_over = true;
        if let Some(bytes) = Block::encode(Kind::End, &account) {
            self.add(Part {
                bytes,
                ..Part::default()
            });
        }
    }

    /// Whether a read has something, or the end of file.
    pub fn readable(&self) -> bool {
        self.is_over || !self.waiting.is_empty()
    }

    /// Bytes that wait for the client.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes - self.read
    }

    /// At most `limit` bytes of the recording; none at its end.
    ///
    /// # Errors
    /// EAGAIN while there is nothing to read yet.
    pub fn read(&mut self, limit: usize) -> Result<Vec<u8>, Errno> {
        let Some(first) = self.waiting.front() else {
            return if self.is_over {
                Ok(Vec::new())
            } else {
                Err(Errno::EAGAIN)
            };
        };
        let rest = first.bytes.get(self.read..).unwrap_or_default();
        let bytes = rest[..limit.min(rest.len())].to_vec();
        self.read += bytes.len();
        if bytes.len() == rest.len()
            && let Some(part) = self.waiting.pop_front()
        {
            self.read = 0;
            self.waiting_bytes -= part.bytes.len();
            self.delivered.samples += part.samples;
            self.delivered.idle += part.idle;
        }
        Ok(bytes)
    }

    /// The account at this moment: what hasn't been read is pending.
    pub fn ledger(&self) -> Ledger {
        self.intake.ledger(self.delivered)
    }
}

#[cfg(test)]
mod tests {
    use kvmprof_recording::Sample;
    use kvmprof_recording::file::Recording;

    use super::*;
    use kvmprof_introspection::testing::kernel::HOT;
    use kvmprof_introspection::testing::linux_guest::LinuxGuest;
    use kvmprof_introspection::testing::modules::TestModule;

    fn feed(recorder: &mut StreamRecorder, from: u64, count: u64) {
        for number in from..from + count {
            let sample = Sample {
                time: number,
                // Such as hardly packs.
                pc: number.wrapping_mul(0x9e37_79b9_7f4a_7c15),
                address_space: number.wrapping_mul(0xd1b5_4a32_d192_ed03),
                ..Sample::default()
            };
            let ticks = Ticks {
                idle: 1,
                sample: Some(sample),
                ..Ticks::default()
            };
            recorder.feed(&ticks, &[]);
        }
        assert!(recorder.ledger().balances());
    }

    fn read(recorder: &mut StreamRecorder) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            match recorder.read(1000) {
                Ok(bytes) if bytes.is_empty() => return all,
                Ok(bytes) => all.extend(bytes),
                Err(errno) => {
                    assert_eq!(errno, Errno::EAGAIN);
                    return all;
                }
            }
        }
    }

    fn contents(bytes: &[u8]) -> kvmprof_recording::file::Contents {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording");
        std::fs::write(&path, bytes).unwrap();
        Recording::open(&path).unwrap().read(|_, _| {}).unwrap()
    }

    #[test]
    fn what_is_read_is_a_recording() {
        let mut recorder = StreamRecorder::new(&Facts::default(), RecordWish::default());
        let mut bytes = read(&mut recorder);
        feed(&mut recorder, 0, 5000);
        recorder.give_symbols(b"1000 t f\n");
        bytes.extend(read(&mut recorder));
        feed(&mut recorder, 5000, 5000);
        recorder.stop();
        feed(&mut recorder, 0, 10);
        assert!(recorder.readable());
        bytes.extend(read(&mut recorder));
        assert_eq!(recorder.read(10), Ok(Vec::new()));
        let contents = contents(&bytes);
        let ledger = recorder.ledger();
        assert_eq!(contents.closed, Some(contents.account));
        assert_eq!(contents.symbols, "1000 t f\n");
        assert_eq!(
            (ledger.recorded, ledger.merged, ledger.pending),
            (10_000, 10_000, 0)
        );
        assert_eq!(contents.account.samples, 10_000);
    }

    #[test]
    fn modules_follow_the_kernels_symbols_each_once() {
        let guest = LinuxGuest::new(HOT);
        guest.knowledge.locate(&guest.memory, &guest.user());
        let modules = guest.knowledge.modules().unwrap();
        guest.load(&[TestModule::new("first", 1)]);
        guest.read_modules();
        let mut recorder = StreamRecorder::new(&Facts::default(), RecordWish::default());
        recorder.take_module_functions(modules);
        recorder.give_symbols(b"1000 t f\n");
        recorder.take_module_functions(modules);
        guest.load(&[TestModule::new("first", 1), TestModule::new("second", 1)]);
        guest.read_modules();
        for _ in 0..3 {
            recorder.take_module_functions(modules);
        }
        recorder.stop();
        let contents = contents(&read(&mut recorder));
        assert_eq!(
            contents.symbols,
            "1000 t f\nffffffffc0400000 t first_0\t[first]\n\nffffffffc0420000 t second_0\t[second]\n\n"
        );
    }

    #[test]
    fn modules_wait_for_a_client_that_does_not_read() {
        let guest = LinuxGuest::new(HOT);
        guest.knowledge.locate(&guest.memory, &guest.user());
        guest.load(&[TestModule::new("first", 1)]);
        guest.read_modules();
        let modules = guest.knowledge.modules().unwrap();
        let mut recorder = StreamRecorder::new(&Facts::default(), RecordWish::default());
        recorder.give_symbols(b"1000 t f\n");
        let mut fed = 0;
        while recorder.waiting_bytes <= MAX_WAITING / 2 {
            feed(&mut recorder, fed, 10_000);
            fed += 10_000;
        }
        let before = recorder.waiting_bytes;
        recorder.take_module_functions(modules);
        assert_eq!(recorder.waiting_bytes, before);
        let mut bytes = read(&mut recorder);
        recorder.take_module_functions(modules);
        recorder.stop();
        bytes.extend(read(&mut recorder));
        assert!(contents(&bytes).symbols.ends_with("first_0\t[first]\n\n"));
    }

    #[test]
    fn a_client_that_does_not_read_loses_samples_and_is_told() {
        let mut recorder = StreamRecorder::new(&Facts::default(), RecordWish::default());
        let mut fed = 0;
        while recorder.ledger().lost == 0 {
            feed(&mut recorder, fed, 10_000);
            fed += 10_000;
            assert!(recorder.waiting_bytes <= MAX_WAITING);
        }
        let mut bytes = read(&mut recorder);
        recorder.stop();
        bytes.extend(read(&mut recorder));
        let contents = contents(&bytes);
        assert_eq!(contents.closed, Some(contents.account));
        assert_eq!(contents.account.lost, recorder.ledger().lost);
        assert_eq!(contents.account.ticks, 2 * fed);
        assert!(recorder.ledger().balances());
    }
}
