//! The program `kvmprof`: its command line.

mod child;
pub mod commands;
