//! Helpers that the whole-system tests share.
//!
//! A test that needs a guest puts its body into [`on_kvm`]: the body runs on this host's KVM, or in the lab if the host has none. [`Boot`]
//! is a guest that can be booted. [`Guest`] is a running `kvmprof run` with a socket, [`Pcs`] its profiling device, opened by a client.
//! Tests wait for conditions ([`until`]), never for time.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod accounts;
mod boot;
mod capabilities;
mod disks;
mod guest;
mod long_mode;
mod machine;
mod not_run;
#[path = "../shared/own_run.rs"]
mod own_run;
mod pcs;
mod place;
mod pmc;
mod pressure;
mod prf;
mod profil;
mod program;
#[path = "../../report/tests/shared/random.rs"]
mod random;
mod recordings;
mod shares;
mod status;
mod stream;
mod terminal;
mod threads;
mod userfault;
mod wait;

pub use accounts::{Accounts, ledger_of};
pub use boot::Boot;
pub use capabilities::{
    Capability, NOBODY, as_nobody_with, as_root_with, is_perfmon_enough, with_seccomp_filter,
    without_system_call,
};
pub use disks::{DiskImage, disk_content, fill_qcow2, make_qcow2, make_raw};
pub use guest::{Guest, python_client, write_kernel};
pub use long_mode::registers_in_long_mode;
pub use machine::{Clock, Machine};
pub use not_run::not_run;
pub use own_run::with_own_run;
pub use pcs::{Pcs, Recorded, errno_of};
pub use place::{
    clocks_for_demo, in_lab, is_kernel_clock_for_demo, on_kvm, on_kvm_of_lab, on_kvm_of_lab_with,
    on_kvm_that_counts, on_kvm_with_cgroups, on_kvm_with_collector, on_kvm_with_gprof,
    on_kvm_with_python,
};
pub use pmc::{Pmc, count_of};
pub use pressure::CpuPressure;
pub use prf::{Counts, Prf, PrfAccount, table};
pub use profil::{Profil, ProfilTable, kept, profil_call};
pub use program::{Ran, example_path, gprof, interrupt, kvmprof, python, run, run_command, signal};
pub use random::Random;
pub use recordings::{
    ENOUGH_SAMPLES, HostFrame, check_demo_processes, counts_of_rows, demo_row, host_stacks,
    recorded, recorded_with_frames,
};
pub use shares::{Sampled, assert_rows, assert_share, sampling_rate, share, standard_error};
pub use status::{read_status, status_of, until_recorded};
pub use stream::{Block, decode_blocks, ticks_by_kind};
pub use terminal::{TERMINAL_TYPE, Terminal};
pub use threads::{StoppedThread, Thread, threads};
pub use userfault::never_bring;
pub use wait::until;

/// The values of `attach --capture`.
pub const CAPTURES: [&str; 2] = ["ptrace", "kernel"];

pub mod linux;
pub mod raw_client;
#[path = "../shared/seccomp.rs"]
pub mod seccomp;
