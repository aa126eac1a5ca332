//! Threads that serve devices whose work would hold up the event thread.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, poll};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

/// A thread of a device. Dropped, it is asked to end, and waited for.
///
/// A panic of it ends the program, as that of any other thread does; here it is only not hidden.
#[derive(Debug)]
pub struct DeviceThread {
    ending: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

/// How the thread learns that it has to end.
#[derive(Debug)]
pub struct Ending(Arc<EventFd>);

impl DeviceThread {
    /// Starts a thread with this name (the kernel shows 15 bytes of it) that runs `serve`, which returns soon after it has
    /// been asked to end.
    ///
    /// # Errors
    /// When the host gives no thread or file descriptor.
    pub fn start(name: &str, serve: impl FnOnce(&Ending) + Send + 'static) -> io::Result<Self> {
        let event = Arc::new(EventFd::new(EFD_NONBLOCK)?);
        let ending = Ending(Arc::clone(&event));
        let thread = thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || serve(&ending))?;
        Ok(Self {
            ending: event,
            thread: Some(thread),
        })
    }

    /// Asks it to end, without waiting.
    pub fn ask_to_end(&self) {
        // A full counter has asked already.
        let _ = self.ending.write(1);
    }
}

impl Drop for DeviceThread {
    fn drop(&mut self) {
        self.ask_to_end();
        if let Some(thread) = self.thread.take() {
            // A panic of that thread has been reported already.
            let _ = thread.join();
        }
    }
}

impl Ending {
    /// Waits until one of `sources` is readable, or the thread has to end; true if it has to. Which source is readable, their
    /// reads tell.
    pub fn or_readable(&self, sources: &[BorrowedFd<'_>]) -> bool {
        let own = self.event();
        let mut fds = vec![PollFd::from_borrowed_fd(own, PollFlags::IN)];
        fds.extend(
            sources
                .iter()
                .map(|source| PollFd::from_borrowed_fd(*source, PollFlags::IN)),
        );
        loop {
            match poll(&mut fds, None) {
                Ok(_) => return !fds.first().is_none_or(|own| own.revents().is_empty()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    // Without a wait there is no serving that doesn't spin.
                    log::error!("A device isn't served any more: {error}");
                    return true;
                }
            }
        }
    }

    /// Becomes readable, and stays so, when the thread has to end: for a wait of one's own.
    pub fn event(&self) -> BorrowedFd<'_> {
        borrowed(&self.0)
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
        let thread = DeviceThread::start("test-device", move |ending| {
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
