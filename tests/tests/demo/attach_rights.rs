//! The capabilities that `kvmprof attach` needs, and messages that name the missing one; and those of `--clock
//! kernel`.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use kvmprof_client::Connection;
use kvmprof_tests::Capability::{Bpf, DacOverride, DacReadSearch, Perfmon, SysAdmin, SysPtrace};
use kvmprof_tests::{
    Boot, CAPTURES, Capability, NOBODY, as_nobody_with, as_root_with, is_kernel_clock_for_demo,
    is_perfmon_enough, kvmprof, on_kvm, recorded, run_command, signal, status_of, until,
    with_seccomp_filter,
};
use rustix::process::Signal;
use tempfile::TempDir;

/// Capabilities, and what is said if kvmprof has only these.
type Refusals = &'static [(&'static [Capability], &'static str)];

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

    /// Ends it, and checks that it has said nothing.
    fn stop(mut self) {
        signal(&self.child, Signal::TERM);
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

/// Which capabilities are enough for guests of the same user, whose VMM has one that kvmprof hasn't, of other users, and with a seccomp filter, by ptrace
/// and initially by eBPF, too; and what is said without some of them.
#[test]
fn the_capabilities_that_suffice_and_the_missing_ones_are_named() {
    on_kvm(|| {
        if !is_perfmon_enough() {
            return;
        }
        let place = ProgramFolder::new();
        let own = || Command::new(kvmprof());
        let filtered = || {
            let mut vmm = own();
            with_seccomp_filter(&mut vmm);
            vmm
        };
        let enough = &[SysPtrace, Perfmon, Bpf, DacReadSearch, SysAdmin];
        let of_user: Refusals = &[
            (&[Perfmon, Bpf], "lacks CAP_SYS_PTRACE;"),
            (&[SysPtrace, Bpf], "lacks CAP_PERFMON;"),
            (&[SysPtrace, Perfmon], "lacks CAP_BPF;"),
            (&[], "lacks CAP_PERFMON and CAP_BPF;"),
        ];
        let of_others: Refusals = &[
            (&[SysPtrace, Perfmon, Bpf], "lacks CAP_DAC_READ_SEARCH;"),
            (&[DacReadSearch, Perfmon, Bpf], "lacks CAP_SYS_PTRACE;"),
            (
                &[Perfmon, Bpf],
                "lacks CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH;",
            ),
        ];
        let of_filter: Refusals = &[(&[SysPtrace, Perfmon, Bpf, DacReadSearch], "CAP_SYS_ADMIN")];
        for (vmm, number, refusals) in [
            // /dev/kvm is root's on some hosts.
            (place.program(&[DacOverride]), 3, of_user),
            (own(), 4, of_others),
            (filtered(), 5, of_filter),
        ] {
            let vmm = place.run(vmm);
            for capture in CAPTURES {
                place.attaches(vmm.pid(), capture, &enough[..number]);
                for (capabilities, said) in refusals {
                    let mut attach = place.attach(vmm.pid(), capture, capabilities);
                    run_command(&mut attach).assert_refused(1, &[said]);
                }
            }
            // The first one has reported that it may not use perf itself.
            drop(vmm);
        }
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
        let guest = Running::start(&mut command, &socket, place.file("own.stderr"));
        until("the host's kernel samples", || {
            let clock = status_of(&Connection::connect(&socket).unwrap()).clock;
            (clock.source == "kernel" && clock.ledger.sampled >= 200).then_some(())
        });
        guest.stop();
        let (samples, contents) = recorded(&recording);
        assert!(samples.len() >= 200, "{:?}", contents.account);
        assert_eq!(contents.closed, Some(contents.account));
    });
}
