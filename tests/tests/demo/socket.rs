//! The host socket of a running guest: which clients are accepted, and their effects on each other.

use std::fs::{self, Permissions, set_permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use kvmprof_abi::errno::Errno;
use kvmprof_abi::pcs::{PCS_GETHZ, PROF_ALL};
use kvmprof_abi::wire::{HEADER_LENGTH, device};
use kvmprof_client::{Connection, RemoteDevice};
use kvmprof_tests::raw_client::{self};
use kvmprof_tests::{
    Accounts, Boot, Guest, errno_of, kvmprof, on_kvm, run_command, until, with_own_run,
    write_kernel,
};
use rustix::process::{Pid, Signal, kill_process};

const NOBODY: u32 = 65_534;
/// As the wire's page says.
const CLIENTS: usize = 64;

fn guest() -> Guest {
    Guest::start(Boot::Demo, ["--hz", "1000"])
}

/// Even if the file's mode allows them.
#[test]
fn another_user_is_turned_away() {
    on_kvm(|| {
        if !rustix::process::geteuid().is_root() {
            return kvmprof_tests::not_run("only root can connect as another user");
        }
        let guest = guest();
        let program = guest.folder().join("kvmprof");
        fs::copy(kvmprof(), &program).unwrap();
        set_permissions(guest.folder(), Permissions::from_mode(0o755)).unwrap();
        let status = || {
            let mut command = Command::new(&program);
            command.args(["status", "--socket"]).arg(guest.socket());
            command.current_dir("/");
            command
        };
        let ran = run_command(status().uid(NOBODY).gid(NOBODY));
        ran.assert_refused(1, &["No permission"]);
        set_permissions(guest.socket(), Permissions::from_mode(0o666)).unwrap();
        let ran = run_command(status().uid(NOBODY).gid(NOBODY));
        ran.assert_refused(1, &["turned away", "wrong user"]);
        assert_eq!(run_command(&mut status()).status, 0);
        guest.signal(Signal::TERM);
    });
}

/// A connection for raw bytes.
fn raw(guest: &Guest) -> UnixStream {
    raw_client::connect(&guest.socket(), None).unwrap()
}

fn header(length: u32, kind: u16) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_LENGTH];
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes[8..10].copy_from_slice(&kind.to_le_bytes());
    bytes
}

#[test]
fn malformed_frames_end_their_connection_and_no_other() {
    on_kvm(|| {
        let guest = guest();
        let mut pcs = guest.open();
        pcs.ioctl(PROF_ALL, 0);
        for bytes in [
            header(u32::MAX, 4),
            header((4 << 20) + 5, 4),
            header(3, 2),
            header(0, 0),
            header(0, 99),
            header(0, 0x8008),
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
            vec![0xff; 100_000],
        ] {
            let mut stream = raw(&guest);
            // It may be closed before all of it was read.
            let _ = stream.write_all(&bytes);
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest);
            assert_eq!(rest, [0; 0]);
            pcs.read_available();
            assert_eq!(pcs.ioctl(PCS_GETHZ, 0), 1000);
        }
        pcs.read_ticks(300);
        pcs.stop();
        guest.signal(Signal::TERM);
    });
}

#[test]
fn many_clients_are_served_and_more_get_the_status() {
    on_kvm(|| {
        let guest = guest();
        let connections = (0..CLIENTS - 1).map(|_| guest.connect());
        let mut clients: Vec<(Connection, RemoteDevice)> = connections
            .map(|client| {
                let open = client.open(device::PROCESSES, 0).unwrap();
                (client, open)
            })
            .collect();
        let mut pcs = guest.open();
        // Any number of others, one after the other, can request the status, and nothing else.
        for _ in 0..10 {
            let other = guest.connect();
            Accounts::of(&other).check();
            let error = errno_of(other.open(device::PROCESSES, 0));
            assert_eq!(error, Errno::EMFILE);
            std::mem::forget(other);
        }
        pcs.ioctl(PROF_ALL, 0);
        for (client, _) in &clients {
            Accounts::of(client).check();
        }
        pcs.read_ticks(200);
        clients.truncate(1);
        until("there is room again", || {
            guest.connect().open(device::PROCESSES, 0).ok()
        });
        pcs.stop();
        guest.signal(Signal::TERM);
    });
}

/// Those that say nothing, and those that have said hello and use nothing, don't block others. The most recently active one stays longest.
#[test]
fn idle_clients_are_evicted_for_others() {
    on_kvm(|| {
        let guest = guest();
        let pcs = guest.open();
        let silent = || UnixStream::connect(guest.socket()).unwrap();
        let silent: Vec<UnixStream> = (0..3 * CLIENTS).map(|_| silent()).collect();
        let other = guest.connect();
        assert!(other.open(device::PROCESSES, 0).is_ok());
        assert_eq!(pcs.ioctl(PCS_GETHZ, 0), 1000);
        drop((silent, other));
        let idle: Vec<Connection> = (0..CLIENTS - 1).map(|_| guest.connect()).collect();
        let first = idle.first().unwrap();
        Accounts::of(first).check();
        for _ in 0..CLIENTS - 2 {
            let other = guest.connect();
            assert!(other.open(device::PROCESSES, 0).is_ok());
        }
        Accounts::of(first).check();
        assert_eq!(pcs.ioctl(PCS_GETHZ, 0), 1000);
        drop(idle);
        drop(pcs);
        guest.stop();
    });
}

/// Without a path on either side: the socket is in the user's own folder, and clients look there.
#[test]
fn a_named_guest_is_found() {
    on_kvm(|| {
        let folder = tempfile::tempdir().unwrap();
        let kernel = write_kernel(Boot::Demo, folder.path());
        let name = format!("test-{}", std::process::id());
        let mut command = Command::new(kvmprof());
        with_own_run(&mut command, folder.path());
        let mut guest = command
            .args([
                "run",
                "--memory",
                "64M",
                "--console",
                "none",
                "--cmdline",
                "",
            ])
            .args(["--name", &name, "--kernel"])
            .arg(&kernel)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let client = || {
            let mut command = Command::new(kvmprof());
            with_own_run(&mut command, folder.path());
            command.env_remove("KVMPROF_SOCKET");
            command
        };
        let status = || run_command(client().args(["status", "--json"]));
        let ran = until("the guest is found", || {
            let ran = status();
            (ran.status == 0).then_some(ran)
        });
        assert!(ran.stdout.contains("demo.elf"), "{ran:?}");
        // Any of its names leads to the same socket.
        let path = folder.path().join("kvmprof").join(format!("{name}.sock"));
        let path = match rustix::process::geteuid().is_root() {
            true => format!("/run/kvmprof/{name}.sock"),
            false => path.to_str().unwrap().to_owned(),
        };
        for target in [&name, &path] {
            let said = run_command(client().args(["status", target])).quiet();
            assert!(said.contains("demo.elf"), "{said}");
            run_command(client().args(["control", "info", target])).quiet();
        }
        run_command(client().args(["control", "info", "nobody"]))
            .assert_refused(1, &["no guest nobody"]);
        kill_process(Pid::from_child(&guest), Signal::TERM).unwrap();
        assert_eq!(guest.wait().unwrap().code(), Some(0));
        run_command(client().args(["control", "info"]))
            .assert_refused(2, &["--socket PATH", "--name"]);
    });
}
