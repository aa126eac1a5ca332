//! Completes a call of pmc for kvmprof with the caller's process, and refuses processes that the caller may not count.

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pmc::{Call, Function, KERNEL};

use super::identity::{now, process_of};

/// The pid in a call that stands for the calling process.
const CALLER: i32 = 0;

/// The data of `PMC_CALL` for a call that the thread makes.
///
/// # Errors
/// EPERM if a caller that isn't the superuser names another process, or calls a function for the whole guest; ESRCH if there is no such
/// process, or the caller can't be found; EINVAL for a number that can't be a pid.
pub(super) fn complete(thread: u32, is_superuser: bool, call: Call) -> Result<Vec<u8>, Errno> {
    // The time is taken first: kvmprof ignores processes that get one of the pids below later.
    let time = now();
    let caller = process_of(thread).ok_or(Errno(libc::ESRCH))?;
    if call.function.is_privileged() && !is_superuser {
        return Err(Errno::EPERM);
    }
    let process = |pid: i32| {
        if pid == CALLER {
            return Ok(caller);
        }
        // A thread's id is accepted for its process.
        let thread = u32::try_from(pid).map_err(|_| Errno::EINVAL)?;
        match process_of(thread) {
            Some(process) if is_superuser || process == caller => Ok(process),
            None if is_superuser => Err(Errno(libc::ESRCH)),
            // The error doesn't reveal whether the process exists.
            _ => Err(Errno::EPERM),
        }
    };
    let pid = match call.pid {
        KERNEL if call.function == Function::Value => KERNEL,
        pid => process(pid)?,
    };
    let parent = match call.function {
        Function::Accumulate => process(call.parent)?,
        _ => 0,
    };
    let call = Call {
        pid,
        parent,
        time,
        value: 0,
        ..call
    };
    Ok(call.encode().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that isn't this one, and doesn't end.
    const OTHER: i32 = 1;
    const EPERM: Result<(i32, i32), Errno> = Err(Errno::EPERM);
    const EINVAL: Result<(i32, i32), Errno> = Err(Errno::EINVAL);
    const ESRCH: Result<(i32, i32), Errno> = Err(Errno(libc::ESRCH));

    fn us() -> i32 {
        std::process::id().cast_signed()
    }

    /// The process and the parent in the completed call.
    fn about(is_superuser: bool, call: Call) -> Result<(i32, i32), Errno> {
        // The caller is another thread than the first one of its process.
        let thread = std::thread::spawn(move || {
            let thread = rustix::thread::gettid().as_raw_pid();
            complete(thread.cast_unsigned(), is_superuser, call)
        });
        let data = thread.join().unwrap()?;
        assert_eq!(data.len(), Call::SIZE);
        let known = Call::decode(&data).unwrap();
        Ok((known.pid, known.parent))
    }

    #[test]
    fn the_caller_and_the_time_are_filled_in() {
        let before = now();
        let asked = Call {
            flags: 1,
            parent: OTHER,
            event: 3,
            reset_value: 4,
            configuration_flags: 5,
            time: 6,
            value: 7,
            ..Call::new(Function::Configure, 0, -8)
        };
        let data = complete(us().cast_unsigned(), false, asked).unwrap();
        let known = Call::decode(&data).unwrap();
        assert!((before..=now()).contains(&known.time));
        let expected = Call {
            pid: us(),
            parent: 0,
            time: known.time,
            value: 0,
            ..asked
        };
        assert_eq!(known, expected);
    }

    #[test]
    fn only_the_superuser_names_other_processes() {
        let nobody = i32::MAX;
        for function in Function::ALL {
            let call = |pid| Call::new(function, pid, 0);
            let accumulates = function == Function::Accumulate;
            let own = Ok((us(), if accumulates { us() } else { 0 }));
            let expected = if function.is_privileged() { EPERM } else { own };
            for ours in [0, us()] {
                assert_eq!(about(false, call(ours)), expected, "{function:?} {ours}");
                assert_eq!(about(true, call(ours)), own, "{function:?} {ours}");
            }
            for other in [OTHER, nobody] {
                assert_eq!(about(false, call(other)), EPERM, "{function:?} {other}");
            }
            let others = own.map(|(_, parent)| (OTHER, parent));
            assert_eq!(about(true, call(OTHER)), others, "{function:?}");
            assert_eq!(about(true, call(nobody)), ESRCH, "{function:?}");
            assert_eq!(about(true, call(i32::MIN)), EINVAL, "{function:?}");
        }
    }

    #[test]
    fn the_kernel_has_values_without_a_process() {
        for function in Function::ALL {
            let is_value = function == Function::Value;
            let expected = if is_value { Ok((KERNEL, 0)) } else { EINVAL };
            let call = Call::new(function, KERNEL, 0);
            assert_eq!(about(true, call), expected, "{function:?}");
            if !function.is_privileged() {
                assert_eq!(about(false, call), expected, "{function:?}");
            }
        }
    }

    #[test]
    fn the_parent_is_checked_as_the_process_is() {
        let call = |pid, parent| Call {
            parent,
            ..Call::new(Function::Accumulate, pid, 0)
        };
        assert_eq!(about(false, call(0, us())), Ok((us(), us())));
        assert_eq!(about(false, call(0, OTHER)), EPERM);
        assert_eq!(about(false, call(OTHER, 0)), EPERM);
        assert_eq!(about(true, call(OTHER, 0)), Ok((OTHER, us())));
        assert_eq!(about(true, call(0, OTHER)), Ok((us(), OTHER)));
        for wrong in [KERNEL, i32::MIN] {
            assert_eq!(about(true, call(0, wrong)), EINVAL);
        }
    }

    #[test]
    fn a_caller_without_a_pid_is_refused() {
        let call = Call::new(Function::NumCounters, 0, 0);
        for nobody in [0, u32::MAX] {
            assert_eq!(complete(nobody, true, call), Err(Errno(libc::ESRCH)));
        }
    }
}
