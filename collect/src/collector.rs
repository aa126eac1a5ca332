//! Collects from all guests: finds them, takes their streams, closes windows.
//!
//! One thread sums up and resolves names. Each guest has threads that only receive, and wait when this one is behind: what it
//! doesn't take waits in the guest's recorder, which is bounded and counts what it drops. No guest waits for any of it.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kvmprof_recording::counters::Counters;
use rustix::time::{ClockId, clock_gettime};

use crate::attached::Attached;
use crate::batch::{Batch, Window};
use crate::config::Config;
use crate::gather::{Gather, Now, Policy, State};
use crate::names::{BatchNames, Names};
use crate::sockets::{Followed, News, Socket, Wanted, Watcher, find, guest_name};

/// Pieces of streams that wait, at most: 16 MiB.
const QUEUE: usize = 64;
/// Blocks of samples come a second after a window's end, or once a second: after this time, in s, a window has its last ones.
const GRACE: u64 = 2;
/// How often the patterns are looked at, beside what inotify tells.
const LOOK: Duration = Duration::from_secs(5);
/// How long a signal waits for a look at most.
const POLL: Duration = Duration::from_millis(250);
/// Guests that are begun with at a time, each with some hundred KiB of names.
const STARTS: usize = 8;
/// How long what is left of recordings may take when the collector stops.
const STOPPING: Duration = Duration::from_secs(5);
/// How long a recording that is begun anew for its names' room has to be old.
const RENEWAL: Duration = Duration::from_secs(3600);
/// Waits before a guest that can't be followed is tried again.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// What the collector is told, and tells.
pub trait Host {
    /// Whether it is to stop.
    fn is_over(&self) -> bool;
    /// Takes a batch.
    fn take(&mut self, batch: Batch);
    /// Which windows a killed collector would lose, of each guest one at most: their starts, and of how many guests.
    fn note_open(&mut self, open: BTreeMap<u64, u64>);
    /// How many guests are followed, and how many are left out by the limit.
    fn note_guests(&mut self, followed: usize, left_out: usize);
    /// What the guest of this name has counted since its start.
    fn note_counts(&mut self, guest: &str, counts: &Counters);
}

struct Guest {
    socket: Socket,
    name: String,
    /// `None` when its stream has ended: it stays until its windows are closed.
    followed: Option<Followed>,
    gather: Gather,
    since: Instant,
}

/// A guest that couldn't be followed.
#[derive(Clone, Debug)]
struct Failure {
    until: Instant,
    wait: Duration,
    message: String,
}

/// The collector.
pub struct Collector<'a> {
    config: &'a Config,
    policy: Policy,
    host_name: String,
    boot: String,
    watcher: Option<Watcher>,
    sender: SyncSender<News>,
    news: Receiver<News>,
    guests: BTreeMap<u64, Guest>,
    names: Names,
    failures: HashMap<PathBuf, Failure>,
    /// Sockets of guests that are followed again from a time on.
    rests: HashMap<Socket, Instant>,
    attached: Option<Attached>,
    last_number: u64,
    next_look: Instant,
    next_close: Instant,
    /// What guests have counted, until the host takes it.
    counts: Vec<(String, Counters)>,
    is_open_changed: bool,
    /// The latest time that windows were closed by, in s: a clock that is set back changes nothing.
    closed: u64,
}

impl<'a> Collector<'a> {
    /// A collector by `config` on the host of this name; `boot` tells its run from others.
    pub fn new(config: &'a Config, host_name: String, boot: String) -> Self {
        let (sender, news) = sync_channel(QUEUE);
        let watcher = Watcher::start(&config.sockets, sender.clone());
        if let Err(error) = &watcher {
            log::warn!(
                "Cannot watch the folders of sockets, which are looked at now and then: {error}"
            );
        }
        let attached = Attached::new(config).unwrap_or_else(|error| {
            log::error!(
                "Cannot attach to guests of other VMMs: no folder for their sockets: {error}"
            );
            None
        });
        Self {
            policy: config.policy(),
            config,
            host_name,
            boot,
            watcher: watcher.ok(),
            sender,
            news,
            guests: BTreeMap::new(),
            names: Names::default(),
            failures: HashMap::new(),
            rests: HashMap::new(),
            attached,
            last_number: 0,
            next_look: Instant::now(),
            next_close: Instant::now(),
            counts: Vec::new(),
            is_open_changed: false,
            closed: 0,
        }
    }

    /// Collects until `host` says that it is over, on a thread that lives as long as the program ([`Child::start`](crate::child::Child::start)).
    /// Then the recordings end, and all windows are closed.
    pub fn run(&mut self, host: &mut dyn Host) {
        while !host.is_over() {
            if Instant::now() >= self.next_look {
                self.look(host);
            }
            self.take_news(POLL);
            // With hundreds of guests there is news hundreds of times a second. What has become open is noted at once: a kill may come.
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
        let end = Instant::now() + STOPPING;
        while Instant::now() < end && self.guests.values().any(|guest| guest.followed.is_some()) {
            self.take_news(POLL);
            self.close(host, false);
        }
        self.close(host, true);
        self.guests.clear();
        self.attached = None;
    }

    fn now(&self) -> Now {
        let real = SystemTime::now().duration_since(UNIX_EPOCH);
        let real = real.map_or(0, |real| u64::try_from(real.as_nanos()).unwrap_or(u64::MAX));
        let monotonic = clock_gettime(ClockId::Monotonic);
        let seconds = u64::try_from(monotonic.tv_sec).unwrap_or_default();
        let nanoseconds = u64::try_from(monotonic.tv_nsec).unwrap_or_default();
        Now {
            real: real.max(self.closed.saturating_mul(1_000_000_000)),
            monotonic: seconds
                .saturating_mul(1_000_000_000)
                .saturating_add(nanoseconds),
            length: self.config.window,
            first: self.closed,
        }
    }

    /// Follows guests that are new, and lets go those whose sockets have been replaced.
    fn look(&mut self, host: &mut dyn Host) {
        self.next_look = Instant::now() + LOOK;
        // Before its sockets are looked for: none comes in between.
        if let Some(watcher) = &self.watcher {
            watcher.look();
        }
        let mut sockets = find(&self.config.sockets);
        let mut left_out = 0;
        if let Some(attached) = &mut self.attached {
            attached.look();
            sockets.extend(attached.sockets());
            left_out = attached.left_out();
            if attached.is_starting() {
                self.next_look = Instant::now() + POLL;
            }
        }
        self.failures
            .retain(|path, _| sockets.iter().any(|socket| socket.path == *path));
        self.rests.retain(|_, until| Instant::now() < *until);
        let mut started = 0;
        for socket in sockets {
            let is_known = |guest: &&Guest| guest.followed.is_some() && guest.socket == socket;
            let is_waiting = self.failures.get(&socket.path);
            let is_waiting = is_waiting.is_some_and(|failure| Instant::now() < failure.until)
                || self.rests.contains_key(&socket);
            if self.guests.values().any(|guest| is_known(&guest)) || is_waiting {
                continue;
            }
            if self.guests.len() >= self.config.limits.guests {
                left_out += 1;
                continue;
            }
            if started == STARTS {
                self.next_look = Instant::now() + POLL;
                break;
            }
            started += 1;
            self.follow(socket);
        }
        let followed = self
            .guests
            .values()
            .filter(|guest| guest.followed.is_some());
        host.note_guests(followed.count(), left_out);
    }

    fn follow(&mut self, socket: Socket) {
        let is_taken = |name: &str| {
            let mut guests = self.guests.values();
            guests.any(|guest| guest.name == name && guest.socket.path != socket.path)
        };
        let name = guest_name(&socket, is_taken);
        self.last_number += 1;
        let (path, wanted) = (socket.path.clone(), Wanted::new(self.config));
        match Followed::start(path, self.last_number, wanted, self.sender.clone()) {
            Ok(followed) => {
                let guest = Guest {
                    socket,
                    name,
                    followed: Some(followed),
                    gather: Gather::default(),
                    since: Instant::now(),
                };
                self.guests.insert(self.last_number, guest);
            }
            Err(error) => self.failed(socket.path, &name, error.to_string()),
        }
    }

    /// Follows the guest at `socket` from the next window on: its recording has ended, because it is sampled at another rate now, or ends
    /// itself. No window has two rates.
    fn rest(&mut self, socket: Socket) {
        let now = self.now();
        let next = now.window().saturating_add(self.config.window.into());
        let wait = next.saturating_mul(1_000_000_000).saturating_sub(now.real);
        let until = Instant::now() + Duration::from_nanos(wait);
        self.next_look = self.next_look.min(until);
        self.rests.insert(socket, until);
    }

    /// Notes that a guest couldn't be followed, or not any more. It is tried again, later each time.
    fn failed(&mut self, path: PathBuf, name: &str, message: String) {
        let before = self.failures.get(&path);
        if before.is_none_or(|failure| failure.message != message) {
            log::warn!("Guest {name}: {message}");
        }
        let wait = before.map_or(FIRST_WAIT, |failure| (2 * failure.wait).min(LONGEST_WAIT));
        let until = Instant::now() + wait;
        self.next_look = self.next_look.min(until);
        let failure = Failure {
            until,
            wait,
            message,
        };
        self.failures.insert(path, failure);
    }

    fn take_news(&mut self, timeout: Duration) {
        match self.news.recv_timeout(timeout) {
            Ok(news) => self.take(news),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
        }
        // Much at once: windows are closed in between all the same.
        for _ in 0..QUEUE {
            let Ok(news) = self.news.try_recv() else {
                return;
            };
            self.take(news);
        }
    }

    fn take(&mut self, news: News) {
        match news {
            News::Changed => self.next_look = Instant::now(),
            News::Bytes(number, bytes) => {
                let now = self.now();
                self.feed(number, &bytes, now);
            }
            News::Counts(number, counts) => {
                if let Some(guest) = self.guests.get(&number) {
                    self.counts.push((guest.name.clone(), counts));
                }
            }
            News::Gone(number, error) => {
                let guest = self.guests.get_mut(&number);
                // One that was let go isn't news.
                let Some(guest) = guest.filter(|guest| guest.followed.is_some()) else {
                    return;
                };
                guest.followed = None;
                let (path, name) = (guest.socket.path.clone(), guest.name.clone());
                match error {
                    Some(error) => self.failed(path, &name, format!("{error:#}")),
                    None => {
                        log::info!("Guest {name}: its recording has ended");
                        let socket = guest.socket.clone();
                        self.rest(socket);
                    }
                }
            }
        }
    }

    fn feed(&mut self, number: u64, bytes: &[u8], now: Now) {
        let Some(guest) = self.guests.get_mut(&number) else {
            return;
        };
        if guest.followed.is_none() {
            return;
        }
        let before = guest.gather.open().count();
        let was_known = guest.gather.info().hz > 0;
        let result = guest.gather.feed(bytes, now);
        let info = guest.gather.info();
        if info.hz > 0 && !was_known {
            let phase = if info.jitter {
                "a random phase"
            } else {
                "a fixed phase: its owner gives it a random one by --jitter"
            };
            log::info!("Guest {}: ticks of {} Hz with {phase}", guest.name, info.hz);
        }
        self.is_open_changed |= guest.gather.open().count() != before;
        match result {
            Ok(State::Live) => {
                // What it failed with before is over.
                self.failures.remove(&guest.socket.path);
            }
            // The stream's end comes by itself.
            Ok(State::Ended) => {}
            Ok(State::Stale) => {
                if guest.since.elapsed() >= RENEWAL || guest.gather.was_reset() {
                    guest.followed = None;
                    self.next_look = Instant::now();
                }
            }
            Err(error) => {
                guest.followed = None;
                let (path, name) = (guest.socket.path.clone(), guest.name.clone());
                self.failed(path, &name, error.to_string());
            }
        }
    }

    /// Closes the windows that are over; all of them if `is_end`.
    fn close(&mut self, host: &mut dyn Host, is_end: bool) {
        let seconds = self.now().real / 1_000_000_000;
        let length = u64::from(self.config.window);
        let over = if is_end {
            u64::MAX
        } else {
            seconds.saturating_sub(GRACE + length)
        };
        while let Some(start) = self.first_open().filter(|start| *start <= over) {
            let batch = self.batch(start);
            self.closed = self.closed.max(start + length);
            host.take(batch);
            self.is_open_changed = true;
        }
        for (guest, counts) in self.counts.drain(..) {
            host.note_counts(&guest, &counts);
        }
        self.guests
            .retain(|_, guest| guest.followed.is_some() || guest.gather.open().next().is_some());
        if std::mem::take(&mut self.is_open_changed) {
            host.note_open(self.open());
        }
    }

    fn first_open(&self) -> Option<u64> {
        let guests = self.guests.values();
        guests.filter_map(|guest| guest.gather.open().next()).min()
    }

    /// The first open window of each guest. While that waits for its last samples, a killed collector loses it and not the next one, which is
    /// another collector's then.
    fn open(&self) -> BTreeMap<u64, u64> {
        let mut open = BTreeMap::new();
        let guests = self.guests.values();
        for start in guests.filter_map(|guest| guest.gather.open().next()) {
            *open.entry(start).or_default() += 1;
        }
        open
    }

    /// The windows that began at `start`, which are closed.
    fn batch(&mut self, start: u64) -> Batch {
        let mut names = BatchNames::new(&mut self.names);
        let mut windows: Vec<Window> = Vec::new();
        for guest in self.guests.values_mut() {
            let (gather, policy) = (&mut guest.gather, &self.policy);
            let Some(window) = gather.close(start, &guest.name, policy, &mut names) else {
                continue;
            };
            // A guest that was followed twice in the time has one window all the same.
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

/// A word for this run of the collector: 64 random bits.
///
/// # Errors
/// The host has no random numbers.
pub fn new_boot() -> io::Result<String> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{:016x}", u64::from_le_bytes(bytes)))
}

/// The name of this host, as the system has it.
pub fn system_name() -> String {
    let name = rustix::system::uname();
    kvmprof_report::text::visible(&name.nodename().to_string_lossy())
}
