//! Ends the profiling of a guest when its VMM has written a text to the file of the guest's console.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use event_manager::{EventOps, EventSet, Events, MutEventSubscriber};
use kvmprof_machine::console::TextWatch;
use kvmprof_machine::open_without_waiting;
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::timerfd::TimerFd;

use super::AttachedError;
use crate::vm::{Termination, VmError, add};

/// The pause between two looks at the file.
pub const POLL: Duration = Duration::from_millis(50);
/// Maximum number of bytes that are read at a look: other events wait meanwhile. What there is more of is read at later looks.
const BYTES_AT_A_LOOK: usize = 1 << 20;

/// The text of a guest's console that ends its profiling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsoleText {
    /// The text, which isn't empty.
    pub text: String,
    /// The file to which the VMM writes what the console prints.
    pub file: PathBuf,
}

/// A console's file, from its present end on.
#[derive(Debug)]
pub struct ConsoleFile {
    file: File,
    text: String,
}

impl ConsoleFile {
    /// Opens the file. What is in it by now was printed before.
    ///
    /// # Errors
    /// It can't be read, or isn't a regular file: a pipe gives each byte to one reader only, which is not kvmprof.
    pub fn open(console: ConsoleText) -> Result<Self, AttachedError> {
        let ConsoleText { text, file: path } = console;
        match open_at_end(&path) {
            Ok(Some(file)) => Ok(Self { file, text }),
            Ok(None) => Err(AttachedError::Console(path)),
            Err(source) => Err(AttachedError::Read { path, source }),
        }
    }

    /// Starts a timer to look at the file again and again, until the text has come, which asks `termination` for the end.
    ///
    /// # Errors
    /// The host can't make a timer.
    pub(super) fn start(self, termination: &Termination) -> Result<ConsoleWatch, VmError> {
        let watch = termination.stop_request().and_then(|stop| {
            Ok(ConsoleWatch {
                looks: self.looks(stop),
                timer: timer()?,
            })
        });
        watch.map_err(VmError::host("a timer"))
    }

    /// Looks at the file, which write to `found` once the text has come.
    pub fn looks(self, found: EventFd) -> ConsoleLooks {
        ConsoleLooks {
            file: self.file,
            watch: TextWatch::new(&self.text, vec![Arc::new(found)]),
            buffer: vec![0; BYTES_AT_A_LOOK],
        }
    }
}

/// `None` if it isn't a regular file.
fn open_at_end(path: &Path) -> io::Result<Option<File>> {
    let (mut file, metadata) = open_without_waiting(OpenOptions::new().read(true), path)?;
    if !metadata.is_file() {
        return Ok(None);
    }
    file.seek(SeekFrom::End(0))?;
    Ok(Some(file))
}

fn timer() -> io::Result<TimerFd> {
    let mut timer = TimerFd::new()?;
    timer.reset(POLL, Some(POLL))?;
    Ok(timer)
}

/// Looks at a console's file.
#[derive(Debug)]
pub struct ConsoleLooks {
    file: File,
    watch: TextWatch,
    buffer: Vec<u8>,
}

/// Looks at a console's file at each tick of its timer.
pub(super) struct ConsoleWatch {
    looks: ConsoleLooks,
    timer: TimerFd,
}

impl ConsoleLooks {
    /// Reads what has been written since the last look. A VMM that starts the file anew, as for a guest's reboot, makes it shorter.
    ///
    /// # Errors
    /// The file can't be read any more.
    pub fn look(&mut self) -> io::Result<()> {
        let position = self.file.stream_position()?;
        if self.file.seek(SeekFrom::End(0))? >= position {
            self.file.seek(SeekFrom::Start(position))?;
        } else {
            self.file.rewind()?;
        }
        let read = self.file.read(&mut self.buffer)?;
        self.watch
            .watch(self.buffer.get(..read).unwrap_or_default());
        Ok(())
    }
}

impl MutEventSubscriber for ConsoleWatch {
    fn process(&mut self, _events: Events, ops: &mut EventOps) {
        // The timer is readable, so this doesn't wait.
        if self.timer.wait().is_ok()
            && let Err(error) = self.looks.look()
        {
            log::error!("The file of the guest's console can't be read any more: {error}");
            // Dropping the timer's event ends the looks.
            if let Err(error) = ops.remove(Events::new(&self.timer, EventSet::IN)) {
                log::error!("Cannot stop a timer: {error}");
            }
        }
    }

    fn init(&mut self, ops: &mut EventOps) {
        add(ops, Events::new(&self.timer, EventSet::IN));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use vmm_sys_util::eventfd::EFD_NONBLOCK;

    use super::*;

    /// Looks at `path` for `text`, and what they write to once the text has come.
    fn watch(path: &Path, text: &str) -> (ConsoleLooks, EventFd) {
        let console = ConsoleFile::open(ConsoleText {
            text: text.to_owned(),
            file: path.to_owned(),
        });
        let found = EventFd::new(EFD_NONBLOCK).unwrap();
        let stop = found.try_clone().unwrap();
        (console.unwrap().looks(stop), found)
    }

    #[test]
    fn only_what_comes_later_counts() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"login: \nlog").unwrap();
        let (mut watch, found) = watch(file.path(), "login:");
        watch.look().unwrap();
        file.write_all(b"in: \nlog").unwrap();
        watch.look().unwrap();
        assert!(found.read().is_err());
        file.write_all(b"in: ").unwrap();
        watch.look().unwrap();
        assert_eq!(found.read().unwrap(), 1);
    }

    #[test]
    fn a_file_that_is_started_anew_is_read_from_its_start() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[b'.'; 100]).unwrap();
        let (mut watch, found) = watch(file.path(), "again");
        file.as_file().set_len(0).unwrap();
        file.rewind().unwrap();
        file.write_all(b"once again").unwrap();
        watch.look().unwrap();
        assert_eq!(found.read().unwrap(), 1);
    }

    #[test]
    fn much_text_takes_several_looks() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let (mut watch, found) = watch(file.path(), "end");
        file.write_all(&vec![b'.'; 2 * BYTES_AT_A_LOOK]).unwrap();
        file.write_all(b"end").unwrap();
        for _ in 0..2 {
            watch.look().unwrap();
            assert!(found.read().is_err());
        }
        watch.look().unwrap();
        assert_eq!(found.read().unwrap(), 1);
    }

    #[test]
    fn only_a_regular_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        for path in [pipe.as_path(), Path::new("/dev/null"), folder.path()] {
            let opened = ConsoleFile::open(ConsoleText {
                text: "end".to_owned(),
                file: path.to_owned(),
            });
            let error = opened.unwrap_err().to_string();
            assert!(error.contains("is no regular file"), "{error}");
        }
    }
}
