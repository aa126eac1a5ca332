//! The cost of filters: `cargo bench -p kvmprof-sandbox`.
//!
//! Each round starts a thread with the filter of a vCPU and one without, one after the other, and has both make the same calls on an invalid
//! descriptor, so that the kernel only enters and leaves the call. Fails if installing a thread's filter exceeds the sandbox's limit for a guest's
//! start.
#![expect(clippy::unwrap_used, reason = "a benchmark fails like a test")]

use std::thread;
use std::time::{Duration, Instant};

use kvmprof_sandbox::filters::prepare;
use kvmprof_sandbox::{Mode, Thread, enter};

const ROUNDS: usize = 31;
const CALLS: u32 = 100_000;
const KVM_RUN: libc::c_ulong = 0xae80;
/// Limit for the sandbox's addition to a start.
const LIMIT: Duration = Duration::from_millis(1);

/// The time of a call, and of giving the thread its filter.
fn round(filtered: bool) -> (Duration, Duration) {
    let measured = thread::spawn(move || {
        let start = Instant::now();
        if filtered {
            enter(Thread::Vcpu);
        }
        let entered = start.elapsed();
        let start = Instant::now();
        for _ in 0..CALLS {
            // SAFETY: there is no such descriptor.
            unsafe { libc::ioctl(-1, KVM_RUN, 0) };
        }
        (start.elapsed() / CALLS, entered)
    });
    measured.join().unwrap()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn main() {
    prepare(Mode::On, || {}).unwrap();
    let (mut with, mut without, mut enters) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        without.push(round(false).0);
        let (call, entered) = round(true);
        with.push(call);
        enters.push(entered);
    }
    let (with, without, way_in) = (median(with), median(without), median(enters));
    println!("ioctl without a filter      {:>6} ns", without.as_nanos());
    println!("ioctl with a vCPU's filter  {:>6} ns", with.as_nanos());
    println!("a thread's way in           {:>6} us", way_in.as_micros());
    assert!(way_in < LIMIT, "{way_in:?} are more than {LIMIT:?}");
}
