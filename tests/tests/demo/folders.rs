//! Folders that can't be shared: each wrong option and each program other than virtiofsd gets one
//! clear line.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use kvmprof_tests::{Capability, as_nobody_with, kvmprof, on_kvm, run, run_command};
use tempfile::TempDir;

const FAILURE: i32 = 1;
const USAGE: i32 = 2;
/// Makes a script look like virtiofsd.
const HELP: &str = "case $* in --help) echo '--shared-dir --fd'; exit;; esac";

/// A folder with a kernel.
fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let kernel = folder.path().join("demo.elf");
    fs::write(&kernel, kvmprof_demo_guest::ELF).unwrap();
    (folder, kernel)
}

/// A program that is a script.
fn script(folder: &Path, text: &str) -> String {
    let path = folder.join("virtiofsd");
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_owned()
}

fn refused(kernel: &Path, options: &[&str], status: i32, words: &[&str]) {
    let kernel = kernel.to_str().unwrap();
    let fixed = ["run", "--kernel", kernel, "--console", "none"];
    let ran = run(fixed.iter().chain(options));
    ran.assert_refused(status, words);
}

#[test]
fn wrong_options_are_reported() {
    on_kvm(|| {
        let (_folder, kernel) = folder();
        let check = |options: &[&str], status, words: &[&str]| {
            refused(&kernel, options, status, words);
        };
        check(&["--share", "/tmp"], USAGE, &["DIR=TAG"]);
        check(&["--share", "/tmp=a,rw"], USAGE, &["'rw'"]);
        let twice = ["--share", "/tmp=a", "--share", "/usr=a"];
        check(&twice, FAILURE, &["tag a", "its own"]);
        let many: Vec<String> = (0..17).map(|tag| format!("--share=/tmp={tag}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        check(&many, FAILURE, &["17", "at most 16"]);
        let nowhere = ["--share", "socket=/nowhere/at-all,tag=a"];
        check(&nowhere, FAILURE, &["/nowhere/at-all", "No such file"]);
        let nothing = ["--share", "/tmp=a", "--virtiofsd", "/nowhere/at-all"];
        check(&nothing, FAILURE, &["/nowhere/at-all", "No such file"]);
        check(&["--exec", "true"], USAGE, &["--root"]);
        let both = ["--root", "/", "--initrd", "/x"];
        check(&both, USAGE, &["--root", "--initrd"]);
        // The embedded guest isn't Linux.
        check(&["--root", "/"], FAILURE, &["bzImage"]);
    });
}

#[test]
fn programs_that_do_not_serve_are_reported() {
    on_kvm(|| {
        let (folder, kernel) = folder();
        for (text, words) in [
            ("exit 1", "none of virtiofsd's options"),
            (
                &*format!("{HELP}; echo 'no sandbox' >&2; exit 1"),
                "no sandbox",
            ),
            (&*format!("{HELP}; exit 0"), "has ended"),
            (&*format!("{HELP}; kill -9 $$"), "has ended"),
        ] {
            let program = script(folder.path(), text);
            let options = ["--share", "/tmp=a", "--virtiofsd", &program];
            refused(&kernel, &options, FAILURE, &[words]);
        }
        let options = ["--share", "/nowhere/at-all=a", "--virtiofsd", "/bin/true"];
        refused(&kernel, &options, FAILURE, &["/bin/true is no virtiofsd"]);
    });
}

/// QEMU's can't make its sandbox then.
#[test]
fn another_user_needs_the_version_in_rust() {
    on_kvm(|| {
        let (folder, kernel) = folder();
        let program = script(folder.path(), "echo '--fd=FDNUM -o source=PATH'");
        let mut command = Command::new(kvmprof());
        command
            .args(["run", "--console", "none", "--kernel"])
            .arg(kernel)
            .args(["--share", "/tmp=a", "--virtiofsd", &program]);
        if rustix::process::geteuid().is_root() {
            as_nobody_with(&mut command, &[Capability::DacOverride]);
        }
        run_command(&mut command).assert_refused(FAILURE, &["only root can use", "--virtiofsd"]);
    });
}

#[test]
fn an_unserved_socket_is_reported() {
    on_kvm(|| {
        let (folder, kernel) = folder();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let server = thread::spawn(move || drop(listener.accept().unwrap()));
        let share = format!("socket={},tag=a", path.display());
        refused(&kernel, &["--share", &share], FAILURE, &["has ended"]);
        server.join().unwrap();
    });
}
