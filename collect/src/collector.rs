//! Collects from all guests: finds them, reads their recordings, and closes windows.
//!
//! One thread sums up samples and resolves names. Each guest has a thread that only receives, and that waits when the first one is behind: then
//! data wait in the guest's recorder, whose buffer is bounded and which counts what it drops. No guest waits for the collector.

mod guests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kvmprof_recording::counters::Counters;
use kvmprof_recording::exits::ExitInterval;
use rustix::time::{ClockId, clock_gettime};

use crate::attached::Attached;
use crate::backoff::Backoff;
use crate::batch::{Batch, Window};
use crate::config::Config;
use crate::gather::{Gather, Policy, State, WindowClock};
use crate::launcher::message::Process;
use crate::names::{BatchNames, Names};
use crate::sockets::{FollowedGuest, Message, Socket};
use crate::watcher::Watcher;

/// A second in ns.
const SECOND: u64 = 1_000_000_000;
/// Maximum number of pieces of recordings in the queue: 16 MiB.
const QUEUE: usize = 64;
/// Time after a window's end at which it is closed, in s: its last samples come within a second of its end.
const GRACE: u64 = 2;
/// The interval at which a signal is checked, and windows are closed.
const POLL: Duration = Duration::from_millis(250);
/// Maximum time for the ends of the recordings when the collector stops.
const STOPPING: Duration = Duration::from_secs(5);
/// Minimum age of a recording before it is restarted to free its names.
const RENEWAL: Duration = Duration::from_secs(3600);

/// The collector's environment: it asks when to stop, and delivers batches.
pub trait Host {
    /// Whether the collector has to stop.
    fn is_over(&self) -> bool;
    /// Takes a batch. `open` are the windows that are open from now on, as in [`note_open`](Self::note_open): the collector may be killed at any moment.
    fn take(&mut self, batch: Batch, open: BTreeMap<u64, u64>);
    /// Notes the windows that are lost if the collector is killed, one of each guest at most: the number of guests, by the start of the window.
    fn note_open(&mut self, open: BTreeMap<u64, u64>);
    /// Notes the number of guests that are followed, and of those that aren't because of the limit.
    fn note_guests(&mut self, followed: usize, left_out: usize);
    /// Notes the counters of the guest with this name, which count from its start.
    fn note_counts(&mut self, guest: &str, counts: &Counters);
    /// Notes the exits of the guest with this name in a part of the time.
    fn note_exits(&mut self, guest: &str, interval: &ExitInterval);
}

/// Where a guest's recording comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    Socket(Socket),
    /// The launcher: a guest of another VMM.
    Launcher(Process),
}

struct Guest {
    origin: Origin,
    name: String,
    /// `None` once its recording has ended: the guest stays in the list until its windows are closed.
    followed: Option<FollowedGuest>,
    gather: Gather,
    since: Instant,
    /// The start of the window in which its recording began. `None` if it hasn't begun. From then on there may be ticks that haven't been received.
    first: Option<u64>,
}

/// A guest that couldn't be followed.
#[derive(Clone, Debug)]
struct Failure {
    until: Instant,
    backoff: Backoff,
    message: String,
}

/// The collector.
pub struct Collector<'a> {
    config: &'a Config,
    policy: Policy,
    host_name: String,
    boot: String,
    watcher: Option<Watcher>,
    sender: SyncSender<Message>,
    messages: Receiver<Message>,
    guests: BTreeMap<u64, Guest>,
    names: Names,
    failures: HashMap<PathBuf, Failure>,
    /// Sockets of guests whose recordings have ended, and the time from which they are followed again.
    rests: HashMap<Socket, Instant>,
    attached: Option<Attached>,
    /// Why there is no connection to the launcher; empty while there is one.
    no_launcher: String,
    last_number: u64,
    next_look: Instant,
    next_close: Instant,
    /// Counters of guests that the host hasn't taken yet.
    counts: Vec<(String, Counters)>,
    /// Exits that the host hasn't taken yet.
    exits: Vec<(String, Box<ExitInterval>)>,
    is_open_changed: bool,
    /// The open windows that the host has noted.
    noted: BTreeMap<u64, u64>,
    /// The end of the last window that was closed, in s since 1970. Later samples of such a window count for the next one.
    closed: u64,
    /// The latest time that was read from the clock, in s since 1970.
    latest: u64,
}

impl<'a> Collector<'a> {
    /// A collector with `config` on the host of this name. `boot` identifies its run.
    pub fn new(config: &'a Config, host_name: String, boot: String) -> Self {
        let (sender, messages) = sync_channel(QUEUE);
        let watcher = Watcher::start(&config.sockets, sender.clone());
        if let Err(error) = &watcher {
            log::warn!(
                "Cannot watch the folders of sockets, which are searched every few seconds instead: {error}"
            );
        }
        let attached = Attached::start(config, sender.clone()).unwrap_or_else(|error| {
            log::error!("Cannot follow guests of other VMMs: {error}");
            None
        });
        Self {
            policy: config.policy(),
            config,
            host_name,
            boot,
            watcher: watcher.ok(),
            sender,
            messages,
            guests: BTreeMap::new(),
            names: Names::default(),
            failures: HashMap::new(),
            rests: HashMap::new(),
            attached,
            no_launcher: String::new(),
            last_number: 0,
            next_look: Instant::now(),
            next_close: Instant::now(),
            counts: Vec::new(),
            exits: Vec::new(),
            is_open_changed: false,
            noted: BTreeMap::new(),
            closed: 0,
            latest: 0,
        }
    }

    /// Collects until [`Host::is_over`]. Then it ends the recordings and closes all windows.
    pub fn run(&mut self, host: &mut dyn Host) {
        while !host.is_over() {
            if Instant::now() >= self.next_look {
                self.look(host);
            }
            self.take_messages(POLL);
            // With hundreds of guests there are hundreds of messages a second. A new open window is noted at once, since this process may be killed.
            if self.is_open_changed || Instant::now() >= self.next_close {
                self.next_close = Instant::now() + POLL;
                self.close(host, false);
            }
        }
        for guest in self.guests.values() {
            if let Some(followed) = &guest.followed {
                followed.stop();
            }
        }
        if let Some(attached) = &self.attached {
            attached.stop();
        }
        let end = Instant::now() + STOPPING;
        while Instant::now() < end && self.guests.values().any(|guest| guest.followed.is_some()) {
            self.take_messages(POLL);
            self.close(host, false);
        }
        self.let_go(host);
        self.attached = None;
    }

    /// Drops all guests, and closes all windows.
    fn let_go(&mut self, host: &mut dyn Host) {
        for guest in self.guests.values_mut() {
            guest.followed = None;
        }
        self.close(host, true);
    }

    fn now(&self) -> WindowClock {
        let monotonic = clock_gettime(ClockId::Monotonic);
        let seconds = u64::try_from(monotonic.tv_sec).unwrap_or_default();
        let nanoseconds = u64::try_from(monotonic.tv_nsec).unwrap_or_default();
        self.now_at(
            real_time(),
            seconds.saturating_mul(SECOND).saturating_add(nanoseconds),
        )
    }

    /// The clock for windows at these times of CLOCK_REALTIME and CLOCK_MONOTONIC, in ns.
    fn now_at(&self, real: u64, monotonic: u64) -> WindowClock {
        WindowClock {
            real: real.max(self.closed.saturating_mul(SECOND)),
            monotonic,
            length: self.config.window,
            first: self.closed,
        }
    }

    fn take_messages(&mut self, timeout: Duration) {
        match self.messages.recv_timeout(timeout) {
            Ok(message) => self.take(message),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
        }
        // The number is bounded, so that windows are closed in between.
        for _ in 0..QUEUE {
            let Ok(message) = self.messages.try_recv() else {
                return;
            };
            self.take(message);
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Changed => self.next_look = Instant::now(),
            Message::FromLauncher(told, pipe) => self.take_told(told, pipe),
            Message::NoLauncher(why) => self.note_no_launcher(why),
            Message::Bytes(number, bytes) => {
                let now = self.now();
                self.feed(number, &bytes, now);
            }
            Message::Counts(number, counts) => {
                if let Some(guest) = self.guests.get(&number) {
                    self.counts.push((guest.name.clone(), counts));
                }
            }
            Message::Exits(name, interval) => self.exits.push((name, interval)),
            Message::Gone(number, error) => {
                let guest = self.guests.get_mut(&number);
                // A guest that was dropped already needs nothing.
                let Some(guest) = guest.filter(|guest| guest.followed.is_some()) else {
                    return;
                };
                guest.followed = None;
                let (origin, name) = (guest.origin.clone(), guest.name.clone());
                match (error, origin) {
                    (Some(error), origin) => self.failed(&origin, &name, format!("{error:#}")),
                    (None, Origin::Socket(socket)) => {
                        log::info!("Guest {name}: its recording has ended");
                        self.rest(socket);
                    }
                    // The launcher tells why.
                    (None, Origin::Launcher(_)) => {}
                }
            }
        }
    }

    fn feed(&mut self, number: u64, bytes: &[u8], now: WindowClock) {
        let Some(guest) = self.guests.get_mut(&number) else {
            return;
        };
        if guest.followed.is_none() {
            return;
        }
        let result = guest.gather.feed(bytes, now);
        let info = guest.gather.info();
        if info.hz > 0 && guest.first.is_none() {
            guest.first = Some(now.window());
            self.is_open_changed = true;
            let phase = if info.jitter {
                "a random phase"
            } else {
                "a fixed phase: its owner gives it a random one by --jitter"
            };
            log::info!("Guest {}: ticks of {} Hz with {phase}", guest.name, info.hz);
        }
        match result {
            Ok(State::Live) => {
                // An earlier failure is over.
                if let Origin::Socket(socket) = &guest.origin {
                    self.failures.remove(&socket.path);
                }
            }
            // `Message::Gone` follows.
            Ok(State::Ended) => {}
            Ok(State::Stale) => {
                if guest.since.elapsed() >= RENEWAL || guest.gather.was_reset() {
                    guest.followed = None;
                    self.next_look = Instant::now();
                }
            }
            Err(error) => {
                guest.followed = None;
                let (origin, name) = (guest.origin.clone(), guest.name.clone());
                self.failed(&origin, &name, error.to_string());
            }
        }
    }

    /// Closes the windows that are over. Closes all of them if `is_end`.
    fn close(&mut self, host: &mut dyn Host, is_end: bool) {
        self.close_at(host, is_end, real_time() / SECOND);
    }

    /// As [`close`](Self::close), at a time in s since 1970.
    fn close_at(&mut self, host: &mut dyn Host, is_end: bool, seconds: u64) {
        let length = u64::from(self.config.window);
        if seconds.saturating_add(length) < self.latest {
            self.begin_anew(host, seconds);
        }
        self.latest = self.latest.max(seconds);
        let over = if is_end {
            u64::MAX
        } else {
            seconds.saturating_sub(GRACE + length)
        };
        self.close_until(host, over);
        for (guest, counts) in self.counts.drain(..) {
            host.note_counts(&guest, &counts);
        }
        for (guest, interval) in self.exits.drain(..) {
            host.note_exits(&guest, &interval);
        }
        self.guests
            .retain(|_, guest| guest.followed.is_some() || guest.gather.open().next().is_some());
        self.is_open_changed = false;
        let open = self.open();
        if open != self.noted {
            self.noted.clone_from(&open);
            host.note_open(open);
        }
    }

    /// Closes the windows that began at `last` or before.
    fn close_until(&mut self, host: &mut dyn Host, last: u64) {
        while let Some(start) = self.first_open().filter(|start| *start <= last) {
            let batch = self.batch(start);
            self.closed = self.closed.max(start + u64::from(self.config.window));
            self.noted = self.open();
            host.take(batch, self.noted.clone());
        }
    }

    /// Handles a clock that was set back by more than a window: closes all open windows, and begins new ones as another collector would. There are already
    /// windows with the same times, so that these need another `boot`.
    fn begin_anew(&mut self, host: &mut dyn Host, seconds: u64) {
        let back = self.latest - seconds;
        match new_boot() {
            Ok(boot) => {
                log::warn!("The clock was set back by {back} s: windows start again");
                self.close_until(host, u64::MAX);
                (self.boot, self.closed, self.latest) = (boot, 0, seconds);
                let window = self.now_at(seconds.saturating_mul(SECOND), 0).window();
                for first in self.guests.values_mut().map(|guest| &mut guest.first) {
                    *first = first.and(Some(window));
                }
            }
            // Until the clock has the former time again, all ticks go into one window.
            Err(error) => {
                log::error!(
                    "The clock was set back by {back} s, and there is no random number: {error}"
                );
                self.latest = seconds;
            }
        }
    }

    fn first_open(&self) -> Option<u64> {
        let guests = self.guests.values();
        guests.filter_map(|guest| guest.gather.open().next()).min()
    }

    /// The first open window of each guest. While that waits for its last samples, a killed collector loses it and not the next one, which the next
    /// collector has. A guest that is followed, and none of whose ticks have been received, has one, too.
    fn open(&self) -> BTreeMap<u64, u64> {
        let mut open = BTreeMap::new();
        for guest in self.guests.values() {
            let coming = guest.first.filter(|_| guest.followed.is_some());
            let coming = coming.map(|first| first.max(self.closed));
            if let Some(start) = guest.gather.open().next().or(coming) {
                *open.entry(start).or_default() += 1;
            }
        }
        open
    }

    /// Closes the windows that began at `start`, and returns them as a batch.
    fn batch(&mut self, start: u64) -> Batch {
        let mut names = BatchNames::new(&mut self.names);
        let mut windows: Vec<Window> = Vec::new();
        for guest in self.guests.values_mut() {
            let (gather, policy) = (&mut guest.gather, &self.policy);
            let Some(window) = gather.close(start, &guest.name, policy, &mut names) else {
                continue;
            };
            // A guest that was followed twice in this time has one window.
            match windows.iter_mut().find(|known| known.guest == window.guest) {
                Some(known) => {
                    known.account.merge(&window.account);
                    known.rows.extend(window.rows);
                }
                None => windows.push(window),
            }
        }
        let mut batch = Batch {
            start,
            length: self.config.window,
            boot: self.boot.clone(),
            host: self.host_name.clone(),
            labels: self.config.labels.clone(),
            windows,
            ..Batch::default()
        };
        names.tables.into_batch(&mut batch);
        batch
    }
}

/// CLOCK_REALTIME, in ns since 1970.
fn real_time() -> u64 {
    let real = SystemTime::now().duration_since(UNIX_EPOCH);
    real.map_or(0, |real| u64::try_from(real.as_nanos()).unwrap_or(u64::MAX))
}

/// A new identifier of a collector's run: 64 random bits.
///
/// # Errors
/// The system gives no random numbers.
pub fn new_boot() -> io::Result<String> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{:016x}", u64::from_le_bytes(bytes)))
}
