//! The kernel's modules: loaded where they are missing, as far as that goes.

use std::fs::OpenOptions;
use std::process::{Command, Stdio};

use crate::cuse::CUSE;

/// Loads what makes `/dev/cuse`, if there is none. The node may be there before the module: opening
/// it then loads the module, or fails.
pub(crate) fn load_cuse() {
    if OpenOptions::new().read(true).open(CUSE).is_err() {
        load("cuse");
    }
}

/// Loads what makes the port.
pub(crate) fn load_port() {
    load("virtio_mmio");
    load("virtio_console");
}

/// Has modprobe(8) load a module. What comes of it shows when the device is opened.
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
