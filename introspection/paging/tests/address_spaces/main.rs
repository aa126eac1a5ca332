//! Address spaces with page tables that were built by hand, and with hostile ones.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod hostile_tables;
mod mapped;
mod user_store;
mod walks;
