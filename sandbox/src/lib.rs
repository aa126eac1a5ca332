//! Limits what kvmprof can do on the host, in case a guest or a client finds a fault in it.
//!
//! A program that runs a guest calls these functions in this order; each works where the host's kernel has what it needs:
//!
//! 1. [`process::give_up`]: no new privileges, no inherited files, limits.
//! 2. [`paths::restrict`]: files and connections, by Landlock.
//! 3. [`filters::prepare`], and then [`filters::enter`] on each thread: which system calls it may make, by seccomp.
//!
//! After [`user::choose`], a thread becomes another user with the last of these.
//!
//! Without [`filters::prepare`] nothing happens to a thread: programs that only read or test are not contained.
//! [`state`] returns which parts are on.
//!
//! ```no_run
//! use std::path::PathBuf;
//! use std::thread;
//!
//! use kvmprof_sandbox::paths::{Use, restrict};
//! use kvmprof_sandbox::{Mode, Thread, filters, process};
//!
//! process::give_up()?;
//! filters::prepare(Mode::On, || {})?;
//! restrict(&[(PathBuf::from("/srv/guest"), Use::Read)])?;
//! let vcpu = thread::spawn(|| {
//!     kvmprof_sandbox::enter(Thread::Vcpu);
//!     // From here on a system call that a vCPU's thread doesn't need ends the process.
//! });
//! vcpu.join().expect("it doesn't panic");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod capabilities;
pub mod filters;
mod mode;
#[cfg(test)]
#[path = "../../tests/shared/not_run.rs"]
mod not_run;
pub mod paths;
pub mod process;
pub mod state;
pub mod stderr;
mod thread;
pub mod user;

pub use filters::{enter, enter_without_paths};
pub use mode::Mode;
pub use thread::Thread;
