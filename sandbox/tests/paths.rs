//! Which files a process can use once it is restricted, in a process of its own.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::env;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use kvmprof_sandbox::paths::{Restricted, Use, restrict};

/// Names the folder, in the process that is restricted.
const CHILD: &str = "KVMPROF_TEST_PATHS";

fn refused<T>(result: std::io::Result<T>) -> bool {
    result.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}

/// In the process of its own.
fn act(folder: &Path) {
    let path = |name: &str| folder.join(name);
    let rules = [
        (path("read"), Use::Read),
        (path("outputs"), Use::Replace),
        (path("missing"), Use::Read),
        ("/proc/self/fd/1".into(), Use::Read),
    ];
    let open_before = File::options().write(true).open(path("other")).unwrap();
    kvmprof_sandbox::process::give_up().unwrap();
    if restrict(&rules).unwrap() == Restricted::No {
        println!("This host's kernel has no Landlock");
        return;
    }
    assert_eq!(fs::read(path("read/below")).unwrap(), b"below");
    assert!(refused(fs::write(path("read/below"), b"")));
    assert!(refused(fs::write(path("read/new"), b"")));
    assert!(refused(fs::remove_file(path("read/below"))));
    fs::write(path("outputs/a"), b"a").unwrap();
    fs::rename(path("outputs/a"), path("outputs/b")).unwrap();
    fs::remove_file(path("outputs/b")).unwrap();
    assert!(refused(fs::create_dir(path("outputs/folder"))));
    // Files don't leave their folder, and none comes into it.
    fs::write(path("outputs/a"), b"a").unwrap();
    for (from, to) in [
        ("outputs/a", "a"),
        ("other", "outputs/b"),
        ("outputs/a", "outputs/inner/a"),
    ] {
        assert!(fs::rename(path(from), path(to)).is_err(), "{from}");
    }
    assert!(refused(fs::read(path("other"))));
    assert!(refused(File::open("/etc/passwd")));
    assert!(refused(fs::read_dir("/")));
    open_before.set_len(4).unwrap();
    let version = fs::read_to_string("/proc/sys/kernel/osrelease");
    assert!(refused(version));
    if linux_has_network_rules() {
        assert!(refused(TcpListener::bind("127.0.0.1:0")));
        // No signal is sent, but all is checked. Whoever has started this process isn't restricted.
        let signal = |pid| rustix::process::test_kill_process(pid);
        let parent = rustix::process::getppid().unwrap();
        assert_eq!(signal(parent), Err(rustix::io::Errno::PERM));
        let itself = move || signal(rustix::process::getpid());
        assert_eq!(std::thread::spawn(itself).join().unwrap(), Ok(()));
    }
    println!("restricted");
}

/// Rules for TCP are newer than those for files.
fn linux_has_network_rules() -> bool {
    kvmprof_sandbox::state::state()
        .iter()
        .any(|(part, how)| part.name() == "landlock" && how == "on")
}

#[test]
fn a_process_uses_what_it_is_given_and_nothing_else() {
    if let Some(folder) = env::var_os(CHILD) {
        return act(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    for name in ["read", "outputs", "outputs/inner"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("read/below"), b"below").unwrap();
    fs::write(folder.path().join("other"), b"other").unwrap();
    let mut command = Command::new(env::current_exe().unwrap());
    let test = "a_process_uses_what_it_is_given_and_nothing_else";
    command.args(["--exact", "--nocapture", test]);
    let output = command.env(CHILD, folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    let words = ["restricted", "no Landlock"];
    assert!(
        words.iter().any(|words| said.contains(words)),
        "{said}{errors}"
    );
}
