//! Debian's Chromium without a window, which `tests/run` installs.

use std::path::Path;

/// The name of Debian's program.
pub const PROGRAM: &str = "chromium";

/// The options for a browser with an empty profile in `folder`, which loads nothing but what it is asked for. The container has neither a sandbox nor a
/// graphics card.
pub fn options(folder: &Path) -> [String; 9] {
    let profile = folder.join("browser");
    [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        &format!("--user-data-dir={}", profile.display()),
    ]
    .map(str::to_owned)
}
