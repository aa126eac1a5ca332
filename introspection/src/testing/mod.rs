//! Hand-made guests for tests and benchmarks: kernel images, page tables, and tasks in memory.
//!
//! Compiled only for this crate's own tests and with the feature `testing`, which the product doesn't use.
#![expect(
    clippy::unwrap_used,
    reason = "a guest that can't be put together is a failed test"
)]

pub mod btf;
pub mod code;
pub mod derived;
pub mod eh_frame;
pub mod kallsyms;
pub mod kernel;
pub mod linux_guest;
pub mod module_offsets;
pub mod modules;
pub mod offsets;
pub mod page_tables;
pub mod processes;
pub mod stacks;
pub mod task_offsets;
pub mod undescribed;
