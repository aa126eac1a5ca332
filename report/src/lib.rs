//! Turns recordings into tables, flame graphs, the live view and exports.
//!
//! This crate is independent of how samples are taken, and needs no running guest.
//!
//! ```no_run
//! use std::path::Path;
//!
//! use kvmprof_report::export::{Format, Source};
//!
//! // All processes of a recording as folded stacks, which flame graph programs read.
//! let source = Source::open(Path::new("out.kvmprof"), &[])?;
//! Format::Folded.write(&source, &mut std::io::stdout())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod boot;
pub mod budget;
pub mod diff;
pub mod exits;
pub mod export;
pub mod faults;
pub mod graph;
pub mod html;
pub mod markup;
pub mod model;
pub mod profile;
mod random;
pub mod rows;
pub mod stalls;
mod statistics;
pub mod symbol_server;
pub mod symbolize;
mod table;
pub mod tasks;
pub mod text;
pub mod top;
