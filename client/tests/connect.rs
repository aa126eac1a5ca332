//! Why there is no connection.

use std::fs;
use std::os::unix::net::UnixListener;

use kvmprof_client::{ClientError, Connection};

#[test]
fn each_reason_has_its_error() {
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
