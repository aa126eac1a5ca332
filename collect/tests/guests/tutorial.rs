//! The tutorial for operators, with the demo guest: its first commands succeed, and its configuration is one.

use std::path::Path;
use std::process::{Command, Stdio};

use kvmprof_collect::config::Config;
use kvmprof_tests::{Boot, Guest, kvmprof, on_kvm_with_collector, run_command, with_own_run};

use super::demonstration::path;

const PAGE: &str = include_str!("../../../docs/tutorials/operator.md");

/// The shell, in which only guests whose sockets are in this folder have names.
fn shell(line: &str, folder: &Path) -> Command {
    let mut command = Command::new("sh");
    with_own_run(&mut command, folder);
    let programs = [kvmprof().parent().unwrap().to_owned()];
    let path = path();
    let all = programs.into_iter().chain(std::env::split_paths(&path));
    command
        .args(["-ec", line])
        .env("PATH", std::env::join_paths(all).unwrap())
        .env_remove("KVMPROF_SOCKET")
        .current_dir(folder)
        .stdin(Stdio::null());
    command
}

#[test]
fn the_first_commands_of_the_tutorial_work() {
    on_kvm_with_collector(|| {
        let lines = PAGE.lines().filter_map(|line| line.strip_prefix("    $ "));
        let is_query =
            |line: &&str| line.starts_with("export ") || line.starts_with("kvmprof query ");
        let lines: Vec<&str> = lines.filter(|line| !is_query(line)).collect();
        assert_eq!(lines.len(), 3, "{lines:?}");
        let guest = Guest::start(Boot::Demo, ["--hz", "100"]);
        let folder = tempfile::tempdir().unwrap();
        let sockets = folder.path().join("kvmprof");
        std::fs::create_dir(&sockets).unwrap();
        std::os::unix::fs::symlink(guest.socket(), sockets.join("one")).unwrap();
        for line in lines {
            let ran = run_command(&mut shell(line, folder.path()));
            println!("{line}: {}", ran.stdout);
            assert_eq!(ran.status, 0, "{line}: {ran:?}");
        }
        guest.stop();
    });
}

/// It is that of the section on the service.
#[test]
fn the_configuration_of_the_tutorial_is_valid() {
    let (_, text) = PAGE
        .split_once("choose what is followed, and where it goes:")
        .unwrap();
    let (text, _) = text.split_once("The collector has no rights").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("collect.toml");
    std::fs::write(&path, text.replace("\n    ", "\n")).unwrap();
    let config = Config::read(&path).unwrap();
    config.check().unwrap();
    assert_eq!(config.attach.guests, ["*"]);
    assert_eq!(config.sink.len(), 1);
}
