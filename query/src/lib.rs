//! Queries the data set of a fleet in SQL, and draws it.
//!
//! [`data`] makes a table of the files of a data set for the [`engine`], DataFusion, which answers SQL. With the rows that are chosen, [`rows`] fills the model of
//! `kvmprof-report`, whose views they have then. docs/query.md describes its use.

pub mod commands;
pub mod data;
pub mod engine;
pub mod output;
pub mod rows;
