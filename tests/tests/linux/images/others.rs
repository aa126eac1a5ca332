//! Files of Debian's packages that aren't Linux kernels, as kernels: each is named for what it is, or runs.

use std::fs;

use kvmprof_introspection::GuestKnowledge;
use kvmprof_lab::debian_package;
use kvmprof_machine::{Image, ImageKind};

fn file(package: &'static str, path: &str) -> Vec<u8> {
    let path = debian_package(package).unwrap().join(path);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn files_that_cannot_start_are_named_for_what_they_are() {
    for (package, path, what) in [
        (
            "user-mode-linux",
            "usr/bin/linux.uml",
            "a program that an operating system starts",
        ),
        ("ipxe", "boot/ipxe.lkrn", "without a 64-bit entry point"),
        ("ipxe", "boot/ipxe.efi", "an EFI program (PE)"),
        ("ipxe", "usr/lib/ipxe/ipxe.iso", "a disk, for --disk"),
        (
            "memtest86+",
            "boot/memtest86+ia32.bin",
            "without a 64-bit entry point",
        ),
        (
            "grub-efi-amd64-bin",
            "usr/lib/grub/x86_64-efi/kernel.img",
            "an object file",
        ),
        (
            "grub-efi-amd64-bin",
            "usr/lib/grub/x86_64-efi/monolithic/grubx64.efi",
            "an EFI program (PE)",
        ),
        (
            "grub-efi-amd64-bin",
            "usr/lib/grub/x86_64-efi/monolithic/gcdx64.efi",
            "an EFI program (PE)",
        ),
        (
            "memtest86+",
            "boot/memtest86+ia32.efi",
            "without a 64-bit entry point",
        ),
        (
            "grub-pc-bin",
            "usr/lib/grub/i386-pc/kernel.img",
            "a 32-bit program",
        ),
        (
            "grub-pc-bin",
            "usr/lib/grub/i386-pc/lnxboot.img",
            "without a 64-bit entry point",
        ),
        (
            "grub-pc-bin",
            "usr/lib/grub/i386-pc/boot.img",
            "a disk, for --disk",
        ),
        (
            "grub-coreboot-bin",
            "usr/lib/grub/i386-coreboot/kernel.img",
            "a 32-bit Multiboot kernel",
        ),
        (
            "ipxe",
            "usr/lib/ipxe/undionly.kpxe",
            "is not a bzImage or an ELF file",
        ),
        ("ovmf", "usr/share/ovmf/OVMF.fd", "a PC's firmware"),
        (
            "seabios",
            "usr/share/seabios/bios-256k.bin",
            "a PC's firmware",
        ),
        (
            "seabios",
            "usr/share/seabios/vgabios-stdvga.bin",
            "an option ROM",
        ),
    ] {
        let read = Image::parse("kernel".to_owned(), file(package, path).into());
        let said = read.expect_err(path).to_string();
        println!("{path}: {said}");
        assert!(said.contains(what), "{path}: {said}");
    }
}

/// Memtest86+, which the tests of running guests run.
pub fn memtest() -> Vec<u8> {
    file("memtest86+", "boot/memtest86+x64.bin")
}

#[test]
fn memtest_is_a_kernel_of_which_nothing_is_known() {
    let bytes = memtest();
    let knowledge = GuestKnowledge::from_image(&bytes).unwrap();
    assert!(!knowledge.is_pending() && !knowledge.tells_processes());
    let image = Image::parse("kernel".to_owned(), bytes.into()).unwrap();
    assert_eq!(
        (image.kind(), image.is_linux()),
        (ImageKind::BzImage, false)
    );
}
