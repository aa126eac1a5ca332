//! The capabilities that `kvmprof attach` needs, and messages that name the missing one; and those of `--clock
//! kernel`.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use kvmprof_client::Connection;
use kvmprof_tests::Capability::{Bpf, DacOverride, DacReadSearch, Perfmon, SysAdmin, SysPtrace};
use kvmprof_tests::{
    Boot, Capability, NOBODY, Ran, as_nobody_with, as_root_with, is_kernel_clock_for_demo,
    is_perfmon_enough, kvmprof, on_kvm, recorded, run, run_command, until, with_seccomp_filter,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const CAPTURES: [&str; 2] = ["ptrace", "kernel"];

/// A folder for all users, with the program in it and the files that it uses.
struct ProgramFolder(TempDir);

impl ProgramFolder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        let place = Self(folder);
        fs::copy(kvmprof(), place.file("kvmprof")).unwrap();
        fs::write(place.file("kernel"), Boot::Demo.image().elf()).unwrap();
        for (name, mode) in [("kvmprof", 0o755), ("kernel", 0o644)] {
            fs::set_permissions(place.file(name), Permissions::from_mode(mode)).unwrap();
        }
        place
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs the program as user nobody with these capabilities.
    fn program(&self, capabilities: &'static [Capability]) -> Command {
        let mut command = Command::new(self.file("kvmprof"));
        as_nobody_with(&mut command, capabilities);
        command
    }

    /// Has `command` run a guest, like a VMM without system call filters.
    fn run(&self, mut command: Command) -> Running {
        let socket = self.file("vmm");
        command
            .args(["run", "--memory", "64M", "--console", "none"])
            .args(["--sandbox", "off", "--kernel"])
            .arg(self.file("kernel"))
            .arg("--socket")
            .arg(&socket);
        Running::start(&mut command, &socket, self.file("vmm.stderr"))
    }

    /// Runs `kvmprof attach` to process `pid` as user nobody with these capabilities.
    fn attach(&self, pid: u32, capture: &str, capabilities: &'static [Capability]) -> Command {
        let mut command = self.program(capabilities);
        command
            .args(["attach", &pid.to_string(), "--capture", capture, "--kernel"])
            .arg(self.file("kernel"))
            .arg("--socket")
            .arg(self.file("attached"))
            .arg("--record")
            .arg(self.file("recording"));
        command
    }

    /// Attaches as user nobody with these capabilities, and checks that samples arrive.
    fn attaches(&self, pid: u32, capture: &str, capabilities: &'static [Capability]) {
        let mut command = self.attach(pid, capture, capabilities);
        let socket = self.file("attached");
        let attached = Running::start(&mut command, &socket, self.file("attached.stderr"));
        let written = || fs::metadata(self.file("recording")).map_or(0, |file| file.len());
        let before = written();
        until("something is recorded", || {
            (written() > before + 512).then_some(())
        });
        attached.stop();
        let (samples, contents) = recorded(&self.file("recording"));
        assert!(!samples.is_empty(), "{capture}: {:?}", contents.account);
        fs::remove_file(self.file("recording")).unwrap();
    }

    /// The same fails, and the message names the missing one.
    fn is_refused(
        &self,
        pid: u32,
        capture: &str,
        capabilities: &'static [Capability],
        missing: &str,
    ) {
        let ran: Ran = run_command(&mut self.attach(pid, capture, capabilities));
        let lacks = format!("lacks {missing};");
        ran.assert_refused(1, &[&lacks]);
    }
}

/// A kvmprof whose socket answers, which is killed when this is dropped.
struct Running {
    child: Child,
    stderr: PathBuf,
}

impl Running {
    fn start(command: &mut Command, socket: &Path, stderr: PathBuf) -> Self {
        let child = command
            .stdin(Stdio::null())
            .stderr(File::create(&stderr).unwrap())
            .spawn()
            .unwrap();
        let mut running = Self { child, stderr };
        until("the socket answers", || {
            if let Some(status) = running.child.try_wait().unwrap() {
                panic!("{command:?} has ended: {status}, {}", running.said());
            }
            // Root has to be told to trust another user's program.
            Connection::connect_to(socket, Some(NOBODY)).ok()
        });
        running
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap()
    }

    fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let status = until("it ends", || self.child.try_wait().unwrap());
        assert!(status.success(), "{status} {}", self.said());
        assert_eq!(self.said(), "");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended, and been waited for, already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The VMM has a capability that kvmprof hasn't, so that the same user doesn't suffice.
#[test]
fn three_capabilities_suffice_for_guests_of_the_same_user() {
    on_kvm(|| {
        if !is_perfmon_enough() {
            return;
        }
        let place = ProgramFolder::new();
        // /dev/kvm is root's on some hosts.
        let vmm = place.run(place.program(&[DacOverride]));
        for capture in CAPTURES {
            place.attaches(vmm.pid(), capture, &[SysPtrace, Perfmon, Bpf]);
            let lacks: [(&[Capability], &str); 4] = [
                (&[Perfmon, Bpf], "CAP_SYS_PTRACE"),
                (&[SysPtrace, Bpf], "CAP_PERFMON"),
                (&[SysPtrace, Perfmon], "CAP_BPF"),
                (&[], "CAP_PERFMON and CAP_BPF"),
            ];
            for (capabilities, missing) in lacks {
                place.is_refused(vmm.pid(), capture, capabilities, missing);
            }
        }
        // It has reported that it may not use perf itself.
        drop(vmm);
    });
}

#[test]
fn guests_of_other_users_need_a_fourth_capability() {
    on_kvm(|| {
        if !is_perfmon_enough() {
            return;
        }
        let place = ProgramFolder::new();
        let vmm = place.run(Command::new(kvmprof()));
        for capture in CAPTURES {
            place.attaches(
                vmm.pid(),
                capture,
                &[SysPtrace, Perfmon, Bpf, DacReadSearch],
            );
            let lacks: [(&[Capability], &str); 3] = [
                (&[SysPtrace, Perfmon, Bpf], "CAP_DAC_READ_SEARCH"),
                (&[DacReadSearch, Perfmon, Bpf], "CAP_SYS_PTRACE"),
                (&[Perfmon, Bpf], "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"),
            ];
            for (capabilities, missing) in lacks {
                place.is_refused(vmm.pid(), capture, capabilities, missing);
            }
        }
        vmm.stop();
    });
}

/// With `--clock kernel`, which traces nothing. Root without other capabilities may open root's files, such as
/// /dev/kvm.
#[test]
fn two_capabilities_suffice_for_ones_own_guest() {
    on_kvm(|| {
        if !is_kernel_clock_for_demo() || !is_perfmon_enough() {
            return;
        }
        let place = ProgramFolder::new();
        let mut command = Command::new(kvmprof());
        as_root_with(&mut command, &[Perfmon, Bpf]);
        let (socket, recording) = (place.file("own"), place.file("recording"));
        command
            .args(["run", "--memory", "64M", "--console", "none"])
            .args(["--clock", "kernel", "--hz", "1000", "--kernel"])
            .arg(place.file("kernel"))
            .arg("--record")
            .arg(&recording)
            .arg("--socket")
            .arg(&socket);
        let mut guest = Running::start(&mut command, &socket, place.file("own.stderr"));
        until("the host's kernel samples", || {
            let ran = run(["status", "--json", "--socket", socket.to_str().unwrap()]);
            let status: Value = serde_json::from_str(&ran.stdout).unwrap();
            let clock = &status["clock"];
            let sampled = clock["ledger"]["sampled"].as_u64().unwrap();
            (clock["source"] == "kernel" && sampled >= 200).then_some(())
        });
        kill_process(Pid::from_child(&guest.child), Signal::TERM).unwrap();
        let status = guest.child.wait().unwrap();
        assert!(status.success(), "{status} {}", guest.said());
        let (samples, contents) = recorded(&recording);
        assert!(samples.len() >= 200, "{:?}", contents.account);
        assert_eq!(contents.closed, Some(contents.account));
    });
}

/// By ptrace, and initially by eBPF, too.
#[test]
fn a_seccomp_filter_needs_one_more_capability() {
    on_kvm(|| {
        if !is_perfmon_enough() {
            return;
        }
        let place = ProgramFolder::new();
        let mut vmm = Command::new(kvmprof());
        with_seccomp_filter(&mut vmm);
        let vmm = place.run(vmm);
        for capture in CAPTURES {
            let enough = &[SysPtrace, Perfmon, Bpf, DacReadSearch, SysAdmin];
            place.attaches(vmm.pid(), capture, enough);
            let without = &enough[..4];
            let ran: Ran = run_command(&mut place.attach(vmm.pid(), capture, without));
            ran.assert_refused(1, &["CAP_SYS_ADMIN", "seccomp"]);
        }
        vmm.stop();
    });
}
