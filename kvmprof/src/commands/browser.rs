//! The user's browser.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use tempfile::{Builder, NamedTempFile};

/// The program of the freedesktop.org tools that opens a file or an address in what the user has chosen for it.
const OPENER: &str = "xdg-open";
/// How long it takes to find out that there is no browser.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A browser that was told to open a page.
#[derive(Debug)]
pub struct Opened(Receiver<()>);

/// Has a `page`, by its path or address, opened in the browser, and doesn't wait for that: without a desktop environment, the opener lasts as
/// long as the browser does. What goes wrong later is told in the log.
///
/// # Errors
/// There is no opener, or it can't be started; the message names the page.
pub fn open(page: &str) -> anyhow::Result<Opened> {
    let mut command = Command::new(OPENER);
    // What ends this command by a key of the terminal isn't meant for the browser.
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
    /// Gives it the time to say that there is no browser: for a command that is about to end.
    pub fn give_time(&self) {
        // Nothing is sent: it ends with the opener.
        let _ = self.0.recv_timeout(TIMEOUT);
    }
}

/// A page that leads to this `address`. Only this user can read it, while all users can read the command lines of the opener and the browser.
/// It is removed when dropped.
///
/// # Errors
/// There is no room for it.
pub fn page_to(address: &str) -> io::Result<NamedTempFile> {
    let mut builder = Builder::new();
    let builder = builder.prefix("kvmprof-view-").suffix(".html");
    // Browsers that are contained, as those of snaps are, see no other files.
    let home = std::env::home_dir().filter(|home| home.is_absolute());
    let at_home = home.and_then(|home| builder.tempfile_in(home).ok());
    let mut file = match at_home {
        Some(file) => file,
        None => builder.tempfile()?,
    };
    writeln!(
        file,
        "<!DOCTYPE html>\n<meta charset=\"utf-8\">\n<title>kvmprof view</title>\n<meta name=\"referrer\" content=\"no-referrer\">\n\
         <meta http-equiv=\"refresh\" content=\"0;url={address}\">\n<a href=\"{address}\">kvmprof view</a>"
    )?;
    Ok(file)
}
