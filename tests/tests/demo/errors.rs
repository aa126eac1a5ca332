//! Wrong uses by a new user: each gets one clear line, and an exit status other than 0.

use std::ffi::OsStr;
use std::fs::{self, Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use kvmprof_abi::pcs::{PCS_SETBSIZE, PROF_ALL, kind};
use kvmprof_client::Connection;
use kvmprof_tests::{Pcs, Ran, clocks_for_demo, kvmprof, on_kvm, run, run_command, until};
use tempfile::TempDir;

/// The link address of the kernel of [`other_elf`]: above everything that the machine reserves.
const OTHER_ENTRY: u64 = 0x20_0000;

/// The program's exit status for wrong arguments, and for a host without a KVM.
const USAGE: i32 = 2;
const FAILURE: i32 = 1;

/// A folder with a demo kernel, and other files.
fn kernels() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    fs::write(file("demo.elf"), kvmprof_demo_guest::ELF).unwrap();
    fs::write(file("half.elf"), &kvmprof_demo_guest::ELF[..5000]).unwrap();
    fs::write(file("text"), "Dear kernel,\n").unwrap();
    fs::write(file("empty"), "").unwrap();
    fs::write(file("other.elf"), other_elf()).unwrap();
    folder
}

/// A 64-bit ELF file without a note: an endless loop.
fn other_elf() -> Vec<u8> {
    const CODE_AT: usize = 0x1000;
    const CODE: [u8; 2] = [0xeb, 0xfe]; // jmp to itself
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    // ET_EXEC for x86-64, version 1.
    elf.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    for word in [OTHER_ENTRY, 64, 0] {
        elf.extend(word.to_le_bytes());
    }
    // No flags; the header's own size; one program header of 56 bytes; no sections.
    elf.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    // PT_LOAD, readable and executable.
    elf.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    let (offset, size) = (0x1000_u64, 2_u64);
    for word in [offset, OTHER_ENTRY, OTHER_ENTRY, size, size, 0x1000] {
        elf.extend(word.to_le_bytes());
    }
    elf.resize(CODE_AT, 0);
    elf.extend(CODE);
    elf
}

/// `kvmprof run` of a file in the folder, with further words.
fn run_kernel(folder: &TempDir, kernel: &str, words: &[&str]) -> Ran {
    let kernel = folder.path().join(kernel);
    let mut all = vec!["run", "--kernel", kernel.to_str().unwrap()];
    if !words.contains(&"--console") {
        all.extend(["--console", "none"]);
    }
    all.extend(words);
    run(all)
}

#[test]
fn other_files_are_refused_as_kernels() {
    on_kvm(|| {
        let folder = kernels();
        for (kernel, words) in [
            ("missing", &["missing", "No such file"][..]),
            ("text", &["text is not a bzImage or an ELF file"]),
            ("empty", &["empty is not a bzImage or an ELF file"]),
            ("half.elf", &["half.elf"]),
            ("", &["not a regular file"]),
        ] {
            run_kernel(&folder, kernel, &[]).assert_refused(FAILURE, words);
        }
        let ran = run_kernel(&folder, "demo.elf", &["--initrd", "/nonexistent/initrd"]);
        ran.assert_refused(FAILURE, &["initrd /nonexistent/initrd", "No such file"]);
        let ran = run_kernel(&folder, "demo.elf", &["--sysroot", "/nonexistent/root"]);
        ran.assert_refused(FAILURE, &["files in /nonexistent/root", "No such file"]);
        let file = folder.path().join("demo.elf");
        let ran = run_kernel(&folder, "demo.elf", &["--sysroot", file.to_str().unwrap()]);
        ran.assert_refused(FAILURE, &["files in", "Not a directory"]);
    });
}

#[test]
fn impossible_machines_are_refused() {
    on_kvm(|| {
        let folder = kernels();
        for (words, expected) in [
            (["--memory", "1000T"], "too much memory"),
            (
                ["--socket", "/nonexistent/socket"],
                "No folder /nonexistent",
            ),
            (["--console", "file:/nonexistent/log"], "/nonexistent/log"),
        ] {
            run_kernel(&folder, "demo.elf", &words).assert_refused(FAILURE, &[expected]);
        }
        let ran = run_kernel(&folder, "demo.elf", &["--cmdline", "bell \u{7}"]);
        ran.assert_refused(USAGE, &["printable ASCII"]);
    });
}

/// A kernel that is neither Linux nor has a note runs nevertheless, its processes unknown.
#[test]
fn a_guest_without_a_note_is_sampled_with_pid_minus_one() {
    on_kvm(|| {
        clocks_for_demo().for_each(check_guest_without_note);
    });
}

fn check_guest_without_note(clock: &str) {
    let folder = kernels();
    let socket = folder.path().join("socket");
    let mut child = Command::new(kvmprof())
        .args(["run", "--console", "none", "--hz", "1000"])
        .args(["--clock", clock, "--kernel"])
        .arg(folder.path().join("other.elf"))
        .arg("--socket")
        .arg(&socket)
        .spawn()
        .unwrap();
    let connection = until("the socket answers", || Connection::connect(&socket).ok());
    let mut pcs = Pcs::open(connection).unwrap();
    pcs.ioctl(PCS_SETBSIZE, 65_536);
    pcs.ioctl(PROF_ALL, 0);
    pcs.read_ticks(200);
    let recorded = pcs.stop();
    assert!(recorded.samples().count() >= 100);
    for sample in recorded.samples() {
        let seen = (sample.kind, sample.pid, sample.pc);
        assert_eq!(seen, (kind::KERNEL, -1, OTHER_ENTRY));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn getpc_without_a_guest_or_a_place_to_write() {
    let folder = kernels();
    let missing = folder.path().join("socket");
    let missing = missing.to_str().unwrap();
    let ran = run(["getpc", "--socket", missing, "--all", "1"]);
    ran.assert_refused(FAILURE, &["No socket at", "--socket"]);
    let ran = run(["status", "--socket", missing]);
    ran.assert_refused(FAILURE, &["No socket at"]);
    drop(std::os::unix::net::UnixListener::bind(missing).unwrap());
    let ran = run(["getpc", "--socket", missing, "--all", "1"]);
    ran.assert_refused(FAILURE, &["Nobody listens on"]);
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    for (path, what) in [
        (folder.path(), "is a folder and no socket"),
        (file.as_path(), "is a file and no socket"),
        (
            Path::new("/dev/null"),
            "is a device or a pipe and no socket",
        ),
    ] {
        for command in ["status", "record"] {
            let ran = run([
                OsStr::new(command),
                OsStr::new("--socket"),
                path.as_os_str(),
            ]);
            ran.assert_refused(FAILURE, &[what, "--socket"]);
        }
    }
}

/// The stream isn't text: a terminal is refused before the device is taken.
#[test]
fn getpc_on_a_terminal() {
    let program = kvmprof();
    // script(1) gives it a terminal; its messages come out of that.
    let command = format!("{} getpc --socket /nonexistent --all 1", program.display());
    let mut script = Command::new("script");
    let ran = run_command(script.args(["--quiet", "--return", "--command", &command, "/dev/null"]));
    assert_eq!(ran.status, FAILURE, "{ran:?}");
    assert_eq!(ran.stdout.lines().count(), 1, "{ran:?}");
    assert!(
        ran.stdout
            .contains("kvmprof: Standard output is a terminal"),
        "{ran:?}"
    );
}

/// A copy of the program that any user may run.
fn public_copy() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let copy = folder.path().join("kvmprof");
    fs::copy(kvmprof(), &copy).unwrap();
    set_permissions(copy, Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Runs a shell script as root of a mount namespace of its own; `None` if that isn't allowed.
fn in_own_namespace(script: &str, program: &TempDir) -> Option<Ran> {
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--map-root-user", "sh", "-c", script, "sh"]);
        run_command(command.arg(program.path().join("kvmprof")))
    };
    (unshare("mount -t tmpfs none /dev").status == 0).then(|| unshare(script))
}

/// Without a usable KVM, `demo` and `run` report that in one line that names the lab, with status
/// 2.
#[test]
fn hosts_without_a_kvm() {
    let program = public_copy();
    let kernel = kernels();
    let kernel = kernel.path().join("demo.elf");
    for (dev, expected) in [
        ("mount -t tmpfs none /dev", "no /dev/kvm"),
        ("mount -t tmpfs none /dev; mkdir /dev/kvm", "/dev/kvm"),
        ("mount -t tmpfs none /dev; : >/dev/kvm", "/dev/kvm"),
    ] {
        let run = format!("run --console none --kernel '{}'", kernel.display());
        for command in ["demo --seconds 1", &run] {
            let script = format!("{dev}; exec \"$1\" {command}");
            let Some(ran) = in_own_namespace(&script, &program) else {
                return kvmprof_tests::not_run("this host gives no mount namespace");
            };
            ran.assert_refused(2, &[expected, "cargo lab"]);
        }
    }
}

/// As a user who may not open /dev/kvm.
#[test]
fn no_permission_for_kvm() {
    if !rustix::process::geteuid().is_root() {
        return kvmprof_tests::not_run("only root can become another user");
    }
    let program = public_copy();
    let dev = "mount -t tmpfs -o mode=755 none /dev; : >/dev/kvm; chmod 600 /dev/kvm";
    let script = format!(
        "{dev}; exec setpriv --reuid 65534 --regid 65534 --clear-groups \"$1\" demo --seconds 1"
    );
    let mut command = Command::new("unshare");
    let ran = run_command(
        command
            .args(["--mount", "sh", "-c", &script, "sh"])
            .arg(program.path().join("kvmprof")),
    );
    if ran.stderr.contains("unshare") {
        let why = format!("this host gives no mount namespace: {}", ran.stderr.trim());
        return kvmprof_tests::not_run(&why);
    }
    let expected = [
        "No permission to open /dev/kvm",
        "usermod -aG kvm",
        "cargo lab",
    ];
    ran.assert_refused(2, &expected);
}
