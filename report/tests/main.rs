//! Tests of views, each by recordings that it writes itself. They are one program: each would link the whole crate again.
#![expect(clippy::unwrap_used, reason = "tests fail by it")]

mod bombs;
mod boot;
mod cut_short;
mod damage;
mod diff;
mod exports;
mod faults;
mod firefox;
mod go;
mod host_files;
mod html;
mod html_chromium;
mod labels;
mod language;
mod levels;
mod merge;
mod page_data;
mod page_exits;
mod page_filters;
mod page_frames;
mod page_guide;
mod page_looks;
mod page_script;
mod page_tool;
mod page_use;
mod page_waits;
mod report;
mod shared;
mod stalls;
mod symbols;
mod time_range;
