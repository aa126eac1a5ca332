//! The tools that sample and report, on the host socket or on the guest's nodes.
//!
//! Each tool is a module with its command line and its work. [`program`] makes them commands of `kvmprof-tools` and
//! `kvmprof`.
//!
//! ```no_run
//! use std::fs::File;
//!
//! use kvmprof_tools::pcstat::{read_profile, write_report};
//!
//! // This is what `pcstat samples` does.
//! let profile = read_profile(&mut File::open("samples")?, "samples", None)?;
//! write_report(&profile, 10, &mut std::io::stdout())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod device;
pub mod getpc;
pub mod pcstat;
pub mod prf;
pub mod program;
pub mod symbols;
