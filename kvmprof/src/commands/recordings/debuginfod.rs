//! Debug files of debuginfod servers, by elfutils' client (debuginfod-find(1)), which keeps them in the cache that it shares with other programs.

use std::cell::Cell;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use kvmprof_recording::file::Observer;
use kvmprof_report::symbolize::DebugFiles;

use super::progress::Progress;

const PROGRAM: &str = "debuginfod-find";
/// Maximum number of files that a command asks for: a recording can name any number of build ids.
const MAX_FILES: u32 = 4096;
/// Maximum size of a file in bytes, unless `DEBUGINFOD_MAXSIZE` is set.
const MAX_FILE: u64 = 4 << 30;
/// Maximum length in bytes of a line of the client, and of the path that it prints.
const MAX_LINE: usize = 4096;
/// What the client says of a file that no server has: strerror(ENOENT).
const NOT_THERE: &str = "No such file or directory";

/// Debuginfod servers.
#[derive(Debug)]
pub struct Debuginfod {
    /// Their URLs, separated by spaces.
    urls: String,
    progress: Progress,
    /// How many files may still be asked for. `None` once a server has failed: one would wait for it again with each file.
    left: Cell<Option<u32>>,
}

impl Debuginfod {
    /// The servers with these URLs, separated by spaces. Downloads are shown by `progress`, and interrupted with it.
    pub fn new(urls: String, progress: Progress) -> Self {
        Self {
            urls,
            progress,
            left: Cell::new(Some(MAX_FILES)),
        }
    }

    /// Has the client look for the file. Its status and its last line on standard error say whether there is one.
    fn ask(&self, build_id: &str) -> io::Result<Result<PathBuf, String>> {
        let mut command = Command::new(PROGRAM);
        command
            .args(["debuginfo", build_id])
            .env("DEBUGINFOD_URLS", &self.urls)
            .env("DEBUGINFOD_PROGRESS", "1")
            .env("LC_ALL", "C")
            .env_remove("DEBUGINFOD_VERBOSE")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if std::env::var_os("DEBUGINFOD_MAXSIZE").is_none() {
            command.env("DEBUGINFOD_MAXSIZE", MAX_FILE.to_string());
        }
        let mut child = command.spawn()?;
        let said = self.follow(&mut child);
        if said.is_err() {
            let _ = child.kill();
        }
        let mut path = String::new();
        if let Some(output) = child.stdout.take() {
            output.take(MAX_LINE as u64).read_to_string(&mut path)?;
        }
        let status = child.wait()?;
        let said = said?;
        Ok(if status.success() {
            Ok(PathBuf::from(path.trim_end_matches('\n')))
        } else {
            Err(said)
        })
    }

    /// Shows the progress of `child` until it has no more to say. Returns its last line.
    fn follow(&self, child: &mut Child) -> io::Result<String> {
        let Some(mut errors) = child.stderr.take() else {
            return Ok(String::new());
        };
        let part = self.progress.of("Debug files");
        let (mut line, mut bytes) = (Vec::new(), [0; MAX_LINE]);
        loop {
            let length = match errors.read(&mut bytes) {
                Ok(0) => return Ok(last_line(&line)),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Err(error) => return Err(error),
            };
            line.extend_from_slice(bytes.get(..length).unwrap_or_default());
            line.drain(..line.len().saturating_sub(MAX_LINE));
            let (done, whole) = downloaded(&last_line(&line)).unwrap_or((0, 0));
            if let ControlFlow::Break(()) = part.advance(done, whole) {
                return Err(io::ErrorKind::Interrupted.into());
            }
        }
    }
}

impl DebugFiles for Debuginfod {
    fn find(&self, build_id: &str) -> Result<Option<PathBuf>, String> {
        let none = |why: &str| {
            self.left.set(None);
            format!("Debug files of {} are missing: {why}", self.urls)
        };
        match self.left.get() {
            None => return Ok(None),
            Some(0) => return Err(none("the recording has too many files")),
            Some(left) => self.left.set(Some(left - 1)),
        }
        match self.ask(build_id) {
            Ok(Ok(path)) => Ok(Some(path)),
            Ok(Err(said)) if said.ends_with(NOT_THERE) => Ok(None),
            Ok(Err(said)) => Err(none(&said)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(none(
                "debuginfod-find isn't installed, which is in the package debuginfod or elfutils",
            )),
            Err(error) => Err(none(&error.to_string())),
        }
    }
}

/// The last line of what the client has said. A line of progress ends with a carriage return, not a line feed.
fn last_line(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let mut lines = text.trim_end().rsplit(['\r', '\n']);
    lines.next().unwrap_or_default().trim().to_owned()
}

/// The number of bytes that have come, and that of all, by a line of progress (`Downloading from URL 12/345`).
fn downloaded(line: &str) -> Option<(u64, u64)> {
    let (done, whole) = line.rsplit(' ').next()?.split_once('/')?;
    Some((done.parse().ok()?, whole.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_lines_are_understood() {
        let said = b"\rDownloading /\rDownloading from http://127.0.0.1:8002/ 58/5872";
        assert_eq!(downloaded(&last_line(said)), Some((58, 5872)));
        let failed = [
            said,
            b"\nServer query failed: Connection refused\n".as_slice(),
        ]
        .concat();
        assert_eq!(
            last_line(&failed),
            "Server query failed: Connection refused"
        );
        assert_eq!(downloaded(&last_line(&failed)), None);
        assert_eq!(downloaded("Downloading /"), None);
        assert_eq!(last_line(b""), "");
    }
}
