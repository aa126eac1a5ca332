//! Queries the data set of a fleet in SQL, and draws it.
//!
//! [`data`] finds the files of a data set, and [`table`] makes the table `samples` of them for the [`engine`], DataFusion, which answers SQL.
//! [`select`] selects rows of the table, which `kvmprof-report` draws. docs/query.md describes its use.

pub mod commands;
pub mod data;
pub mod engine;
pub mod output;
pub mod picture;
pub mod recording;
pub mod select;
pub mod table;
