//! QEMU inside a lab machine: another VMM on its KVM.

use std::path::Path;

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
        let program = self.installed_program(Path::new(PROGRAM));
        FIRMWARE.iter().fold(program, |scenario, file| {
            scenario.installed(Path::new(file))
        })
    }
}
