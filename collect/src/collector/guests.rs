//! Decides which guests are followed, and when a guest that couldn't be followed is tried again.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::{Collector, Failure, Guest, Host, Origin, POLL, SECOND};
use crate::attached::Attached;
use crate::backoff::Backoff;
use crate::exits;
use crate::gather::Gather;
use crate::launcher::message::{LauncherMessage, Process};
use crate::sockets::{FollowedGuest, RecorderSettings, Socket, attached_name, find, guest_name};

/// The interval between searches for sockets, besides those that inotify causes.
const LOOK: Duration = Duration::from_secs(5);
/// Maximum time until the first bytes of a guest's recording come.
const SILENCE: Duration = Duration::from_secs(30);
/// Maximum number of guests that are newly followed in one step: each begins with some hundred KiB of names.
const STARTS: usize = 8;

impl Collector<'_> {
    /// Searches for sockets, and follows guests that are new.
    pub(super) fn look(&mut self, host: &mut dyn Host) {
        self.next_look = Instant::now() + LOOK;
        self.give_up_silent(SILENCE);
        // Folders are watched before sockets are searched for, so that none is missed.
        if let Some(watcher) = &self.watcher {
            watcher.look();
        }
        let sockets = find(&self.config.sockets);
        let mut left_out = self.attached.as_mut().map_or(0, Attached::left_out);
        self.failures
            .retain(|path, _| sockets.iter().any(|socket| socket.path == *path));
        self.rests.retain(|_, until| Instant::now() < *until);
        let mut started = 0;
        for socket in sockets {
            let origin = Origin::Socket(socket.clone());
            let is_known = |guest: &&Guest| guest.followed.is_some() && guest.origin == origin;
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
                silent.push((guest.origin.clone(), guest.name.clone()));
            }
        }
        for (origin, name) in silent {
            let seconds = time.as_secs();
            let who = match &origin {
                Origin::Socket(socket) => socket.path.display().to_string(),
                Origin::Launcher(process) => format!("kvmprof attach {process}"),
            };
            let message = format!("{who} doesn't answer: no recording has begun for {seconds} s");
            self.failed(&origin, &name, message);
        }
    }

    pub(super) fn follow(&mut self, socket: Socket) {
        let (path, wanted) = (socket.path.clone(), RecorderSettings::new(self.config));
        let origin = Origin::Socket(socket.clone());
        let name = guest_name(&socket, |name| self.is_taken(name, &origin));
        self.last_number += 1;
        let followed = FollowedGuest::start(path, self.last_number, wanted, self.sender.clone());
        self.add(origin, name, Gather::default(), followed);
    }

    /// Takes what the launcher has told.
    pub(super) fn take_told(&mut self, told: LauncherMessage, pipe: Option<OwnedFd>) {
        self.no_launcher.clear();
        match (told, pipe) {
            (
                LauncherMessage::Guest {
                    process,
                    name,
                    labels,
                },
                Some(pipe),
            ) => {
                let gather = Gather::with_labels(labels);
                self.follow_attached(process, &name, gather, pipe);
            }
            (LauncherMessage::Exits { process }, Some(pipe)) => self.follow_exits(process, pipe),
            (LauncherMessage::Guest { .. } | LauncherMessage::Exits { .. }, None) => {}
            (
                LauncherMessage::Ended {
                    process,
                    has_failed,
                    said,
                },
                _,
            ) => {
                let level = if has_failed {
                    log::Level::Warn
                } else {
                    log::Level::Info
                };
                log::log!(level, "kvmprof attach {process} has ended: {said}");
            }
            (LauncherMessage::LeftOut(count), _) => {
                if let Some(attached) = &mut self.attached {
                    attached.note_left_out(count.try_into().unwrap_or(usize::MAX));
                }
            }
            (LauncherMessage::Warning(message), _) => log::warn!("{message}"),
        }
    }

    /// Notes why there is no connection to the launcher.
    pub(super) fn note_no_launcher(&mut self, why: String) {
        if let Some(attached) = &mut self.attached {
            attached.note_left_out(0);
        }
        if self.no_launcher != why {
            log::warn!("{why}");
            self.no_launcher = why;
        }
    }

    fn follow_attached(&mut self, process: Process, own: &str, gather: Gather, pipe: OwnedFd) {
        let has_room = self.guests.len() < self.config.limits.guests;
        if let Some(attached) = &mut self.attached {
            match has_room {
                true => attached.note_followed(process),
                false => attached.note_refused(process),
            }
        }
        if !has_room {
            return;
        }
        let origin = Origin::Launcher(process);
        let name = attached_name(process, own, |name| self.is_taken(name, &origin));
        self.last_number += 1;
        let followed = FollowedGuest::read(pipe, self.last_number, self.sender.clone());
        self.add(origin, name, gather, followed);
    }

    /// Takes the exits of a guest that is followed.
    fn follow_exits(&self, process: Process, pipe: OwnedFd) {
        let origin = Origin::Launcher(process);
        let Some(guest) = self.guests.values().find(|guest| guest.origin == origin) else {
            return;
        };
        if let Err(error) = exits::follow(pipe, guest.name.clone(), self.sender.clone()) {
            log::warn!("Guest {}: its exits aren't counted: {error}", guest.name);
        }
    }

    /// Whether another guest than that of `origin` has this name. A socket that was made anew has the path of the one before.
    fn is_taken(&self, name: &str, origin: &Origin) -> bool {
        let is_other = |guest: &Guest| match (&guest.origin, origin) {
            (Origin::Socket(one), Origin::Socket(other)) => one.path != other.path,
            (one, other) => one != other,
        };
        let mut guests = self.guests.values();
        guests.any(|guest| guest.name == name && is_other(guest))
    }

    /// Adds the guest with the last number.
    fn add(
        &mut self,
        origin: Origin,
        name: String,
        gather: Gather,
        followed: io::Result<FollowedGuest>,
    ) {
        match followed {
            Ok(followed) => {
                let guest = Guest {
                    origin,
                    name,
                    followed: Some(followed),
                    gather,
                    since: Instant::now(),
                    first: None,
                };
                self.guests.insert(self.last_number, guest);
            }
            Err(error) => self.failed(&origin, &name, error.to_string()),
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

    /// Notes that a guest can't be followed, or can't be followed any longer. It is tried again, after a longer time at each failure: by the launcher, if it attaches
    /// to the guest.
    pub(super) fn failed(&mut self, origin: &Origin, name: &str, message: String) {
        let Origin::Socket(socket) = origin else {
            log::warn!("Guest {name}: {message}");
            return;
        };
        let before = self.failures.get(&socket.path);
        if before.is_none_or(|failure| failure.message != message) {
            log::warn!("Guest {name}: {message}");
        }
        let mut backoff = before.map_or(Backoff::LOCAL, |failure| failure.backoff);
        let until = Instant::now() + backoff.advance();
        self.next_look = self.next_look.min(until);
        let failure = Failure {
            until,
            backoff,
            message,
        };
        self.failures.insert(socket.path.clone(), failure);
    }
}
