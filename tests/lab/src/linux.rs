//! `cargo lab linux`.
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct LinuxArguments {
    /// Kernel to be profiled
    #[arg(long, value_name = "PATH")]
    kernel: Option<PathBuf>,
}
impl LinuxArguments {
    pub(crate) fn run(self) -> Result<u8> {
        Ok(if self.kernel.is_some() { 1 } else { 0 })
    }
}
