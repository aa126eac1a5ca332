//! Makes the host run a thread as soon as its timer rings.

use std::io;

use libc::{c_long, sched_attr};

/// The time slice that the thread requests, in ns: the minimum that the host's scheduler accepts (kernel: kernel/sched/syscalls.c).
const SLICE: u64 = 100_000;

/// Turns off the slack of the calling thread's timers (50 us by default). From Linux 6.12 on, the thread also runs before threads with
/// longer time slices when a timer rings. A thread with another policy than SCHED_OTHER keeps its scheduling.
pub fn be_punctual() {
    // SAFETY: this option has no pointers.
    let result = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64, 0_u64, 0_u64, 0_u64) };
    if result != 0 {
        let error = io::Error::last_os_error();
        log::debug!("The ticker's timers may be put off: {error}");
    }
    if let Err(error) = ask_for_short_slices() {
        log::debug!("The ticker runs when its turn comes: {error}");
    }
}

fn ask_for_short_slices() -> io::Result<()> {
    let Some(mut attributes) = attributes_of_this_thread()? else {
        return Ok(());
    };
    attributes.sched_runtime = SLICE;
    // SAFETY: the kernel reads as many bytes as the structure says it has.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0_u32) };
    checked(result)
}

/// None if its policy isn't SCHED_OTHER.
fn attributes_of_this_thread() -> io::Result<Option<sched_attr>> {
    // SAFETY: a structure of numbers, for which 0 is a value.
    let mut attributes: sched_attr = unsafe { std::mem::zeroed() };
    let size = u32::try_from(size_of::<sched_attr>()).unwrap_or(u32::MAX);
    // SAFETY: the kernel writes at most `size` bytes to it.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0_u32) };
    checked(result)?;
    attributes.size = size;
    let is_other = i32::try_from(attributes.sched_policy) == Ok(libc::SCHED_OTHER);
    Ok(is_other.then_some(attributes))
}

fn checked(result: c_long) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_thread_with_the_usual_policy_gets_what_it_asks_for() {
        let after = thread::spawn(|| {
            be_punctual();
            // SAFETY: this option has no pointers.
            let slack = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
            (slack, attributes_of_this_thread().unwrap())
        });
        let (slack, attributes) = after.join().unwrap();
        assert_eq!(slack, 1);
        // Kernels before 6.12 have no slices, and say 0.
        let slice = attributes.map(|attributes| attributes.sched_runtime);
        assert!(matches!(slice, None | Some(0 | SLICE)), "{slice:?}");
    }

    #[test]
    fn a_thread_with_another_policy_keeps_it() {
        let after = thread::spawn(|| {
            let parameter = libc::sched_param { sched_priority: 0 };
            // SAFETY: `parameter` is valid.
            let set =
                unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameter) };
            assert_eq!(set, 0);
            be_punctual();
            // SAFETY: this call has no pointers.
            unsafe { libc::sched_getscheduler(0) }
        });
        assert_eq!(after.join().unwrap(), libc::SCHED_BATCH);
    }
}
