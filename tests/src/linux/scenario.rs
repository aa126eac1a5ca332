//! One lab machine that runs guests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use kvmprof_introspection::unpack_kernel;
use kvmprof_lab::{InitramfsBuilder, JAIL, Kernel, Lab};
use kvmprof_recording::Sample;
use kvmprof_recording::file::{Contents, Recording};
use kvmprof_recording::status::Status;
use serde_json::Value;
use tempfile::TempDir;

use super::boots::{TRIPLE_FAULT, until_no_kernel_crashes};
use super::{Console, Program, Stream, turn, undescribed_kernel};
use crate::status::read_status;

const DRIVER: &str = include_str!("driver.sh");
const GUEST: &str = include_str!("guest.sh");

/// Scenarios take one to three minutes. One whose guests hardly progress, as with a wrong rate of their clock, runs for hours, and isn't worth the
/// wait. A machine that this host doesn't let run has more time.
const RUN_LIMIT: Duration = Duration::from_secs(20 * 60);

/// A guest's user space that starts with `script`, after the common part, and has `programs` in `/bin`, by name.
///
/// # Panics
/// If it can't be built.
pub fn guest_init(script: &str, programs: &[(&str, &Program)]) -> Vec<u8> {
    let builder = guest_builder(script, programs);
    builder.build().expect("initramfs")
}

/// Like [`guest_init`], for further additions.
pub fn guest_builder(script: &str, programs: &[(&str, &Program)]) -> InitramfsBuilder {
    let mut builder = InitramfsBuilder::new().init(&format!("{GUEST}\n{script}"));
    for (name, program) in programs {
        builder = builder.contents(&format!("/bin/{name}"), 0o755, program.file.as_slice());
    }
    builder
}

/// A lab machine before it runs, with kvmprof in it.
#[derive(Debug)]
pub struct Scenario {
    lab: Lab,
    out: TempDir,
}

impl Default for Scenario {
    fn default() -> Self {
        Self::new()
    }
}

impl Scenario {
    /// A machine with AMD's SVM, and with 2 CPUs, unless [`Self::cpus`] says otherwise.
    ///
    /// # Panics
    /// If kvmprof can't be built.
    pub fn new() -> Self {
        Self::on(Lab::new())
    }

    /// A machine with 1 CPU, and Intel's VT-x.
    ///
    /// # Panics
    /// As for [`Scenario::new`].
    pub fn vmx() -> Self {
        Self::on(Lab::new().vmx())
    }

    fn on(lab: Lab) -> Self {
        let kvmprof = kvmprof_lab::build_program("kvmprof").expect("kvmprof");
        let out = tempfile::tempdir().expect("temporary folder");
        let lab = lab.add(kvmprof, "/lab/kvmprof");
        let lab = lab.out(out.path()).run_limit(RUN_LIMIT);
        Self { lab, out }
    }

    /// Gives the lab machine this many CPUs.
    #[must_use]
    pub fn cpus(mut self, cpus: u32) -> Self {
        self.lab = self.lab.cpus(cpus);
        self
    }

    /// The kernel of the lab machine itself.
    #[must_use]
    pub fn host_kernel(mut self, kernel: Kernel) -> Self {
        self.lab = self.lab.kernel(kernel);
        self
    }

    /// Gives the lab machine this much memory, in MiB.
    #[must_use]
    pub fn memory(mut self, mebibytes: u64) -> Self {
        self.lab = self.lab.memory(mebibytes);
        self
    }

    /// Gives the lab machine's processors page tables with five levels.
    #[must_use]
    pub fn five_levels(mut self) -> Self {
        self.lab = self.lab.five_levels();
        self
    }

    /// Puts a kernel's image at `/lab/NAME`.
    #[must_use]
    pub fn kernel(mut self, name: &str, kernel: &Kernel) -> Self {
        self.lab = self.lab.add(&kernel.image, &format!("/lab/{name}"));
        self
    }

    /// Puts a kernel that describes itself at `/lab/NAME`, or [the same one](undescribed_kernel) that doesn't.
    #[must_use]
    pub fn kernel_described_or_not(self, name: &str, kernel: &Kernel, is_described: bool) -> Self {
        if is_described {
            self.kernel(name, kernel)
        } else {
            self.file(name, undescribed_kernel(kernel))
        }
    }

    /// Puts the ELF file in a kernel's bzImage at `/lab/NAME`: guests needn't unpack it, which takes half of their boot time in emulation. It is
    /// always at its link-time addresses.
    ///
    /// # Panics
    /// If it can't be unpacked.
    #[must_use]
    pub fn unpacked_kernel(self, name: &str, kernel: &Kernel) -> Self {
        let packed = fs::read(&kernel.image).expect("kernel");
        let unpacked = unpack_kernel(&packed).expect("bzImage");
        self.file(name, unpacked.into_owned())
    }

    /// Puts a program at `/lab/NAME`.
    #[must_use]
    pub fn program(mut self, name: &str, program: &Path) -> Self {
        self.lab = self.lab.add(program, &format!("/lab/{name}"));
        self
    }

    /// Adds the files of [`GUEST_NETWORK`](kvmprof_lab::GUEST_NETWORK).
    ///
    /// # Panics
    /// If passt is unavailable.
    #[must_use]
    pub fn guest_network(mut self) -> Self {
        self.lab = self.lab.guest_network().expect("passt");
        self
    }

    /// Puts a folder at `/lab/NAME`.
    #[must_use]
    pub fn folder(mut self, name: &str, folder: &Path) -> Self {
        self.lab = self.lab.add(folder, &format!("/lab/{name}"));
        self
    }

    /// Puts a program of this machine at `/lab/NAME`, and the libraries that it needs at their paths on this machine.
    #[must_use]
    pub fn program_with_libraries(mut self, name: &str, program: &Path) -> Self {
        let place = format!("/lab/{name}");
        self.lab = self.lab.program_with_libraries(program, &place);
        self
    }

    /// Puts a program of this machine, and the libraries that it needs, at the same places.
    #[must_use]
    pub fn installed_program(mut self, program: &Path) -> Self {
        let place = program.to_string_lossy();
        self.lab = self.lab.program_with_libraries(program, &place);
        self
    }

    /// Puts a file of this machine at the same place.
    #[must_use]
    pub fn installed(mut self, file: &Path) -> Self {
        self.lab = self.lab.add(file, &file.to_string_lossy());
        self
    }

    /// Puts a file at `/lab/NAME`.
    #[must_use]
    pub fn file(mut self, name: &str, contents: Vec<u8>) -> Self {
        self.lab = self.lab.contents(&format!("/lab/{name}"), 0o644, contents);
        self
    }

    /// Puts a statically linked program's contents at `/lab/NAME`, where scripts find it.
    #[must_use]
    pub fn program_contents(mut self, name: &str, contents: &[u8]) -> Self {
        self.lab = self.lab.contents(&format!("/lab/{name}"), 0o755, contents);
        self
    }

    /// Loads a module of the lab machine's own kernel.
    #[must_use]
    pub fn module(mut self, name: &str) -> Self {
        self.lab = self.lab.module(name);
        self
    }

    /// Runs `script`, which may use `driver.sh`, to its end. If a kernel crashes in emulation, it is run again.
    ///
    /// # Panics
    /// If the lab fails, or the script doesn't end with status 0.
    pub fn run(mut self, script: &str) -> Finished {
        let script = format!("{DRIVER}\n{JAIL}\ncd /lab\n{script}");
        self.lab = self.lab.script(&script);
        until_no_kernel_crashes(|| {
            // Of a machine that has crashed before.
            fs::remove_dir_all(self.out.path()).expect("folder for results");
            self.boot()
        });
        Finished::of_scenario(self.out)
    }

    /// Boots the machine once.
    ///
    /// # Errors
    /// All messages.
    fn boot(&self) -> Result<(), String> {
        let result = {
            let _turn = turn();
            self.lab.run()
        };
        keep(self.out.path());
        let failure = match &result {
            Ok(outcome) if outcome.status == 0 => {
                let said = consoles(self.out.path());
                // A script that is done with a guest doesn't notice how it ends.
                if !said.contains(TRIPLE_FAULT) {
                    return Ok(());
                }
                "a guest has crashed".to_owned()
            }
            Ok(outcome) => {
                let said = String::from_utf8_lossy(&outcome.stderr);
                format!("the script failed with status {}: {said}", outcome.status)
            }
            Err(error) => error.to_string(),
        };
        Err(format!("{failure}{}", consoles(self.out.path())))
    }
}

/// Copies a scenario's results to the folder in `KVMPROF_TESTS_KEEP`, for inspection by hand.
fn keep(out: &Path) {
    if let Some(folder) = std::env::var_os("KVMPROF_TESTS_KEEP") {
        copy(out, Path::new(&folder));
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-r").arg(from).arg(to).status();
    assert!(
        copied.is_ok_and(|status| status.success()),
        "{} can't be copied to {}",
        from.display(),
        to.display()
    );
}

/// The last messages of the guests and their kvmprofs, and the last counts of samples.
fn consoles(out: &Path) -> String {
    let entries = fs::read_dir(out).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            let extension = path.extension().and_then(|extension| extension.to_str());
            matches!(extension, Some("console" | "stderr" | "attach" | "count"))
        })
        .collect();
    files.sort();
    let said = files.iter().map(|file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        format!("\n==> {name}\n{}", kvmprof_lab::last_lines(file))
    });
    said.collect()
}

/// The results of a scenario.
#[derive(Debug)]
pub struct Finished {
    out: PathBuf,
    /// The folder, which is removed at the end if it belongs to this test.
    _own: Option<TempDir>,
}

impl Finished {
    /// The results' folder, which stays.
    pub(super) fn of(out: PathBuf) -> Self {
        Self { out, _own: None }
    }

    /// The results' folder, which is removed with this.
    pub(super) fn of_scenario(out: TempDir) -> Self {
        Self {
            out: out.path().to_owned(),
            _own: Some(out),
        }
    }

    /// Moves it to `folder`, completely or not at all.
    ///
    /// # Panics
    /// If that can't be written.
    pub(super) fn move_to(self, folder: &Path) {
        let near = folder.with_extension("new");
        // Files of a test that was killed.
        let _ = fs::remove_dir_all(&near);
        copy(&self.out, &near);
        fs::rename(&near, folder).expect("a scenario's results");
    }

    /// The path of a file.
    pub fn path(&self, name: &str) -> PathBuf {
        self.out.join(name)
    }

    /// A file as text; other bytes are replaced.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn text(&self, name: &str) -> String {
        let bytes = fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The guest's output on its console.
    pub fn console(&self, guest: &str) -> Console {
        Console::new(&self.text(&format!("{guest}.console")))
    }

    /// The pids of a guest's process, as its shell prints them at each start of the guest.
    pub fn pids(&self, guest: &str, process: &str) -> Vec<i32> {
        let console = self.console(guest).text();
        let prefix = format!("pid {process} ");
        let pids = console
            .lines()
            .filter_map(|line| line.strip_prefix(&prefix));
        pids.map(|pid| pid.trim().parse().expect("a pid")).collect()
    }

    /// The pid at the first start.
    ///
    /// # Panics
    /// If it isn't printed.
    pub fn pid(&self, guest: &str, process: &str) -> i32 {
        self.console(guest).number(&format!("pid {process} "))
    }

    /// A [recording](Self::recording) by `kvmprof attach`, which has ended without an error: it has samples, and is complete.
    ///
    /// # Panics
    /// If it isn't.
    pub fn attached(&self, name: &str) -> (Contents, Vec<(Sample, Vec<u64>)>) {
        let said = self.text(&format!("{name}.attach"));
        let status = self.text(&format!("{name}.attach.status"));
        assert_eq!(status.trim(), "0", "{name}: {said}");
        let (contents, samples) = self.recording(&format!("{name}.kvmprof"));
        assert!(!samples.is_empty(), "{name}: {said}");
        let account = contents.account;
        assert_eq!(contents.closed, Some(account), "{name}");
        assert!(account.balances(), "{name}: {account:?}");
        (contents, samples)
    }

    /// The one guest that `kvmprof list` found with this value of a member.
    ///
    /// # Panics
    /// If it found none or several.
    pub fn listed(&self, document: &str, member: &str, value: impl Into<Value>) -> Value {
        let (list, value) = (self.json(document), value.into());
        let guests = list["guests"].as_array().expect("guests").iter();
        let found: Vec<_> = guests.filter(|guest| guest[member] == value).collect();
        assert_eq!(found.len(), 1, "{list}");
        found[0].clone()
    }

    /// The exit status of the guest's kvmprof.
    ///
    /// # Panics
    /// If it hasn't ended.
    pub fn status(&self, guest: &str) -> u8 {
        let text = self.text(&format!("{guest}.status"));
        text.trim()
            .parse()
            .unwrap_or_else(|_| panic!("{guest} ended with {text:?}"))
    }

    /// A stream of samples: `GUEST.STREAM`.
    ///
    /// # Panics
    /// If it isn't one.
    pub fn stream(&self, name: &str) -> Stream {
        let path = self.path(&format!("{name}.samples"));
        Stream::decode(&fs::read(path).unwrap_or_else(|error| panic!("{name}: {error}")))
    }

    /// A recording: all samples in their order, each with its frames.
    ///
    /// # Panics
    /// If it isn't one.
    pub fn recording(&self, name: &str) -> (Contents, Vec<(Sample, Vec<u64>)>) {
        let recording = Recording::open(&self.path(name));
        let mut samples = Vec::new();
        let contents = recording.and_then(|recording| {
            recording.read(|ticks, frames| {
                samples.extend(ticks.sample.map(|sample| (sample, frames.to_vec())));
            })
        });
        let contents = contents.unwrap_or_else(|error| panic!("{name}: {error}"));
        (contents, samples)
    }

    /// A JSON document.
    ///
    /// # Panics
    /// If it isn't one.
    pub fn json(&self, name: &str) -> Value {
        let text = self.text(name);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}: {text}"))
    }

    /// A status document.
    ///
    /// # Panics
    /// If it isn't one.
    pub fn status_document(&self, name: &str) -> Status {
        read_status(self.text(name))
    }

    /// The guest's kernel in a status document: its release, and the slide once it is known.
    ///
    /// # Panics
    /// If the guest isn't Linux.
    pub fn placement(&self, name: &str) -> (String, Option<u64>) {
        let machine = self.status_document(name).machine;
        let linux = machine.linux.unwrap_or_else(|| panic!("{name}"));
        (linux.release, linux.slide)
    }
}
