//! Loads missing modules of the kernel, if possible.

use std::fs::OpenOptions;
use std::process::{Command, Stdio};

use crate::cuse::CUSE;

/// Loads the module of `/dev/cuse`, if it is missing. The node may exist before the module: opening it then loads the module, or fails.
pub(crate) fn load_cuse() {
    if OpenOptions::new().read(true).open(CUSE).is_err() {
        load("cuse");
    }
}

/// Loads the modules of the port.
pub(crate) fn load_port() {
    load("virtio_mmio");
    load("virtio_console");
}

/// Loads a module with modprobe(8). A failure shows when the device is opened.
fn load(module: &str) {
    let status = Command::new("modprobe")
        .args(["-q", module])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => log::info!("loaded module {module}"),
        Ok(status) => log::debug!("modprobe {module}: {status}"),
        Err(error) => log::debug!("modprobe: {error}"),
    }
}
