//! QEMU inside a lab machine: another VMM on its KVM.

use std::path::Path;

use super::Scenario;

const PROGRAM: &str = "/usr/bin/qemu-system-x86_64";
/// Files of firmware, from the packages that qemu-system-x86 needs.
const FIRMWARE: [&str; 6] = [
    "/usr/share/seabios/bios-256k.bin",
    "/usr/share/seabios/bios-microvm.bin",
    "/usr/share/seabios/vgabios-stdvga.bin",
    "/usr/share/qemu/kvmvapic.bin",
    "/usr/share/qemu/linuxboot_dma.bin",
    "/usr/share/qemu/pvh.bin",
];

impl Scenario {
    /// Adds this machine's QEMU and everything that it needs to the lab machine, at the same paths.
    ///
    /// # Panics
    /// If this machine has no QEMU.
    #[must_use]
    pub fn qemu(self) -> Self {
        let program = self.installed_program(Path::new(PROGRAM));
        FIRMWARE.iter().fold(program, |scenario, file| {
            scenario.installed(Path::new(file))
        })
    }
}
