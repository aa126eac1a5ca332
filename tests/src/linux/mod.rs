//! Debian's kernels as guests under kvmprof, in the lab.
//!
//! A scenario is one lab machine that runs one script. The script runs guests with `driver.sh`, and the test then checks its results:
//! consoles, streams, statuses.

mod boots;
mod console;
pub mod derived;
mod kernel;
mod microvm;
pub mod moved;
mod once;
mod programs;
mod qemu;
mod running_guest;
mod scenario;
mod stream;
mod undescribed;

pub use boots::lab_command;
pub use console::{Accounts, Console, Process};
pub use kernel::{
    debian, kernel_knowledge, undescribed, undescribed_kernel, undescribed_without_mounts,
    unexpected_gaps, unpacked, without_pvh,
};
pub use microvm::Product;
pub use once::{once, turn};
pub use programs::{
    Program, Release, SharedProgram, guest_program, shared_library, shared_program, with_libraries,
};
pub use running_guest::RunningGuest;
pub use scenario::{Finished, Scenario, guest_builder, guest_init};
pub use stream::{Stream, pcs_kind, print_losses};
pub use undescribed::patched;

/// Makes each check a test for each kernel on which all tests of guests run. The check gets the result of the test program's function `run`
/// for the series. Behind `described or not:` there are also tests for [kernels that say nothing of themselves](undescribed_kernel), and `run`
/// gets whether the kernel describes itself, as behind `described:`. Behind `of { NAME(ARGUMENTS) ... }` the tests have these names, and `run` gets
/// these arguments.
#[macro_export]
macro_rules! in_each_kernel {
    (@tests { $($check:ident)* } $tests:tt) => {
        $($crate::in_each_kernel! { @check $check $tests })*
    };
    (@check $check:ident { $($name:ident $run:tt)* }) => {
        mod $check {
            $(#[test]
            fn $name() {
                super::$check(&super::run $run);
            })*
        }
    };
    (of $tests:tt $($check:ident)*) => {
        $crate::in_each_kernel! { @tests { $($check)* } $tests }
    };
    (described or not: $($check:ident)*) => {
        $crate::in_each_kernel! { @tests { $($check)* } {
            in_linux_6_1("6.1", true)
            in_linux_6_12("6.12", true)
            in_an_undescribed_linux_6_1("6.1", false)
            in_an_undescribed_linux_6_12("6.12", false)
        } }
    };
    (described: $($check:ident)*) => {
        $crate::in_each_kernel! { @tests { $($check)* } {
            in_linux_6_1("6.1", true)
            in_linux_6_12("6.12", true)
        } }
    };
    ($($check:ident)*) => {
        $crate::in_each_kernel! { @tests { $($check)* } {
            in_linux_6_1("6.1")
            in_linux_6_12("6.12")
        } }
    };
}
