//! A process that makes, renames and removes the files of a contained kvmprof: sockets, their locks, and a recording. No thread of kvmprof itself makes a call with
//! a path once it is contained (`kvmprof_sandbox`): a thread that may make or remove one file in a folder may do so with all others in it.
//!
//! The process knows the outputs of the command line. A request has two bytes: what to do, and with which of them. Each output is made once, and what is renamed
//! or removed later is that very file.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvmprof_recording::file::{NewFile, RecordingFile};
use kvmprof_sandbox::paths::{self, Use};
use kvmprof_sandbox::process::{self, FileRights};
use kvmprof_sandbox::user::User;

use crate::helper::{Answer, Helper, described};
use crate::unix_socket::{SocketFileError, SocketListener, SocketName};

/// The kinds of request, in a message's first byte.
mod request {
    /// Makes the socket, and sends it.
    pub const LISTEN: u8 = 1;
    /// Makes the file of a recording, under a temporary name, and sends it.
    pub const RECORD: u8 = 2;
    /// Gives the recording's file its name.
    pub const KEEP: u8 = 3;
    /// The same, if that replaces no older file.
    pub const KEEP_IF_FREE: u8 = 4;
    /// Removes the socket, or the file that hasn't got its name.
    pub const LET_GO: u8 = 5;
}

/// The answer to a request to keep a recording that would replace an older file.
const IS_TAKEN: &str = "an older file is there";

/// The connection to the process. Dropping it ends the process, which removes what still has to be removed.
#[derive(Debug)]
pub struct OutputNames {
    helper: Helper,
    paths: Vec<PathBuf>,
}

impl OutputNames {
    /// Forks the process for sockets at these paths, and for a recording; `None` if there is nothing to be made. It becomes `user` if there is one. Otherwise
    /// it keeps no rights of a superuser but those to use and remove other users' files. With Landlock it can use no files but those in the folders of the paths.
    ///
    /// # Errors
    /// The host gives no socket or process.
    ///
    /// # Safety
    /// The process has no other thread: one might hold a lock that nobody releases in the new process.
    pub unsafe fn fork(
        sockets: Vec<PathBuf>,
        recording: Option<&Path>,
        user: Option<&User>,
    ) -> io::Result<Option<Self>> {
        let paths = outputs(sockets, recording);
        if paths.is_empty() {
            return Ok(None);
        }
        let known = paths.clone();
        let server = || {
            // They may be for all processes of kvmprof. This one ends with it, and not before.
            for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
                // SAFETY: no handler is set: the signal is ignored.
                unsafe { libc::signal(signal, libc::SIG_IGN) };
            }
            if let Some(user) = user {
                process::become_user(user)?;
            }
            process::keep_file_rights(FileRights::AccessAndRemoval)?;
            let folders = known.iter().map(|path| (folder(path), Use::Replace));
            paths::restrict(&folders.collect::<Vec<_>>()).map_err(io::Error::other)?;
            let mut server = Server::new(known);
            Ok(move |asked: &[u8]| server.answer(asked))
        };
        // SAFETY: by this function's own condition.
        let helper = unsafe { Helper::fork(c"kvmprof-names", server) }?;
        Ok(Some(Self { helper, paths }))
    }

    /// The same by a thread of this process, which isn't contained: for programs that contain other threads.
    ///
    /// # Errors
    /// The host gives no socket or thread.
    pub fn on_thread(sockets: Vec<PathBuf>, recording: Option<&Path>) -> io::Result<Self> {
        let paths = outputs(sockets, recording);
        let mut server = Server::new(paths.clone());
        let helper = Helper::on_thread("names", move |asked: &[u8]| server.answer(asked))?;
        Ok(Self { helper, paths })
    }

    /// The output at `path`; `None` if it isn't one that the process makes.
    fn find(self: &Arc<Self>, path: &Path) -> Option<Output> {
        let index = self.paths.iter().position(|known| known == path)?;
        Some(Output {
            names: Arc::clone(self),
            index: u8::try_from(index).ok()?,
        })
    }
}

/// The paths at which something is made. A recording to a pipe or a device makes nothing.
fn outputs(sockets: Vec<PathBuf>, recording: Option<&Path>) -> Vec<PathBuf> {
    let is_made = |path: &&Path| {
        path.symlink_metadata()
            .map_or(true, |found| found.is_file())
    };
    let recording = recording.filter(is_made).map(Path::to_owned);
    sockets.into_iter().chain(recording).collect()
}

fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => ".".into(),
    }
}

/// Listens at `path`. `names` makes the socket, and removes it in the end; without it, this process does.
///
/// # Errors
/// As [`SocketName::bind`].
pub fn listen(
    names: Option<&Arc<OutputNames>>,
    path: &Path,
) -> Result<SocketListener, SocketFileError> {
    let Some(output) = names.and_then(|names| names.find(path)) else {
        return SocketListener::bind(path);
    };
    let socket = output.ask_for_file(request::LISTEN);
    let socket = socket.map_err(|error| SocketFileError::Refused(error.to_string()))?;
    Ok(SocketListener::new(socket, path, output))
}

/// Makes the file of a recording that will be at `path`. `names` makes it and gives it its name; without it, this process does. What is no regular file is opened
/// by this process in any case.
///
/// # Errors
/// As [`NewFile::create_recording`].
pub fn record(
    names: Option<&Arc<OutputNames>>,
    path: &Path,
) -> io::Result<Box<dyn RecordingFile + Send>> {
    let Some(names) = names else {
        return Ok(Box::new(NewFile::create_recording(path)?));
    };
    let Some(output) = names.find(path) else {
        return Ok(Box::new(NewFile::in_place(path)?));
    };
    Ok(Box::new(Recording {
        file: output.ask_for_file(request::RECORD)?.into(),
        output,
    }))
}

/// As [`record`], for a file that is written at any offset: its descriptor, and what gives it its name. An older file of this name isn't lost either.
///
/// # Errors
/// As [`record`]; there is something else than a regular file.
pub fn create(
    names: Option<&Arc<OutputNames>>,
    path: &Path,
) -> io::Result<(File, Box<dyn RecordingFile + Send>)> {
    let refused = || io::Error::other("it is no regular file, and only those have holes");
    let Some(names) = names else {
        let name = NewFile::create_recording_beside(path)?.ok_or_else(refused)?;
        return Ok((name.another()?, Box::new(name)));
    };
    let output = names.find(path).ok_or_else(refused)?;
    let file = File::from(output.ask_for_file(request::RECORD)?);
    let name = Recording {
        file: file.try_clone()?,
        output,
    };
    Ok((file, Box::new(name)))
}

/// An output that the process has been asked to make. Dropping this removes the socket, or a recording without its name.
#[derive(Debug)]
struct Output {
    names: Arc<OutputNames>,
    index: u8,
}

impl Output {
    fn ask(&self, what: u8) -> io::Result<()> {
        self.names.helper.ask(&[what, self.index]).map(drop)
    }

    fn ask_for_file(&self, what: u8) -> io::Result<OwnedFd> {
        self.names.helper.ask_for_one(&[what, self.index])
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // If the process has ended, it has done so before.
        let _ = self.ask(request::LET_GO);
    }
}

/// The file of a recording, whose name the process gives it.
struct Recording {
    file: File,
    output: Output,
}

impl Write for Recording {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl RecordingFile for Recording {
    fn keep(&mut self, is_worth_it: bool) -> io::Result<bool> {
        let what = match is_worth_it {
            true => request::KEEP,
            false => request::KEEP_IF_FREE,
        };
        match self.output.ask(what) {
            Ok(()) => Ok(true),
            Err(error) if error.to_string() == IS_TAKEN => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// An output on the process's side.
#[derive(Debug)]
enum State {
    /// It isn't made yet.
    ToBeMade(PathBuf),
    Socket(#[expect(dead_code, reason = "it is there to be dropped")] SocketName),
    Recording(NewFile),
    /// It is gone, or couldn't be made.
    Over,
}

/// The process's side.
struct Server {
    outputs: Vec<State>,
}

impl Server {
    fn new(paths: Vec<PathBuf>) -> Self {
        let outputs = paths.into_iter().map(State::ToBeMade);
        Self {
            outputs: outputs.collect(),
        }
    }

    fn answer(&mut self, asked: &[u8]) -> Answer {
        let refused = || Err("it isn't asked so".to_owned());
        let [what, index] = asked else {
            return refused();
        };
        let Some(output) = self.outputs.get_mut(usize::from(*index)) else {
            return refused();
        };
        match (*what, output) {
            (request::LISTEN | request::RECORD, output @ State::ToBeMade(_)) => {
                make(output, *what == request::LISTEN)
            }
            (request::KEEP_IF_FREE, State::Recording(file)) if file.would_replace() => {
                Err(IS_TAKEN.to_owned())
            }
            (request::KEEP | request::KEEP_IF_FREE, State::Recording(file)) => {
                file.keep().map_err(|error| error.to_string())?;
                Ok(Vec::new())
            }
            (request::LET_GO, output) => {
                *output = State::Over;
                Ok(Vec::new())
            }
            _ => refused(),
        }
    }
}

/// Makes a socket, or the file of a recording. There is no second attempt.
fn make(output: &mut State, is_socket: bool) -> Answer {
    let State::ToBeMade(path) = std::mem::replace(output, State::Over) else {
        return Ok(Vec::new());
    };
    if is_socket {
        let (socket, name) = SocketName::bind(&path).map_err(|error| described(&error))?;
        *output = State::Socket(name);
        return Ok(vec![socket]);
    }
    let file = NewFile::create_recording_beside(&path).map_err(|error| error.to_string())?;
    let file = file.ok_or("it was a file, or none, and is something else now")?;
    let another = file.another().map_err(|error| error.to_string())?;
    *output = State::Recording(file);
    Ok(vec![another.into()])
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::net::UnixStream;

    use kvmprof_recording::file::MAGIC;

    use super::*;

    /// The names in a folder.
    fn entries(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string());
        let mut names: Vec<_> = names.map(Result::unwrap).collect();
        names.sort();
        names
    }

    /// The outputs `socket` and `recording` of a folder.
    fn names(folder: &Path) -> Arc<OutputNames> {
        let recording = folder.join("recording");
        let sockets = vec![folder.join("socket")];
        Arc::new(OutputNames::on_thread(sockets, Some(&recording)).unwrap())
    }

    fn server(folder: &Path) -> Server {
        Server::new(["socket", "recording"].map(|name| folder.join(name)).into())
    }

    #[test]
    fn a_socket_exists_until_its_listener_closes() {
        let folder = tempfile::tempdir().unwrap();
        let (names, path) = (names(folder.path()), folder.path().join("socket"));
        let listener = listen(Some(&names), &path).unwrap();
        UnixStream::connect(&path).unwrap();
        assert_eq!(entries(folder.path()), ["socket"]);
        drop(listener);
        assert!(entries(folder.path()).is_empty());
        // It is made once.
        let error = listen(Some(&names), &path).unwrap_err().to_string();
        assert_eq!(error, "it isn't asked so");
        let nowhere = folder.path().join("none/socket");
        let sockets = vec![nowhere.clone()];
        let names = Arc::new(OutputNames::on_thread(sockets, None).unwrap());
        let error = listen(Some(&names), &nowhere).unwrap_err().to_string();
        assert!(error.contains("No folder"), "{error}");
    }

    #[test]
    fn a_recording_gets_its_name_and_keeps_an_older_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording");
        let begin = || record(Some(&names(folder.path())), &path).unwrap();
        let written = |mut file: Box<dyn RecordingFile + Send>, words: &[u8]| {
            file.write_all(&[&MAGIC[..], words].concat()).unwrap();
            file
        };
        let mut first = written(begin(), b"first");
        assert!(first.keep(false).unwrap());
        drop(first);
        // A recording that is dropped leaves no file.
        let mut empty = written(begin(), b"empty");
        assert!(!empty.keep(false).unwrap());
        drop(empty);
        let mut second = written(begin(), b"second");
        assert!(second.keep(true).unwrap());
        second.write_all(b" and more").unwrap();
        assert!(second.keep(true).unwrap());
        drop(second);
        assert_eq!(entries(folder.path()), ["recording", "recording.old"]);
        let words =
            |name: &str| fs::read(folder.path().join(name)).unwrap()[MAGIC.len()..].to_vec();
        assert_eq!(words("recording"), b"second and more");
        assert_eq!(words("recording.old"), b"first");
        assert!(record(None, Path::new("/dev/null")).is_ok());
    }

    #[test]
    fn a_file_with_holes_gets_its_name_and_only_a_regular_one_is_made() {
        use std::os::unix::fs::FileExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("recording");
        for names in [None, Some(&names(folder.path()))] {
            let (file, name) = create(names, &path).unwrap();
            file.write_all_at(b"half", 9).unwrap();
            drop((file, name));
            assert!(entries(folder.path()).is_empty());
        }
        for names in [None, Some(&names(folder.path()))] {
            let (file, mut name) = create(names, &path).unwrap();
            file.write_all_at(b"whole", 9).unwrap();
            assert!(name.keep(true).unwrap());
            assert_eq!(fs::read(&path).unwrap(), b"\0\0\0\0\0\0\0\0\0whole");
        }
        let device = Path::new("/dev/null");
        let names = Arc::new(OutputNames::on_thread(Vec::new(), Some(device)).unwrap());
        for names in [None, Some(&names)] {
            let error = create(names, device).err().unwrap().to_string();
            assert!(error.contains("no regular file"), "{error}");
        }
    }

    #[test]
    fn devices_and_pipes_are_opened_without_the_helper() {
        let names = OutputNames::on_thread(Vec::new(), Some(Path::new("/dev/null"))).unwrap();
        assert!(names.paths.is_empty());
        let mut file = record(Some(&Arc::new(names)), Path::new("/dev/null")).unwrap();
        file.write_all(b"nothing").unwrap();
        assert!(file.keep(false).unwrap());
    }

    /// A client that ends without a request leaves no file, either.
    #[test]
    fn the_helpers_end_removes_all_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let mut server = server(folder.path());
        server.answer(&[request::LISTEN, 0]).unwrap();
        server.answer(&[request::RECORD, 1]).unwrap();
        assert_eq!(entries(folder.path()).len(), 2);
        drop(server);
        assert!(entries(folder.path()).is_empty());
    }

    #[test]
    fn other_requests_are_refused_and_change_nothing() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("other"), "other").unwrap();
        let mut server = server(folder.path());
        let path = folder.path().join("other");
        let path = path.as_os_str().as_encoded_bytes();
        let of_two = [[1, 2], [0, 0], [6, 0], [3, 0], [4, 1]];
        let others = [&[][..], &[1], &[1, 0, 0], path];
        for asked in of_two.iter().map(|it| &it[..]).chain(others) {
            assert!(server.answer(asked).is_err(), "{asked:?}");
        }
        assert_eq!(entries(folder.path()), ["other"]);
        // Neither is renamed or made again.
        server.answer(&[request::LISTEN, 0]).unwrap();
        server.answer(&[request::RECORD, 1]).unwrap();
        let before = entries(folder.path());
        for asked in [
            [request::LISTEN, 0],
            [request::RECORD, 0],
            [request::KEEP, 0],
            [request::RECORD, 1],
        ] {
            assert!(server.answer(&asked).is_err(), "{asked:?}");
        }
        assert_eq!(entries(folder.path()), before);
    }
}
