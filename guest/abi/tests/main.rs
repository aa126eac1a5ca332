//! Tests of the layouts: against the headers, against the pages, and with any input. They are one program: each would be linked
//! again.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod headers;
mod pages;
mod wire;
