//! Limits how long a conversation with a program may take. A separate thread enforces the limit. It is started before the filters of
//! `kvmprof_sandbox` are installed, under which no thread can start another one.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::lock::lock;

const TALKING: u8 = 0;
const DONE: u8 = 1;
const LATE: u8 = 2;

/// Sends conversations to the thread, once it has been started.
static TALKS: Mutex<Option<Sender<Exchange>>> = Mutex::new(None);

/// A conversation that has to be over in time.
struct Exchange {
    deadline: Instant,
    /// Weak, so that the connection ends when its owner drops it.
    stream: Weak<UnixStream>,
    state: Arc<AtomicU8>,
}

/// Does `work`, which uses `stream`. If it takes longer than `limit`, the connection is shut down, so that `work` fails. Returns
/// whether that happened. The first call starts the thread.
pub(super) fn within<T>(
    limit: Duration,
    stream: &UnixStream,
    work: impl FnOnce() -> T,
) -> io::Result<(T, bool)> {
    let state = Arc::new(AtomicU8::new(TALKING));
    let own = Arc::new(stream.try_clone()?);
    let talk = Exchange {
        deadline: Instant::now() + limit,
        stream: Arc::downgrade(&own),
        state: Arc::clone(&state),
    };
    // The thread ends only with the process.
    sender()?.send(talk).map_err(io::Error::other)?;
    let result = work();
    drop(own);
    Ok((result, state.swap(DONE, Ordering::SeqCst) == LATE))
}

fn sender() -> io::Result<Sender<Exchange>> {
    let mut talks = lock(&TALKS);
    if let Some(sender) = &*talks {
        return Ok(sender.clone());
    }
    let (sender, new) = channel();
    let builder = thread::Builder::new().name("share limits".into());
    builder.spawn(move || {
        // The thread is started before files are restricted, since the first folder is opened before.
        kvmprof_sandbox::enter_without_paths(kvmprof_sandbox::Thread::Share);
        watch(&new);
    })?;
    Ok(talks.insert(sender).clone())
}

fn watch(new: &Receiver<Exchange>) {
    let mut talks: Vec<Exchange> = Vec::new();
    loop {
        let next = talks.iter().map(|talk| talk.deadline).min();
        let came = match next {
            Some(next) => new.recv_timeout(next.saturating_duration_since(Instant::now())),
            None => new.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match came {
            Ok(talk) => talks.push(talk),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let now = Instant::now();
        talks.retain(|talk| {
            let is_over = talk.state.load(Ordering::SeqCst) == DONE;
            if !is_over && talk.deadline <= now {
                talk.end();
            }
            !is_over && talk.deadline > now
        });
    }
}

impl Exchange {
    /// Ends the conversation if it isn't over.
    fn end(&self) {
        let late = (self.state).compare_exchange(TALKING, LATE, Ordering::SeqCst, Ordering::SeqCst);
        if late.is_ok()
            && let Some(stream) = self.stream.upgrade()
        {
            // It may be gone already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
