//! Collects samples of all guests of a host, always and at a low rate, and hands them to systems that people run: Prometheus,
//! Parquet files, Pyroscope, Parca, OpenTelemetry.
//!
//! A [`collector`] follows the guests behind sockets as any client does, and sums their samples up in windows of time. All windows of
//! the same time are one [`batch::Batch`], which waits in a [`spool`] on disk until each of the [`sinks`] has it. docs/fleet.md tells how it
//! is used.

pub mod attached;
pub mod batch;
pub mod child;
pub mod collector;
pub mod commands;
pub mod config;
pub mod demo;
pub mod export;
mod files;
pub mod gather;
pub mod hash;
pub mod look;
pub mod metrics;
pub mod names;
pub mod page;
pub mod sinks;
pub mod sockets;
pub mod spool;
pub mod watcher;
pub mod work;
