use std::path::PathBuf;

use super::testing::{fill_up, on_small_disk, take_kept_room};
use super::*;
use crate::batch::testing::batch;

struct SpoolFolder(tempfile::TempDir);

impl SpoolFolder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A new folder, and its spool with a batch at each of these starts.
    fn with(sinks: &[&str], starts: &[u64]) -> (Self, Spool) {
        let folder = Self::new();
        let spool = folder.open(LARGE, sinks);
        push(&spool, starts);
        (folder, spool)
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("spool")
    }

    fn open(&self, limit: u64, sinks: &[&str]) -> Spool {
        Spool::open(&self.path(), limit, sinks).unwrap()
    }
}

const LARGE: u64 = 1 << 30;

fn starts(claim: &Claim) -> Vec<u64> {
    claim.batches.iter().map(|batch| batch.start).collect()
}

fn claim(spool: &Spool, sink: &str, span: u64) -> Claim {
    spool.claim(sink, span).unwrap().unwrap()
}

fn push(spool: &Spool, starts: &[u64]) {
    for start in starts {
        spool.push(&batch(*start, &["g"], 5)).unwrap();
    }
}

/// Has the sink take the next batches, which are these, one after the other.
fn take(spool: &Spool, sink: &str, expected: &[u64]) {
    for start in expected {
        assert_eq!(starts(&claim(spool, sink, 0)), [*start]);
        spool.finish(sink, |_| ()).unwrap();
    }
}

/// What a sink has lost.
fn lost(spool: &Spool, sink: usize) -> Counts {
    spool.progress()[sink].1.lost
}

#[test]
fn each_sink_gets_each_batch_once() {
    let (folder, spool) = SpoolFolder::with(&["a", "b"], &[10, 20]);
    take(&spool, "a", &[10, 20]);
    assert_eq!(spool.fill().batches, 2);
    take(&spool, "b", &[10]);
    assert_eq!(spool.fill().batches, 1);
    drop(spool);
    let spool = folder.open(LARGE, &["a", "b"]);
    spool.drain();
    assert!(spool.claim("a", 0).unwrap().is_none());
    let last = claim(&spool, "b", 0);
    assert_eq!(last.batches, [batch(20, &["g"], 5)]);
    spool.finish("b", |_| ()).unwrap();
    assert_eq!(spool.fill(), Fill::default());
    drop(spool);
    // Numbers continue after all files have been removed.
    let spool = folder.open(LARGE, &["a", "b"]);
    push(&spool, &[30]);
    take(&spool, "a", &[30]);
}

#[test]
fn an_interrupted_batch_is_claimed_again_unchanged() {
    let (folder, spool) = SpoolFolder::with(&["a"], &[10, 20, 30, 40]);
    assert_eq!(starts(&claim(&spool, "a", 30)), [10, 20, 30]);
    spool
        .change("a", |progress| {
            progress.attempt.as_mut().unwrap().is_sent = true;
        })
        .unwrap();
    drop(spool);
    let spool = folder.open(LARGE, &["a"]);
    push(&spool, &[50, 60]);
    let again = claim(&spool, "a", 30);
    assert_eq!(starts(&again), [10, 20, 30]);
    assert!(again.attempt.is_sent);
    spool.finish("a", |_| ()).unwrap();
    spool.drain();
    assert_eq!(starts(&claim(&spool, "a", 30)), [40, 50, 60]);
}

#[test]
fn a_full_spool_drops_the_oldest_and_counts_it() {
    let (folder, spool) = SpoolFolder::with(&["a"], &[0]);
    let each = spool.fill().bytes;
    drop(spool);
    let spool = folder.open(4 * each + each / 2, &["a"]);
    // It is being delivered, so that it stays.
    assert_eq!(starts(&claim(&spool, "a", 0)), [0]);
    for start in (10..100).step_by(10) {
        spool.push(&batch(start, &["g", "h"], 5)).unwrap();
        assert!(spool.fill().bytes <= 4 * each + each / 2);
    }
    spool.finish("a", |_| ()).unwrap();
    let (_, progress, waiting) = spool.progress().remove(0);
    let counts = progress.lost;
    assert!(counts.batches > 4, "{counts:?}");
    assert_eq!(counts.batches + waiting, 9);
    assert_eq!(counts.windows, 2 * counts.batches);
    assert_eq!(counts.ticks, 16 * counts.batches);
    // The newest batches are there, and the count is kept.
    drop(spool);
    let spool = folder.open(LARGE, &["a"]);
    assert_eq!(lost(&spool, 0), counts);
    let kept: Vec<u64> = (spool.read_all().unwrap().iter())
        .map(|batch| batch.start)
        .collect();
    assert_eq!(kept.last(), Some(&90));
    assert_eq!(kept.len() as u64, waiting);
    assert_eq!(starts(&claim(&spool, "a", 0)), [kept[0]]);
}

/// A batch that is being delivered to one sink stays; the batch removed in its place isn't the next one of another sink.
#[test]
fn a_sink_without_a_claim_loses_only_dropped_batches() {
    let (folder, spool) = SpoolFolder::with(&["a", "b"], &[0]);
    let each = spool.fill().bytes;
    drop(spool);
    let spool = folder.open(2 * each + each / 2, &["a", "b"]);
    assert_eq!(starts(&claim(&spool, "a", 0)), [0]);
    push(&spool, &[10, 20, 30]);
    let batches = || [0, 1].map(|sink| lost(&spool, sink).batches);
    assert_eq!((batches(), spool.fill().batches), ([2, 2], 2));
    spool.finish("a", |_| ()).unwrap();
    spool.drain();
    take(&spool, "b", &[0, 30]);
    assert!(spool.claim("b", 0).unwrap().is_none());
    take(&spool, "a", &[30]);
    assert_eq!(batches(), [2, 2]);
}

#[test]
fn windows_of_a_killed_collector_are_counted_once() {
    let folder = SpoolFolder::new();
    let spool = folder.open(LARGE, &[]);
    spool.note_open(BTreeMap::from([(10, 2), (20, 3)])).unwrap();
    spool.push(&batch(10, &["g", "h"], 5)).unwrap();
    drop(spool);
    for _ in 0..2 {
        assert_eq!(folder.open(LARGE, &[]).fill().killed, 3);
    }
    // It was killed after the batch was written and before the state was: two guests lose their next window.
    let state = std::fs::read(folder.path().join(STATE)).unwrap();
    let mut state: OpenWindows = serde_json::from_slice(&state).unwrap();
    state.open = BTreeMap::from([(20, 2), (30, 1)]);
    let spool = folder.open(LARGE, &[]);
    spool.push(&batch(20, &["g", "h"], 5)).unwrap();
    drop(spool);
    let state = serde_json::to_vec(&state).unwrap();
    std::fs::write(folder.path().join(STATE), state).unwrap();
    assert_eq!(folder.open(LARGE, &[]).fill().killed, 3 + 3);
}

/// The end doesn't wait for a slow sink: its batches are available after the next start.
#[test]
fn a_closed_spool_keeps_waiting_batches() {
    let (folder, spool) = SpoolFolder::with(&["a"], &[10, 20, 30]);
    assert_eq!(starts(&claim(&spool, "a", 0)), [10]);
    spool.close();
    spool.finish("a", |_| ()).unwrap();
    assert!(spool.claim("a", 0).unwrap().is_none());
    assert_eq!(spool.fill().batches, 2);
    drop(spool);
    let spool = folder.open(LARGE, &["a"]);
    spool.drain();
    take(&spool, "a", &[20, 30]);
    assert!(spool.claim("a", 0).unwrap().is_none());
}

#[test]
fn only_a_damaged_file_is_lost() {
    let (folder, spool) = SpoolFolder::with(&["a"], &[10, 20, 30]);
    let entries = spool.folder.batches().unwrap();
    let path = folder.path().join(entries[1].name());
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let temporary = folder.path().join("0000000000000009-1-1-1.batch.tmp");
    std::fs::write(&temporary, "").unwrap();
    spool.drain();
    assert_eq!(starts(&claim(&spool, "a", 100)), [10, 30]);
    assert_eq!(lost(&spool, 0).ticks, 8);
    drop(spool);
    let spool = folder.open(LARGE, &["a"]);
    assert_eq!((spool.fill().batches, temporary.exists()), (3, false));
}

/// The collector has to start; otherwise the guests' later windows would be lost, too.
#[test]
fn damaged_notes_are_set_aside_and_counted() {
    let (folder, spool) = SpoolFolder::with(&["a", "b"], &[10, 20, 30]);
    take(&spool, "a", &[10]);
    spool.close();
    drop(spool);
    let files = [STATE, "sink-b.notes"].map(|name| folder.path().join(name));
    for path in &files {
        std::fs::write(path, "{\"next\": 3").unwrap();
    }
    let spool = folder.open(LARGE, &["a", "b"]);
    assert_eq!(spool.fill().damaged, 2);
    for path in &files {
        let aside = format!("{}.damaged", path.display());
        assert_eq!(std::fs::read(aside).unwrap(), b"{\"next\": 3");
    }
    // The difference between the two is known of the first only.
    take(&spool, "a", &[20]);
    let progress = spool.progress();
    assert_eq!((progress[1].1.unsure.batches, progress[1].2), (3, 0));
    // The next batch gets a new number, and both sinks receive it.
    push(&spool, &[40]);
    spool.drain();
    take(&spool, "b", &[40]);
    drop(spool);
    // Only the first start is affected.
    let spool = folder.open(LARGE, &["a", "b"]);
    assert_eq!(spool.fill().damaged, 2);
}

#[test]
fn the_folder_belongs_to_one_user_and_one_process() {
    use std::os::unix::fs::PermissionsExt;

    let folder = SpoolFolder::new();
    let spool = folder.open(LARGE, &[]);
    let mode = std::fs::metadata(folder.path())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
    let again = Spool::open(&folder.path(), LARGE, &[]);
    assert!(matches!(again, Err(SpoolError::InUse(_))), "{again:?}");
    drop(spool);
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o750)).unwrap();
    let others = Spool::open(&folder.path(), LARGE, &[]);
    assert!(matches!(others, Err(SpoolError::NotOwn(_))), "{others:?}");
}

/// Without room, the progress can't be written: the oldest batch is removed for it.
#[test]
fn a_sink_that_is_new_on_a_full_disk_gets_all_but_one() {
    on_small_disk(
        "tests::a_sink_that_is_new_on_a_full_disk_gets_all_but_one",
        |folder| {
            let open = |sinks| Spool::open(&folder.join("spool"), LARGE, sinks).unwrap();
            let spool = open(&["a"]);
            let pushed = (0..1 << 10).find(|start| spool.push(&batch(*start, &["g"], 5)).is_err());
            let pushed = pushed.unwrap();
            fill_up(folder);
            drop(spool);
            let spool = open(&["a", "b"]);
            spool.drain();
            assert_eq!(spool.fill().batches, pushed - 1);
            let all: Vec<u64> = (1..pushed).collect();
            for sink in ["a", "b"] {
                take(&spool, sink, &all);
            }
            // The first sink has also lost the batch for which there was no room.
            let batches = [0, 1].map(|sink| lost(&spool, sink).batches);
            assert_eq!(batches, [2, 1]);
        },
    );
}

#[test]
fn a_full_disk_loses_only_counted_batches() {
    on_small_disk(
        "tests::a_full_disk_loses_only_counted_batches",
        fill_the_disk,
    );
}

fn fill_the_disk(folder: &Path) {
    let open = || Spool::open(&folder.join("spool"), LARGE, &["a", "b"]).unwrap();
    let lost = |spool: &Spool| {
        let lost = [0, 1].map(|sink| lost(spool, sink));
        lost.map(|lost| (lost.batches, lost.windows, lost.ticks))
    };
    let spool = open();
    push(&spool, &[10]);
    let filler = fill_up(folder);
    for start in (20..60).step_by(10) {
        let refused = spool.push(&batch(start, &["g", "h"], 5));
        assert!(
            matches!(refused, Err(SpoolError::Folder { .. })),
            "{refused:?}"
        );
    }
    // There is no room for batches, but there is for counts.
    assert_eq!(lost(&spool), [(4, 8, 64); 2]);
    assert_eq!(spool.fill().batches, 1);
    drop(spool);
    let spool = open();
    assert_eq!(lost(&spool), [(4, 8, 64); 2]);
    // Counts can't be written either until there is another batch.
    take_kept_room(&folder.join("spool"));
    fill_up(folder);
    spool.push(&batch(60, &["g"], 5)).unwrap_err();
    assert_eq!(lost(&spool), [(5, 9, 72); 2]);
    std::fs::remove_file(&filler).unwrap();
    push(&spool, &[70]);
    drop(spool);
    let spool = open();
    assert_eq!(lost(&spool), [(5, 9, 72); 2]);
    // The collector ends before that.
    take_kept_room(&folder.join("spool"));
    fill_up(folder);
    spool.push(&batch(80, &["g"], 5)).unwrap_err();
    std::fs::remove_file(&filler).unwrap();
    spool.close();
    drop(spool);
    let spool = open();
    assert_eq!(lost(&spool), [(6, 10, 80); 2]);
    // Later batches have other numbers, and every batch that isn't lost is delivered.
    push(&spool, &[90]);
    take(&spool, "a", &[10, 70, 90]);
    spool.drain();
    assert!(spool.claim("a", 0).unwrap().is_none());
    assert_eq!(lost(&spool), [(6, 10, 80); 2]);
}

/// The collector and requests for metrics don't wait while a sink's note is written.
#[test]
fn a_slow_note_delays_no_other_sink() {
    let folder = SpoolFolder::new();
    let spool = folder.open(LARGE, &["a"]);
    let writing = locked(&spool.notes["a"]);
    push(&spool, &[10]);
    spool.note_open(BTreeMap::from([(20, 1)])).unwrap();
    assert_eq!((spool.fill().batches, spool.progress()[0].2), (1, 1));
    assert!(!spool.is_closed());
    drop(writing);
    assert_eq!(starts(&claim(&spool, "a", 0)), [10]);
}

/// After a crash between the notes of two sinks, a batch stays until both notes have its receipt.
#[test]
fn a_batch_stays_until_all_sinks_have_noted_it() {
    let (_folder, spool) = SpoolFolder::with(&["a", "b"], &[10, 20, 30]);
    let kept = || (spool.fill().batches, spool.folder.batches().unwrap().len());
    spool.drain();
    assert_eq!(starts(&claim(&spool, "b", 100)), [10, 20, 30]);
    // It has received them, but its note isn't on the disk yet.
    let attempt = spool.lock().finish("b").unwrap();
    take(&spool, "a", &[10]);
    assert_eq!(kept(), (3, 3));
    spool.save("b").unwrap();
    spool.remove_done(attempt.first, attempt.last).unwrap();
    assert_eq!(kept(), (2, 2));
}

#[test]
fn without_sinks_the_newest_batches_stay() {
    let folder = SpoolFolder::new();
    let spool = folder.open(1, &[]);
    push(&spool, &[10]);
    assert_eq!(spool.fill().batches, 0);
}
