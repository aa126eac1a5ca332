//! Shared by tests, also those of other crates.

pub mod bombs;
pub mod boot;
pub mod browser;
pub mod compiled;
pub mod data;
pub mod pages;
pub mod random;
pub mod read;
pub mod recordings;
pub mod used;
pub mod walk;
