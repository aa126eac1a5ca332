//! Address spaces with page tables that were built by hand, and with hostile ones.

mod hostile_tables;
mod mapped;
mod user_store;
mod walks;
