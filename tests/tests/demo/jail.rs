//! `kvmprof jail`: the state of its process by the host's kernel, its leftovers, and refusals.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use kvmprof_tests::{
    NOBODY, as_nobody_with, kvmprof, not_run, on_kvm, on_kvm_with_cgroups, recorded, run,
    run_command, until,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::sandbox::until_sampled;

const FAILURE: i32 = 1;
const USAGE: i32 = 2;

/// A folder with a kernel, and one in it for a jail.
pub(super) struct Place(pub TempDir);

impl Place {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(folder.path().join("kernel"), kvmprof_demo_guest::ELF).unwrap();
        Self(folder)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A jail with these options, and a guest in it with those.
    pub fn command(&self, jail: &[&str], run: &[&str]) -> Command {
        let mut command = Command::new(kvmprof());
        let user = NOBODY.to_string();
        command.args(["jail", "--uid", &user, "--gid", &user, "--root"]);
        command.arg(self.file("jail")).args(jail);
        command.args([
            "--",
            "run",
            "--memory",
            "64M",
            "--cmdline",
            "workload=mixed",
        ]);
        command
            .args(["--console", "none", "--kernel"])
            .arg(self.file("kernel"))
            .args(run)
            .env("KVMPROF_TEST_SECRET", "secret")
            .stdout(Stdio::null());
        command
    }

    /// With a recording.
    pub fn start(&self, jail: &[&str], run: &[&str]) -> Jail {
        let (socket, recording) = (self.file("jail/socket"), self.file("jail/recording"));
        let files = ["--socket", path(&socket), "--record", path(&recording)];
        let outside = self.command(jail, &[&files, run].concat()).spawn().unwrap();
        // A folder of a killed jail has a socket without a listener.
        until("the guest's socket answers", || {
            UnixStream::connect(&socket).ok()
        });
        let mut children = children(outside.id()).into_iter();
        let inside = children.find(|pid| name(*pid) != "kvmprof-share").unwrap();
        Jail { outside, inside }
    }

    pub fn is_refused(&self, jail: &[&str], run: &[&str], status: i32, words: &[&str]) {
        run_command(&mut self.command(jail, run)).assert_refused(status, words);
    }
}

pub(super) fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The processes whose parent this one is.
pub(super) fn children(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let numbers = children.split_whitespace();
    numbers.map(|number| number.parse().unwrap()).collect()
}

/// The name of a process; empty once it has ended.
pub(super) fn name(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm"));
    name.unwrap_or_default().trim().to_owned()
}

/// The child of this process with this name.
pub(super) fn child_named(pid: u32, named: &str) -> Option<u32> {
    children(pid).into_iter().find(|pid| name(*pid) == named)
}

/// A jail with a guest.
pub(super) struct Jail {
    pub outside: Child,
    /// The process in it.
    pub inside: u32,
}

/// With its process outside the jail ends the guest of a test that has failed.
impl Drop for Jail {
    fn drop(&mut self) {
        // It may have ended, and been waited for, already.
        let _ = self.outside.kill();
        let _ = self.outside.wait();
    }
}

impl Jail {
    pub fn proc(&self, name: &str) -> PathBuf {
        format!("/proc/{}/{name}", self.inside).into()
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.proc(name)).unwrap()
    }

    /// A field of its `status` in proc(5).
    pub fn status(&self, name: &str) -> String {
        let status = self.read("status");
        let value = status.lines().find_map(|line| line.strip_prefix(name));
        value.unwrap().trim_start_matches(':').trim().to_owned()
    }

    /// The names in a folder that is in the jail.
    pub fn names(&self, folder: &str) -> BTreeSet<String> {
        let entries = fs::read_dir(self.proc("root").join(folder)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    /// Ends it by a signal to the process outside.
    pub fn end(mut self) {
        signal(self.outside.id(), Signal::INT);
        assert!(self.outside.wait().unwrap().success());
    }

    /// Kills one of its two processes. Returns the status of the one outside, once nothing runs inside.
    pub fn kill(&mut self, pid: u32) -> ExitStatus {
        signal(pid, Signal::KILL);
        let status = self.outside.wait().unwrap();
        until("the process in it is gone", || {
            (!self.proc("").exists()).then_some(())
        });
        status
    }

    pub fn until_contained(&self) {
        until("the threads have their filters", || {
            (self.status("Seccomp") == "2").then_some(())
        });
    }
}

pub(super) fn signal(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// The mounts of this process's own namespace.
pub(super) fn mounts() -> String {
    fs::read_to_string("/proc/self/mountinfo").unwrap()
}

/// The ids and rights of the process in it.
fn check_rights(jail: &Jail) {
    for namespace in ["mnt", "pid", "ipc", "net", "uts"] {
        let name = format!("ns/{namespace}");
        let own = fs::read_link(Path::new("/proc/self").join(&name)).unwrap();
        assert_ne!(fs::read_link(jail.proc(&name)).unwrap(), own);
    }
    for ids in ["Uid", "Gid"] {
        let expected = [NOBODY; 4].map(|id| id.to_string()).join("\t");
        assert_eq!(jail.status(ids), expected);
    }
    assert_eq!(jail.status("Groups"), "");
    assert_eq!(jail.status("NoNewPrivs"), "1");
    // Even other processes of its user can't look into it: proc(5) gives all of it to root.
    let owner = fs::metadata(jail.proc("environ")).unwrap();
    assert_eq!((owner.uid(), owner.gid()), (0, 0));
    for set in ["CapPrm", "CapEff", "CapInh", "CapAmb"] {
        assert_eq!(jail.status(set), "0000000000000000", "{set}");
    }
    // Its pids outside and inside: it is the first one there.
    assert!(jail.status("NSpid").ends_with("\t1"));
    assert_eq!(jail.read("environ"), "");
    let limits = jail.read("limits");
    let of = |name: &str| -> Vec<String> {
        let line = limits.lines().find_map(|line| line.strip_prefix(name));
        let words = line.unwrap().split_whitespace();
        words.take(2).map(str::to_owned).collect()
    };
    assert_eq!(of("Max open files"), ["2048", "2048"]);
    assert_eq!(of("Max file size"), ["1000000000", "1000000000"]);
    assert_eq!(of("Max core file size"), ["0", "0"]);
    // Only the loopback interface.
    let interfaces = jail.read("net/dev");
    let interfaces = interfaces.lines().filter(|line| line.contains(':'));
    assert_eq!(interfaces.count(), 1);
}

/// Its open files, and their flags.
fn check_files(jail: &Jail, place: &Place) {
    let folder = path(place.0.path()).trim_start_matches('/').to_owned();
    let first = folder.split('/').next().unwrap();
    for (folder, expected) in [
        ("", &["dev", "proc", first][..]),
        ("dev", &["kvm", "null", "urandom"]),
        (&folder, &["jail", "kernel", "other"]),
    ] {
        let expected: BTreeSet<String> = expected.iter().map(ToString::to_string).collect();
        assert_eq!(jail.names(folder), expected);
    }
    let kvm = fs::metadata(jail.proc("root/dev/kvm")).unwrap();
    assert_eq!((kvm.uid(), kvm.mode() & 0o777), (NOBODY, 0o600));
    assert_eq!(kvm.rdev(), fs::metadata("/dev/kvm").unwrap().rdev());
    for line in jail.read("mounts").lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let options: Vec<&str> = fields[3].split(',').collect();
        for option in ["nosuid", "noexec"] {
            assert!(options.contains(&option), "{line}");
        }
        let is_own = fields[1] == path(&place.file("jail"));
        assert_eq!(options.contains(&"rw"), is_own, "{line}");
    }
    let program = kvmprof();
    for descriptor in fs::read_dir(jail.proc("fd")).unwrap() {
        // One that was closed meanwhile has none.
        let target = fs::read_link(descriptor.unwrap().path());
        assert_ne!(target.ok(), Some(program.clone()));
    }
}

#[test]
fn a_guest_in_a_jail_has_nothing_but_what_it_needs() {
    on_kvm(|| {
        let place = Place::new();
        let other = place.file("other");
        fs::write(&other, "other").unwrap();
        let before = mounts();
        let limit = "fsize=1000000000";
        let options = ["--bind", path(&other), "--resource-limit", limit];
        let jail = place.start(&options, &[]);
        jail.until_contained();
        check_rights(&jail);
        check_files(&jail, &place);
        check_list(&jail);
        until_sampled(&place.file("jail/socket"));
        jail.end();
        assert_eq!(mounts(), before);
        let left: Vec<_> = fs::read_dir(place.file("jail")).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
        assert!(!recorded(&place.file("jail/recording")).0.is_empty());
    });
}

/// A guest without a name in its command line has that of its jail's folder.
fn check_list(jail: &Jail) {
    let document = run(["list", "--json"]).json();
    let mut guests = document["guests"].as_array().unwrap().iter();
    let entry = guests.find(|it| it["pid"] == jail.inside);
    assert_eq!(entry.unwrap_or(&Value::Null)["name"], "jail", "{document}");
}

/// Killing either of the two processes.
#[test]
fn nothing_is_left_of_a_jail_that_is_killed() {
    on_kvm(|| {
        for is_outer in [true, false] {
            let place = Place::new();
            let before = mounts();
            let mut jail = place.start(&[], &[]);
            jail.until_contained();
            let pid = if is_outer {
                jail.outside.id()
            } else {
                jail.inside
            };
            let status = jail.kill(pid);
            if !is_outer {
                assert_eq!(status.code(), Some(128 + 9));
            }
            assert_eq!(mounts(), before);
            // The next one replaces it.
            let mut jail = place.start(&[], &[]);
            signal(jail.outside.id(), Signal::INT);
            assert!(jail.outside.wait().unwrap().success());
        }
    });
}

#[test]
fn wrong_options_are_reported() {
    on_kvm(|| {
        let place = Place::new();
        let outside = place.file("socket");
        let own = path(place.0.path());
        let none: &[&str] = &[];
        for (jail, run, words) in [
            (
                none,
                &["--socket", path(&outside)][..],
                &["--socket", "isn't in the jail"][..],
            ),
            (none, &["--name", "a"], &["--name", "--socket"]),
            (none, &["--user", "1:1"], &["--user", "--uid"]),
            (none, &["--root", "/tmp"], &["--root", "--share"]),
            (none, &["--nonsense"], &["--nonsense"]),
            (&["--bind", "/"], none, &["whole root"]),
            (&["--bind", "/proc"], none, &["the jail's own"]),
            (&["--bind", own], none, &["has the jail's folder in it"]),
            (
                &["--resource-limit", "core=1"],
                none,
                &["'core'", "no-file=N"],
            ),
            (&["--cgroup", "../a"], none, &["--cgroup", "without .."]),
        ] {
            place.is_refused(jail, run, USAGE, words);
        }
        for (user, command, word) in [("0", "run", "root"), ("1", "demo", "kvmprof run")] {
            let words = [
                "jail", "--uid", user, "--gid", "1", "--root", "/tmp/a", "--",
            ];
            run(words.iter().chain(&[command])).assert_refused(USAGE, &[word]);
        }
    });
}

#[test]
fn missing_features_of_the_host_are_reported() {
    on_kvm(|| {
        let place = Place::new();
        symlink(place.0.path(), place.file("link")).unwrap();
        let [link, missing, kernel] = ["link/kernel", "missing", "kernel"].map(|it| place.file(it));
        for (option, value, status, words) in [
            (
                "--bind",
                path(&link),
                USAGE,
                &["A link leads to", "name it as"][..],
            ),
            (
                "--bind",
                path(&missing),
                FAILURE,
                &["cannot find", "missing"],
            ),
            (
                "--netns",
                "kvmprof-none",
                FAILURE,
                &["kvmprof-none", "ip netns add"],
            ),
            ("--netns", path(&kernel), FAILURE, &["--netns"]),
        ] {
            place.is_refused(&[option, value], &[], status, words);
        }
        chown(place.file("jail"), Some(1), Some(1)).unwrap();
        place.is_refused(&[], &[], USAGE, &["belongs to user 1", "chown 65534:65534"]);
    });
}

#[test]
fn only_root_makes_jails_and_becomes_another_user() {
    on_kvm(|| {
        let place = Place::new();
        let program = place.file("kvmprof");
        fs::copy(kvmprof(), &program).unwrap();
        let guest = "run --kernel /nowhere";
        for (words, said) in [
            (
                format!("jail --uid 1 --gid 1 --root /tmp/a -- {guest}"),
                &["needs root"][..],
            ),
            (format!("{guest} --user 1:1"), &["--user", "only root"]),
        ] {
            let mut command = Command::new(&program);
            as_nobody_with(&mut command, &[]);
            command.args(words.split(' '));
            run_command(&mut command).assert_refused(FAILURE, said);
        }
    });
}

/// The error of the guest's kvmprof, and its status, come out of the jail; those of a folder are reported before there is a jail.
#[test]
fn errors_of_guests_are_reported() {
    on_kvm(|| {
        let place = Place::new();
        let nothing = ["--share", "/tmp=a", "--virtiofsd", "/nowhere/at-all"];
        for options in [&["--share", "/nowhere=a"][..], &nothing] {
            place.is_refused(&[], options, FAILURE, &["/nowhere", "No such file"]);
        }
        let socket = place.file("jail/socket");
        let wrong = ["--socket", path(&socket), "--disk", "/dev/null"];
        place.is_refused(&[], &wrong, FAILURE, &["/dev/null"]);
        // The user can't read it.
        fs::set_permissions(place.file("kernel"), fs::Permissions::from_mode(0o600)).unwrap();
        place.is_refused(&[], &[], FAILURE, &["kernel", "Permission denied"]);
    });
}

/// A client's socket outside exists inside under its own name.
#[test]
fn sockets_outside_can_be_in_a_jail() {
    on_kvm(|| {
        let place = Place::new();
        let network = place.file("network");
        let listener = UnixListener::bind(&network).unwrap();
        chown(&network, Some(NOBODY), Some(NOBODY)).unwrap();
        let socket = place.file("jail/socket");
        let end = format!("socket={}", network.display());
        let options = ["--net", &end, "--socket", path(&socket)];
        let mut outside = place.command(&[], &options).spawn().unwrap();
        listener.accept().unwrap();
        signal(outside.id(), Signal::INT);
        outside.wait().unwrap();
    });
}

#[test]
fn a_jail_has_limits() {
    on_kvm_with_cgroups(&["cpu", "memory", "pids"], |top| {
        let place = Place::new();
        let name = format!("kvmprof-test-{}/guest", std::process::id());
        let folder = top.join(&name);
        let mut jail = place.start(&["--cgroup", &name], &[]);
        let groups = jail.read("cgroup");
        let expected = format!("0::/{name}");
        assert!(groups.lines().any(|line| line == expected), "{groups}");
        let limit = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!(limit("memory.max").trim(), ((64 + 512) << 20).to_string());
        assert_eq!(limit("cpu.max").trim(), "200000 100000");
        assert_eq!(limit("pids.max").trim(), "512");
        let group = ["--cgroup", &name];
        place.is_refused(&group, &[], FAILURE, &["another jail uses it"]);
        jail.kill(jail.outside.id());
        assert!(folder.exists());
        let jail = place.start(&group, &[]);
        jail.end();
        assert!(!folder.exists());
        fs::remove_dir(folder.parent().unwrap()).unwrap();
    });
}

/// As on hosts without cgroup v2, or with controllers of version 1.
#[test]
fn missing_cgroup_controllers_are_reported() {
    let has_them = fs::read_to_string("/sys/fs/cgroup/cgroup.controllers");
    if has_them.is_ok_and(|names| names.contains("memory")) {
        return not_run("this host's cgroup v2 has all controllers");
    }
    let place = Place::new();
    let words = ["--cgroup needs", "cgroup v2"];
    place.is_refused(&["--cgroup", "a"], &[], FAILURE, &words);
}

/// Here that of the tests, by its path.
#[test]
fn a_jail_can_have_another_network_namespace() {
    on_kvm(|| {
        let place = Place::new();
        let own = format!("/proc/{}/ns/net", std::process::id());
        let jail = place.start(&["--netns", &own], &[]);
        let of = |path: &Path| fs::read_link(path).unwrap();
        assert_eq!(of(&jail.proc("ns/net")), of(Path::new(&own)));
        let outer = of(Path::new("/proc/self/ns/mnt"));
        assert_ne!(of(&jail.proc("ns/mnt")), outer);
        jail.end();
    });
}
