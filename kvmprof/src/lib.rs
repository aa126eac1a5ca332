//! The program `kvmprof`: its command line.

pub mod commands;
