//! Compiles small programs for guests.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use kvmprof_lab::{InitramfsBuilder, LabError};

/// A statically linked program, and the addresses of its instructions.
#[derive(Clone, Debug)]
pub struct Program {
    /// The executable file.
    pub file: Vec<u8>,
    /// The addresses that it is linked to. Nothing else in the guest has them.
    pub text: Range<u64>,
}

/// Finds where a package of a release of Debian is unpacked.
pub type Release = fn(&'static str) -> Result<PathBuf, LabError>;

/// The loader of programs with libraries.
const LOADER: &str = "ld-linux-x86-64.so.2";
/// Bytes of address space for a program.
const EXTENT: u64 = 0x100_0000;

/// A program that needs libraries.
#[derive(Clone, Debug)]
pub struct SharedProgram {
    /// The executable file, which may be loaded anywhere.
    pub file: Vec<u8>,
    /// The libraries that it needs: the path in the guest, and the path on this machine.
    pub libraries: Vec<(&'static str, PathBuf)>,
}

/// The paths in a guest of the C library and its loader.
const LIBRARIES: [(&str, &str); 2] = [
    ("/lib64/ld-linux-x86-64.so.2", "ld-linux-x86-64.so.2"),
    ("/lib/x86_64-linux-gnu/libc.so.6", "libc.so.6"),
];

/// Compiles `tests/guests/SOURCE`, with the arguments `more`, for the C library of this machine.
///
/// # Panics
/// If there is no compiler, or it fails.
pub fn shared_program(source: &str, more: &[&str]) -> SharedProgram {
    let libraries = LIBRARIES.map(|(place, name)| {
        let said = Command::new("cc")
            .arg(format!("-print-file-name={name}"))
            .output()
            .expect("cc: apt-get install gcc libc6-dev");
        (
            place,
            PathBuf::from(String::from_utf8_lossy(&said.stdout).trim()),
        )
    });
    SharedProgram {
        file: compile(source, &["-pie", "-fpie"], more),
        libraries: libraries.to_vec(),
    }
}

/// Compiles `tests/guests/SOURCE` to a shared library, with the arguments `more`.
///
/// # Panics
/// If there is no compiler, or it fails.
pub fn shared_library(source: &str, more: &[&str]) -> Vec<u8> {
    compile(source, &["-shared", "-fPIC"], more)
}

/// Compiles `tests/guests/SOURCE`, linked to `address`, with the arguments `more` for the linker.
///
/// # Panics
/// If there is no compiler, or it fails.
pub fn guest_program(source: &str, address: u64, more: &[&str]) -> Program {
    let place = format!("-Wl,-Ttext-segment={address:#x}");
    let link = ["-static", "-no-pie", "-fno-pie", "-pthread", &place];
    Program {
        file: compile(source, &link, more),
        text: address..address + EXTENT,
    }
}

impl Program {
    /// This program without symbols, like programs of distributions.
    ///
    /// # Panics
    /// If there is no `strip`, or it fails.
    #[must_use]
    pub fn stripped(&self) -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("program");
        fs::write(&path, &self.file).expect("a copy of the program");
        let stripped = Command::new("strip").arg(&path).status();
        assert!(stripped.expect("strip: apt-get install binutils").success());
        Self {
            file: fs::read(&path).expect("what strip has left"),
            text: self.text.clone(),
        }
    }
}

/// Adds libraries of packages of a release of Debian, each given by its package and its name, where Debian's programs look for them, and
/// their loader.
///
/// # Panics
/// If one is unavailable.
#[must_use]
pub fn with_libraries(
    mut builder: InitramfsBuilder,
    release: Release,
    libraries: &[(&'static str, &str)],
) -> InitramfsBuilder {
    for &(package, library) in libraries.iter().chain(&[("libc6", LOADER)]) {
        let root = release(package).expect("a package");
        let places = ["usr/lib", "lib"].map(|lib| root.join(lib).join("x86_64-linux-gnu"));
        let mut places = places.into_iter().map(|place| place.join(library));
        let found = places.find(|path| path.exists()).expect(library);
        builder = builder.add(found, &format!("/lib/x86_64-linux-gnu/{library}"));
    }
    let loader = format!("../lib/x86_64-linux-gnu/{LOADER}");
    builder.link(&format!("/lib64/{LOADER}"), &loader)
}

fn compile(source: &str, link: &[&str], more: &[&str]) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("temporary folder");
    let executable = folder.path().join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("guests")
        .join(source);
    let compiled = Command::new("cc")
        .args(["-O1", "-Wall", "-Werror"])
        .args(link)
        .arg("-o")
        .arg(&executable)
        .arg(&source)
        // A linker takes libraries after the files that need them.
        .args(more)
        .output()
        .expect("cc: apt-get install gcc libc6-dev");
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(
        compiled.status.success(),
        "cc of {}: {said}",
        source.display()
    );
    fs::read(&executable).expect("what cc has made")
}
