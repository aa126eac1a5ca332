//! Recordings through the encoder into both sinks.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::task::Wake;

use tempfile::TempDir;

use super::*;
use crate::file::{Contents, Encoder, HEADER, NewFile, Recording};
use crate::{LockOwner, LockWait, Preemption, QueueBudget, Sample, StackEnd, StackSummary, Ticks};

/// The limit for samples in a sink, as the encoder has it.
const MAX_WAITING: usize = 16 << 20;

/// Accepts this many bytes, like a disk that fills up.
struct Disk {
    file: File,
    room: usize,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.room == 0 {
            return Err(io::ErrorKind::StorageFull.into());
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

/// A recording that will be at `path`.
fn sink(path: &Path, options: FileOptions) -> FileSink {
    let file = NewFile::create_recording(path).unwrap();
    FileSink::to(file, path, &RecordingInfo::default(), options).unwrap()
}

/// A folder, the path of a recording in it, and its encoder.
fn recorder() -> (TempDir, PathBuf, Encoder<FileSink>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    let encoder = Encoder::new(sink(&path, FileOptions::default()), &[]);
    (folder, path, encoder)
}

/// Feeds `count` runs of 4 or 5 ticks, each with its own stack, which hardly compresses.
fn feed<S: Sink>(encoder: &mut Encoder<S>, count: u64) {
    for number in 0..count {
        let frames = [number.wrapping_mul(0x9e37_79b9_7f4a_7c15), number << 7];
        let sample = Sample {
            time: number,
            pc: frames[0],
            address_space: number.wrapping_mul(0xd1b5_4a32_d192_ed03),
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
            ..sample.into()
        };
        encoder.feed(&ticks, &frames);
        assert!(encoder.ledger().balances());
    }
}

/// The details of sample `number` beyond the common ones.
fn detailed(number: u64) -> Sample {
    let owner = LockOwner {
        tid: 7,
        vcpu: number.is_multiple_of(2).then_some(1),
        ..LockOwner::default()
    };
    Sample {
        time: number,
        preemption: Preemption::ALL[usize::try_from(number % 5).unwrap().min(2)],
        lock: number.is_multiple_of(3).then_some(LockWait {
            address: number << 40,
            owner: (!number.is_multiple_of(4)).then_some(owner),
        }),
        // It isn't recorded.
        process_group: -1,
        ..Sample::default()
    }
}

/// In many blocks, each with details of its own samples.
#[test]
fn details_stay_with_their_samples() {
    let (_folder, path, mut encoder) = recorder();
    // The last one has no details.
    let plain = Sample {
        time: u64::MAX,
        process_group: -1,
        ..Sample::default()
    };
    let samples: Vec<Sample> = (0..20_000).map(detailed).chain([plain]).collect();
    for sample in &samples {
        encoder.feed(&(*sample).into(), &[]);
    }
    encoder.finish();
    let mut found = Vec::new();
    let read = Recording::open(&path)
        .unwrap()
        .read(|ticks, _| found.extend(ticks.sample));
    assert_eq!(read.unwrap().account.samples, 20_001);
    let details = |samples: &[Sample]| -> Vec<_> {
        let details = samples.iter().map(|it| (it.preemption, it.lock));
        details.collect()
    };
    assert!(details(&found) == details(&samples));
    // They are in separate blocks, which older readers skip.
    let bytes = fs::read(&path).unwrap();
    let (mut rest, mut kinds) = (&bytes[HEADER..], Vec::new());
    while let Some(block) = Block::decode(rest) {
        rest = &rest[block.length..];
        kinds.push(block.kind.unwrap());
    }
    let details = kinds.windows(2).filter(|pair| pair[0] == Kind::Details);
    assert!(
        details.clone().all(|pair| pair[1] == Kind::Samples),
        "{kinds:?}"
    );
    assert!(details.count() > 1, "{kinds:?}");
}

fn read(path: &Path) -> Contents {
    Recording::open(path).unwrap().read(|_, _| {}).unwrap()
}

#[test]
fn the_file_agrees_with_the_ledger() {
    let (_folder, path, mut encoder) = recorder();
    feed(&mut encoder, 20_000);
    assert!(encoder.is_recording());
    encoder.finish();
    assert!(!encoder.is_recording());
    let ledger = encoder.ledger();
    assert!(ledger.balances());
    assert_eq!((ledger.pending, ledger.discarded), (0, 0));
    assert_eq!(encoder.sink().waiting(), 0);
    let mut samples = 0;
    let contents = Recording::open(&path).unwrap().read(|ticks, frames| {
        if let Some(sample) = ticks.sample {
            assert_eq!(frames, [sample.pc, sample.time << 7]);
            samples += 1;
        }
    });
    assert_eq!(samples, 20_000);
    let expected = Account {
        ticks: 20_000 * 4 + 10_000,
        samples,
        idle: 40_000,
        stolen: 10_000,
        lost: 20_000,
        ungathered: 0,
    };
    let contents = contents.unwrap();
    assert_eq!(
        (contents.account, contents.closed),
        (expected, Some(expected))
    );
    let of_ledger = Account {
        ticks: ledger.ticks,
        samples: ledger.recorded,
        idle: ledger.merged,
        stolen: ledger.stolen,
        lost: ledger.lost,
        ungathered: ledger.ungathered,
    };
    assert_eq!(of_ledger, expected);
}

#[test]
fn an_older_recording_keeps_its_name_until_there_are_ticks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    let record = |ticks: u64| {
        let sink = sink(&path, FileOptions::default());
        feed(&mut Encoder::new(sink, &[]), ticks);
    };
    let samples = || read(&path).closed.unwrap().samples;
    // Without an older one there is an empty one.
    for (ticks, kept) in [(0, 0), (3, 3), (0, 3), (2, 2)] {
        record(ticks);
        assert_eq!(samples(), kept);
    }
    // Then it is renamed.
    let older = read(&folder.path().join("recording.old"));
    assert_eq!(older.closed.unwrap().samples, 3);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn a_full_disk_leaves_a_file_that_opens_and_a_ledger_that_balances() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    let disk = Disk {
        file: File::create(&path).unwrap(),
        room: 200_000,
    };
    let woken = Arc::<Woken>::default();
    let options = FileOptions {
        waker: Some(Arc::clone(&woken).into()),
        ..FileOptions::default()
    };
    let failure = options.failure.clone();
    *woken.failure.lock().unwrap() = failure.clone();
    let sink = FileSink::to(disk, &path, &RecordingInfo::default(), options).unwrap();
    let mut encoder = Encoder::new(sink, &[]);
    feed(&mut encoder, 20_000);
    encoder.finish();
    assert!(!encoder.is_recording());
    let ledger = encoder.ledger();
    assert!(ledger.balances(), "{ledger:?}");
    assert!(ledger.discarded > 0 && ledger.recorded > 0, "{ledger:?}");
    assert_eq!(ledger.pending, 0);
    let contents = read(&path);
    assert_eq!(contents.closed, None);
    assert_eq!(contents.account.samples, ledger.recorded);
    assert!(contents.cut_off > 0);
    let message = failure.message().unwrap();
    assert!(message.contains("isn't whole"), "{message}");
    assert_eq!(woken.seen.lock().unwrap().as_deref(), Some(message));
}

/// Looks at the failure when it is woken.
#[derive(Default)]
struct Woken {
    failure: Mutex<RecordingFailure>,
    seen: Mutex<Option<String>>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        let failure = self.failure.lock().unwrap();
        *self.seen.lock().unwrap() = failure.message().map(str::to_owned);
    }
}

#[test]
fn a_recording_at_its_limit_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    for limit in [2000, 200_000] {
        let options = FileOptions {
            limit: Some(limit),
            ..FileOptions::default()
        };
        let failure = options.failure.clone();
        let mut encoder = Encoder::new(sink(&path, options), &[]);
        feed(&mut encoder, 20_000);
        encoder.finish();
        assert!(!encoder.is_recording());
        let ledger = encoder.ledger();
        assert!(ledger.balances() && ledger.discarded > 0, "{ledger:?}");
        assert_eq!(ledger.pending, 0);
        let contents = read(&path);
        assert_eq!(contents.closed, Some(contents.account));
        assert_eq!((contents.cut_off, failure.message()), (0, None));
        assert_eq!(contents.account.samples, ledger.recorded);
        assert!(fs::metadata(&path).unwrap().len() <= limit);
    }
    assert!(read(&path).account.samples > 0);
}

fn client_encoder() -> Encoder<ClientSink> {
    Encoder::new(ClientSink::new(&RecordingInfo::default()), &[])
}

/// Everything that a client can read now.
fn read_all(encoder: &mut Encoder<ClientSink>) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(bytes) = encoder.sink_mut().read(1000)
        && !bytes.is_empty()
    {
        all.extend(bytes);
    }
    all
}

fn contents(bytes: &[u8]) -> Contents {
    let recording = Recording::from_bytes(Path::new("test"), bytes.to_vec()).unwrap();
    recording.read(|_, _| {}).unwrap()
}

fn text(text: &str) -> SymbolText {
    text.to_owned().into()
}

#[test]
fn a_clients_stream_is_a_recording() {
    let mut encoder = client_encoder();
    let mut bytes = read_all(&mut encoder);
    feed(&mut encoder, 5000);
    assert!(encoder.wants_kernel());
    encoder.add_kernel(text("1000 t f\n"));
    assert!(!encoder.wants_kernel());
    bytes.extend(read_all(&mut encoder));
    assert!(!encoder.sink().is_readable());
    assert_eq!(encoder.sink_mut().read(10), None);
    feed(&mut encoder, 5000);
    encoder.finish();
    let ledger = encoder.ledger();
    assert!(ledger.pending > 0);
    feed(&mut encoder, 10);
    assert_eq!(encoder.ledger(), ledger);
    assert!(encoder.sink().is_readable());
    bytes.extend(read_all(&mut encoder));
    assert_eq!(encoder.sink_mut().read(10), Some(Vec::new()));
    let contents = contents(&bytes);
    let ledger = encoder.ledger();
    assert_eq!(contents.closed, Some(contents.account));
    assert_eq!(contents.symbols, "1000 t f\n");
    let counts = [ledger.recorded, ledger.merged, ledger.pending];
    assert_eq!(counts, [10_000, 20_000, 0]);
    assert_eq!(contents.account.samples, 10_000);
}

#[test]
fn modules_follow_the_kernel_and_wait_for_a_client_that_does_not_read() {
    let mut encoder = client_encoder();
    assert_eq!(encoder.module_text(), None);
    encoder.add_kernel(text("1000 t f\n"));
    assert_eq!(encoder.module_text(), Some(0));
    while encoder.sink().waiting() <= MAX_WAITING / 2 {
        feed(&mut encoder, 10_000);
    }
    assert_eq!(encoder.module_text(), None);
    let mut bytes = read_all(&mut encoder);
    assert_eq!(encoder.module_text(), Some(0));
    encoder.add_modules(text("2000 t g\t[m]\n"), 13);
    assert_eq!(encoder.module_text(), Some(13));
    encoder.finish();
    assert_eq!(encoder.module_text(), None);
    bytes.extend(read_all(&mut encoder));
    assert!(contents(&bytes).symbols.ends_with("2000 t g\t[m]\n"));
}

#[test]
fn a_client_that_does_not_read_loses_counted_samples() {
    let mut encoder = client_encoder();
    let (mut fed, mut lost_anyway) = (0, 0);
    while encoder.ledger().lost == lost_anyway {
        feed(&mut encoder, 10_000);
        fed += 10_000;
        lost_anyway = fed;
        assert!(encoder.sink().waiting() <= MAX_WAITING);
    }
    let mut bytes = read_all(&mut encoder);
    encoder.finish();
    bytes.extend(read_all(&mut encoder));
    let contents = contents(&bytes);
    assert_eq!(contents.closed, Some(contents.account));
    assert_eq!(contents.account.lost, encoder.ledger().lost);
    assert_eq!(contents.account.ticks, fed * 4 + fed / 2);
    assert!(encoder.ledger().balances());
}

#[test]
fn a_block_far_beyond_the_limit_is_discarded() {
    let mut encoder = client_encoder();
    let block: Arc<[u8]> = vec![0; 1 << 20].into();
    for _ in 0..40 {
        encoder.add_block(Arc::clone(&block));
    }
    let waiting = encoder.sink().waiting();
    assert!((31 << 20..=32 << 20).contains(&waiting), "{waiting}");
}

/// A slow reader causes no work for parts without room: until there is room for one like the last, none is compressed.
#[test]
fn a_block_without_room_is_compressed_once_until_data_is_read() {
    let mut sink = ClientSink::new(&RecordingInfo::default());
    // Text that hardly compresses.
    let mut seed = 1_u64;
    let mut symbols = |bytes: usize| {
        let digits = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            b"0123456789abcdef"[usize::try_from(seed >> 60).unwrap()]
        });
        SymbolText::new(digits.take(bytes).collect())
    };
    let limit = 100_000;
    let (first, second, third) = (symbols(150_000), symbols(150_000), symbols(150_000));
    let put = |sink: &mut ClientSink, text: &SymbolText, limit| {
        sink.put(QueuedBlock::Symbols(text.clone()), limit).is_ok()
    };
    assert!(put(&mut sink, &first, limit) && !put(&mut sink, &second, limit));
    assert!(second.is_packed());
    assert!(!put(&mut sink, &third, limit) && !third.is_packed());
    // Another limit is independent, and so is the end.
    assert!(put(&mut sink, &symbols(100), 2 * limit));
    sink.read(usize::MAX).unwrap();
    assert!(put(&mut sink, &third, limit) && third.is_packed());
    assert!(!put(&mut sink, &second, limit) && put(&mut sink, &second, usize::MAX));
}

/// All recordings together keep no more unread bytes than the common limit and each one's own; one that is read loses nothing.
#[test]
fn recordings_that_nobody_reads_share_a_common_room() {
    const COMMON: usize = 4 << 20;
    const STEP: u64 = 10_000;
    let room = Arc::new(QueueBudget::new(COMMON));
    let new = || {
        let sink = ClientSink::within(&RecordingInfo::default(), &room);
        Encoder::new(sink, &[])
    };
    let (mut unread, mut read) = ([(); 2].map(|()| new()), new());
    let (mut all, mut fed) = (Vec::new(), 0);
    // Each sample comes with a lost tick.
    while unread.iter().any(|encoder| encoder.ledger().lost == fed) {
        for encoder in unread.iter_mut().chain([&mut read]) {
            feed(encoder, STEP);
        }
        fed += STEP;
        all.extend(read_all(&mut read));
    }
    let waiting: usize = unread.iter().map(|one| one.sink().waiting()).sum();
    let most = COMMON + unread.len() * ClientSink::OWN_BYTES;
    let block = 1 << 20;
    assert!((most - block..=most).contains(&waiting), "{waiting}");
    assert_eq!(read.ledger().lost, fed);
    // All end with a complete account, and reading frees room for others.
    for encoder in &mut unread {
        encoder.finish();
        let contents = contents(&read_all(encoder));
        assert_eq!(contents.closed, Some(contents.account));
        assert_eq!(contents.account.lost, encoder.ledger().lost);
        assert!(encoder.ledger().balances());
    }
    read.finish();
    all.extend(read_all(&mut read));
    assert_eq!(contents(&all).account.samples, fed);
    assert_eq!(room.left(), COMMON);
}

/// All recordings share the bytes of common data.
#[test]
fn recordings_share_common_data() {
    let symbols = text("1000 t f\n");
    let block: Arc<[u8]> = vec![7; 1000].into();
    let mut sinks = [(); 2].map(|()| ClientSink::new(&RecordingInfo::default()));
    let packed = symbols.block().unwrap();
    let before = [&packed, &block].map(Arc::strong_count);
    for sink in &mut sinks {
        let symbols = QueuedBlock::Symbols(symbols.clone());
        sink.put(symbols, usize::MAX).unwrap();
        let block = QueuedBlock::Encoded(Arc::clone(&block));
        sink.put(block, usize::MAX).unwrap();
    }
    let after = [&packed, &block].map(Arc::strong_count);
    assert_eq!(after, before.map(|count| count + 2));
    let [first, second] = sinks.map(|mut sink| sink.read(usize::MAX).unwrap());
    assert_eq!(first, second);
    assert!(first.ends_with(&[&*packed, &*block].concat()));
}
