//! A thread that writes console output, for callers that mustn't wait for the output's reader.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use vmm_sys_util::eventfd::EventFd;

use super::output::ConsoleOutput;
use crate::lock::lock;

/// Number of waiting bytes at which there is no room for more.
const HIGH_WATER: usize = 64 << 10;

#[derive(Debug, Default)]
struct Queue {
    bytes: Vec<u8>,
    /// Bytes that the thread is writing.
    writing: usize,
    ending: bool,
    ended: bool,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }
}

/// A thread that writes. Dropping this ends the thread, even if bytes still wait.
#[derive(Debug)]
pub(super) struct OutputThread {
    shared: Arc<Shared>,
    closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl OutputThread {
    /// Starts a thread that writes to `output`. It writes to `room` whenever there is room again.
    ///
    /// # Errors
    /// If the host gives no thread.
    pub fn start(mut output: ConsoleOutput, room: EventFd) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let closing = output.closing();
        let mine = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("console".into())
            .spawn(move || {
                kvmprof_sandbox::enter(kvmprof_sandbox::Thread::Console);
                while let Some(bytes) = mine.next() {
                    output.write(&bytes);
                    mine.queue().writing = 0;
                    // If the counter is full, the event is readable already.
                    let _ = room.write(1);
                }
                mine.queue().ended = true;
                mine.changed.notify_all();
            })?;
        Ok(Self {
            shared,
            closing,
            thread: Some(thread),
        })
    }

    /// Whether more should be written now.
    pub fn has_room(&self) -> bool {
        let queue = self.shared.queue();
        queue.bytes.len() + queue.writing < HIGH_WATER
    }

    /// Queues `bytes` for writing.
    pub fn write(&self, bytes: &[u8]) {
        self.shared.queue().bytes.extend_from_slice(bytes);
        self.shared.changed.notify_all();
    }

    /// Ends the thread when all is written, or when `timeout` is over.
    pub fn finish(&self, timeout: Duration) {
        let mut queue = self.shared.queue();
        queue.ending = true;
        self.shared.changed.notify_all();
        // Later output is thrown away in any case.
        let _ = self
            .shared
            .changed
            .wait_timeout_while(queue, timeout, |queue| !queue.ended);
        self.closing.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    /// Waits for something to write. None at the end.
    fn next(&self) -> Option<Vec<u8>> {
        let waiting = |queue: &mut Queue| queue.bytes.is_empty() && !queue.ending;
        let mut queue = self
            .changed
            .wait_while(self.queue(), waiting)
            .unwrap_or_else(PoisonError::into_inner);
        queue.writing = queue.bytes.len();
        let bytes = std::mem::take(&mut queue.bytes);
        (!bytes.is_empty()).then_some(bytes)
    }
}

impl Drop for OutputThread {
    fn drop(&mut self) {
        self.finish(Duration::ZERO);
        if let Some(thread) = self.thread.take() {
            // A panic of that thread has been reported already.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use vmm_sys_util::eventfd::EFD_NONBLOCK;

    fn start(output: ConsoleOutput) -> (OutputThread, EventFd) {
        let room = EventFd::new(EFD_NONBLOCK).unwrap();
        let thread = OutputThread::start(output, room.try_clone().unwrap()).unwrap();
        (thread, room)
    }

    #[test]
    fn a_stalled_reader_fills_it_and_one_that_reads_on_empties_it() {
        let (mut reader, writer) = io::pipe().unwrap();
        let (thread, room) = start(ConsoleOutput::pipe(writer));
        let mut sent = 0;
        // A pipe holds some of it as well.
        while thread.has_room() && sent < 100 * HIGH_WATER {
            thread.write(&[b'a'; 1000]);
            sent += 1000;
        }
        assert!(!thread.has_room());
        let reading = std::thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).map(|_| all)
        });
        thread.finish(Duration::from_secs(60));
        assert!(thread.has_room());
        assert!(room.read().is_ok());
        drop(thread);
        assert_eq!(reading.join().unwrap().unwrap().len(), sent);
    }

    #[test]
    fn a_stalled_reader_does_not_keep_it_from_ending() {
        let (_reader, writer) = io::pipe().unwrap();
        let (thread, _room) = start(ConsoleOutput::pipe(writer));
        thread.write(&vec![0; 1 << 20]);
        thread.finish(Duration::ZERO);
        drop(thread);
    }
}
