//! A recording as one self-contained HTML page: timeline, flame graph, tables.
//!
//! The page's size is bounded for any recording: it has bins instead of samples, the largest frames, the first rows.

mod flames;
mod page;
mod tables;
mod timeline;
mod timeline_svg;

pub use page::page;
pub use timeline::{BINS, Bin, Lane, Timeline};
