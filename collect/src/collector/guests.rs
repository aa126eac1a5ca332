//! Decides which guests are followed, and when a guest that couldn't be followed is tried again.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::{Collector, Failure, Guest, Host, POLL, SECOND};
use crate::gather::Gather;
use crate::sockets::{Followed, Socket, Wanted, find, guest_name};

/// The interval between searches for sockets, besides those that inotify causes.
const LOOK: Duration = Duration::from_secs(5);
/// Maximum time until the first bytes of a guest's recording come.
const SILENCE: Duration = Duration::from_secs(30);
/// Maximum number of guests that are newly followed in one step: each begins with some hundred KiB of names.
const STARTS: usize = 8;
/// The wait before a guest that couldn't be followed is tried again, and its maximum: it doubles at each attempt that fails.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

impl Collector<'_> {
    /// Searches for sockets, and follows guests that are new.
    pub(super) fn look(&mut self, host: &mut dyn Host) {
        self.next_look = Instant::now() + LOOK;
        self.give_up_silent(SILENCE);
        // Folders are watched before sockets are searched for, so that none is missed.
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

    /// Drops guests whose recording hasn't begun within `time`: the program at the socket doesn't answer.
    pub(super) fn give_up_silent(&mut self, time: Duration) {
        let mut silent = Vec::new();
        for guest in self.guests.values_mut() {
            let followed = guest.followed.as_ref();
            if followed.is_some_and(|followed| followed.is_silent(time)) {
                guest.followed = None;
                silent.push((guest.socket.path.clone(), guest.name.clone()));
            }
        }
        for (path, name) in silent {
            let seconds = time.as_secs();
            let message = format!(
                "{} doesn't answer: no recording has begun for {seconds} s",
                path.display()
            );
            self.failed(path, &name, message);
        }
    }

    pub(super) fn follow(&mut self, socket: Socket) {
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
                    first: None,
                };
                self.guests.insert(self.last_number, guest);
            }
            Err(error) => self.failed(socket.path, &name, error.to_string()),
        }
    }

    /// Follows the guest at `socket` again from the next window on: its recording has ended because its rate has changed, or because the guest is
    /// ending. No window has two rates.
    pub(super) fn rest(&mut self, socket: Socket) {
        let now = self.now();
        let next = now.window().saturating_add(self.config.window.into());
        let wait = next.saturating_mul(SECOND).saturating_sub(now.real);
        let until = Instant::now() + Duration::from_nanos(wait);
        self.next_look = self.next_look.min(until);
        self.rests.insert(socket, until);
    }

    /// Notes that a guest can't be followed, or can't be followed any longer. It is tried again, after a longer time at each failure.
    pub(super) fn failed(&mut self, path: PathBuf, name: &str, message: String) {
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
}
