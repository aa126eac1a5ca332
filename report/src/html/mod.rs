//! A recording as one page of HTML, which loads nothing: timeline, flame graph, tables.
//!
//! Its size is bounded whatever the recording's is: bins instead of samples, the largest frames, the first rows.

mod flames;
mod page;
mod tables;
mod timeline;
mod timeline_svg;

pub use page::page;
pub use timeline::{BINS, Bin, Lane, Timeline};
