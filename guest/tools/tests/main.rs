//! Tests of the tools. They are one program: each would link the whole crate again.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod getpc;
mod pcstat;
mod prf;
