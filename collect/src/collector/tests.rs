use std::io::Read;
use std::os::unix::net::UnixListener;

use kvmprof_recording::Ticks;

use super::*;
use crate::gather::tests::{begin, block};
use crate::sockets::socket_at;

/// The host of a collector, which keeps the collector's reports.
#[derive(Default)]
struct Calls {
    batches: Vec<Batch>,
    open: BTreeMap<u64, u64>,
}

impl Host for Calls {
    fn is_over(&self) -> bool {
        true
    }

    fn take(&mut self, batch: Batch, open: BTreeMap<u64, u64>) {
        self.batches.push(batch);
        self.open = open;
    }

    fn note_open(&mut self, open: BTreeMap<u64, u64>) {
        self.open = open;
    }

    fn note_guests(&mut self, _: usize, _: usize) {}

    fn note_counts(&mut self, _: &str, _: &Counters) {}

    fn note_exits(&mut self, _: &str, _: &ExitInterval) {}
}

/// The start of a window, in s since 1970.
const START: u64 = 1_000_000;

/// Calls `test` with a collector with windows of ten seconds, which follows a guest whose recording hasn't begun.
fn with_collector(test: impl FnOnce(&mut Collector<'_>, &mut Calls)) {
    with_silent_server(|collector, calls, _| test(collector, calls));
}

/// As [`with_collector`]. `test` also gets the server's socket.
fn with_silent_server(test: impl FnOnce(&mut Collector<'_>, &mut Calls, UnixListener)) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.sock");
    // It never answers.
    let listener = UnixListener::bind(&path).unwrap();
    let config = Config::default();
    assert_eq!(config.window, 10);
    let mut collector = Collector::new(&config, "host".to_owned(), "b007".to_owned());
    collector.follow(socket_at(path).unwrap());
    test(&mut collector, &mut Calls::default(), listener);
}

impl Collector<'_> {
    /// Takes bytes of the guest's recording at a time in s since 1970.
    fn hear(&mut self, bytes: &[u8], seconds: u64) {
        let now = self.now_at(seconds * SECOND, seconds * SECOND);
        self.feed(1, bytes, now);
    }
}

/// Ticks of the present time.
fn idle(ticks: u64) -> Vec<u8> {
    block(&[Ticks {
        idle: ticks,
        ..Ticks::default()
    }])
}

impl Calls {
    /// The starts of the batches, and the ticks in them.
    fn ticks(&self) -> Vec<(u64, u64)> {
        let batches = self.batches.iter();
        batches.map(|batch| (batch.start, batch.ticks())).collect()
    }
}

/// A guest's ticks come after the window's end. A collector that is killed before that loses the window, too.
#[test]
fn a_window_opens_before_its_ticks_arrive() {
    with_collector(|collector, calls| {
        collector.close_at(calls, false, START + 2);
        // It may even have no ticks.
        assert_eq!(calls.open, BTreeMap::new());
        collector.hear(&begin(), START + 3);
        assert!(collector.is_open_changed);
        collector.close_at(calls, false, START + 3);
        assert_eq!(calls.open, BTreeMap::from([(START, 1)]));
        // They are late: ticks of the first window follow.
        collector.close_at(calls, false, START + 11);
        assert_eq!(calls.open, BTreeMap::from([(START, 1)]));
        collector.hear(&idle(5), START + 9);
        collector.close_at(calls, false, START + 11);
        assert_eq!(calls.open, BTreeMap::from([(START, 1)]));
        assert!(calls.batches.is_empty());
        // When its window is closed, the next one is open.
        collector.close_until(calls, START);
        assert_eq!(calls.batches.len(), 1);
        assert_eq!(calls.open, BTreeMap::from([(START + 10, 1)]));
        collector.close_at(calls, false, START + 15);
        assert_eq!(calls.open, BTreeMap::from([(START + 10, 1)]));
        // A collector that ends in order loses nothing.
        collector.let_go(calls);
        assert_eq!(calls.open, BTreeMap::new());
    });
}

#[test]
fn a_clock_set_back_far_starts_windows_of_another_boot() {
    with_collector(|collector, calls| {
        collector.hear(&begin(), START);
        collector.hear(&idle(5), START + 8);
        collector.close_at(calls, false, START + 8);
        assert!(calls.batches.is_empty());
        let earlier = START - 3600;
        collector.close_at(calls, false, earlier + 8);
        assert_eq!(calls.open, BTreeMap::from([(earlier, 1)]));
        collector.hear(&idle(7), earlier + 9);
        collector.close_at(calls, false, earlier + 10 + GRACE);
        assert_eq!(calls.ticks(), [(START, 5), (earlier, 7)]);
        assert_eq!(calls.batches[0].boot, "b007");
        assert_ne!(calls.batches[1].boot, "b007");
    });
}

/// If the clock is set back by less, the present window is longer by that, and no window exists twice.
#[test]
fn a_clock_set_back_a_little_reopens_no_window() {
    with_collector(|collector, calls| {
        collector.hear(&begin(), START);
        collector.hear(&idle(5), START + 8);
        collector.close_at(calls, false, START + 10 + GRACE);
        collector.close_at(calls, false, START + 5);
        collector.hear(&idle(7), START + 6);
        collector.close_at(calls, false, START + 20 + GRACE);
        assert_eq!(calls.ticks(), [(START, 5), (START + 10, 7)]);
        assert!(calls.batches.iter().all(|batch| batch.boot == "b007"));
    });
}

#[test]
fn a_server_that_never_answers_is_reported_and_dropped() {
    with_silent_server(|collector, calls, listener| {
        let (mut stream, _) = listener.accept().unwrap();
        collector.give_up_silent(Duration::MAX);
        assert!(collector.failures.is_empty());
        collector.give_up_silent(Duration::ZERO);
        let said: Vec<&str> = (collector.failures.values())
            .map(|failure| failure.message.as_str())
            .collect();
        assert!(
            matches!(said.as_slice(), [one] if one.contains("a.sock doesn't answer")),
            "{said:?}"
        );
        collector.close_at(calls, false, START);
        assert!(collector.guests.is_empty());
        // The connection ends, and so do the threads that wait for an answer.
        stream.read_to_end(&mut Vec::new()).unwrap();
        assert!(matches!(
            collector.messages.recv().unwrap(),
            Message::Gone(1, _)
        ));
    });
}
