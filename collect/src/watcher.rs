//! Notices when sockets are made in folders.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::thread::{self, Builder};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::inotify;

use crate::sockets::Message;

/// Reports changes in folders, on a thread that ends when this is dropped. Folders with wildcards in their names aren't watched: the collector
/// searches them at intervals.
pub struct Watcher {
    folders: Vec<PathBuf>,
    inotify: Arc<OwnedFd>,
    end: Arc<OwnedFd>,
}

impl Watcher {
    /// Watches the folders of `patterns` that exist.
    ///
    /// # Errors
    /// The host gives no inotify, or no thread.
    pub fn start(patterns: &[String], sender: SyncSender<Message>) -> io::Result<Self> {
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
            .spawn(move || report_changes(&inotify, &end, &sender))?;
        Ok(watcher)
    }

    /// Also watches the folders that were made, or replaced, since the last call.
    pub fn look(&self) {
        let events = inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
        for folder in &self.folders {
            // A folder that doesn't exist is tried again at the next call.
            let _ = inotify::add_watch(&self.inotify, folder, events);
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // The write doesn't block: the counter is 0.
        let _ = rustix::io::write(&self.end, &1_u64.to_ne_bytes());
    }
}

/// Sends [`Message::Changed`] when `inotify` reports a change, until `end` is readable or the receiver is gone.
fn report_changes(inotify: &OwnedFd, end: &OwnedFd, sender: &SyncSender<Message>) {
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
        // The file doesn't matter: the collector searches for all sockets.
        if changed
            && (rustix::io::read(inotify, &mut buffer).is_err()
                || sender.send(Message::Changed).is_err())
        {
            return;
        }
        // If a folder changes often, it is searched ten times a second at most.
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
    fn new_sockets_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let (sender, messages) = sync_channel(8);
        let pattern = folder.path().join("*.sock").display().to_string();
        let _watcher = Watcher::start(&[pattern], sender).unwrap();
        let _listener = UnixListener::bind(folder.path().join("a.sock")).unwrap();
        assert!(matches!(messages.recv().unwrap(), Message::Changed));
    }

    #[test]
    fn a_folder_created_later_is_watched() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("later");
        let (sender, messages) = sync_channel(8);
        let pattern = folder.join("*.sock").display().to_string();
        let watcher = Watcher::start(&[pattern], sender).unwrap();
        fs::create_dir(&folder).unwrap();
        watcher.look();
        let _listener = UnixListener::bind(folder.join("a.sock")).unwrap();
        assert!(matches!(messages.recv().unwrap(), Message::Changed));
    }

    /// Without any change, the thread ends with the watcher, and the sender with the thread.
    #[test]
    fn a_watcher_that_is_dropped_ends() {
        let folder = tempfile::tempdir().unwrap();
        let (sender, messages) = sync_channel(8);
        let pattern = folder.path().join("*.sock").display().to_string();
        let watcher = Watcher::start(&[pattern], sender).unwrap();
        let inotify = Arc::downgrade(&watcher.inotify);
        drop(watcher);
        assert!(messages.recv().is_err());
        while inotify.upgrade().is_some() {
            thread::yield_now();
        }
    }
}
