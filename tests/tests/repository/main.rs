//! The repository: its pages, its dependencies, its packages.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod clean_roots;
mod crates;
mod dependencies;
mod deployment;
mod layers;
mod packages;
mod pages;
mod profile;
