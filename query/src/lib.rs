//! Asks the data set of a fleet questions in SQL, and draws what is in it.
//!
//! [`data`] finds the files of a data set, [`table`] makes them the table `samples` of an [`engine`], DataFusion, which answers SQL.
//! [`select`] takes rows of the table for `kvmprof-report` to draw. docs/query.md tells how it is used.

pub mod commands;
pub mod data;
pub mod engine;
pub mod output;
pub mod picture;
pub mod recording;
pub mod select;
pub mod table;
