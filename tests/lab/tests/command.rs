//! `cargo lab` as a person uses it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

fn lab() -> Command {
    Command::new(env!("CARGO_BIN_EXE_kvmprof-lab"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn output(arguments: &[&str]) -> Output {
    lab().args(arguments).output().unwrap()
}

#[test]
fn run_passes_everything_through() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("greeting");
    fs::write(&file, "good\r\nday").unwrap();
    let out = folder.path().join("out");
    let script = "cat /lab/greeting /in/greeting; echo bad >&2; cp /lab/greeting $LAB_OUT; exit 9";
    let ran = lab()
        .args(["run", "--memory", "1G", "--out"])
        .arg(&out)
        .arg("--add")
        .arg(&file)
        .arg("--add")
        .arg(format!("{}:/in/", file.display()))
        .args(["--", "sh", "-c", script])
        .output()
        .unwrap();
    assert_eq!(text(&ran.stderr), "bad\n");
    assert_eq!(text(&ran.stdout), "good\r\ndaygood\r\nday");
    assert_eq!(ran.status.code(), Some(9));
    assert_eq!(fs::read(out.join("greeting")).unwrap(), b"good\r\nday");
}

#[test]
fn an_unknown_command_is_127() {
    let ran = output(&["run", "--", "no-such-command"]);
    assert_eq!(ran.status.code(), Some(127));
    assert!(text(&ran.stderr).contains("no-such-command: not found"));
}

#[test]
fn the_time_limit_is_124() {
    let ran = output(&["run", "--timeout", "1", "--", "sleep", "1000"]);
    assert_eq!(ran.status.code(), Some(124));
    let said = text(&ran.stderr);
    assert!(said.starts_with("lab: The time was up"), "{said}");
}

#[test]
fn faults_before_the_start_are_125_and_one_line() {
    let text_file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let cases: [(&[&str], &str); 4] = [
        (
            &["--kernel", "/nonexistent/vmlinuz"],
            "Cannot read /nonexistent/vmlinuz",
        ),
        (&["--kernel", text_file], "is no Linux kernel for x86"),
        (
            &["--add", "/nonexistent/file"],
            "Cannot read /nonexistent/file",
        ),
        (&["--cpus", "0"], "out of range: 1 to 64"),
    ];
    for (arguments, expected) in cases {
        let mut all = vec!["run"];
        all.extend(arguments);
        all.extend(["--", "true"]);
        let ran = output(&all);
        let said = text(&ran.stderr);
        assert!(said.contains(expected), "{arguments:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
        assert_eq!(ran.status.code(), Some(125), "{arguments:?}");
    }
}

#[test]
fn a_kernel_without_its_end_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("vmlinuz");
    let whole = fs::read(&kvmprof_lab::kernels().unwrap()[0].image).unwrap();
    fs::write(&image, &whole[..whole.len() / 2]).unwrap();
    for action in [&["linux"][..], &["run", "--", "true"]] {
        let ran = lab()
            .arg(action[0])
            .arg("--kernel")
            .arg(&image)
            .args(&action[1..])
            .output()
            .unwrap();
        let said = text(&ran.stderr);
        assert!(said.contains("is cut short"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert_eq!(ran.status.code(), Some(125));
    }
}

#[test]
fn the_error_without_qemu_names_the_packages() {
    let cache = kvmprof_lab::cache_folder().unwrap();
    kvmprof_lab::fetch().unwrap();
    let ran = lab()
        .args(["run", "--", "true"])
        .env("PATH", "/nonexistent")
        .env("KVMPROF_CACHE", cache)
        .output()
        .unwrap();
    let said = text(&ran.stderr);
    assert!(said.contains("apt-get install qemu-system-x86"), "{said}");
    assert_eq!(ran.status.code(), Some(125));
}

#[test]
fn output_is_live_and_qemu_dies_with_the_lab() {
    let mut running = lab()
        .args(["run", "--", "sh", "-c", "echo up; sleep 1000"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(running.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "up\n");

    let id = running.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    let qemu: i32 = children.trim().parse().unwrap();
    let qemu = pidfd_open(Pid::from_raw(qemu).unwrap(), PidfdFlags::empty()).unwrap();
    kill_process(Pid::from_child(&running), Signal::KILL).unwrap();
    running.wait().unwrap();

    let limit = Timespec {
        tv_sec: 600,
        tv_nsec: 0,
    };
    let mut ended = [PollFd::new(&qemu, PollFlags::IN)];
    assert_eq!(poll(&mut ended, Some(&limit)).unwrap(), 1, "QEMU lives on");
}
