//! The files and sockets that a contained guest's kvmprof makes: none of its threads uses another file near them, and they are made and removed as
//! usual although no thread may rename or remove one.

use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use kvmprof_recording::file::{MAGIC, is_recording};
use kvmprof_sandbox::filters::STATUS;
use kvmprof_tests::{
    Boot, Guest, NOBODY, StoppedThread, kvmprof, not_run, on_kvm, recorded, until,
};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::jail::{Place, child_named};
use super::sandbox::{contained_threads, threads};
use super::sandbox_taken_over::{has_landlock, stop_all};

/// A folder of outputs, with other files in it, in a folder below and in the folder above.
struct Tree(TempDir);

/// The files beside, below and above the outputs.
const NEAR: [&str; 3] = ["outputs/beside", "outputs/inner/below", "above"];

impl Tree {
    fn new() -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(tree.path("outputs/inner")).unwrap();
        for near in NEAR {
            fs::write(tree.path(near), near).unwrap();
        }
        tree
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn output(&self, name: &str) -> PathBuf {
        self.path("outputs").join(name)
    }

    fn c_path(&self, name: &str) -> CString {
        CString::new(self.path(name).as_os_str().as_bytes()).unwrap()
    }

    /// A guest with every kind of output here, once all its threads have their filters.
    fn start(&self) -> Guest {
        let memory = format!("64M,file={}", self.output("memory").display());
        let vsock = format!("3,socket={}", self.output("vsock").display());
        let recording = self.output("recording");
        let recording = recording.to_str().unwrap();
        let outputs = ["--hz", "1000", "--vsock", &vsock, "--record", recording];
        let guest = Guest::start_with_memory(Boot::Demo, &memory, outputs);
        contained_threads(guest.pid(), &THREADS);
        guest
    }

    /// The other files are unchanged.
    fn check_near(&self) {
        for near in NEAR {
            assert_eq!(fs::read_to_string(self.path(near)).unwrap(), near);
        }
        assert_eq!(fs::read_dir(self.0.path()).unwrap().count(), 2);
        assert_eq!(fs::read_dir(self.path("outputs/inner")).unwrap().count(), 1);
    }

    /// The names of the outputs.
    fn outputs(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("outputs")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names
            .filter(|name| !["beside", "inner"].contains(&name.as_str()))
            .collect();
        names.sort();
        names
    }
}

/// Threads of such a guest, with the main thread at the end.
const THREADS: [&str; 6] = [
    "vcpu 0", "events", "recorder", "vsock", "entropy", "kvmprof",
];

/// A table: each thread, each place, and the outputs themselves by their paths.
#[test]
fn no_thread_opens_a_file_near_an_output() {
    on_kvm(|| {
        if !has_landlock() {
            not_run("this host's kernel has no Landlock");
            return;
        }
        let tree = Tree::new();
        let guest = tree.start();
        until("the recording has its name", || {
            tree.output("recording").exists().then_some(())
        });
        let outputs = ["outputs/memory", "outputs/recording", "outputs", ""];
        let paths = NEAR.iter().chain(&outputs).map(|it| tree.c_path(it));
        let mut paths: Vec<CString> = paths.collect();
        for name in ["console", "stdout", Boot::Demo.file_name()] {
            let path = guest.folder().join(name);
            paths.push(CString::new(path.as_os_str().as_bytes()).unwrap());
        }
        let all = threads(guest.pid());
        let stopped = stop_all(guest.pid(), &all);
        for (name, thread) in &stopped {
            for path in &paths {
                assert_eq!(thread.open(path), Err(Errno::ACCESS), "{name} {path:?}");
            }
        }
        // None of them is to continue from its place.
        guest.signal(Signal::KILL);
    });
}

/// Each call ends kvmprof, changes no file near the outputs, and no output that was to be removed is left.
#[test]
fn a_thread_that_renames_or_removes_a_file_ends_kvmprof() {
    on_kvm(|| {
        for (thread, call, named) in [
            ("recorder", libc::SYS_rename, "rename"),
            ("events", libc::SYS_unlink, "unlink"),
            ("vsock", libc::SYS_link, "link"),
            ("vcpu 0", libc::SYS_symlink, "symlink"),
            ("kvmprof", libc::SYS_rename, "rename"),
        ] {
            for near in NEAR {
                let tree = Tree::new();
                let mut guest = tree.start();
                let (from, to) = (tree.c_path(near), tree.c_path("outputs/vsock_1"));
                let taken = StoppedThread::stop(guest.pid(), thread);
                taken.let_go_to_call(call, &from, &to);
                let [thread, call] = [format!("thread {thread} "), format!("({named},")];
                let words = [&thread, &call, "doesn't allow"];
                guest.wait().assert_refused(STATUS, &words);
                tree.check_near();
                until("nothing is left of what is to go", || {
                    let stays = |name: &String| ["memory", "recording"].contains(&name.as_str());
                    (tree.outputs().iter().all(stays) && !guest.socket().exists()).then_some(())
                });
            }
        }
    });
}

/// The recording has its name, and an older one has another name; the sockets are gone.
fn check_end(tree: &Tree, guest: &Guest) {
    assert_eq!(tree.outputs(), ["memory", "recording", "recording.old"]);
    assert!(!recorded(&tree.output("recording")).0.is_empty());
    let older = fs::read(tree.output("recording.old")).unwrap();
    assert_eq!(older, MAGIC);
    assert!(!guest.socket().exists());
    tree.check_near();
}

fn until_named(tree: &Tree) {
    until("the recording has its name", || {
        tree.output("recording.old").exists().then_some(())
    });
    assert!(is_recording(&tree.output("recording")));
}

/// A service manager signals all processes of a service.
#[test]
fn outputs_are_in_order_although_the_helper_is_signalled_too() {
    on_kvm(|| {
        let tree = Tree::new();
        fs::write(tree.output("recording"), MAGIC).unwrap();
        let mut guest = tree.start();
        let names = child_named(guest.pid(), "kvmprof-names").unwrap();
        for signal in [Signal::HUP, Signal::INT, Signal::TERM] {
            kill_process(Pid::from_raw(names.cast_signed()).unwrap(), signal).unwrap();
        }
        until_named(&tree);
        assert!(guest.socket().exists());
        guest.signal(Signal::TERM);
        let ran = guest.wait();
        assert_eq!(ran.status, 0, "{ran:?}");
        check_end(&tree, &guest);
    });
}

#[test]
fn the_sockets_of_a_killed_guest_are_removed() {
    on_kvm(|| {
        let tree = Tree::new();
        fs::write(tree.output("recording"), MAGIC).unwrap();
        let mut guest = tree.start();
        until_named(&tree);
        guest.signal(Signal::KILL);
        guest.wait();
        until("the sockets are gone", || {
            let is_left = guest.socket().exists() || tree.output("vsock").exists();
            (!is_left).then_some(())
        });
        assert_eq!(tree.outputs(), ["memory", "recording", "recording.old"]);
    });
}

/// By the numbers of CAP_DAC_OVERRIDE and CAP_FOWNER (`include/uapi/linux/capability.h`).
#[test]
fn helpers_have_the_rights_that_their_files_need() {
    on_kvm(|| {
        const ACCESS: u64 = 1 << 1;
        const REMOVAL: u64 = 1 << 3;
        let check = |guest: &Guest, names: u64, vsock: u64| {
            for (called, expected) in [("kvmprof-names", names), ("kvmprof-vsock", vsock)] {
                let helper = child_named(guest.pid(), called).unwrap();
                let fields = &threads(helper)[called];
                assert_eq!(fields["NoNewPrivs"], "1", "{called}");
                for set in ["CapPrm", "CapEff"] {
                    let has = u64::from_str_radix(&fields[set], 16).unwrap();
                    assert_eq!(has, expected, "{called} {set}");
                }
            }
        };
        let tree = Tree::new();
        check(&tree.start(), ACCESS | REMOVAL, 0);
        let tree = Tree::new();
        chown(tree.path("outputs"), Some(NOBODY), Some(NOBODY)).unwrap();
        check(&tree.start(), ACCESS | REMOVAL, ACCESS);
    });
}

/// Another program's socket in a folder that all may write to, such as /tmp.
#[test]
fn the_guest_reaches_no_socket_of_a_stranger() {
    on_kvm(|| {
        /// The port of the host that the test guest says hello to.
        const HELLO: u32 = 1234;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vsock");
        let hello = PathBuf::from(format!("{}_{HELLO}", path.display()));
        let listener = UnixListener::bind(&hello).unwrap();
        listener.set_nonblocking(true).unwrap();
        chown(&hello, Some(NOBODY), None).unwrap();
        let device = format!("9,socket={}", path.display());
        let guest = Guest::start(Boot::Test("workload=vsock"), ["--vsock", &device]);
        until("the guest's connection is refused", || {
            let vsock = guest.status().machine.vsock?;
            (vsock.counts.guest_refused > 0).then_some(())
        });
        assert!(listener.accept().is_err());
    });
}

/// The same for kvmprof of another user, and in a jail: with limits, and an older recording.
#[test]
fn outputs_are_in_order_for_another_user_and_in_a_jail() {
    on_kvm(|| {
        let user = format!("{NOBODY}:{NOBODY}");
        let id = NOBODY.to_string();
        for in_jail in [false, true] {
            let place = Place::new();
            let folder = place.file("outputs");
            let file = |name: &str| folder.join(name);
            fs::create_dir(&folder).unwrap();
            fs::write(file("recording"), MAGIC).unwrap();
            for path in [&folder, &file("recording")] {
                chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
            }
            let mut command = Command::new(kvmprof());
            if in_jail {
                command.args(["jail", "--uid", &id, "--gid", &id, "--root"]);
                command.arg(&folder).args(["--", "run"]);
            } else {
                command.args(["run", "--user", &user]);
            }
            let value = |start: &str, name: &str| format!("{start}{}", file(name).display());
            command
                .args(["--cmdline", "workload=mixed", "--hz", "1000", "--kernel"])
                .arg(place.file("kernel"))
                .args(["--memory", "64M"])
                .args(["--console", &value("file:", "console")])
                .args(["--console-limit", "5", "--record-limit", "1M"])
                .args(["--vsock", &value("3,socket=", "vsock")])
                .args(["--record", &value("", "recording")])
                .args(["--socket", &value("", "socket")]);
            let mut child = command.stdout(Stdio::null()).spawn().unwrap();
            until("the recording has its name", || {
                // The older one is moved away just before.
                let names = ["recording.old", "recording"];
                names.iter().all(|name| file(name).exists()).then_some(())
            });
            for name in ["socket", "vsock", "recording", "console"] {
                let found = fs::symlink_metadata(file(name)).unwrap();
                let expected = (NOBODY, 0o600);
                assert_eq!((found.uid(), found.mode() & 0o777), expected, "{name}");
            }
            kvmprof_tests::signal(&child, Signal::TERM);
            assert!(child.wait().unwrap().success());
            let entries = fs::read_dir(&folder).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            assert_eq!(names, ["console", "recording", "recording.old"]);
            assert_eq!(fs::metadata(file("console")).unwrap().len(), 5);
            assert_eq!(fs::read(file("recording.old")).unwrap(), MAGIC);
            assert!(!recorded(&file("recording")).0.is_empty());
        }
    });
}
