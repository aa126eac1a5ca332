//! A disk that can be filled, for tests.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::env;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Names the small file system for a test that starts itself.
const SMALL: &str = "KVMPROF_TEST_SMALL_FOLDER";

/// Runs `test`, the test with this `name`, in another process of this program in a mount namespace, with a folder that is a file system of 256 KiB.
/// It isn't run on a host that refuses namespaces.
pub fn on_small_disk(name: &str, test: impl FnOnce(&Path)) {
    if let Some(folder) = env::var_os(SMALL) {
        return test(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let unshared = |script: &str| -> Output {
        let script = format!("mount -t tmpfs -o size=256k none \"$0\" && {script}");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--map-root-user", "sh", "-c", &script]);
        command.arg(folder.path());
        command.arg(env::current_exe().unwrap());
        command.env(SMALL, folder.path()).output().unwrap()
    };
    if !unshared("true").status.success() {
        println!("not run: this host gives no mount namespace");
        return;
    }
    let ran = unshared(&format!("exec \"$1\" --exact {name} --nocapture"));
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}{ran:?}");
    assert!(said.contains("1 passed"), "{said}");
}

/// Takes the room that the spool in `folder` reserves for its documents and for the sinks' notes.
pub fn take_kept_room(folder: &Path) {
    std::fs::remove_file(folder.join("spare")).unwrap();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|kind| kind == "notes") {
            let file = File::options().write(true).open(path).unwrap();
            file.set_len(0).unwrap();
        }
    }
}

/// Fills the file system of `folder` with a file. Returns the file's path.
pub fn fill_up(folder: &Path) -> PathBuf {
    let filler = folder.join("filler");
    let mut file = File::options()
        .append(true)
        .create(true)
        .open(&filler)
        .unwrap();
    let full = (0..1 << 10).find_map(|_| file.write_all(&[7; 1 << 10]).err());
    assert_eq!(full.unwrap().kind(), io::ErrorKind::StorageFull);
    filler
}
