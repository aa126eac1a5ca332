//! pcsd: gives a Linux guest of kvmprof's the nodes `/dev/pcs`, `/dev/prf`, `/dev/prf0`..., `/dev/profil` and `/dev/pmc`.
//!
//! The kernel's CUSE makes the nodes and brings what is done to them here ([`cuse`]); each operation
//! becomes a request to kvmprof ([`nodes`]), which travels over a port of the virtio console
//! ([`port`]). One thread does all of it, and never waits for any one of them ([`agent`]); only what a
//! caller could draw out, a look into its memory, is left to others.

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
