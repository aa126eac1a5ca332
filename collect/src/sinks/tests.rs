use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::parquet::{NamedWindow, Target};
use super::*;
use crate::batch::testing::batch;
use crate::spool::read_progress;
use crate::spool::testing::{fill_up, on_small_disk, take_kept_room};

#[test]
fn retry_delays_grow_to_a_limit_with_jitter() {
    let mut backoff = BACKOFF;
    let waits: Vec<Duration> = (0..8).map(|_| backoff.advance()).collect();
    let expected = [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000];
    assert_eq!(waits, expected.map(Duration::from_millis));
    for wait in [waits[0], waits[7]] {
        assert_eq!(jittered(wait, 0), wait);
        assert_eq!(jittered(wait, 128), wait + wait / 4);
        let longest = jittered(wait, u8::MAX);
        assert!(longest < wait + wait / 2 && longest > wait * 149 / 100);
        let all = (0..=u8::MAX).map(|chance| jittered(wait, chance));
        assert!(all.is_sorted_by(|one, other| one < other));
    }
    // It differs between collectors.
    let chances: std::collections::BTreeSet<u8> = (0..1000).map(|_| chance()).collect();
    assert!(chances.len() > 100, "{chances:?}");
}

/// Accepts each batch in this number of parts of ten ticks. The function is called before and after the departure of each part, with the part, and whether it
/// has departed.
struct PartSink<F: FnMut(usize, bool) + Send>(usize, F);

impl<F: FnMut(usize, bool) + Send> Sink for PartSink<F> {
    fn parts(&mut self, batches: &[Batch]) -> usize {
        self.0 * batches.len()
    }

    fn part(&self, _: &[Batch], _: usize) -> (u64, u64) {
        (1, 10)
    }

    fn send(
        &mut self,
        _: &[Batch],
        part: usize,
        departure: &Arc<Departure>,
    ) -> Result<(), Failure> {
        (self.1)(part, false);
        departure.note().map_err(anyhow::Error::from)?;
        (self.1)(part, true);
        Ok(())
    }
}

/// A spool in `folder` for one sink.
fn open(folder: &Path) -> anyhow::Result<Arc<Spool>> {
    Ok(Arc::new(Spool::open(
        &folder.join("spool"),
        1 << 30,
        &["a"],
    )?))
}

/// Delivers the batches in `spool` to `sink`. Returns its progress, and the number of batches that wait for it.
fn run(spool: &Arc<Spool>, sink: &mut dyn Sink) -> (Progress, u64) {
    let mut runner = Runner {
        name: "a".to_owned(),
        sink,
        spool: Arc::clone(spool),
        last_error: String::new(),
    };
    runner.run();
    let (_, progress, waiting) = spool.progress().remove(0);
    (progress, waiting)
}

/// At any time, a kill leaves at most one unsure part, and none before the first departure.
#[test]
fn notes_name_what_may_have_arrived() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("spool");
    let spool = open(folder.path()).unwrap();
    spool.push(&batch(10, &["g"], 5)).unwrap();
    spool.drain();
    let on_disk = || read_progress(&path, "a").unwrap().unwrap();
    let mut seen: Vec<(u64, bool, u64)> = Vec::new();
    let mut sink = PartSink(3, |_, _| {
        let progress = on_disk();
        let attempt = progress.attempt.unwrap();
        seen.push((attempt.part, attempt.is_sent, progress.delivered.windows));
    });
    let (progress, waiting) = run(&spool, &mut sink);
    assert_eq!((progress.delivered.windows, waiting), (3, 0));
    // Until a part's departure, the last note is that of the part before it.
    let expected = [
        (0, false, 0),
        (0, true, 0),
        (0, true, 0),
        (1, true, 1),
        (1, true, 1),
        (2, true, 2),
    ];
    assert_eq!(seen, expected);
    assert_eq!(on_disk(), progress);
}

/// The collector is killed after the departure of the second part, and before that of the third one.
#[test]
fn a_killed_collector_leaves_one_part_unsure() {
    let folder = tempfile::tempdir().unwrap();
    let spool = open(folder.path()).unwrap();
    spool.push(&batch(10, &["g", "h"], 5)).unwrap();
    spool.claim("a", 0).unwrap();
    spool
        .change("a", |progress| {
            progress.delivered.add_part(1, 8);
            progress.go_on(1, true);
        })
        .unwrap();
    drop(spool);
    let spool = open(folder.path()).unwrap();
    spool.drain();
    let mut calls = 0;
    let (progress, waiting) = run(&spool, &mut PartSink(3, |_, _| calls += 1));
    assert_eq!((progress.delivered.windows, waiting), (2, 0));
    assert_eq!((progress.unsure.windows, progress.unsure.ticks), (1, 10));
    assert_eq!(calls, 2);
}

#[test]
fn a_failed_sink_is_reported_before_the_collector_ends() {
    let folder = tempfile::tempdir().unwrap();
    let spool = Spool::open(&folder.path().join("spool"), 1 << 20, &["a", "b"]).unwrap();
    let spool = Arc::new(spool);
    let sink: Box<dyn Sink> = Box::new(PartSink(1, |_, _| panic!("a fault of the program")));
    let sink = Prepared {
        name: "a".to_owned(),
        sink: Arc::new(Mutex::new(sink)),
    };
    let running = sink.start(Arc::clone(&spool)).unwrap();
    assert!(spool.failed().is_empty());
    spool.push(&batch(10, &["g"], 5)).unwrap();
    running.join();
    assert_eq!(spool.failed().into_iter().collect::<Vec<_>>(), ["a"]);
    // Waiting batches stay.
    assert_eq!(spool.fill().batches, 1);
}

#[test]
fn a_stopping_sink_finishes_its_current_part() {
    let folder = tempfile::tempdir().unwrap();
    // The spool is closed while the first part of a batch is sent.
    let run_until_closed = |spool: &Arc<Spool>| {
        let close = |part: usize, has_departed: bool| {
            if part == 0 && has_departed {
                spool.close();
            }
        };
        run(spool, &mut PartSink(3, close))
    };
    let spool = open(folder.path()).unwrap();
    spool.push(&batch(10, &["g"], 5)).unwrap();
    spool.push(&batch(20, &["g"], 5)).unwrap();
    let (progress, waiting) = run_until_closed(&spool);
    assert_eq!((progress.delivered.windows, waiting), (1, 2));
    drop(spool);
    // The other two parts, then the next batch's first one.
    let (progress, waiting) = run_until_closed(&open(folder.path()).unwrap());
    assert_eq!((progress.delivered.windows, waiting), (4, 1));
    assert_eq!(progress.unsure.windows, 0);
}

/// Delivers the batches in `spool` to a sink of Parquet files, each with a guest's windows of a batch, on a thread, until `is_done`.
fn run_files(
    spool: &Arc<Spool>,
    target: impl Target + 'static,
    is_done: impl Fn(&Progress, u64) -> bool,
) -> Progress {
    let mut sink = ParquetSink::new(Box::new(target), 0);
    std::thread::scope(|scope| {
        let runner = scope.spawn(|| run(spool, &mut sink));
        loop {
            let (_, progress, waiting) = spool.progress().remove(0);
            if is_done(&progress, waiting) {
                spool.close();
                let (progress, _) = runner.join().unwrap();
                return progress;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    })
}

/// The number of attempts to write each file, by the folder of its guest. Every third attempt fails.
#[derive(Default)]
struct FlakyTarget {
    attempts: Arc<Mutex<Vec<PathBuf>>>,
    /// Closed when a file is written.
    closes: Option<Arc<Spool>>,
}

impl Target for FlakyTarget {
    fn write(&self, folder: &Path, _: &str, _: &[NamedWindow<'_>]) -> anyhow::Result<()> {
        let mut attempts = self.attempts.lock().unwrap();
        attempts.push(folder.to_owned());
        if attempts.len().is_multiple_of(3) {
            anyhow::bail!("not this time");
        }
        if let Some(spool) = &self.closes {
            spool.close();
        }
        Ok(())
    }
}

#[test]
fn only_a_failed_file_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let spool = open(folder.path()).unwrap();
    spool
        .push(&batch(10, &["a", "b", "c", "d", "e"], 5))
        .unwrap();
    let target = FlakyTarget::default();
    let attempts = Arc::clone(&target.attempts);
    let progress = run_files(&spool, target, |_, waiting| waiting == 0);
    assert_eq!((progress.delivered.windows, progress.retries), (5, 2));
    let attempts = attempts.lock().unwrap();
    let guests = attempts.iter().map(|folder| folder.to_string_lossy());
    let guests: String = guests.filter_map(|name| name.chars().last()).collect();
    assert_eq!(guests, "abccdee");
}

#[test]
fn a_restarted_collector_continues_with_the_next_file() {
    let folder = tempfile::tempdir().unwrap();
    let spool = open(folder.path()).unwrap();
    spool.push(&batch(10, &["a", "b", "c"], 5)).unwrap();
    let target = FlakyTarget {
        closes: Some(Arc::clone(&spool)),
        ..FlakyTarget::default()
    };
    let progress = run_files(&spool, target, |progress, _| progress.delivered.windows > 0);
    assert_eq!(progress.delivered.windows, 1);
    drop(spool);
    let spool = open(folder.path()).unwrap();
    let target = FlakyTarget::default();
    let attempts = Arc::clone(&target.attempts);
    let progress = run_files(&spool, target, |_, waiting| waiting == 0);
    assert_eq!((progress.delivered.windows, progress.retries), (3, 0));
    assert_eq!(attempts.lock().unwrap().len(), 2);
}

#[test]
fn a_full_disk_delays_no_sink() {
    on_small_disk("sinks::tests::a_full_disk_delays_no_sink", |folder| {
        let spool = open(folder).unwrap();
        let next = |start: u64| batch(10 * start, &["g", "h"], 5);
        let in_spool = (0..1 << 10).find(|start| spool.push(&next(*start)).is_err());
        let in_spool = in_spool.unwrap();
        assert!(in_spool > 2, "{in_spool}");
        fill_up(folder);
        drop(spool);
        // A restarted collector continues, too.
        let spool = open(folder).unwrap();
        spool.drain();
        let mut sent = 0;
        let count = |_: usize, has_departed: bool| sent += u64::from(has_departed);
        let (progress, waiting) = run(&spool, &mut PartSink(2, count));
        assert_eq!(
            (progress.delivered.windows, progress.unsure.windows, waiting),
            (2 * in_spool, 0, 0)
        );
        assert_eq!((sent, progress.lost.batches), (2 * in_spool, 1));
        // Removed files free the space.
        spool.push(&next(in_spool)).unwrap();
        drop(spool);
        let (_, kept, waiting) = open(folder).unwrap().progress().remove(0);
        assert_eq!((kept, waiting), (progress, 1));
    });
}

#[test]
fn without_a_note_a_batch_is_not_sent_and_waits() {
    on_small_disk(
        "sinks::tests::without_a_note_a_batch_is_not_sent_and_waits",
        |folder| {
            let spool = open(folder).unwrap();
            spool.push(&batch(10, &["g", "h"], 5)).unwrap();
            spool.drain();
            // The space reserved for notes is taken, too.
            take_kept_room(&folder.join("spool"));
            let filler = fill_up(folder);
            let sent = AtomicU64::new(0);
            let count = |_: usize, has_departed: bool| {
                if has_departed {
                    sent.fetch_add(1, Relaxed);
                }
            };
            let mut sink = PartSink(2, count);
            for _ in 0..4 {
                let (progress, waiting) = run(&spool, &mut sink);
                assert_eq!((progress.unsure.windows, waiting), (0, 1));
            }
            assert_eq!(sent.load(Relaxed), 0);
            std::fs::remove_file(filler).unwrap();
            let (progress, waiting) = run(&spool, &mut sink);
            assert_eq!((progress.unsure.windows, waiting), (0, 0));
            assert_eq!((progress.delivered.windows, sent.load(Relaxed)), (2, 2));
        },
    );
}
