//! One run of one command in a lab machine.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kvmprof_initramfs::InitramfsError;

use crate::initramfs::{Archive, InitramfsBuilder, add_host_file};
use crate::kernels::kernel_for_lab;
use crate::machine::{self, Emulator, Finished, InsideNeeds, Machine, RunOptions};
use crate::qemu::Qemu;
use crate::{Kernel, LabError};

/// The first process of the machine.
const INIT: &str = include_str!("init.sh");
/// Where files go that have no place named. It is in the machine's `PATH`.
const FILES_FOLDER: &str = "/lab";

/// How long a machine may be silent.
const QUIET_LIMIT: Duration = Duration::from_secs(300);

const CPUS_MAX: u64 = 64;
/// Below this the kernel and busybox have no room, in MiB.
const MEMORY_MIN: u64 = 256;
/// More than that QEMU's address layout here was never meant for, in MiB.
const MEMORY_MAX: u64 = 64 << 10;
/// As much as Bochs has below the addresses of devices, in MiB.
const MEMORY_MAX_VMX: u64 = 2 << 10;

/// A lab machine about to be started: set it up, then [`Lab::run`].
///
/// The command runs as root, in `/root`, without standard input, with `/lab`
/// and busybox's applets in its `PATH`. What it leaves in `$LAB_OUT` (`/out`)
/// can be brought back; what it leaves running is killed.
#[derive(Debug, Clone)]
pub struct Lab {
    has_vmx: bool,
    kernel: Option<Kernel>,
    cpus: u32,
    memory: u64,
    has_five_levels: bool,
    host_files: Vec<(PathBuf, Option<String>)>,
    contents: Vec<(String, u32, Vec<u8>)>,
    modules: Vec<String>,
    command: Vec<String>,
    out: Option<PathBuf>,
    timeout: Option<Duration>,
    run_limit: Option<Duration>,
    quiet_limit: Duration,
    forward: bool,
    output_limit: u64,
    out_limit: u64,
}

/// A command that ran to its end.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Its exit status, as a shell gives it: 128 and the signal's number when
    /// a signal ended it, 127 when there is no such command.
    pub status: u8,
    /// What it wrote to standard output; empty when that was forwarded.
    pub stdout: Vec<u8>,
    /// What it wrote to standard error; empty when that was forwarded.
    pub stderr: Vec<u8>,
    /// The folder that holds what it left in `$LAB_OUT`, when one was given.
    pub out_dir: Option<PathBuf>,
    /// The last lines of the machine's console (the lab's kernel).
    pub console: String,
}

impl Default for Lab {
    fn default() -> Self {
        Self {
            has_vmx: false,
            kernel: None,
            cpus: 2,
            memory: 2048,
            has_five_levels: false,
            host_files: Vec::new(),
            contents: Vec::new(),
            modules: Vec::new(),
            command: Vec::new(),
            out: None,
            timeout: None,
            run_limit: None,
            quiet_limit: QUIET_LIMIT,
            forward: false,
            output_limit: 64 << 20,
            out_limit: 512 << 20,
        }
    }
}

impl Lab {
    /// A machine with 2 CPUs, 2048 MiB and Debian's 6.1 kernel, which may be silent for five minutes.
    pub fn new() -> Self {
        Self::default()
    }

    /// The kernel that the machine itself runs (the host of guests inside).
    #[must_use]
    pub fn kernel(mut self, kernel: Kernel) -> Self {
        self.kernel = Some(kernel);
        self
    }

    /// Makes it a machine with Intel's VT-x in place of AMD's SVM, with 1 CPU and 1024 MiB. Bochs emulates it, some times slower than QEMU does.
    /// Its time is the number of executed instructions.
    #[must_use]
    pub fn vmx(mut self) -> Self {
        self.has_vmx = true;
        self.cpus = 1;
        self.memory = 1024;
        self
    }

    /// Number of CPUs, 1 to 64; with VT-x, 1.
    #[must_use]
    pub fn cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus;
        self
    }

    /// Memory in MiB, 256 to 65536; with VT-x, to 2048.
    #[must_use]
    pub fn memory(mut self, mebibytes: u64) -> Self {
        self.memory = mebibytes;
        self
    }

    /// Gives its processors page tables with five levels (LA57), which are slower in emulation. With VT-x, there are none.
    #[must_use]
    pub fn five_levels(mut self) -> Self {
        self.has_five_levels = true;
        self
    }

    /// Puts a file or folder of this host at an absolute path in the machine;
    /// modes are kept. Programs must be linked statically.
    #[must_use]
    pub fn add(mut self, source: impl Into<PathBuf>, destination: &str) -> Self {
        self.host_files
            .push((source.into(), Some(destination.to_owned())));
        self
    }

    /// Puts a file or folder of this host into the machine's `/lab`, under its
    /// own name.
    #[must_use]
    pub fn add_to_lab(mut self, source: impl Into<PathBuf>) -> Self {
        self.host_files.push((source.into(), None));
        self
    }

    /// Puts a file with these contents and permissions at an absolute path.
    #[must_use]
    pub fn contents(mut self, destination: &str, mode: u32, contents: impl Into<Vec<u8>>) -> Self {
        self.contents
            .push((destination.to_owned(), mode, contents.into()));
        self
    }

    /// Loads a module of the machine's kernel, and what it needs.
    #[must_use]
    pub fn module(mut self, name: &str) -> Self {
        self.modules.push(name.to_owned());
        self
    }

    /// The command and its arguments.
    #[must_use]
    pub fn command<S: Into<String>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.command = words.into_iter().map(Into::into).collect();
        self
    }

    /// Runs a script by busybox's shell as the command.
    #[must_use]
    pub fn script(self, script: &str) -> Self {
        self.command(["sh", "-c", script])
    }

    /// Brings what the command leaves in `$LAB_OUT` into this folder, which is
    /// made when missing.
    #[must_use]
    pub fn out(mut self, folder: impl Into<PathBuf>) -> Self {
        self.out = Some(folder.into());
        self
    }

    /// Ends the machine after this time, booting included, however much it has to say. Without this there is no such limit.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// As [`Self::timeout`], but time in which this host was too busy to run the machine doesn't count.
    #[must_use]
    pub fn run_limit(mut self, limit: Duration) -> Self {
        self.run_limit = Some(limit);
        self
    }

    /// Ends the machine when nothing has come from it for this time: neither output of the command nor lines on the console. Time
    /// in which this host was too busy to run the machine doesn't count.
    #[must_use]
    pub fn quiet_limit(mut self, limit: Duration) -> Self {
        self.quiet_limit = limit;
        self
    }

    /// Passes the command's output on to this process's own, as it comes,
    /// instead of keeping it.
    #[must_use]
    pub fn forward_output(mut self) -> Self {
        self.forward = true;
        self
    }

    /// Most bytes that are kept of standard output, and of standard error.
    #[must_use]
    pub fn output_limit(mut self, bytes: u64) -> Self {
        self.output_limit = bytes;
        self
    }

    /// Most bytes of the output folder, as a tar stream, that are taken.
    #[must_use]
    pub fn out_limit(mut self, bytes: u64) -> Self {
        self.out_limit = bytes;
        self
    }

    /// Boots the machine and runs the command to its end. This thread must
    /// not be ended before: the machine dies with it.
    ///
    /// # Errors
    /// What could not be prepared, a machine that did not come up or went down
    /// early, [`LabError::Timeout`], [`LabError::Silent`], or more output
    /// than the bounds allow. A command that fails is no error. What was in the
    /// output folder when a limit was reached is brought back if the machine
    /// still can send it.
    pub fn run(&self) -> Result<Outcome, LabError> {
        self.check()?;
        let kernel = match &self.kernel {
            Some(kernel) => kernel.clone(),
            None => kernel_for_lab()?,
        };
        let emulator = match self.has_vmx {
            true => Emulator::Bochs,
            false => Emulator::Qemu(Qemu::find()?),
        };
        let initramfs = self.initramfs(&kernel, &emulator.inside())?;
        let machine = Machine {
            emulator,
            kernel: &kernel.image,
            initramfs,
            cpus: self.cpus,
            memory: self.memory,
            has_five_levels: self.has_five_levels,
        };
        let options = RunOptions {
            forward: self.forward,
            output_limit: self.output_limit,
            out: self.out.clone(),
            out_limit: self.out_limit,
            timeout: self.timeout.and_then(deadline),
            run_limit: self.run_limit,
            quiet_limit: self.quiet_limit,
        };
        let finished = run_until_up(&machine, &options)?;
        Ok(Outcome {
            status: finished.status,
            stdout: finished.stdout,
            stderr: finished.stderr,
            out_dir: self.out.clone(),
            console: finished.console,
        })
    }

    fn check(&self) -> Result<(), LabError> {
        if self.command.is_empty() {
            return Err(LabError::NoCommand);
        }
        let (cpus, memory, levels) = match self.has_vmx {
            true => (
                (1, "1 with VT-x"),
                (MEMORY_MAX_VMX, "256 to 2048 with VT-x"),
                (4, "4 with VT-x"),
            ),
            false => (
                (CPUS_MAX, "1 to 64"),
                (MEMORY_MAX, "256 to 65536"),
                (5, "4 or 5"),
            ),
        };
        let level = if self.has_five_levels { 5 } else { 4 };
        for (what, value, min, (max, range)) in [
            ("A CPU count", self.cpus.into(), 1, cpus),
            ("A memory size in MiB", self.memory, MEMORY_MIN, memory),
            ("A number of levels of page tables", level, 4, levels),
        ] {
            if !(min..=max).contains(&value) {
                return Err(LabError::OutOfRange { what, value, range });
            }
        }
        Ok(())
    }

    /// Two archives, one after the other: the machine's own, then the files.
    fn initramfs(&self, kernel: &Kernel, inside: &InsideNeeds) -> Result<File, LabError> {
        let more = self.modules.iter().map(String::as_str);
        let modules: Vec<&str> = inside.modules.iter().copied().chain(more).collect();
        let (place, program) = inside.program;
        let own = InitramfsBuilder::new()
            .init(INIT)
            .contents("/streams", 0o600, inside.streams)
            .contents(place, 0o700, program)
            .modules(kernel, &modules)
            .build()?;
        let files = self.files()?;
        // Half of the memory is what the kernel gives its root file system,
        // and the archive itself lies in memory until it is unpacked.
        let needed = (own.len() + files.len()) as u64 >> 20;
        let room = self.memory / 2;
        if needed > room {
            return Err(LabError::TooBig {
                needed,
                room,
                memory: self.memory,
            });
        }
        let action = LabError::file("write", "the initramfs as a temporary file");
        tempfile::tempfile()
            .and_then(|mut file| {
                file.write_all(&own)?;
                file.write_all(&files)?;
                Ok(file)
            })
            .map_err(action)
    }

    fn files(&self) -> Result<Vec<u8>, LabError> {
        let mut archive = Archive::new();
        archive.folder(FILES_FOLDER, 0o755)?;
        for (source, destination) in &self.host_files {
            let destination = match destination {
                Some(destination) => destination.clone(),
                None => default_destination(source)?,
            };
            add_host_file(&mut archive, source, &destination)?;
        }
        for (destination, mode, contents) in &self.contents {
            archive.file(destination, *mode, contents)?;
        }
        archive.file("/command", 0o700, command_script(&self.command).as_bytes())?;
        if self.out.is_some() {
            archive.file("/want-out", 0o600, b"")?;
        }
        Ok(archive.finish()?)
    }
}

/// Starts another machine when one did not come up. Nothing of the command has
/// run by then, so no failure of its own is covered up.
fn run_until_up(machine: &Machine, options: &RunOptions) -> Result<Finished, LabError> {
    for _ in 1..machine.emulator.boots_max() {
        match machine::run(machine, options) {
            Err(failure @ LabError::NotUp { .. }) => {
                eprintln!("lab: {failure}\nlab: starting again")
            }
            other => return other,
        }
    }
    machine::run(machine, options)
}

/// The limit and when it is reached; none beyond what clocks can tell.
fn deadline(limit: Duration) -> Option<(Duration, Instant)> {
    Some((limit, Instant::now().checked_add(limit)?))
}

/// The source's own name in [`FILES_FOLDER`].
fn default_destination(source: &Path) -> Result<String, LabError> {
    // `.` and `..` have a name only once resolved.
    let resolved = source
        .canonicalize()
        .map_err(LabError::file("read", source))?;
    let name = match source.file_name() {
        Some(name) => Some(name),
        None => resolved.file_name(),
    };
    name.and_then(|name| name.to_str())
        .map(|name| format!("{FILES_FOLDER}/{name}"))
        .ok_or_else(|| InitramfsError::Destination(source.display().to_string()).into())
}

/// A script that becomes the command, every byte of its words kept.
fn command_script(words: &[String]) -> String {
    let quoted: Vec<String> = words
        .iter()
        .map(|word| format!("'{}'", word.replace('\'', r"'\''")))
        .collect();
    format!("exec {}\n", quoted.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_pass_the_shell_unchanged() {
        let words = ["a b", "it's", "$HOME", "new\nline", "\\", "", "*"].map(str::to_owned);
        let script = command_script(&words).replacen("exec ", "printf '<%s>' ", 1);
        let output = std::process::Command::new("sh")
            .args(["-c", &script])
            .output()
            .unwrap();
        let expected: String = words.iter().map(|word| format!("<{word}>")).collect();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    }

    #[test]
    fn files_without_a_target_keep_their_name() {
        assert_eq!(
            default_destination(Path::new("/bin/sh")).unwrap(),
            "/lab/sh"
        );
        let folder = tempfile::tempdir().unwrap();
        let dotted = folder.path().join(".");
        let name = folder.path().file_name().unwrap().to_str().unwrap();
        assert_eq!(
            default_destination(&dotted).unwrap(),
            format!("/lab/{name}")
        );
    }

    #[test]
    fn settings_out_of_range_are_refused() {
        let refused = |lab: Lab| lab.command(["true"]).run().unwrap_err().to_string();
        assert!(refused(Lab::new().cpus(0)).contains("1 to 64"));
        assert!(refused(Lab::new().cpus(65)).contains("1 to 64"));
        assert!(refused(Lab::new().memory(16)).contains("256 to 65536"));
        assert!(refused(Lab::new().vmx().cpus(2)).contains("1 with VT-x"));
        assert!(refused(Lab::new().vmx().memory(4096)).contains("256 to 2048"));
        assert!(refused(Lab::new().vmx().five_levels()).contains("4 with VT-x"));
        assert!(matches!(Lab::new().run(), Err(LabError::NoCommand)));
    }
}
