//! Causes of failed connections.

#[path = "../../tests/shared/not_run.rs"]
mod not_run;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;

use kvmprof_client::{ClientError, Connection};
use rustix::process::Uid;

#[test]
fn each_cause_has_its_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let connect = || Connection::connect(&path).err().unwrap();
    assert!(matches!(connect(), ClientError::NoSocket { .. }));
    drop(UnixListener::bind(&path).unwrap());
    assert!(matches!(connect(), ClientError::NobodyListens { .. }));
    fs::remove_file(&path).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || drop(listener.accept().unwrap()));
    assert!(matches!(connect(), ClientError::TurnedAway { .. }));
    server.join().unwrap();
}

/// In a folder like /tmp another user may have made the socket; no request is sent to it.
#[test]
fn a_server_of_another_user_is_refused_before_it_is_asked() {
    if !rustix::process::geteuid().is_root() {
        return not_run::not_run("only root can become another user");
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let path = folder.path().join("socket");
    let listener = std::thread::scope(|scope| {
        let listen = scope.spawn(|| {
            let stranger = Uid::from_raw(65534);
            // The credentials of this thread only.
            rustix::thread::set_thread_res_uid(stranger, stranger, stranger).unwrap();
            UnixListener::bind(&path).unwrap()
        });
        listen.join().unwrap()
    });
    let error = Connection::connect(&path).err().unwrap();
    assert!(
        matches!(error, ClientError::WrongServer { user: 65534, .. }),
        "{error}"
    );
    assert!(
        error.to_string().contains("neither root nor you"),
        "{error}"
    );
    let other = Connection::connect_to(&path, Some(1)).err().unwrap();
    assert!(matches!(other, ClientError::WrongServer { .. }), "{other}");
    let (mut client, _) = listener.accept().unwrap();
    let mut asked = Vec::new();
    std::io::Read::read_to_end(&mut client, &mut asked).unwrap();
    assert!(asked.is_empty(), "{asked:?}");
    let (refused, _) = listener.accept().unwrap();
    // If that user was named, a request is sent.
    let server = std::thread::spawn(move || drop((refused, listener.accept().unwrap())));
    let error = Connection::connect_to(&path, Some(65534)).err().unwrap();
    assert!(matches!(error, ClientError::TurnedAway { .. }), "{error}");
    server.join().unwrap();
}
