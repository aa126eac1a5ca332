//! Commands with a guest of another VMM as their target: they attach to it themselves.

use std::fs::{self, File};
use std::io::Write;
use std::process::{self, Child, Command, Stdio};

use kvmprof_tests::{
    Boot, Machine, Ran, interrupt, kvmprof, on_kvm, recorded, run_command, until, with_own_run,
};
use tempfile::TempDir;

/// A guest in this process, and a folder for sockets with names.
struct Other {
    machine: Machine,
    folder: TempDir,
}

impl Other {
    fn start() -> Self {
        let machine = Machine::unwatched(Boot::Demo, 1);
        machine.truth();
        let folder = tempfile::tempdir().unwrap();
        Self { machine, folder }
    }

    /// A command for the guest.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(kvmprof());
        with_own_run(&mut command, self.folder.path());
        command
            .args(words)
            .arg(process::id().to_string())
            .env_remove("KVMPROF_SOCKET")
            // No browser is found.
            .env("PATH", self.folder.path())
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    /// Whether there is a socket of something that is attached.
    fn is_attached(&self) -> bool {
        let name = format!("attached-{}", process::id());
        self.folder.path().join("kvmprof").join(name).exists()
    }

    /// Waits until the guest has run some more.
    fn goes_on(&self) {
        let updates = || -> u64 {
            let vcpus = self.machine.truth().vcpus;
            vcpus.iter().map(|vcpu| vcpu.updates).sum()
        };
        let before = updates();
        until("the guest goes on", || (updates() > before).then_some(()));
    }

    fn spawn(&self, words: &[&str]) -> Child {
        let mut command = self.command(words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let output = self.folder.path().join("out.kvmprof");
        until("something is recorded", || output.exists().then_some(()));
        child
    }

    /// Checks the recording and what was said.
    fn check(&self, ran: &Ran) {
        assert_eq!(ran.status, 0, "{ran:?}");
        let said = format!(
            "kvmprof: attaching to the guest of process {} ",
            process::id()
        );
        assert!(ran.stderr.starts_with(&said), "{ran:?}");
        let (samples, contents) = recorded(&self.folder.path().join("out.kvmprof"));
        assert!(!samples.is_empty());
        assert_eq!(contents.closed, Some(contents.account));
        // What it has started has ended.
        assert!(!self.is_attached());
    }
}

/// A guest can be attached to only once. It goes on at the end, and its recording is opened as a page.
#[test]
fn commands_share_an_attachment() {
    on_kvm(|| {
        let other = Other::start();
        let ran = run_command(&mut other.command(&["status"]));
        assert_eq!(ran.status, 2, "{ran:?}");
        assert!(ran.stderr.contains("Nobody samples the guest"), "{ran:?}");
        let first = other.spawn(&["record", "--open"]);
        let said = run_command(&mut other.command(&["status"])).quiet();
        assert!(said.contains("recording, to a client"), "{said}");
        let ran = interrupt(first);
        other.check(&ran);
        assert!(ran.stderr.contains("xdg-open"), "{ran:?}");
        let page = fs::read_to_string(other.folder.path().join("out.html")).unwrap();
        assert!(page.contains("id=data>"), "{ran:?}");
        other.goes_on();
        other.machine.stop();
    });
}

/// What is in the file from before doesn't count.
#[test]
fn a_text_in_the_consoles_file_ends_it() {
    on_kvm(|| {
        let other = Other::start();
        let console = other.folder.path().join("console");
        fs::write(&console, "login:").unwrap();
        let words = ["record", "--until", "login:", "--console", "file:console"];
        let mut recording = other.spawn(&words);
        assert!(recording.try_wait().unwrap().is_none());
        let mut written = File::options().append(true).open(&console).unwrap();
        written.write_all(b"debian login: ").unwrap();
        other.check(&Ran::from(recording.wait_with_output().unwrap()));
        other.machine.stop();
    });
}

/// A killed command can't end what it has started, but that ends with it.
#[test]
fn a_killed_command_leaves_no_attachment() {
    on_kvm(|| {
        let other = Other::start();
        let mut recording = other.spawn(&["record"]);
        assert!(other.is_attached());
        recording.kill().unwrap();
        recording.wait().unwrap();
        until("nothing is attached", || {
            (!other.is_attached()).then_some(())
        });
        other.goes_on();
        other.machine.stop();
    });
}

/// Only kvmprof's own VMM has these functions.
#[test]
fn guests_of_others_are_not_controlled() {
    on_kvm(|| {
        let other = Other::start();
        for words in [
            &["control", "pause"][..],
            &["profil", "--pid", "1"],
            &["pmc", "list"],
        ] {
            let ran = run_command(&mut other.command(words));
            ran.assert_refused(2, &["kvmprof run", &process::id().to_string()]);
        }
        other.machine.stop();
    });
}
