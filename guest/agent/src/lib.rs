//! pcsd: gives a Linux guest of kvmprof the nodes `/dev/pcs`, `/dev/prf`, `/dev/prf0`..., `/dev/profil` and `/dev/pmc`.
//!
//! The kernel's CUSE makes the nodes and passes operations on them to pcsd ([`cuse`]). Each operation becomes a request to kvmprof
//! ([`nodes`]), which travels over a port of the virtio console ([`port`]). One thread does all of this, and never waits for a single
//! operation ([`agent`]). Only inspections of a caller's memory, which the caller could delay, have threads of their own.

pub mod agent;
mod caller_reader;
pub mod cli;
pub mod cuse;
pub mod daemon;
pub mod kernel_log;
mod modules;
pub mod nodes;
#[cfg(test)]
#[path = "../../../tests/shared/not_run.rs"]
mod not_run;
mod other;
pub mod port;
