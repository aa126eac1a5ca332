//! Kicks a vCPU out of the guest, from any thread.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering, fence};

use super::send_kick;

/// Makes one vCPU's KVM_RUN return, now or, if it isn't inside, as soon as it is entered.
#[derive(Debug, Default)]
pub struct Kicker {
    // 0 before the thread runs, and after it.
    tid: AtomicI32,
    // Whether a kick hasn't been seen yet: kicks mustn't accumulate on a vCPU that is stuck in an exit.
    pending: AtomicBool,
}

impl Kicker {
    /// Attaches the kicker to the calling thread.
    pub fn attach(&self) {
        self.tid
            .store(rustix::thread::gettid().as_raw_pid(), Ordering::Release);
        // A request that was made before this store is visible after it, or its kick sees the tid.
        fence(Ordering::SeqCst);
    }

    /// Detaches the kicker. Kicks have no effect from now on.
    pub fn detach(&self) {
        self.tid.store(0, Ordering::Release);
    }

    /// True between [`attach`](Self::attach) and [`detach`](Self::detach).
    pub fn is_attached(&self) -> bool {
        self.thread().is_some()
    }

    /// The thread, between [`attach`](Self::attach) and [`detach`](Self::detach).
    pub fn thread(&self) -> Option<libc::pid_t> {
        let tid = self.tid.load(Ordering::Acquire);
        (tid != 0).then_some(tid)
    }

    /// Kicks the vCPU.
    pub fn kick(&self) {
        fence(Ordering::SeqCst);
        let tid = self.tid.load(Ordering::Acquire);
        if tid != 0 && !self.pending.swap(true, Ordering::SeqCst) {
            send_kick(tid);
        }
    }

    /// Notes that the vCPU has returned from KVM_RUN. After this call, the thread sees all requests that were made before
    /// a kick that came before this call.
    pub fn seen(&self) {
        self.pending.store(false, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}
