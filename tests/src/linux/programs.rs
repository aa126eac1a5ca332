//! Small programs for guests, compiled on the spot.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::Command;

/// A statically linked program, and where its instructions are.
#[derive(Clone, Debug)]
pub struct Program {
    /// The executable file.
    pub file: Vec<u8>,
    /// The addresses that it was linked to: nothing else in the guest lies there.
    pub text: Range<u64>,
}

/// Room that a program is given, in bytes.
const EXTENT: u64 = 0x100_0000;

/// Compiles `tests/guests/SOURCE`, linked to `address`, with more arguments for the linker.
///
/// # Panics
/// When there is no compiler, or it fails.
pub fn guest_program(source: &str, address: u64, more: &[&str]) -> Program {
    let folder = tempfile::tempdir().expect("temporary folder");
    let executable = folder.path().join("program");
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("guests")
        .join(source);
    let compiled = Command::new("cc")
        .args([
            "-O1", "-Wall", "-Werror", "-static", "-no-pie", "-fno-pie", "-pthread",
        ])
        .arg(format!("-Wl,-Ttext-segment={address:#x}"))
        .args(more)
        .arg("-o")
        .arg(&executable)
        .arg(&source)
        .output()
        .expect("cc: apt-get install gcc libc6-dev");
    let said = String::from_utf8_lossy(&compiled.stderr);
    assert!(
        compiled.status.success(),
        "cc of {}: {said}",
        source.display()
    );
    let file = fs::read(&executable).expect("what cc has made");
    Program {
        file,
        text: address..address + EXTENT,
    }
}
