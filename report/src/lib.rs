//! From recordings of samples to what people look at: the file format, tables, flame graphs, exports.
//!
//! Nothing here knows how samples are taken, or needs the guest to run.

pub mod binary;
pub mod commands;
pub mod diff;
pub mod export;
pub mod file;
pub mod graph;
pub mod html;
pub mod profile;
pub mod symbolize;
mod text;
pub mod top;
