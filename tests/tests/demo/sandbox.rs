//! The rights of a running guest's kvmprof, as the host's kernel shows them for each thread, and the user that it becomes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use kvmprof_client::Connection;
use kvmprof_recording::status::Status;
use kvmprof_tests::{
    Capability, NOBODY, Ran, as_nobody_with, kvmprof, on_kvm, recorded, run_command, signal, until,
    without_system_call,
};
use rustix::process::Signal;
use tempfile::TempDir;

const USAGE: i32 = 2;
const FAILURE: i32 = 1;

/// Capabilities by their numbers (`include/uapi/linux/capability.h`): CAP_IPC_LOCK and CAP_PERFMON; CAP_DAC_READ_SEARCH.
const EVENTS: [u32; 2] = [14, 38];
const TO_READ: [u32; 1] = [2];

/// The capabilities that root's thread with this name may keep; `has_sysroot`: a folder of the host has the guest's files.
fn may_keep(thread: &str, has_sysroot: bool) -> Vec<u32> {
    match thread {
        "events" => EVENTS.into(),
        "binaries" if has_sysroot => TO_READ.into(),
        // KVM's own worker has those of the vCPU's thread that started it.
        _ if thread.starts_with("vcpu ") || thread.starts_with("kvm-") => EVENTS.into(),
        _ => Vec::new(),
    }
}

/// A folder of the user nobody, with a kernel.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("kernel"), kvmprof_demo_guest::ELF).unwrap();
        chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        Self(folder)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A guest that is recorded, with further options.
    fn command(&self, options: &[&str]) -> Command {
        let console = format!("file:{}", self.file("console").display());
        let mut command = Command::new(kvmprof());
        command.args(["run", "--memory", "64M", "--cmdline", "workload=mixed"]);
        command.args(["--cpus", "2", "--console", &console]);
        for (option, name) in [
            ("--kernel", "kernel"),
            ("--socket", "socket"),
            ("--record", "recording"),
        ] {
            command.arg(option).arg(self.file(name));
        }
        command.args(options).stdout(Stdio::null());
        command
    }

    fn start(&self, options: &[&str]) -> Child {
        self.started(&mut self.command(options))
    }

    /// The guest of this command, once it has its socket.
    fn started(&self, command: &mut Command) -> Child {
        let child = command.spawn().unwrap();
        until("the guest's socket is there", || {
            self.file("socket").exists().then_some(())
        });
        child
    }

    /// `kvmprof status` of the guest.
    fn status(&self, options: &[&str]) -> Ran {
        let mut command = Command::new(kvmprof());
        command.arg("status").args(options).arg("--socket");
        run_command(command.arg(self.file("socket")))
    }

    /// Ends the guest, which has been recorded.
    fn end(&self, guest: Child) {
        end(guest);
        assert!(!recorded(&self.file("recording")).0.is_empty());
    }
}

/// The fields of a `status` of proc(5).
pub(super) type Fields = BTreeMap<String, String>;

/// Those of all threads, by their names, once there are `named` ones and each has its filter, but for the one that reports calls with `--sandbox log`.
pub(super) fn contained_threads(pid: u32, named: &[&str]) -> BTreeMap<String, Fields> {
    const REPORTER: &str = "system calls";
    let has_filter = |(name, fields): (&String, &Fields)| {
        name == REPORTER || fields.get("Seccomp").is_some_and(|mode| mode == "2")
    };
    until("all threads have their filters", || {
        let threads = threads(pid);
        let is_complete = named.iter().all(|name| threads.contains_key(*name));
        (is_complete && threads.iter().all(has_filter)).then_some(threads)
    })
}

pub(super) fn threads(pid: u32) -> BTreeMap<String, Fields> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let statuses = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("status")));
    let fields = |text: String| -> Fields {
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        fields
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect()
    };
    // One that has ended meanwhile has none.
    let all = statuses.filter_map(Result::ok).map(fields);
    all.map(|fields| (fields["Name"].clone(), fields)).collect()
}

fn capabilities(fields: &Fields, set: &str) -> u64 {
    u64::from_str_radix(&fields[set], 16).unwrap()
}

fn end(mut child: Child) {
    signal(&child, Signal::INT);
    assert!(child.wait().unwrap().success());
}

fn owner(path: &Path) -> (u32, u32) {
    let metadata = fs::symlink_metadata(path).unwrap();
    (metadata.uid(), metadata.gid())
}

/// Waits until a guest that another user's kvmprof runs at `socket` has been sampled.
pub(super) fn until_sampled(socket: &Path) {
    let user = NOBODY.to_string();
    until("the guest has been sampled", || {
        let mut command = Command::new(kvmprof());
        command.args(["status", "--json", "--allow-owner", &user, "--socket"]);
        let ran = run_command(command.arg(socket));
        // At first it doesn't answer.
        let status = Status::from_json(ran.stdout.as_bytes()).ok()?;
        (status.clock.ledger.sampled > 0).then_some(())
    });
}

const ALL: [&str; 6] = [
    "kvmprof", "events", "binaries", "recorder", "vcpu 0", "vcpu 1",
];

#[test]
fn a_guest_is_contained_without_being_asked() {
    on_kvm(|| {
        for has_sysroot in [false, true] {
            let place = Place::new();
            let folder = place.0.path().to_str().unwrap();
            let sysroot = ["--sysroot", folder];
            let child = place.start(if has_sysroot { &sysroot } else { &[] });
            let threads = contained_threads(child.id(), &ALL);
            for (name, fields) in &threads {
                assert_eq!(fields["NoNewPrivs"], "1", "{name}");
                let kept = may_keep(name, has_sysroot);
                let kept = kept.iter().fold(0, |all, number| all | 1 << number);
                for set in ["CapPrm", "CapEff"] {
                    assert_eq!(capabilities(fields, set) & !kept, 0, "{name}, {set}");
                }
                assert_eq!(capabilities(fields, "CapInh"), 0, "{name}");
            }
            let status = place.status(&[]);
            assert!(status.stdout.contains("seccomp on"), "{status:?}");
            assert!(status.stdout.contains("capabilities on"), "{status:?}");
            end(child);
        }
    });
}

/// On kernels without a part of it, the others are on.
#[test]
fn what_the_host_lacks_is_named() {
    const LANDLOCK: i64 = libc::SYS_landlock_create_ruleset;
    on_kvm(|| {
        for (call, named, parts) in [
            (
                LANDLOCK,
                "restrictions of files (Landlock)",
                "landlock off, no new privileges on, seccomp on",
            ),
            (
                libc::SYS_seccomp,
                "filters of system calls (seccomp)",
                "no new privileges on, seccomp off",
            ),
            (
                libc::SYS_close_range,
                "the closing of inherited files",
                "no new privileges on, seccomp on",
            ),
        ] {
            let place = Place::new();
            let mut command = place.command(&[]);
            without_system_call(&mut command, call);
            let said = File::create(place.file("stderr")).unwrap();
            let guest = command.stderr(said).spawn().unwrap();
            let status = until("the guest's socket answers", || {
                let ran = place.status(&[]);
                (ran.status == 0).then_some(ran.stdout)
            });
            assert!(status.contains(parts), "{status}");
            until_sampled(&place.file("socket"));
            place.end(guest);
            let said = fs::read_to_string(place.file("stderr")).unwrap();
            let lacks = format!("The sandbox lacks {named}");
            assert!(said.contains(&lacks), "{said}");
            assert_eq!(said.matches("The sandbox lacks").count(), 1, "{said}");
        }
    });
}

#[test]
fn another_user_has_no_rights_of_root() {
    on_kvm(|| {
        // The lab has no users of its own.
        if !Path::new("/etc/passwd").exists() {
            fs::write("/etc/passwd", "nobody:x:65534:65534::/:/bin/false\n").unwrap();
            fs::write("/etc/group", "nogroup:x:65534:\n").unwrap();
        }
        for (user, sandbox) in [("65534:65534", "on"), ("nobody", "off")] {
            let place = Place::new();
            let child = place.start(&["--user", user, "--sandbox", sandbox]);
            let threads = match sandbox {
                "on" => contained_threads(child.id(), &ALL),
                _ => until("all threads are the user's", || {
                    let threads = threads(child.id());
                    let is_users = |fields: &Fields| fields["Uid"].starts_with("65534");
                    threads.values().all(is_users).then_some(threads)
                }),
            };
            for name in ALL {
                assert!(threads.contains_key(name), "{name}: {threads:?}");
            }
            for (name, fields) in &threads {
                // Real, effective, saved, that of the file system.
                assert_eq!(fields["Uid"], ["65534"; 4].join("\t"), "{name}");
                let groups = format!("{} {}", fields["Gid"], fields["Groups"]);
                let mut groups = groups.split_whitespace();
                assert!(groups.all(|group| group != "0"), "{name}: {fields:?}");
                for set in ["CapPrm", "CapEff", "CapInh", "CapAmb"] {
                    assert_eq!(capabilities(fields, set), 0, "{name}, {set}");
                }
            }
            for name in ["socket", "console"] {
                assert_eq!(owner(&place.file(name)).0, NOBODY, "{name}");
            }
            // The tests run as root, who has to confirm that another user may serve it.
            assert!(Connection::connect(&place.file("socket")).is_err());
            let words = ["served by user 65534", "--allow-owner"];
            place.status(&[]).assert_refused(FAILURE, &words);
            until_sampled(&place.file("socket"));
            // Root opens the clock of a halted vCPU for the user.
            let ran = place.status(&["--allow-owner", "65534"]);
            let halted = "ticks of halted vCPUs: all at the next wake-up";
            assert!(ran.stdout.contains(halted), "{ran:?}");
            place.end(child);
            assert!(!place.file("socket").exists());
            assert_eq!(owner(&place.file("recording")).0, NOBODY);
        }
    });
}

#[test]
fn impossible_users_are_reported() {
    on_kvm(|| {
        let place = Place::new();
        for (user, words) in [
            ("0:0", &["root", "name another"][..]),
            ("root", &["root"]),
            ("kvmprof-none", &["no user 'kvmprof-none'", "UID:GID"]),
            ("4000000000", &["4000000000", "UID:GID"]),
            ("a:b", &["'a:b'", "UID:GID"]),
        ] {
            let mut command = place.command(&["--user", user]);
            run_command(&mut command).assert_refused(USAGE, words);
        }
        // The user may make no files there.
        chown(place.0.path(), Some(0), Some(0)).unwrap();
        let mut command = place.command(&["--user", "65534:65534"]);
        run_command(&mut command).assert_refused(FAILURE, &["socket", "Permission denied"]);
        assert!(!place.file("socket").exists());
    });
}

/// The system calls of signal handlers are only in the filters of the threads `events` and `forced end`.
#[test]
fn no_other_threads_take_the_signals_that_end_the_guest() {
    on_kvm(|| {
        const SIGNALS: u64 =
            1 << (libc::SIGHUP - 1) | 1 << (libc::SIGINT - 1) | 1 << (libc::SIGTERM - 1);
        let place = Place::new();
        let guest = place.start(&["--hz", "1000"]);
        // It has a thread that reads files.
        let mut profil = Command::new(kvmprof());
        profil.args(["profil", "--pid", "101", "--socket"]);
        let mut profil = profil
            .arg(place.file("socket"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        for (name, fields) in contained_threads(guest.id(), &["binaries"]) {
            let blocked = u64::from_str_radix(&fields["SigBlk"], 16).unwrap() & SIGNALS;
            let takes_them = ["events", "forced end"].contains(&name.as_str());
            let expected = if takes_them { 0 } else { SIGNALS };
            assert_eq!(blocked, expected, "{name}");
        }
        end(guest);
        profil.wait().unwrap();
    });
}

/// The limits of the process, by name in proc(5): soft, and hard.
fn limit(pid: u32, name: &str) -> (String, String) {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix(name));
    let mut words = line.unwrap().split_whitespace().map(str::to_owned);
    (words.next().unwrap(), words.next().unwrap())
}

/// KiB of the process's memory that core dumps omit: `dd`, by the kernel's Documentation/filesystems/proc.rst.
fn kept_from_dumps(pid: u32) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let (mut size, mut sum) = (0, 0);
    for line in maps.lines() {
        if let Some(kib) = line.strip_prefix("Size:") {
            let kib = kib.trim().trim_end_matches(" kB");
            size = kib.parse::<u64>().unwrap();
        } else if let Some(flags) = line.strip_prefix("VmFlags:")
            && flags.split(' ').any(|flag| flag == "dd")
        {
            sum += size;
        }
    }
    sum
}

/// Files that its parent has open, and files that it makes and leaves.
#[test]
fn nothing_is_inherited_and_nothing_is_left_for_others() {
    on_kvm(|| {
        let place = Place::new();
        let secret = place.file("secret");
        fs::write(&secret, "secret").unwrap();
        let run = place.command(&[]);
        let mut shell = Command::new("sh");
        // Its descriptors are inherited by the programs that it executes.
        let script = format!("exec 7<{0} 9<{0}; exec \"$0\" \"$@\"", secret.display());
        shell
            .args(["-c", &script])
            .arg(kvmprof())
            .args(run.get_args());
        let guest = place.started(shell.stdout(Stdio::null()));
        let pid = guest.id();
        contained_threads(pid, &[]);
        for descriptor in fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
            // One that was closed meanwhile has none.
            let target = fs::read_link(descriptor.unwrap().path());
            assert_ne!(target.ok(), Some(secret.clone()));
        }
        assert_eq!(threads(pid)["kvmprof"]["Umask"], "0077");
        let none = || "0".to_owned();
        assert_eq!(limit(pid, "Max core file size"), (none(), none()));
        let (now, most) = limit(pid, "Max open files");
        assert_eq!(now, most);
        // All of the guest's memory.
        let kept = kept_from_dumps(pid);
        assert!(kept >= 64 << 10, "{kept} KiB");
        end(guest);
    });
}

/// The files that it writes have the size limit of their options.
#[test]
fn files_become_no_longer_than_options_say() {
    on_kvm(|| {
        let bytes = |mebibytes: u64| (mebibytes << 20).to_string();
        for (options, longest) in [
            (
                &["--console-limit", "1M", "--record-limit", "2M"][..],
                bytes(2),
            ),
            (&["--console-limit", "3M", "--record-limit", "2M"], bytes(3)),
            (&["--console-limit", "1M"], "unlimited".to_owned()),
            (&["--sandbox", "off"], "unlimited".to_owned()),
        ] {
            let place = Place::new();
            let mut command = place.command(options);
            let guest = place.started(command.stderr(Stdio::null()));
            if !options.contains(&"off") {
                contained_threads(guest.id(), &[]);
            }
            let (now, most) = limit(guest.id(), "Max file size");
            assert_eq!((&now, &most), (&longest, &longest), "{options:?}");
            until_sampled(&place.file("socket"));
            place.end(guest);
        }
    });
}

/// Files that the user nobody lacks here: /dev/kvm is root's on some hosts. The tracing process must have all rights of
/// the traced one.
const OPENS_ALL: &[Capability] = &[Capability::DacOverride];

/// A guest of the user nobody, by a copy of the program that nobody can read.
fn guest_of_nobody(place: &Place, options: &[&str]) -> Child {
    let program = place.file("kvmprof");
    if !program.exists() {
        fs::copy(kvmprof(), &program).unwrap();
    }
    let mut command = Command::new(&program);
    as_nobody_with(&mut command, OPENS_ALL);
    command.args(place.command(options).get_args());
    place.started(command.stdout(Stdio::null()))
}

/// Whether a process of the user nobody can look into this one.
fn is_readable_by_nobody(pid: u32) -> bool {
    let mut command = Command::new("cat");
    as_nobody_with(&mut command, OPENS_ALL);
    let ran = run_command(command.arg(format!("/proc/{pid}/environ")));
    ran.status == 0
}

#[test]
fn its_own_user_traces_it_unless_that_is_said() {
    on_kvm(|| {
        let place = Place::new();
        let guest = guest_of_nobody(&place, &[]);
        contained_threads(guest.id(), &[]);
        assert!(is_readable_by_nobody(guest.id()));
        end(guest);
        let guest = guest_of_nobody(&place, &["--no-trace"]);
        contained_threads(guest.id(), &[]);
        assert!(!is_readable_by_nobody(guest.id()));
        until_sampled(&place.file("socket"));
        place.end(guest);
    });
}
