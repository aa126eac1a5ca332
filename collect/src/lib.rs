//! Collects samples of all guests of a host, continuously and at a low rate, and delivers them to other systems: Prometheus,
//! Parquet files, Pyroscope, Parca, OpenTelemetry.
//!
//! A [`collector`] is a client of the guests' sockets, and sums up their samples by window of time. All windows of the same time make one
//! [`batch::Batch`], which waits in a [`spool`] on disk until each of the [`sinks`] has received it. docs/fleet.md describes its use.
//!
//! ```
//! use kvmprof_collect::batch::{Batch, Function, Row, Tables, Window};
//! use kvmprof_collect::spool::Spool;
//! use kvmprof_recording::Mode;
//!
//! // What one guest did in ten seconds: four ticks in a function of its kernel.
//! let mut tables = Tables::default();
//! let function = Function { name: "vfs_read", module: "vmlinux", build_id: "", is_kernel: true };
//! let frame = tables.frame(&function);
//! let row = Row {
//!     process: tables.name("dd"),
//!     thread: tables.name("dd"),
//!     mode: Mode::Kernel as u8,
//!     stack: Some(tables.stack(vec![frame])),
//!     ticks: 4,
//!     interrupts_off: None,
//!     labels: None,
//! };
//! let window = Window { guest: "web".to_owned(), hz: 10, rows: vec![row], ..Window::default() };
//! let mut batch = Batch { start: 1_800_000_000, length: 10, windows: vec![window], ..Batch::default() };
//! tables.into_batch(&mut batch);
//!
//! // It waits in the spool until the sink has received it.
//! let folder = tempfile::tempdir()?;
//! let spool = Spool::open(&folder.path().join("spool"), 1 << 20, &["lake"])?;
//! spool.push(&batch)?;
//! let claim = spool.claim("lake", 0)?.expect("the batch");
//! assert_eq!(claim.batches, [batch]);
//! spool.finish("lake", |_| ())?;
//! assert_eq!(spool.fill().batches, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod attached;
mod backoff;
pub mod child;
pub mod collector;
pub mod commands;
pub mod config;
pub mod contain;
pub mod demo;
mod exits;
pub mod export;
mod files;
pub mod gather;
pub mod hash;
pub mod launcher;
pub mod look;
pub mod metrics;
pub mod names;
pub mod page;
pub mod sinks;
pub mod sockets;
#[cfg(test)]
mod totals_tests;
pub mod watcher;
pub mod work;

pub use kvmprof_spool as spool;
pub use kvmprof_spool::batch;
