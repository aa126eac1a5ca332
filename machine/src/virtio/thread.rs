//! Threads of devices whose work would delay the event thread.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use kvmprof_sandbox::Thread;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// A device's thread. When this is dropped, the thread is asked to end, and joined.
///
/// A panic of the thread ends the program, as a panic of any other thread does. Nothing here hides it.
#[derive(Debug)]
pub struct DeviceThread {
    ending: Arc<EndingEvent>,
    thread: Option<JoinHandle<()>>,
}

/// The thread's notice that it has to end.
#[derive(Debug)]
pub struct Ending(Arc<EndingEvent>);

#[derive(Debug)]
struct EndingEvent {
    event: EventFd,
    requested: AtomicBool,
}

impl DeviceThread {
    /// Starts a thread with this name (the kernel shows 15 bytes of it) that runs `serve` under the filter of `kind`. `serve` has to return
    /// soon after the thread has been asked to end.
    ///
    /// # Errors
    /// The host has no more threads or file descriptors.
    pub fn start(
        name: &str,
        kind: Thread,
        serve: impl FnOnce(&Ending) + Send + 'static,
    ) -> io::Result<Self> {
        let event = Arc::new(EndingEvent {
            event: EventFd::new(EFD_NONBLOCK)?,
            requested: AtomicBool::new(false),
        });
        let ending = Ending(Arc::clone(&event));
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                kvmprof_sandbox::enter(kind);
                serve(&ending);
            })?;
        Ok(Self {
            ending: event,
            thread: Some(thread),
        })
    }

    /// Asks the thread to end, without waiting.
    pub fn ask_to_end(&self) {
        self.ending.requested.store(true, Ordering::SeqCst);
        // If the counter is full, the request has been made already.
        let _ = self.ending.event.write(1);
    }
}

impl Drop for DeviceThread {
    fn drop(&mut self) {
        self.ask_to_end();
        if let Some(thread) = self.thread.take() {
            // The panic of the thread has been reported already.
            let _ = thread.join();
        }
    }
}

impl Ending {
    /// Waits until one of `sources` is readable, or the thread has to end. Returns true if it has to end. To find out which source is
    /// readable, the caller reads them.
    pub fn or_readable(&self, sources: &[BorrowedFd<'_>]) -> bool {
        let own = self.event();
        let mut fds = vec![PollFd::from_borrowed_fd(own, PollFlags::IN)];
        fds.extend(
            sources
                .iter()
                .map(|source| PollFd::from_borrowed_fd(*source, PollFlags::IN)),
        );
        match retry_on_intr(|| poll(&mut fds, None)) {
            Ok(_) => !fds.first().is_none_or(|own| own.revents().is_empty()),
            Err(error) => {
                // Without a wait, the thread would spin.
                log::error!("A device isn't served any more: {error}");
                true
            }
        }
    }

    /// The event that becomes readable, and stays so, when the thread has to end: for other kinds of waits.
    pub fn event(&self) -> BorrowedFd<'_> {
        borrowed(&self.0.event)
    }

    /// Whether the thread has to end. This makes no system call, for threads that are busy for long.
    pub fn is_requested(&self) -> bool {
        self.0.requested.load(Ordering::SeqCst)
    }
}

/// The event's file descriptor, as [`Ending::or_readable`] takes it.
pub fn borrowed(event: &EventFd) -> BorrowedFd<'_> {
    // SAFETY: the event, which is borrowed as long, keeps the descriptor open.
    unsafe { BorrowedFd::borrow_raw(event.as_raw_fd()) }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_thread_serves_its_sources_until_it_is_dropped() {
        let (sender, served) = mpsc::channel();
        let work = Arc::new(EventFd::new(EFD_NONBLOCK).unwrap());
        let mine = Arc::clone(&work);
        let thread = DeviceThread::start("test-device", Thread::Entropy, move |ending| {
            while !ending.or_readable(&[borrowed(&mine)]) {
                sender.send(mine.read().unwrap()).unwrap();
            }
        });
        let thread = thread.unwrap();
        for value in [1, 5] {
            work.write(value).unwrap();
            assert_eq!(served.recv().unwrap(), value);
        }
        drop(thread);
        assert!(served.recv().is_err());
    }
}
