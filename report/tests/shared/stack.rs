//! The summaries of stacks in samples.

use kvmprof_recording::{StackEnd, StackSummary};

/// The properties of a stack with so many frames in the kernel and in user mode, which ends in user mode this way if it has such a part.
pub fn stack_of(kernel: usize, user: usize, user_end: StackEnd) -> StackSummary {
    let end = |frames, end| match frames {
        0 => StackEnd::Absent,
        _ => end,
    };
    StackSummary {
        kernel: kernel.try_into().unwrap(),
        user: user.try_into().unwrap(),
        host: 0,
        kernel_end: end(kernel, StackEnd::Complete),
        user_end: end(user, user_end),
    }
}
