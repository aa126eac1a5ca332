//! The tools as one program, chosen by its name or its first argument.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use kvmprof_abi::pcs::NODE;
use kvmprof_tools::device::Node;
use kvmprof_tools::interrupt::Interrupt;
use kvmprof_tools::{getpc, pcstat};

/// Profiles of a guest that runs under kvmprof
#[derive(Parser)]
#[command(name = "kvmprof-tools", version, multicall = false)]
struct CommandLine {
    #[command(subcommand)]
    tool: Tool,
}

#[derive(Subcommand)]
enum Tool {
    Getpc(getpc::Arguments),
    Pcstat(pcstat::Arguments),
}
fn main() {}
