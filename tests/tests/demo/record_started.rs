//! `kvmprof record --kernel`: a guest is started, recorded and shown by one command; and `kvmprof view`.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use kvmprof_recording::file::{Contents, Recording};
use kvmprof_tests::{
    Boot, Ran, Terminal, clocks_for_demo, kvmprof, on_kvm, recorded, run, run_command, until,
    write_kernel,
};
use rustix::process::{Pid, Signal, test_kill_process};
use tempfile::TempDir;

use super::jail::children;

/// A folder with a guest's kernel.
struct KernelFolder {
    folder: TempDir,
    kernel: PathBuf,
    boot: Boot<'static>,
}

impl KernelFolder {
    fn of(boot: Boot<'static>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let kernel = write_kernel(boot, folder.path());
        Self {
            folder,
            kernel,
            boot,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A command of kvmprof, `record` or `boot`, in this folder, with further options.
    fn command_of<S: AsRef<OsStr>>(
        &self,
        name: &str,
        options: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut command = Command::new(kvmprof());
        command
            .current_dir(self.folder.path())
            .args([name, "--memory", "64M", "--kernel"])
            .arg(&self.kernel)
            .args(["--cmdline", self.boot.command_line()])
            .args(options)
            .stdin(Stdio::null());
        command
    }

    fn command<'a>(&self, options: impl IntoIterator<Item = &'a str>) -> Command {
        self.command_of("record", ["--hz", "500"].into_iter().chain(options))
    }

    fn record<'a>(&self, options: impl IntoIterator<Item = &'a str>) -> Ran {
        run_command(&mut self.command(options))
    }

    /// Records for a second without a console.
    fn record_a_second(&self, options: &[&str]) -> String {
        let words = ["--console", "none", "--seconds", "1"];
        self.record(words.iter().chain(options).copied()).quiet()
    }

    /// Starts a recording without an end, and waits until something was recorded.
    fn start(&self) -> Child {
        let mut command = self.command(["--console", "none"]);
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = self.path("out.kvmprof");
        until("something is recorded", || output.exists().then_some(()));
        child
    }
}

/// The contents of a closed recording.
fn whole(path: &Path) -> Contents {
    let (samples, contents) = recorded(path);
    assert_eq!(contents.closed, Some(contents.account));
    assert!(!samples.is_empty());
    contents
}

#[test]
fn a_guest_is_started_recorded_and_shown() {
    on_kvm(|| {
        let place = KernelFolder::of(Boot::Demo);
        let output = place.record_a_second(&["--html", "page.html"]);
        let contents = whole(&place.path("out.kvmprof"));
        let samples = contents.account.samples;
        let said = format!("out.kvmprof: {samples} samples, ");
        assert!(output.starts_with(&said), "{output}");
        assert!(output.ends_with("\npage: page.html\n"), "{output}");
        // It has the guest's own functions.
        let page = fs::read_to_string(place.path("page.html")).unwrap();
        assert!(page.starts_with("<!DOCTYPE html>") && page.contains("turn_wheel"));
        view(&place, &page);
    });
}

/// On a terminal, where all other keys are the guest's.
#[test]
fn the_interrupt_key_ends_the_recording() {
    on_kvm(|| {
        let place = KernelFolder::of(Boot::Demo);
        let mut terminal = Terminal::open(100, 24);
        let mut child = terminal.start(&mut place.command([]));
        let output = place.path("out.kvmprof");
        until("something is recorded", || {
            terminal.catch_up();
            (has_samples(&output) && terminal.is_raw()).then_some(())
        });
        // Neither of the first two keys stops or ends a program.
        terminal.press("\x1a\x1c\x03");
        terminal.until_shown("out.kvmprof: ", &mut child);
        assert!(child.wait().unwrap().success());
        assert!(!terminal.is_raw());
        whole(&output);
    });
}

/// Whether the recording that is being written has samples.
fn has_samples(path: &Path) -> bool {
    let mut has_samples = false;
    let read = Recording::open(path)
        .and_then(|recording| recording.read(|ticks, _| has_samples |= ticks.sample.is_some()));
    read.is_ok() && has_samples
}

/// A second recording of the same name doesn't replace the first one's content, even if the writing process is contained.
#[test]
fn an_older_recording_is_kept_under_another_name() {
    on_kvm(|| {
        let place = KernelFolder::of(Boot::Demo);
        let record = || {
            place.record_a_second(&[]);
            whole(&place.path("out.kvmprof"));
            fs::read(place.path("out.kvmprof")).unwrap()
        };
        let first = record();
        assert!(!place.path("out.kvmprof.old").exists());
        let second = record();
        let older = fs::read(place.path("out.kvmprof.old")).unwrap();
        assert!(older == first && second != first);
    });
}

/// Without a desktop environment the opener of pages runs as long as the browser.
#[test]
fn the_page_is_opened_without_waiting_for_the_browser() {
    on_kvm(|| {
        let place = KernelFolder::of(Boot::Demo);
        let opener = place.path("xdg-open");
        let script = "#!/bin/sh\necho \"$$ $*\" >opened.new\nmv opened.new opened\nwhile [ -e xdg-open ]; do sleep 0.1; done\n";
        fs::write(&opener, script).unwrap();
        fs::set_permissions(&opener, Permissions::from_mode(0o755)).unwrap();
        let folders = std::env::var("PATH").unwrap();
        let mut command = place.command(["--console", "none", "--seconds", "1", "--open"]);
        let folders = format!("{}:{folders}", place.folder.path().display());
        command.env("PATH", folders);
        let output = run_command(&mut command).quiet();
        assert!(output.ends_with("\npage: out.html\n"), "{output}");
        let opened = until("the page is opened", || {
            fs::read_to_string(place.path("opened")).ok()
        });
        let (pid, page) = opened.trim().split_once(' ').unwrap();
        assert_eq!(page, "out.html");
        let page = fs::read_to_string(place.path(page)).unwrap();
        assert!(page.starts_with("<!DOCTYPE html>") && page.contains("turn_wheel"));
        let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
        test_kill_process(pid).unwrap();
        fs::remove_file(opener).unwrap();
        until("it ends", || test_kill_process(pid).is_err().then_some(()));
    });
}

/// Has the recording served, and requests it like a browser.
fn view(place: &KernelFolder, page: &str) {
    let mut view = Command::new(kvmprof())
        .current_dir(place.folder.path())
        .args(["view", "--no-open"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(view.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("page: http://").unwrap();
    let (host, path) = address.split_at(address.find('/').unwrap());
    let get = |path: &str| {
        let mut stream = TcpStream::connect(host).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = get(path);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert_eq!(body, page);
    assert!(get("/").starts_with("HTTP/1.1 404 "));
    kvmprof_tests::signal(&view, Signal::INT);
    let ended = until("the command ends", || view.try_wait().unwrap());
    assert!(ended.success(), "{ended}");
}

/// A guest that writes `flushed 80` on its console, with its disk.
fn flushing() -> KernelFolder {
    let place = KernelFolder::of(Boot::Test("workload=disk-writes"));
    let disk = File::create(place.path("disk")).unwrap();
    disk.set_len(1 << 20).unwrap();
    place
}

#[test]
fn a_guest_ends_at_a_text_on_its_console() {
    on_kvm(|| {
        let place = flushing();
        let output = place
            .record(["--disk", "disk", "--until", "flushed 80"])
            .quiet();
        assert!(output.contains("flushed 80"), "{output}");
        whole(&place.path("out.kvmprof"));
    });
}

/// By a signal it says what it has recorded.
#[test]
fn a_guest_ends_with_the_command_and_the_recording_is_whole() {
    on_kvm(|| {
        for is_killed in [false, true] {
            let place = KernelFolder::of(Boot::Demo);
            let mut command = place.start();
            let guest = Pid::from_raw(children(command.id())[0].cast_signed()).unwrap();
            if is_killed {
                command.kill().unwrap();
                command.wait().unwrap();
                until("the guest's process ends", || {
                    test_kill_process(guest).is_err().then_some(())
                });
                whole(&place.path("out.kvmprof"));
            } else {
                let ran = kvmprof_tests::interrupt(command);
                assert_eq!(ran.status, 0, "{ran:?}");
                let samples = whole(&place.path("out.kvmprof")).account.samples;
                let said = format!("out.kvmprof: {samples} samples, ");
                assert!(ran.stdout.starts_with(&said), "{ran:?}");
            }
        }
    });
}

#[test]
fn a_guest_that_cannot_start_leaves_an_older_recording() {
    on_kvm(|| {
        let place = KernelFolder::of(Boot::Demo);
        fs::write(place.path("out.kvmprof"), "older").unwrap();
        fs::write(&place.kernel, "no kernel").unwrap();
        let ran = place.record(["--html", "page.html"]);
        assert_eq!((ran.status, ran.stdout.as_str()), (1, ""), "{ran:?}");
        assert!(ran.stderr.contains("demo.elf"), "{ran:?}");
        assert_eq!(fs::read(place.path("out.kvmprof")).unwrap(), b"older");
        assert!(!place.path("page.html").exists());
        let missing = run(["view", "/nowhere/at-all"]);
        assert_eq!(missing.status, 1);
        assert!(missing.stderr.contains("/nowhere/at-all"), "{missing:?}");
    });
}

/// Missing initcalls would pass for ones that take no time. Their recordings have names that aren't those of boots.
#[test]
fn incomplete_boots_do_not_count() {
    on_kvm(|| {
        for (boot, options, status, why) in [
            (Boot::Demo, &["--until", "never said"][..], 1, "hasn't said"),
            (Boot::Test("workload=reboot"), &[], 1, "was reset"),
            (Boot::Test("workload=triple-fault"), &[], 3, "has failed"),
        ] {
            let place = KernelFolder::of(boot);
            let words = ["--seconds", "1", "--runs", "2", "--output", "boots"];
            let words = words.iter().chain(options);
            let ran = run_command(&mut place.command_of("boot", words));
            assert_eq!((ran.status, ran.stdout.as_str()), (status, ""), "{ran:?}");
            for number in [1, 2] {
                let said = format!("Boot {number} doesn't count: ");
                let (_, said) = ran.stderr.split_once(&said).unwrap();
                let said = said.lines().next().unwrap();
                assert!(said.contains(why), "{why}: {ran:?}");
                let kept = format!("boots/boot-{number}.kvmprof.failed");
                assert!(
                    said.ends_with(&kept) && place.path(&kept).exists(),
                    "{ran:?}"
                );
                assert!(!place.path(&format!("boots/boot-{number}.kvmprof")).exists());
            }
            let none = "No boot has come to its end";
            assert!(ran.stderr.contains(none), "{ran:?}");
        }
    });
}

/// It isn't a boot of Linux, but its recording has the name of one.
#[test]
fn a_boot_with_the_text_on_its_console_counts() {
    on_kvm(|| {
        let place = flushing();
        for sandbox in ["on", "off"] {
            let words = ["--disk", "disk", "--until", "flushed 80"];
            let more = ["--sandbox", sandbox, "--output", sandbox];
            let words = words.into_iter().chain(more);
            let ran = run_command(&mut place.command_of("boot", words));
            let path = format!("{sandbox}/boot-1.kvmprof");
            let said = format!("kvmprof: {path}: There is no initcall of a Linux kernel");
            assert!(ran.status == 1 && ran.stderr.starts_with(&said), "{ran:?}");
            whole(&place.path(&path));
        }
    });
}

/// As in a container with its own clocks (time_namespaces(7)): the host's kernel, which takes the samples of `--clock kernel`, has others.
#[test]
fn samples_have_the_times_of_their_time_namespace() {
    if !rustix::process::geteuid().is_root() {
        return kvmprof_tests::not_run("only root can make a time namespace");
    }
    on_kvm(|| {
        for clock in clocks_for_demo() {
            let place = KernelFolder::of(Boot::Demo);
            let record = place.command(["--console", "none", "--clock", clock, "--seconds", "1"]);
            let mut inside = Command::new("unshare");
            inside.current_dir(place.folder.path()).stdin(Stdio::null());
            inside.args(["--time", "--monotonic", "100000", "--fork"]);
            inside.arg(record.get_program()).args(record.get_args());
            run_command(&mut inside).quiet();
            let (samples, contents) = recorded(&place.path("out.kvmprof"));
            let began = contents.info.began_monotonic_ns;
            for sample in &samples {
                let is_near = sample.time.abs_diff(began) < 50_000_000_000_000;
                assert!(is_near, "{clock}: {sample:?}, {began}");
            }
        }
    });
}
