//! The user's browser.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use kvmprof_report::markup::Markup;
use tempfile::{Builder, NamedTempFile};

/// The freedesktop.org program that opens a file or an address in the program that the user has chosen.
const OPENER: &str = "xdg-open";
/// Maximum time to find out that there is no browser.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A request to a browser to open a page.
#[derive(Debug)]
pub struct Opened(Receiver<()>);

/// Opens `page`, a path or an address, in the browser, and doesn't wait: without a desktop environment, the opener runs
/// as long as the browser. Later errors are logged.
///
/// # Errors
/// There is no opener, or it can't be started; the message contains the page.
pub fn open(page: &str) -> anyhow::Result<Opened> {
    let mut command = Command::new(OPENER);
    // A key of the terminal that ends this command must not end the browser.
    command.arg(page).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let opener = command.stderr(Stdio::null()).spawn();
    let mut opener = opener.with_context(|| {
        format!("Cannot execute {OPENER} (Debian's package xdg-utils); open {page} in a browser")
    })?;
    let (ended, end) = channel();
    let page = page.to_owned();
    let thread = thread::Builder::new().name("browser".into());
    let waiting = thread.spawn(move || {
        if opener.wait().is_ok_and(|status| !status.success()) {
            log::warn!("{OPENER} has found no browser; open {page} in one");
        }
        drop(ended);
    });
    waiting.context("Cannot start a thread")?;
    Ok(Opened(end))
}

impl Opened {
    /// Waits a moment for the message that there is no browser. For a command that is about to end.
    pub fn give_time(&self) {
        // Nothing is sent; the channel closes when the opener ends.
        let _ = self.0.recv_timeout(TIMEOUT);
    }
}

/// A page that redirects to `address`. Only this user can read it, while all users can read the command lines of the
/// opener and the browser. The page is removed when dropped.
///
/// # Errors
/// The file can't be written.
pub fn page_to(address: &str) -> io::Result<NamedTempFile> {
    let mut builder = Builder::new();
    let builder = builder.prefix("kvmprof-view-").suffix(".html");
    // Browsers in a sandbox, such as those in snaps, can't read other files.
    let home = std::env::home_dir().filter(|home| home.is_absolute());
    let at_home = home.and_then(|home| builder.tempfile_in(home).ok());
    let mut file = match at_home {
        Some(file) => file,
        None => builder.tempfile()?,
    };
    let mut page = Markup::default();
    page.add("<!DOCTYPE html>\n<meta charset=\"utf-8\">\n<title>kvmprof view</title>\n")
        .add("<meta name=\"referrer\" content=\"no-referrer\">\n<meta http-equiv=\"refresh\" content=\"0;url=")
        .text(address)
        .add("\">\n<a href=\"")
        .text(address)
        .add("\">kvmprof view</a>\n");
    file.write_all(page.as_str().as_bytes())?;
    Ok(file)
}
