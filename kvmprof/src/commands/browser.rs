//! The user's browser.

use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// The program of the freedesktop.org tools that opens a file or an address in what the user has chosen for it.
const OPENER: &str = "xdg-open";

/// Opens a `page`, by its path or address, in the browser.
///
/// # Errors
/// There is none, or it can't be started; the message names the page.
pub fn open(page: &str) -> anyhow::Result<()> {
    let mut command = Command::new(OPENER);
    command.arg(page).stdin(Stdio::null()).stderr(Stdio::null());
    let status = command.status();
    let status = status.with_context(|| {
        format!("Cannot execute {OPENER} (Debian's package xdg-utils); open {page} in a browser")
    })?;
    if !status.success() {
        bail!("{OPENER} has found no browser; open {page} in one");
    }
    Ok(())
}
