//! Tells when sockets come into folders.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::{self, Builder};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::inotify;

use crate::sockets::News;

/// Tells of changes in folders, in a thread of its own, which ends when this is dropped. Folders that have wildcards in their own names are for the
/// collector's own looks.
pub struct Watcher {
    folders: Vec<PathBuf>,
    inotify: Arc<OwnedFd>,
    end: Arc<OwnedFd>,
}

impl Watcher {
    /// Watches the folders of `patterns`, as far as they are there.
    ///
    /// # Errors
    /// The host gives no inotify, or no thread.
    pub fn start(patterns: &[String], sender: SyncSender<News>) -> io::Result<Self> {
        let folders = patterns
            .iter()
            .filter_map(|pattern| Path::new(pattern).parent());
        let folders = folders.filter(|folder| !folder.to_string_lossy().contains(['*', '?', '[']));
        let watcher = Self {
            folders: folders.map(Path::to_owned).collect(),
            inotify: Arc::new(inotify::init(inotify::CreateFlags::CLOEXEC)?),
            end: Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?),
        };
        watcher.look();
        let (inotify, end) = (Arc::clone(&watcher.inotify), Arc::clone(&watcher.end));
        Builder::new()
            .name("watch".into())
            .spawn(move || tell_of_changes(&inotify, &end, &sender))?;
        Ok(watcher)
    }

    /// Watches the folders that have come since the last look, or have been made anew. For others nothing changes.
    pub fn look(&self) {
        let events = inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
        for folder in &self.folders {
            // One that isn't there is looked for again.
            let _ = inotify::add_watch(&self.inotify, folder, events);
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // A counter that is 0 takes any number.
        let _ = rustix::io::write(&self.end, &1_u64.to_ne_bytes());
    }
}

/// Sends news of what `inotify` tells, until `end` can be read or nobody takes it.
fn tell_of_changes(inotify: &OwnedFd, end: &OwnedFd, sender: &SyncSender<News>) {
    let mut buffer = [0; 4096];
    loop {
        let mut ready = [inotify, end].map(|file| PollFd::new(file, PollFlags::IN));
        match poll(&mut ready, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        let [changed, ended] = ready.map(|file| !file.revents().is_empty());
        if ended {
            return;
        }
        // Which file it was doesn't matter: all of them are looked at.
        if changed
            && (rustix::io::read(inotify, &mut buffer).is_err()
                || sender.send(News::Changed).is_err())
        {
            return;
        }
        // A folder in which much happens is looked at ten times a second.
        thread::sleep(Duration::from_millis(100));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn new_sockets_are_told_of() {
        let folder = tempfile::tempdir().unwrap();
        let (sender, news) = sync_channel(8);
        let pattern = folder.path().join("*.sock").display().to_string();
        let _watcher = Watcher::start(&[pattern], sender).unwrap();
        let _listener = UnixListener::bind(folder.path().join("a.sock")).unwrap();
        assert!(matches!(news.recv().unwrap(), News::Changed));
    }

    #[test]
    fn a_folder_that_comes_later_is_watched() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("later");
        let (sender, news) = sync_channel(8);
        let pattern = folder.join("*.sock").display().to_string();
        let watcher = Watcher::start(&[pattern], sender).unwrap();
        fs::create_dir(&folder).unwrap();
        watcher.look();
        let _listener = UnixListener::bind(folder.join("a.sock")).unwrap();
        assert!(matches!(news.recv().unwrap(), News::Changed));
    }

    /// The sender goes with the thread, and the thread with the watcher, though nothing changes.
    #[test]
    fn a_watcher_that_is_dropped_ends() {
        let folder = tempfile::tempdir().unwrap();
        let (sender, news) = sync_channel(8);
        let pattern = folder.path().join("*.sock").display().to_string();
        let watcher = Watcher::start(&[pattern], sender).unwrap();
        let inotify = Arc::downgrade(&watcher.inotify);
        drop(watcher);
        assert!(news.recv().is_err());
        while inotify.upgrade().is_some() {
            thread::yield_now();
        }
    }
}
