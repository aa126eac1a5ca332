//! QEMU inside a lab machine: another VMM on its KVM.

use std::ffi::OsStr;
use std::path::Path;

use kvmprof_lab::newer_qemu;

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

    /// Adds the QEMU of Debian's backports as `/lab/qemu/qemu-system-x86_64`, with its firmware beside it.
    ///
    /// # Panics
    /// If it is unavailable.
    #[must_use]
    pub fn newer_qemu(self) -> Self {
        let (program, folders) = newer_qemu().expect("QEMU of Debian's backports");
        let scenario = self.program_with_libraries("qemu/qemu-system-x86_64", &program);
        FIRMWARE.iter().fold(scenario, |scenario, file| {
            let name = Path::new(file)
                .file_name()
                .and_then(OsStr::to_str)
                .expect("a file's name");
            let mut places = folders.iter().map(|folder| folder.join(name));
            let place = places
                .find(|place| place.is_file())
                .expect("firmware of QEMU");
            scenario.program(&format!("qemu/{name}"), &place)
        })
    }
}
