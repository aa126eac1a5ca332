//! The launcher, and what a collector can do that somebody has taken over. This process is the VMM.

use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};

use kvmprof_collect::batch::Batch;
use kvmprof_collect::launcher::message::{BYTES, LauncherMessage};
use kvmprof_tests::Capability::{Bpf, DacReadSearch, IpcLock, Perfmon, SysAdmin, SysPtrace};
use kvmprof_tests::{
    Capability, NOBODY, Ran, StoppedThread, as_nobody_with, as_root_with, kvmprof, not_run,
    on_kvm_with_collector, run_command, until,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, connect, recv, send, socket,
};
use rustix::process::{Pid, Signal, kill_process};

use super::attached::{attachers, machine, until_let_go};
use super::{Fleet, all_windows, free_port, get};

/// What the launcher's unit and container leave it.
const RIGHTS: &[Capability] = &[SysPtrace, DacReadSearch, Bpf, Perfmon, IpcLock, SysAdmin];

/// The values of a field of `/proc/PID/status` of all threads of a process.
fn of_threads(pid: u32, field: &str) -> Vec<(String, String)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of_task = |task: PathBuf| {
        let status = fs::read_to_string(task.join("status")).ok()?;
        let value = |field: &str| {
            let mut lines = status.lines();
            let value = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
            value.map(|value| value.trim().to_owned())
        };
        Some((value("Name")?, value(field)?))
    };
    tasks
        .filter_map(|task| of_task(task.unwrap().path()))
        .collect()
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let lists = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("children")));
    let lists: Vec<String> = lists.map(Result::unwrap_or_default).collect();
    let words = lists.iter().flat_map(|list| list.split_whitespace());
    words.map(|word| word.parse().unwrap()).collect()
}

/// A program that is killed in the end.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where a launcher of its own is, and a collector that is another user's.
struct LauncherFolder {
    fleet: Fleet,
}

impl LauncherFolder {
    fn new() -> Self {
        let fleet = Fleet::new(&[]);
        // Both programs and the socket are everybody's to use.
        fs::set_permissions(fleet.path(""), Permissions::from_mode(0o755)).unwrap();
        for name in ["kvmprof", "kvmprof-collect"] {
            fs::copy(kvmprof().with_file_name(name), fleet.path(name)).unwrap();
        }
        Self { fleet }
    }

    fn socket(&self) -> PathBuf {
        self.fleet.path("launcher.sock")
    }

    /// Writes a configuration that everybody may read.
    fn configure(&self, name: &str, text: &str) -> PathBuf {
        let path = self.fleet.path(name);
        let socket = self.socket();
        let text = format!("{text}\n[attach]\nlauncher = '{}'\n", socket.display());
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        path
    }

    /// Starts the launcher with these rules for guests of this process.
    fn launch(&self, rules: &str) -> Running {
        let path = self.configure("launcher.toml", "hz = 50");
        let pid = process::id();
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}guests = ['{pid}']\n{rules}\n")).unwrap();
        let mut command = Command::new(self.fleet.path("kvmprof-collect"));
        command.arg("launcher").arg("--config").arg(path);
        command.stdin(Stdio::null());
        command.stderr(File::create(self.fleet.path("launcher.stderr")).unwrap());
        as_root_with(&mut command, RIGHTS);
        let running = Running(command.spawn().unwrap());
        until("the launcher listens", || {
            self.socket().exists().then_some(())
        });
        running
    }

    /// What a collector of nobody collects at once, by a launcher's guests alone.
    fn look(&self) -> (Ran, Vec<Batch>) {
        let config = self.configure("collect.toml", "hz = 10000\nwindow = 5\nsockets = []");
        let mut command = Command::new(self.fleet.path("kvmprof-collect"));
        command
            .arg("--config")
            .arg(config)
            .args(["--once", "--json"]);
        as_nobody_with(&mut command, &[]);
        let ran = run_command(&mut command);
        let batches = ran.stdout.lines().map(serde_json::from_str);
        let batches = batches.filter_map(Result::ok).collect();
        (ran, batches)
    }

    fn launcher_said(&self) -> String {
        fs::read_to_string(self.fleet.path("launcher.stderr")).unwrap()
    }
}

/// The collector has no capability and is nobody's, and has samples at the launcher's rate.
#[test]
fn a_collector_without_any_right_has_the_samples_of_the_launchers_guests() {
    on_kvm_with_collector(|| {
        let machine = machine();
        let folder = LauncherFolder::new();
        let launcher = folder.launch(&format!("user = {NOBODY}"));
        for (name, effective) in of_threads(launcher.0.id(), "CapEff") {
            let most = RIGHTS
                .iter()
                .fold(0, |all, right| all | 1_u64 << *right as u8);
            let effective = u64::from_str_radix(&effective, 16).unwrap();
            assert_eq!(effective & !most, 0, "{name}");
        }
        // On a busy host, a window may end before the guest is attached to.
        let windows = until("a window has ticks", || {
            let (ran, batches) = folder.look();
            assert_eq!(ran.status, 0, "{ran:?} {}", folder.launcher_said());
            let windows: Vec<_> = batches.into_iter().flat_map(|it| it.windows).collect();
            let has_ticks = windows.iter().any(|window| window.ticks() > 0);
            has_ticks.then_some(windows)
        });
        for window in windows {
            assert!(window.account.balances(), "{window:?}");
            assert_eq!(window.hz, 50);
            let pid = process::id();
            assert!(window.guest.ends_with(&format!("-{pid}")), "{window:?}");
        }
        // With nobody to tell, nothing is attached to.
        until_let_go();
        drop(launcher);
        machine.stop();
    });
}

#[test]
fn a_collector_of_another_user_is_turned_away() {
    on_kvm_with_collector(|| {
        let machine = machine();
        let folder = LauncherFolder::new();
        let launcher = folder.launch(&format!("user = {}", NOBODY - 1));
        let (ran, batches) = folder.look();
        assert!(batches.is_empty(), "{ran:?}");
        assert!(ran.stderr.contains("ended the connection"), "{ran:?}");
        let said = folder.launcher_said();
        let words = format!("user {NOBODY}'s, who isn't attach.user");
        assert!(said.contains(&words), "{said}");
        assert_eq!(attachers(), [] as [PathBuf; 0]);
        drop(launcher);
        // Without the key, the socket is root's alone.
        fs::remove_file(folder.socket()).unwrap();
        let launcher = folder.launch("");
        let (ran, batches) = folder.look();
        assert!(batches.is_empty(), "{ran:?}");
        assert!(
            ran.stderr.contains("Cannot connect to the launcher"),
            "{ran:?}"
        );
        drop(launcher);
        machine.stop();
    });
}

/// Connects as a collector does that somebody has taken over.
fn connect_to(path: &Path) -> rustix::fd::OwnedFd {
    let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

/// Whoever has its connection gets what the rules say, and has no words to ask for more.
#[test]
fn what_is_said_to_a_launcher_has_no_effect() {
    on_kvm_with_collector(|| {
        let machine = machine();
        let folder = LauncherFolder::new();
        let launcher = folder.launch("limit = 1");
        let socket = connect_to(&folder.socket());
        let mut bytes = [0; BYTES];
        let (_, length) = recv(&socket, &mut bytes, RecvFlags::empty()).unwrap();
        let told = LauncherMessage::decode(&bytes[..length], 1).unwrap();
        let LauncherMessage::Guest { process, .. } = told else {
            panic!("{told:?}");
        };
        assert_eq!(process.pid.unsigned_abs(), process::id());
        let attacher = until("it is attached to", || attachers().pop());
        let words = fs::read(attacher.join("cmdline")).unwrap();
        let words = String::from_utf8(words).unwrap().replace('\0', " ");
        assert!(
            words.contains(
                " --record /dev/stdout --stacks kernel,user --hz 50 --capture ptrace --jitter"
            ),
            "{words}"
        );
        // It is let go, and so is the guest.
        let other = LauncherMessage::Guest {
            process: kvmprof_collect::launcher::message::Process {
                pid: 1,
                start_time: 0,
            },
            name: "*".to_owned(),
            labels: std::collections::BTreeMap::default(),
        };
        send(&socket, &other.encode(), SendFlags::NOSIGNAL).unwrap();
        until("the connection is closed", || {
            let end = recv(&socket, &mut bytes, RecvFlags::empty());
            matches!(end, Ok((_, 0)) | Err(Errno::CONNRESET)).then_some(())
        });
        until_let_go();
        let said = folder.launcher_said();
        assert!(said.contains("it has sent something"), "{said}");
        drop(launcher);
        machine.stop();
    });
}

/// The calls by which a process looks into others or leads out of itself.
fn tries(pid: u64) -> [(i64, [u64; 3]); 12] {
    [
        // PTRACE_SEIZE
        (libc::SYS_ptrace, [0x4206, pid, 0]),
        (libc::SYS_process_vm_readv, [pid, 0, 0]),
        (libc::SYS_process_vm_writev, [pid, 0, 0]),
        // BPF_PROG_LOAD, BPF_MAP_CREATE
        (libc::SYS_bpf, [5, 0, 0]),
        (libc::SYS_bpf, [0, 0, 0]),
        (libc::SYS_perf_event_open, [0, pid, u64::MAX]),
        (libc::SYS_pidfd_getfd, [0, 0, 0]),
        (libc::SYS_fork, [0; 3]),
        // A process, by the call that makes threads.
        (libc::SYS_clone, [17, 0, 0]),
        (libc::SYS_unshare, [0x1000_0000, 0, 0]),
        (libc::SYS_io_uring_setup, [1, 0, 0]),
        (libc::SYS_setns, [0; 3]),
    ]
}

/// No thread of the collector has a capability; its one child, the launcher, has.
fn has_no_rights(own: u32) {
    for field in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
        for (name, value) in of_threads(own, field) {
            assert_eq!(u64::from_str_radix(&value, 16), Ok(0), "{field} of {name}");
        }
    }
    for (field, expected) in [("NoNewPrivs", "1"), ("Seccomp", "2")] {
        for (name, value) in of_threads(own, field) {
            assert_eq!(value, expected, "{field} of {name}");
        }
    }
    // The rights are its one child's.
    let launcher = children(own);
    assert_eq!(launcher.len(), 1, "{launcher:?}");
    let (name, rights) = of_threads(launcher[0], "CapEff").swap_remove(0);
    assert_eq!(name, "kvmprof-launch");
    assert_ne!(u64::from_str_radix(&rights, 16), Ok(0));
}

/// Before, the process that speaks to the network had the rights to trace any process and to read the host kernel's data.
#[test]
fn a_collector_that_is_taken_over_has_no_rights_and_leads_nowhere() {
    on_kvm_with_collector(|| {
        let machine = machine();
        let fleet = Fleet::new(&[]);
        let (address, pid) = (free_port(), process::id());
        let lake = fleet.path("lake");
        fleet.configure(&format!(
            "metrics.listen = '{address}'\nattach.guests = ['{pid}']\n[[sink]]\nname = 'lake'\ntype = 'parquet'\nseconds = 1\nfolder = '{}'\n",
            lake.display()
        ));
        let collector = Running(fleet.start());
        until("there are windows", || {
            (all_windows(&get(&address)?) > 1).then_some(())
        });
        fleet.until_delivered("lake", 1);
        let own = collector.0.id();
        has_no_rights(own);
        let memory = path_of(format!("/proc/{pid}/mem"));
        let configuration = path_of(fleet.path("collect.toml"));
        let names = ["guest", "sink", "metrics", "launcher", "kvmprof-collect"];
        let stopped = names.map(|name| (name, StoppedThread::stop(own, name)));
        for (name, thread) in &stopped {
            for (call, arguments) in tries(pid.into()) {
                let answer = thread.call(call, arguments);
                assert_eq!(answer, Err(Errno::PERM), "{name} {call}");
            }
            assert_eq!(thread.execute(c"/bin/true"), Err(Errno::PERM), "{name}");
            assert!(thread.open(&memory).is_err(), "{name}");
        }
        if has_landlock() {
            for (name, thread) in &stopped {
                // The rules of the launcher, which are root's, as is this process.
                assert_eq!(
                    thread.open_to_write(&configuration),
                    Err(Errno::ACCESS),
                    "{name}"
                );
            }
        } else {
            not_run("this host's kernel has no Landlock");
        }
        kill_process(Pid::from_child(&collector.0), Signal::KILL).unwrap();
        drop((stopped, collector));
        until_let_go();
        machine.stop();
    });
}

fn path_of(path: impl AsRef<Path>) -> CString {
    CString::new(path.as_ref().as_os_str().as_bytes()).unwrap()
}

/// Whether this host's kernel has Landlock.
fn has_landlock() -> bool {
    const VERSION: u32 = 1;
    // SAFETY: the call gets no attributes, and answers with a number.
    unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0,
            VERSION,
        ) > 0
    }
}
