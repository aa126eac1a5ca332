//! The collector's side, with a launcher that is this test.

use std::fs::File;
use std::io::{PipeReader, Write};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, sync_channel};

use super::*;
use crate::launcher::{Listener, send_bytes};

const PROCESS: Process = Process {
    pid: 4711,
    start_time: 7,
};

struct Launcher {
    listener: Listener,
    folder: tempfile::TempDir,
}

impl Launcher {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = Listener::bind(&folder.path().join("launcher.sock"), None).unwrap();
        Self { listener, folder }
    }

    fn follow(&self) -> (Attached, Receiver<Message>) {
        follow(&self.folder.path().join("launcher.sock"))
    }

    fn accept(&self) -> OwnedFd {
        loop {
            match self.listener.accept() {
                Some(connection) => return connection,
                None => std::thread::yield_now(),
            }
        }
    }
}

fn follow(path: &Path) -> (Attached, Receiver<Message>) {
    let mut config = Config::default();
    config.attach.launcher = Some(path.to_owned());
    let (sender, messages) = sync_channel(8);
    let attached = Attached::start(&config, sender).unwrap().unwrap();
    (attached, messages)
}

fn guest() -> LauncherMessage {
    LauncherMessage::Guest {
        process: PROCESS,
        name: "db".to_owned(),
        labels: [("tenant".to_owned(), "a".to_owned())].into(),
    }
}

fn pipe() -> PipeReader {
    let (pipe, mut writer) = io::pipe().unwrap();
    writer.write_all(b"recording").unwrap();
    pipe
}

/// Why there is no connection.
fn no_launcher(messages: &Receiver<Message>) -> String {
    match messages.recv().unwrap() {
        Message::NoLauncher(why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_the_launcher_tells_comes_with_its_pipe() {
    let launcher = Launcher::new();
    let (attached, messages) = launcher.follow();
    let connection = launcher.accept();
    let pipe = pipe();
    send_bytes(&connection, &guest().encode(), &[pipe.as_fd()]).unwrap();
    send_bytes(&connection, &LauncherMessage::LeftOut(3).encode(), &[]).unwrap();
    let Message::FromLauncher(told, Some(pipe)) = messages.recv().unwrap() else {
        panic!("no pipe");
    };
    assert_eq!(told, guest());
    assert_eq!(io::read_to_string(File::from(pipe)).unwrap(), "recording");
    assert!(matches!(
        messages.recv().unwrap(),
        Message::FromLauncher(LauncherMessage::LeftOut(3), None)
    ));
    // It says nothing but that it wants no more.
    assert_eq!(
        rustix::net::recv(&connection, &mut [0; 8], RecvFlags::DONTWAIT).unwrap_err(),
        Errno::AGAIN
    );
    attached.stop();
    let (_, length) = rustix::net::recv(&connection, &mut [0; 8], RecvFlags::empty()).unwrap();
    assert_eq!(length, 0);
    drop(connection);
    assert!(no_launcher(&messages).contains("ended the connection"));
    // The thread ends with this, though it waits for another attempt.
    drop(attached);
    assert!(messages.recv().is_err());
}

/// The next attempt is a second later, so that each has a launcher of its own.
#[test]
fn damaged_messages_end_the_connection() {
    let bytes = guest().encode();
    let mut unknown = bytes.clone();
    unknown[0] = 9;
    let pipes = [pipe(), pipe()];
    let files = |count: usize| -> Vec<_> { pipes.iter().take(count).map(AsFd::as_fd).collect() };
    let longer = [&bytes[..], &[0]].concat();
    for (bytes, count) in [
        (&unknown[..], 1),
        (&bytes[1..], 1),
        (&longer[..], 1),
        // No pipe, and more than one.
        (&bytes[..], 0),
        (&bytes[..], 2),
        (&LauncherMessage::LeftOut(1).encode()[..], 1),
        (&[][..], 1),
    ] {
        let launcher = Launcher::new();
        let (_attached, messages) = launcher.follow();
        let connection = launcher.accept();
        send_bytes(&connection, bytes, &files(count)).unwrap();
        let why = no_launcher(&messages);
        assert!(why.contains("of the same release"), "{why} {count}");
        // The collector has closed its end.
        assert_eq!(
            rustix::net::recv(&connection, &mut [0; 8], RecvFlags::empty()).map(|(_, it)| it),
            Ok(0)
        );
    }
}

#[test]
fn a_launcher_that_there_is_not_yet_is_connected_to_later() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("launcher.sock");
    let (_attached, messages) = follow(&path);
    let why = no_launcher(&messages);
    assert!(why.contains("Cannot connect to the launcher at"), "{why}");
    let launcher = Launcher {
        listener: Listener::bind(&path, None).unwrap(),
        folder,
    };
    let connection = launcher.accept();
    let warning = LauncherMessage::Warning("no rights".to_owned());
    send_bytes(&connection, &warning.encode(), &[]).unwrap();
    let Message::FromLauncher(told, None) = messages.recv().unwrap() else {
        panic!("nothing is told");
    };
    assert_eq!(told, warning);
    assert!(
        Attached::start(&Config::default(), sync_channel(1).0)
            .unwrap()
            .is_none()
    );
}

#[test]
fn guests_without_room_count_as_left_out_until_there_is_some() {
    let launcher = Launcher::new();
    let (mut attached, _messages) = launcher.follow();
    attached.note_left_out(5);
    attached.note_refused(PROCESS);
    attached.note_refused(PROCESS);
    assert_eq!(attached.left_out(), 6);
    attached.note_followed(PROCESS);
    assert_eq!(attached.left_out(), 5);
    attached.note_refused(PROCESS);
    let long_ago = Instant::now().checked_sub(REFUSAL).unwrap();
    attached.refused.insert(PROCESS, long_ago);
    assert_eq!(attached.left_out(), 5);
}
