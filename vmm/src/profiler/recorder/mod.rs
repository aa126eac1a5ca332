//! A recorder: every tick into a file, with its stack.
//!
//! The event thread puts ticks into blocks and hands these to a thread of the recorder's own, which packs and writes
//! them: neither a vCPU nor a client ever waits for the disk.

mod facts;
mod stream;
mod writer;

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use kvmprof_recording::file::{Block, Facts, Kind, NewFile, SampleBlock, header};
use kvmprof_recording::{ConsumerLedger, Ticks};

pub use facts::{RecordWish, facts, kernel_block};
use kvmprof_introspection::{GuestKnowledge, StackWish};
use kvmprof_recording::file::Intake;
pub use stream::StreamRecorder;
use writer::{Message, Outcome, RecordingFile, Writer};

/// Blocks that may wait for the disk: 16 MiB, some million samples.
const QUEUE: usize = 256;
/// Bytes of other blocks that may wait for the disk, and as many for room there.
const MAX_BLOCKS: usize = 64 << 20;

/// Where to record, and what.
#[derive(Clone, Debug)]
pub struct RecordPlan {
    /// The file, which is made anew.
    pub path: PathBuf,
    /// The parts of the stacks that are taken.
    pub stacks: StackWish,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Recorder {
    plan: RecordPlan,
    intake: Intake,
    outcome: Arc<Outcome>,
    queue: Option<SyncSender<Message>>,
    /// Blocks for which the queue had no room.
    deferred: VecDeque<Arc<[u8]>>,
    deferred_bytes: usize,
    /// Bytes of blocks that were handed over.
    handed_over: usize,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Makes the file of `plan` and writes `facts` to it; the kernel's symbols follow as soon as `knowledge`
    /// has them. An older file is replaced when the first samples are written.
    ///
    /// # Errors
    /// The file can't be made or written to, or there is no thread.
    pub fn start(
        plan: RecordPlan,
        facts: &Facts,
        knowledge: Arc<GuestKnowledge>,
    ) -> io::Result<Self> {
        let file = NewFile::create(&plan.path)?;
        Self::to(file, plan, facts, knowledge)
    }

    fn to<W: RecordingFile + Send + 'static>(
        mut file: W,
        plan: RecordPlan,
        facts: &Facts,
        knowledge: Arc<GuestKnowledge>,
    ) -> io::Result<Self> {
        let facts = Block::encode(Kind::Facts, &serde_json::to_vec(facts)?);
        file.write_all(&header())?;
        file.write_all(&facts.unwrap_or_default())?;
        file.flush()?;
        let outcome = Arc::new(Outcome::default());
        let (queue, messages) = sync_channel(QUEUE);
        let writer = Writer::new(file, plan.path.clone(), knowledge, Arc::clone(&outcome));
        let thread = std::thread::Builder::new()
            .name("recorder".into())
            .spawn(move || writer.run(&messages))?;
        Ok(Self {
            plan,
            intake: Intake::new(&[]),
            outcome,
            queue: Some(queue),
            deferred: VecDeque::new(),
            deferred_bytes: 0,
            handed_over: 0,
            thread: Some(thread),
        })
    }

    /// What is recorded where.
    pub fn plan(&self) -> &RecordPlan {
        &self.plan
    }

    /// Records `ticks`, and the frames of their sample's stack.
    pub fn feed(&mut self, ticks: &Ticks, frames: &[u64]) {
        if let Some(block) = self.intake.feed(ticks, frames) {
            self.hand_over(block);
        }
    }

    /// To be called now and then: hands over what has waited for long enough.
    pub fn tend(&mut self) {
        if let Some(block) = self.intake.due() {
            self.hand_over(block);
        }
    }

    /// Records a whole block. With a disk that keeps up with nothing, the oldest are thrown away.
    pub fn add_block(&mut self, block: Arc<[u8]>) {
        self.deferred_bytes += block.len();
        self.deferred.push_back(block);
        self.hand_over_blocks();
        while self.deferred_bytes > MAX_BLOCKS
            && let Some(oldest) = self.deferred.pop_front()
        {
            self.deferred_bytes -= oldest.len();
        }
    }

    fn hand_over_blocks(&mut self) {
        let Some(queue) = &self.queue else {
            return self.deferred.clear();
        };
        while let Some(block) = self.deferred.pop_front() {
            let length = block.len();
            if self.handed_over - self.outcome.blocks_bytes() > MAX_BLOCKS {
                self.deferred.push_front(block);
                return;
            }
            match queue.try_send(Message::Block(block)) {
                Ok(()) => {
                    self.handed_over += length;
                    self.deferred_bytes -= length;
                }
                Err(TrySendError::Full(Message::Block(block))) => {
                    self.deferred.push_front(block);
                    return;
                }
                // A panic of that thread has been reported already.
                Err(_) => return,
            }
        }
    }

    fn hand_over(&mut self, block: SampleBlock) {
        self.hand_over_blocks();
        let Some(queue) = &self.queue else {
            return self.intake.lose(&block);
        };
        if let Err(
            TrySendError::Full(Message::Samples(block))
            | TrySendError::Disconnected(Message::Samples(block)),
        ) = queue.try_send(Message::Samples(block))
        {
            self.intake.lose(&block);
        }
    }

    /// The account at this moment. What waits for the disk is pending; what it refused is discarded.
    pub fn ledger(&self) -> ConsumerLedger {
        self.intake.ledger(self.outcome.delivered())
    }

    /// Whether the file still takes what it is given.
    pub fn is_writing(&self) -> bool {
        self.queue.is_some() && !self.outcome.has_failed()
    }

    /// Writes what is left, and the account, and closes the file; waits for the disk.
    pub fn finish(&mut self) {
        let Some(queue) = self.queue.take() else {
            return;
        };
        let last = self.intake.take();
        for block in self.deferred.drain(..) {
            // As below.
            let _ = queue.send(Message::Block(block));
        }
        // A thread that has gone can write nothing more: what it was to write stays pending.
        let _ = queue.send(Message::Samples(last));
        let _ = queue.send(Message::End(self.intake.account()));
        drop(queue);
        if let Some(thread) = self.thread.take() {
            // A panic of that thread has been reported already.
            let _ = thread.join();
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.finish();
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write;
    use std::path::Path;

    use kvmprof_recording::file::Recording;
    use kvmprof_recording::{Sample, StackEnd, StackSummary};

    use super::*;
    use kvmprof_introspection::testing::kernel::HOT;
    use kvmprof_introspection::testing::linux_guest::LinuxGuest;
    use kvmprof_introspection::testing::modules::TestModule;

    /// Takes so many bytes, like a disk that fills up.
    struct Disk {
        file: File,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.room == 0 {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            let written = self.file.write(&bytes[..bytes.len().min(self.room)])?;
            self.room -= written;
            Ok(written)
        }

        fn flush(&mut self) -> io::Result<()> {
            self.file.flush()
        }
    }

    impl RecordingFile for Disk {
        fn keep(&mut self, _is_worth_it: bool) -> io::Result<bool> {
            Ok(true)
        }
    }

    fn recorder(path: &Path, room: usize) -> Recorder {
        let plan = RecordPlan {
            path: path.to_owned(),
            stacks: StackWish::default(),
        };
        let disk = Disk {
            file: File::create(path).unwrap(),
            room,
        };
        let knowledge = Arc::new(GuestKnowledge::unknown());
        Recorder::to(disk, plan, &Facts::default(), knowledge).unwrap()
    }

    #[test]
    fn all_modules_are_in_the_file_those_that_have_gone_too() {
        let guest = LinuxGuest::new(HOT);
        guest.knowledge.locate(&guest.memory, &guest.user());
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording");
        let plan = RecordPlan {
            path: path.clone(),
            stacks: StackWish::default(),
        };
        let knowledge = Arc::clone(&guest.knowledge);
        let mut recorder = Recorder::start(plan, &Facts::default(), knowledge).unwrap();
        for name in ["first", "second"] {
            guest.load(&[TestModule::new(name, 2)]);
            guest.read_modules();
            feed(&mut recorder, 1);
        }
        recorder.finish();
        let contents = Recording::open(&path).unwrap().read(|_, _| {}).unwrap();
        let of_modules: Vec<&str> = contents
            .symbols
            .lines()
            .filter(|line| line.ends_with(']'))
            .collect();
        assert_eq!(
            of_modules,
            [
                "ffffffffc0400000 t first_0\t[first]",
                "ffffffffc0401000 t first_1\t[first]",
                "ffffffffc0400000 t second_0\t[second]",
                "ffffffffc0401000 t second_1\t[second]",
            ]
        );
    }

    /// `count` runs of ticks, each with a stack of its own, which hardly packs.
    fn feed(recorder: &mut Recorder, count: u64) {
        for number in 0..count {
            let frames = [number.wrapping_mul(0x9e37_79b9_7f4a_7c15), number << 7];
            let sample = Sample {
                time: number,
                pc: frames[0],
                stack: StackSummary {
                    kernel: 2,
                    kernel_end: StackEnd::Complete,
                    ..StackSummary::default()
                },
                ..Sample::default()
            };
            let ticks = Ticks {
                idle: 2,
                stolen: number % 2,
                lost: 1,
                sample: Some(sample),
                ..Ticks::default()
            };
            recorder.feed(&ticks, &frames);
            assert!(recorder.ledger().balances());
        }
    }

    #[test]
    fn the_file_has_what_the_ledger_says() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording");
        let mut recorder = recorder(&path, usize::MAX);
        feed(&mut recorder, 20_000);
        recorder.finish();
        let ledger = recorder.ledger();
        assert!(ledger.balances());
        assert_eq!((ledger.pending, ledger.discarded), (0, 0));
        let mut samples = 0;
        let contents = Recording::open(&path)
            .unwrap()
            .read(|ticks, frames| {
                if let Some(sample) = ticks.sample {
                    assert_eq!(frames, [sample.pc, sample.time << 7]);
                    samples += 1;
                }
            })
            .unwrap();
        let account = contents.account;
        assert_eq!(contents.closed, Some(account));
        assert_eq!(samples, 20_000);
        assert_eq!(
            (ledger.ticks, ledger.recorded, ledger.merged),
            (account.ticks, account.samples, account.idle)
        );
        assert_eq!((ledger.stolen, ledger.lost), (account.stolen, account.lost));
        assert_eq!(ledger.ticks, 20_000 * 4 + 10_000);
    }

    #[test]
    fn an_older_recording_is_kept_until_there_are_ticks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording");
        let record = |ticks: u64| {
            let plan = RecordPlan {
                path: path.clone(),
                stacks: StackWish::default(),
            };
            let knowledge = Arc::new(GuestKnowledge::unknown());
            let mut recorder = Recorder::start(plan, &Facts::default(), knowledge).unwrap();
            feed(&mut recorder, ticks);
            recorder.finish();
        };
        let samples = || {
            let contents = Recording::open(&path).unwrap().read(|_, _| {}).unwrap();
            contents.closed.unwrap().samples
        };
        // Without an older one there is one that is empty.
        record(0);
        assert_eq!(samples(), 0);
        record(3);
        assert_eq!(samples(), 3);
        record(0);
        assert_eq!(samples(), 3);
        record(2);
        assert_eq!(samples(), 2);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_full_disk_leaves_a_file_that_opens_and_a_ledger_that_balances() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording");
        let mut recorder = recorder(&path, 200_000);
        feed(&mut recorder, 20_000);
        recorder.finish();
        assert!(!recorder.is_writing());
        let ledger = recorder.ledger();
        assert!(ledger.balances(), "{ledger:?}");
        assert!(ledger.discarded > 0 && ledger.recorded > 0, "{ledger:?}");
        assert_eq!(ledger.pending, 0);
        let contents = Recording::open(&path).unwrap().read(|_, _| {}).unwrap();
        assert_eq!(contents.closed, None);
        assert_eq!(contents.account.samples, ledger.recorded);
        assert!(contents.cut_off > 0);
    }
}
