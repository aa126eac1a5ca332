//! The time base of all samples, and threads' times.

/// Now, in ns of CLOCK_MONOTONIC: the time base of all samples.
pub fn monotonic_ns() -> u64 {
    // By libc: rustix asks the kernel by prctl(2) where the vDSO is, which the filters of the sandbox don't allow.
    clock_ns(libc::CLOCK_MONOTONIC).unwrap_or_default()
}

/// The processor time that thread `tid` of this process has used, in ns; `None` once it has ended.
pub fn thread_cpu_ns(tid: libc::pid_t) -> Option<u64> {
    // MAKE_THREAD_CPUCLOCK with CPUCLOCK_SCHED (`include/linux/posix-timers_types.h`). By libc: rustix has no clocks of other threads.
    clock_ns((!tid << 3) | 6)
}

/// The time of `clock`, in ns; `None` if there is no such clock.
fn clock_ns(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid timespec to write to; the kernel checks the clock.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (result == 0).then(|| time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs())
}

/// `ns` as the seconds and nanoseconds that timer calls take.
pub fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ns % 1_000_000_000).unwrap_or(0),
    }
}
