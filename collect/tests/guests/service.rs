//! The collector's systemd unit, started by a systemd of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use kvmprof_collect::spool::read_progress;
use kvmprof_tests::{
    Boot, Guest, Ran, kvmprof, not_run, on_kvm_with_collector, run_command, until,
};

use super::{Fleet, parquet_rows, parquet_ticks};

const SYSTEMD: &str = "/lib/systemd/systemd";
const CONFIGURATION: &str = "\
window = 1
hz = 100
[metrics]
listen = '127.0.0.1:9477'
[[sink]]
name = 'lake'
type = 'parquet'
folder = '/var/lib/kvmprof-collect/parquet'
seconds = 2
";

/// A systemd in namespaces of its own, which ends when this is dropped.
struct Host {
    unshare: Child,
    systemd: String,
}

impl Host {
    /// Starts it, with the sockets and the configuration in this folder, and its state in another. The error says why this host can't.
    fn start(sockets: &Path, state: &Path, root: &Path) -> Result<Self, String> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/guests/service.sh");
        let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/kvmprof-collect");
        let mut unshare = Command::new("unshare")
            .args([
                "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--net", "--fork",
            ])
            .args(["--kill-child", "sh"])
            .arg(script)
            .args([
                kvmprof().parent().unwrap(),
                &packaging,
                sockets,
                state,
                root,
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(state.join("stderr")).unwrap())
            .spawn()
            .unwrap();
        let ready = state.join("ready");
        let ended = until("systemd runs, or can't", || {
            let ended = unshare.try_wait().unwrap().is_some();
            (ended || ready.exists()).then_some(ended)
        });
        if ended {
            return Err(fs::read_to_string(state.join("stderr")).unwrap());
        }
        let pid = unshare.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        Ok(Self {
            unshare,
            systemd: children.trim().to_owned(),
        })
    }

    /// Runs a program in the same namespaces, outside of the service's sandbox.
    fn run(&self, words: &[&str]) -> Ran {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.systemd, "--all"]);
        run_command(command.args(words))
    }

    /// Starts a program there, which ends with this.
    fn spawn(&self, words: &[&str]) -> Child {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.systemd, "--all"]);
        command.args(words).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    }

    fn systemctl(&self, words: &[&str]) -> Ran {
        self.of_unit("kvmprof-collect", words)
    }

    fn of_unit(&self, unit: &str, words: &[&str]) -> Ran {
        self.run(&[&["systemctl"], words, &[unit]].concat())
    }

    /// The effective capabilities of a unit's process.
    fn rights(&self, unit: &str) -> u64 {
        let shown = self.of_unit(unit, &["show", "--property", "MainPID", "--value"]);
        let status = self.run(&["cat", &format!("/proc/{}/status", shown.stdout.trim())]);
        let mut lines = status.stdout.lines();
        let rights = lines.find_map(|line| line.strip_prefix("CapEff:"));
        let rights = rights.unwrap_or_else(|| panic!("{shown:?} {status:?}"));
        u64::from_str_radix(rights.trim(), 16).unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}

/// Sinks that would write where the unit's sandbox forbids it: to users' folders (ProtectHome), and to the system's (ProtectSystem).
const FORBIDDEN: [(&str, &str); 3] = [
    ("home", "/home/lake"),
    ("root", "/root/lake"),
    ("system", "/etc/lake"),
];

/// The sandbox refuses what root could do without it, and the sink reports that; other sinks are complete.
fn check_forbidden(host: &Host, state: &Path) {
    for (sink, folder) in FORBIDDEN {
        let progress = until("the sink has tried it", || {
            let progress = read_progress(&state.join("kvmprof-collect"), sink);
            let progress = progress.ok().flatten()?;
            (progress.retries + progress.delivered.windows > 0).then_some(progress)
        });
        assert_eq!(progress.delivered.windows, 0, "{folder}");
        assert_ne!(host.run(&["test", "-e", folder]).status, 0, "{folder}");
        // It exists, and belongs to root.
        let parent = Path::new(folder).parent().unwrap().to_str().unwrap();
        let made = format!("{parent}/made");
        assert_eq!(host.run(&["mkdir", &made]).status, 0, "{made}");
    }
}

/// In its sandbox the service collects, reloads its configuration, and ends in order.
#[test]
fn the_unit_runs_under_systemd() {
    if !rustix::process::geteuid().is_root() || !Path::new(SYSTEMD).exists() {
        return not_run("only root can start a systemd, where it is installed");
    }
    on_kvm_with_collector(|| {
        let guest = Guest::start(Boot::Demo, ["--hz", "100"]);
        let fleet = Fleet::new(&[]);
        let folders = ["sockets", "state", "root"].map(|name| fleet.path(name));
        folders
            .iter()
            .for_each(|folder| fs::create_dir(folder).unwrap());
        let [sockets, state, root] = &folders;
        fs::hard_link(guest.socket(), sockets.join("one.sock")).unwrap();
        let configuration = sockets.join("collect.toml");
        let forbidden = FORBIDDEN.map(|(sink, folder)| {
            format!(
                "[[sink]]\nname = '{sink}'\ntype = 'parquet'\nfolder = '{folder}'\nseconds = 1\n"
            )
        });
        let with_forbidden = format!("{CONFIGURATION}{}", forbidden.concat());
        fs::write(&configuration, with_forbidden).unwrap();
        let host = match Host::start(sockets, state, root) {
            Ok(host) => host,
            Err(why) => return not_run(&format!("no systemd in namespaces: {why}")),
        };
        let lake = state.join("kvmprof-collect/parquet");
        let until_there = |words: &str| {
            until("rows are there", || {
                let rows = if lake.exists() {
                    parquet_rows(&lake)
                } else {
                    Vec::new()
                };
                let mut rows = rows.iter().map(ToString::to_string);
                rows.any(|row| row.contains(words)).then_some(())
            });
        };
        until_there("weave");
        check_forbidden(&host, state);
        let labelled = format!("{CONFIGURATION}[labels]\nzone = 'north'\n");
        fs::write(&configuration, labelled).unwrap();
        let ran = host.systemctl(&["reload"]);
        assert_eq!((ran.status, ran.stderr.as_str()), (0, ""), "{ran:?}");
        until_there("north");
        ends_in_order(&host, "kvmprof-collect");
        let progress = read_progress(&state.join("kvmprof-collect"), "lake").unwrap();
        let progress = progress.unwrap();
        assert_eq!(parquet_ticks(&lake), progress.delivered.ticks);
        guest.stop();
    });
}

fn ends_in_order(host: &Host, unit: &str) {
    let ran = host.of_unit(unit, &["stop"]);
    assert_eq!((ran.status, ran.stderr.as_str()), (0, ""), "{ran:?}");
    let properties = ["show", "--property", "Result,ExecMainStatus,NRestarts"];
    let ran = host.of_unit(unit, &properties);
    let mut said: Vec<&str> = ran.stdout.lines().collect();
    said.sort_unstable();
    assert_eq!(
        said,
        ["ExecMainStatus=0", "NRestarts=0", "Result=success"],
        "{unit}"
    );
}

const ATTACHING: &str = "\
window = 1
hz = 100
[attach]
launcher = '/run/kvmprof-launcher/socket'
guests = ['vmm']
[[sink]]
name = 'lake'
type = 'parquet'
folder = '/var/lib/kvmprof-collect/parquet'
seconds = 2
";

/// Whether there is a guest of this name in a folder of Parquet files.
fn has_guest(lake: &Path, name: &str) -> bool {
    let entries = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let dates = entries(lake);
    let hosts = dates.iter().flat_map(|date| entries(date));
    let mut guests = hosts.flat_map(|host| entries(&host));
    guests.any(|guest| {
        guest
            .file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with(name)
    })
}

/// A guest of another VMM, by both units in their sandboxes: the launcher has the rights, and the collector none.
#[test]
fn the_units_attach_to_guests_under_systemd() {
    if !rustix::process::geteuid().is_root() || !Path::new(SYSTEMD).exists() {
        return not_run("only root can start a systemd, where it is installed");
    }
    on_kvm_with_collector(|| {
        let fleet = Fleet::new(&[]);
        let folders = ["sockets", "state", "root"].map(|name| fleet.path(name));
        folders
            .iter()
            .for_each(|folder| fs::create_dir(folder).unwrap());
        let [sockets, state, root] = &folders;
        fs::write(sockets.join("collect.toml"), ATTACHING).unwrap();
        let host = match Host::start(sockets, state, root) {
            Ok(host) => host,
            Err(why) => return not_run(&format!("no systemd in namespaces: {why}")),
        };
        let mut vmm = host.spawn(&[
            "vmm",
            "demo",
            "--seconds",
            "600",
            "--flamegraph",
            "/dev/null",
        ]);
        until("the launcher starts", || {
            (host.of_unit("kvmprof-launcher", &["start"]).status == 0).then_some(())
        });
        let lake = state.join("kvmprof-collect/parquet");
        until("the guest has rows", || {
            has_guest(&lake, "guest=vmm-").then_some(())
        });
        assert_eq!(host.rights("kvmprof-collect"), 0);
        assert_ne!(host.rights("kvmprof-launcher"), 0);
        ends_in_order(&host, "kvmprof-collect");
        ends_in_order(&host, "kvmprof-launcher");
        assert!(parquet_ticks(&lake) > 0);
        drop(host);
        vmm.wait().unwrap();
    });
}
