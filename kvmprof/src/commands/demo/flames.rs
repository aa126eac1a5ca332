//! The demo's flame graph: a recording at the same time as the table's samples, drawn after they have been collected.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use kvmprof_abi::errno::Errno;
use kvmprof_abi::recorder::REC_STOP;
use kvmprof_abi::wire::{MAX_DATA, device};
use kvmprof_client::{ClientError, Connection, RemoteDevice};
use kvmprof_report::budget::OutputBudget;
use kvmprof_report::graph::GraphArguments;
use kvmprof_report::profile::Profile;

use crate::commands::recorder;
use kvmprof_recording::StackParts;
use kvmprof_recording::file::write_new_file;

/// The default file of the graph, in the current folder.
const DEFAULT: &str = "kvmprof-demo.svg";
/// The end of each graph, so that the next run knows which file it may replace.
const MARK: &[u8] = b"<!-- kvmprof demo -->\n";
/// The title above the graph.
const TITLE: &str = "The embedded guest, seen from the hypervisor";

/// A running recording. An error is stored until its end, because the table doesn't depend on it.
pub struct Flames {
    recorder: RemoteDevice,
    file: File,
    path: PathBuf,
    trouble: Option<anyhow::Error>,
}

impl Flames {
    /// Starts to record into a file in `folder`.
    pub fn start(connection: &Connection, folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join("recording");
        let file = File::create(&path).context("Cannot make the recording's file")?;
        let recorder = connection.open(device::RECORDER, 0)?;
        let otherwise = "Cannot start to record";
        recorder::start(connection, &recorder, StackParts::BOTH, None, otherwise)?;
        Ok(Self {
            recorder,
            file,
            path,
            trouble: None,
        })
    }

    /// Reads the available data.
    pub fn take(&mut self) {
        if self.trouble.is_none() {
            self.trouble = self.read(RemoteDevice::try_read).err();
        }
    }

    /// Reads with `read` until there is no data for now, or no more data.
    fn read(
        &mut self,
        read: impl Fn(&RemoteDevice, usize) -> Result<Vec<u8>, ClientError>,
    ) -> anyhow::Result<()> {
        loop {
            match read(&self.recorder, MAX_DATA) {
                Ok(bytes) if bytes.is_empty() => return Ok(()),
                Ok(bytes) => self
                    .file
                    .write_all(&bytes)
                    .context("Cannot keep the recording")?,
                Err(error) if error.errno() == Some(Errno::EAGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends the recording.
    pub fn stop(&mut self) {
        if self.trouble.is_none() {
            let stopped = self.recorder.ioctl(REC_STOP, 0);
            self.trouble = stopped.err().map(Into::into);
        }
    }

    /// Draws the recording, which was stopped. Returns an SVG document.
    pub fn finish(mut self) -> anyhow::Result<Vec<u8>> {
        if let Some(trouble) = self.trouble {
            return Err(trouble);
        }
        self.read(RemoteDevice::read)?;
        let profile = Profile::from_file(&self.path, &[])?;
        let budget = OutputBudget::new(u64::MAX);
        let mut svg = GraphArguments::default().draw(&profile, TITLE.to_owned(), &budget)?;
        svg.extend(MARK);
        Ok(svg)
    }
}

/// Writes the graph to `path`, or to a new file in the current folder, which may replace an earlier demo's. Returns its path.
pub fn save(svg: &[u8], path: Option<&Path>) -> anyhow::Result<PathBuf> {
    let path = match path {
        Some(path) => path,
        None => {
            let path = Path::new(DEFAULT);
            let is_free = match fs::symlink_metadata(path) {
                Err(error) => error.kind() == ErrorKind::NotFound,
                Ok(found) => found.is_file() && is_earlier(path),
            };
            if !is_free {
                bail!("{DEFAULT} is not from an earlier demo: name another file with --flamegraph");
            }
            path
        }
    };
    // A whole new file, because an incomplete graph couldn't be recognized as one.
    write_new_file(path, svg)
        .with_context(|| format!("Cannot write the flame graph {}", path.display()))?;
    Ok(path.to_owned())
}

/// True for the graph of an earlier demo.
fn is_earlier(path: &Path) -> bool {
    let ends = || {
        let mut file = File::open(path).ok()?;
        file.seek(SeekFrom::End(-i64::try_from(MARK.len()).ok()?))
            .ok()?;
        let mut end = Vec::new();
        file.read_to_end(&mut end).ok()?;
        Some(end == MARK)
    };
    ends().unwrap_or(false)
}
