//! The tools, by their commands here.

use clap::Args;

#[derive(Debug, Args)]
pub struct GetpcArguments {}
#[derive(Debug, Args)]
pub struct PcstatArguments {}
pub fn getpc(_: GetpcArguments) -> anyhow::Result<u8> { anyhow::bail!("not merged yet") }
pub fn pcstat(_: PcstatArguments) -> anyhow::Result<u8> { anyhow::bail!("not merged yet") }
