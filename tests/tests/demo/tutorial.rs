//! The tutorial of performance engineers, with the demo guest: each of its commands succeeds.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use kvmprof_tests::{kvmprof, on_kvm, run_command, until, with_own_run};
use rustix::process::{Pid, Signal, kill_process};

const PAGE: &str = include_str!("../../../docs/tutorials/performance-engineer.md");

/// The program in `folder`, which has its sockets there, too.
fn command(program: &str, folder: &Path) -> Command {
    let mut command = Command::new(program);
    with_own_run(&mut command, folder);
    let own = kvmprof();
    let programs = own.parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    command
        .env("PATH", format!("{}:{path}", programs.display()))
        .env_remove("KVMPROF_SOCKET")
        .current_dir(folder)
        .stdin(Stdio::null());
    command
}

#[test]
fn the_commands_of_the_tutorial_work() {
    on_kvm(|| {
        let lines = PAGE.lines().filter_map(|line| line.strip_prefix("    $ "));
        let lines: Vec<&str> = lines.collect();
        assert!(lines.len() > 7, "{lines:?}");
        let folder = tempfile::tempdir().unwrap();
        let mut guest = command("kvmprof", folder.path());
        guest.args(["demo", "--name", "demo"]);
        let mut guest = guest.stderr(Stdio::null()).spawn().unwrap();
        until("the guest answers", || {
            let ran = run_command(command("kvmprof", folder.path()).arg("status"));
            (ran.status == 0).then_some(())
        });
        for line in lines {
            let ran = run_command(command("sh", folder.path()).args(["-ec", line]));
            assert_eq!(ran.status, 0, "{line}: {ran:?}");
        }
        let picture = fs::read_to_string(folder.path().join("out.svg")).unwrap();
        assert!(picture.contains("turn_wheel"));
        kill_process(Pid::from_child(&guest), Signal::TERM).unwrap();
        assert_eq!(guest.wait().unwrap().code(), Some(0));
    });
}
