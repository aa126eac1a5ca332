//! Opens pages with headless Chromium, which `tests/run` installs.

use std::path::Path;
use std::process::Command;

#[path = "../../../tests/shared/chromium.rs"]
mod chromium;

use chromium::{PROGRAM, options};

/// A browser with an empty profile of its own.
pub struct Browser {
    options: [String; 9],
}

impl Browser {
    /// A browser with its profile in `folder`.
    pub fn new(folder: &Path) -> Self {
        Self {
            options: options(folder),
        }
    }

    /// The document at `url` after its scripts have run, and the browser's log.
    fn open(&self, url: &str, option: &str) -> (String, String) {
        let output = Command::new(PROGRAM)
            .args(&self.options)
            .args(["--use-angle=swiftshader", "--enable-unsafe-swiftshader"])
            .args(["--enable-logging=stderr", "--v=0"])
            .args(["--window-size=1300,1700", "--hide-scrollbars"])
            .arg("--virtual-time-budget=8000")
            .arg(option)
            .arg(url)
            .output()
            .unwrap_or_else(|error| panic!("{PROGRAM}: {error}: tests/run installs it"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        (String::from_utf8(output.stdout).unwrap(), said)
    }
}

#[allow(dead_code, reason = "tests open pages of one kind or the other")]
impl Browser {
    /// Our page at `url` after its scripts have run. A screenshot is kept as `name`.
    ///
    /// # Panics
    /// A script failed or logged anything, or the page loaded something.
    pub fn page(&self, url: &str, name: &str) -> String {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let path = path.with_extension("png");
        let quiet = |option: &str| {
            let (document, said) = self.open(url, option);
            assert!(!said.contains("CONSOLE"), "{said}");
            document
        };
        quiet(&format!("--screenshot={}", path.display()));
        assert!(std::fs::read(&path).unwrap().starts_with(b"\x89PNG"));
        println!("A screenshot is at {}", path.display());
        quiet("--dump-dom")
    }

    /// Another project's page at `url` after its scripts have run.
    ///
    /// # Panics
    /// A script failed.
    pub fn foreign_page(&self, url: &str) -> String {
        let (document, said) = self.open(url, "--dump-dom");
        assert!(!said.contains("Uncaught"), "{said}");
        document
    }
}
