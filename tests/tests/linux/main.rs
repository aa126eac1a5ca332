//! Debian's kernels as guests, in the lab.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod agent;
mod attach;
mod boot;
mod containers;
mod debian;
mod devices;
mod disks;
mod dump;
mod ends;
mod exits;
mod folders;
mod guest_side;
mod hostile;
mod images;
mod languages;
mod machines;
mod matrix;
mod microvm;
mod named;
mod net;
mod one_cpu;
mod page;
mod perf;
mod prf;
mod profil;
mod profil_command;
mod record;
mod report;
mod requests;
mod smoke;
mod stalls;
mod switches;
mod tasks;
mod unwinding;
mod vmx;
