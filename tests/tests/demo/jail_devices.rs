//! Guests in a jail with devices that have a peer on the host, and jails in the background.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use kvmprof_lab::virtiofsd;
use kvmprof_recording::status::Status;
use kvmprof_tests::{NOBODY, not_run, on_kvm, read_status, recorded, run_command, until};
use rustix::process::Signal;

use super::jail::{Jail, Place, child_named, children, mounts, name, path, signal};
use super::sandbox::until_sampled;

const FAILURE: i32 = 1;

fn status(socket: &Path) -> Status {
    let user = NOBODY.to_string();
    let mut command = Command::new(kvmprof_tests::kvmprof());
    command.args(["status", "--json", "--allow-owner", &user, "--socket"]);
    let ran = run_command(command.arg(socket));
    assert_eq!(ran.status, 0, "{ran:?}");
    read_status(ran.stdout)
}

/// The server of a folder, a child of the process that starts it, which is the jail's outside.
fn daemons(jail: &Jail) -> Vec<u32> {
    let helper = child_named(jail.outside.id(), "kvmprof-share");
    children(helper.expect("what starts virtiofsd"))
}

/// virtiofsd is outside; the jail has neither the folder nor the program, and none of their files is left.
#[test]
fn folders_are_served_from_outside() {
    on_kvm(|| {
        // QEMU's needs a folder for its own root.
        let program = virtiofsd();
        if !program.exists() {
            return not_run("this host has no virtiofsd");
        }
        let place = Place::new();
        let shared = place.file("shared");
        fs::create_dir(&shared).unwrap();
        let share = format!("{}=work,readonly", shared.display());
        let options = ["--share", &share, "--virtiofsd", path(&program)];
        for is_killed in [false, true] {
            let before = mounts();
            let mut jail = place.start(&[], &options);
            jail.until_contained();
            until_sampled(&place.file("jail/socket"));
            let folder = &status(&place.file("jail/socket")).machine.folders[0];
            assert_eq!(folder.state, "waiting", "{folder:?}");
            let daemons = daemons(&jail);
            assert!(!daemons.is_empty());
            for pid in &daemons {
                // A process in the jail could find it by its pid.
                let own = fs::read_link("/proc/self/ns/pid").unwrap();
                assert_eq!(fs::read_link(format!("/proc/{pid}/ns/pid")).unwrap(), own);
            }
            let seen = jail.names(path(place.0.path()).trim_start_matches('/'));
            assert!(!seen.contains("shared"), "{seen:?}");
            match is_killed {
                true => drop(jail.kill(jail.outside.id())),
                false => jail.end(),
            }
            until("virtiofsd has ended", || {
                let is_over = |pid: &u32| !name(*pid).contains("virtiofsd");
                daemons.iter().all(is_over).then_some(())
            });
            assert_eq!(mounts(), before);
        }
    });
}

/// Its socket is in the jail's folder, and belongs to the user.
#[test]
fn a_jail_has_a_socket_device() {
    on_kvm(|| {
        let place = Place::new();
        let socket = place.file("jail/vsock");
        let device = format!("3,socket={}", socket.display());
        let jail = place.start(&[], &["--vsock", &device]);
        jail.until_contained();
        assert_eq!(fs::symlink_metadata(&socket).unwrap().uid(), NOBODY);
        assert!(UnixStream::connect(&socket).is_ok());
        jail.end();
        assert!(!socket.exists());
        let outside = place.file("vsock");
        let device = format!("3,socket={}", outside.display());
        let words = ["--vsock", "isn't in the jail"];
        place.is_refused(&[], &["--vsock", &device], 2, &words);
    });
}

/// A tap that is removed at the end of the test.
struct Tap(String);

impl Tap {
    /// A tap without an owner, if this host allows it.
    fn make() -> Option<Self> {
        let tap = Self(format!("kvmp{}", std::process::id()));
        let user = NOBODY.to_string();
        let made = ip(&["tuntap", "add", &tap.0, "mode", "tap", "user", &user]);
        made.then_some(tap)
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        ip(&["link", "del", &self.0]);
    }
}

fn ip(words: &[&str]) -> bool {
    let ran = Command::new("ip")
        .args(words)
        .stderr(Stdio::null())
        .status();
    ran.is_ok_and(|status| status.success())
}

/// Its tap is that of the named network namespace.
#[test]
fn a_jail_has_a_tap() {
    on_kvm(|| {
        let Some(tap) = Tap::make() else {
            return not_run("no tap can be made here (ip tuntap)");
        };
        let place = Place::new();
        let own = format!("/proc/{}/ns/net", std::process::id());
        let end_of_it = format!("tap={}", tap.0);
        let jail = place.start(&["--netns", &own], &["--net", &end_of_it]);
        jail.until_contained();
        assert!(jail.names("dev").contains("net"));
        let networks = status(&place.file("jail/socket")).machine.networks;
        assert_eq!(networks[0].peer, end_of_it);
        jail.end();
        // A separate namespace has none.
        place.is_refused(&[], &["--net", &end_of_it], FAILURE, &[&tap.0]);
    });
}

/// The command ends, its jail continues, and ends by a signal to the process that it has named.
#[test]
fn a_jail_can_run_in_the_background() {
    on_kvm(|| {
        let place = Place::new();
        // Before there is a jail the command waits, and reports errors.
        let nowhere = ["--daemonize", "--netns", "kvmprof-none"];
        place.is_refused(&nowhere, &[], FAILURE, &["kvmprof-none", "ip netns add"]);
        let (socket, recording) = (place.file("jail/socket"), place.file("jail/recording"));
        let files = ["--socket", path(&socket), "--record", path(&recording)];
        let mut command = place.command(&["--daemonize"], &files);
        // Its standard error is kept if it isn't a terminal: a pipe for it would never be closed.
        let ran = run_command(command.stdout(Stdio::piped()).stderr(Stdio::null()));
        assert_eq!(ran.status, 0, "{ran:?}");
        let outside: u32 = ran.stdout.trim().parse().unwrap();
        until_sampled(&socket);
        // It has a session of its own, and no input.
        let stat = fs::read_to_string(format!("/proc/{outside}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        assert_eq!(fields[3], outside.to_string(), "{stat}");
        let input = fs::read_link(format!("/proc/{outside}/fd/0")).unwrap();
        assert_eq!(input, Path::new("/dev/null"));
        signal(outside, Signal::TERM);
        until("the process outside has ended", || {
            let is_over = fs::read_link(format!("/proc/{outside}/exe")).is_err();
            is_over.then_some(())
        });
        assert!(!recorded(&recording).0.is_empty());
    });
}
