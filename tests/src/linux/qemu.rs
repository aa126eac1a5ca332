//! QEMU inside a lab machine: another VMM on its KVM.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Scenario;

const PROGRAM: &str = "/usr/bin/qemu-system-x86_64";
/// Firmware, by the packages that qemu-system-x86 needs.
const FIRMWARE: [&str; 6] = [
    "/usr/share/seabios/bios-256k.bin",
    "/usr/share/seabios/bios-microvm.bin",
    "/usr/share/seabios/vgabios-stdvga.bin",
    "/usr/share/qemu/kvmvapic.bin",
    "/usr/share/qemu/linuxboot_dma.bin",
    "/usr/share/qemu/pvh.bin",
];

impl Scenario {
    /// Puts this machine's QEMU into the lab machine, with all that it needs, at the same places.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn qemu(self) -> Self {
        let libraries = libraries(PROGRAM);
        let files = FIRMWARE.iter().map(PathBuf::from).chain(libraries);
        files.fold(self.installed(Path::new(PROGRAM)), |scenario, file| {
            scenario.installed(&file)
        })
    }
}

/// The shared libraries that a program needs, and what loads them.
fn libraries(program: &str) -> Vec<PathBuf> {
    let said = Command::new("ldd").arg(program).output().expect("ldd");
    assert!(said.status.success(), "ldd {program}: {said:?}");
    let text = String::from_utf8_lossy(&said.stdout);
    let words = text.split_ascii_whitespace();
    words
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}
