//! The facts that kvmprof gets from Debian's kernel images before they run, and from damaged ones.

mod code;
mod files;
mod others;
mod running;

pub use others::memtest;

use std::fs;

use kvmprof_introspection::{GuestKnowledge, notes};
use kvmprof_lab::Kernel;
use kvmprof_tests::linux::{debian, kernel_knowledge, undescribed, unexpected_gaps, unpacked};

fn kernels() -> [Kernel; 2] {
    ["6.1", "6.12"].map(debian)
}

fn error(image: &[u8]) -> String {
    let Err(error) = GuestKnowledge::from_kernel_image(image) else {
        panic!("the image is understood");
    };
    let chain = std::iter::successors(Some(&error as &dyn std::error::Error), |error| {
        error.source()
    });
    chain
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

#[test]
fn a_kernels_image_has_release_and_symbols_but_no_address() {
    for kernel in kernels() {
        let knowledge = kernel_knowledge(&kernel);
        let linux = knowledge.linux().unwrap();
        assert_eq!(linux.release(), kernel.version);
        assert_eq!(linux.slide(), None);
        assert!(linux.modules().can_be_found());
        let symbols = linux.symbols();
        assert!(symbols.len() > 50_000, "{}", symbols.len());
        let entry = symbols.address_of("entry_SYSCALL_64").unwrap();
        assert_eq!(
            symbols.function_at(entry + 1),
            Some(("entry_SYSCALL_64", 1))
        );
        // The link address of x86-64 kernels.
        assert_eq!(symbols.address_of("_text"), Some(0xffff_ffff_8100_0000));
    }
}

#[test]
fn the_unwind_table_covers_the_functions() {
    for kernel in kernels() {
        let knowledge = kernel_knowledge(&kernel);
        let linux = knowledge.linux().unwrap();
        let orc = linux.orc().unwrap();
        assert!(orc.len() > 100_000, "{}", orc.len());
        let symbols = linux.symbols();
        let [start, end] = symbols
            .addresses_of(["_stext", "_etext"])
            .map(Option::unwrap);
        let (mut functions, mut unwound) = (0, 0);
        for (address, _, _) in symbols.functions() {
            if (start..end).contains(&address) {
                functions += 1;
                unwound += usize::from(orc.unwinds(address));
            }
        }
        println!("{}: {unwound} of {functions} functions", kernel.version);
        // Padding and a few entry points in assembly have no entry.
        assert!(functions > 20_000 && unwound * 100 > functions * 98);
        let call = symbols.address_of("do_syscall_64").unwrap();
        let entry = symbols.address_of("entry_SYSCALL_64").unwrap();
        assert!(orc.unwinds(call) && orc.unwinds(entry + 0x60));
    }
}

#[test]
fn the_unpacked_kernel_gives_the_same_facts() {
    for kernel in kernels() {
        let (packed, elf) = (kernel_knowledge(&kernel), unpacked(&kernel));
        let knowledge = GuestKnowledge::from_kernel_image(&elf).unwrap();
        let (linux, packed) = (knowledge.linux().unwrap(), packed.linux().unwrap());
        assert_eq!(linux.release(), kernel.version);
        assert_eq!(linux.symbols().len(), packed.symbols().len());
        assert!(!notes(&elf, b"Xen").is_empty(), "it can be booted by PVH");
    }
}

/// No fact is missing that a recipe gives.
#[test]
fn a_kernel_without_btf_is_analysed_by_its_code() {
    for kernel in kernels() {
        let knowledge = GuestKnowledge::from_kernel_image(&undescribed(&kernel)).unwrap();
        let linux = knowledge.linux().unwrap();
        assert_eq!(linux.release(), kernel.version);
        assert!(linux.orc().is_none());
        let missing = unexpected_gaps(linux.gaps());
        assert!(missing.is_empty(), "{}: {missing:#?}", kernel.version);
    }
}

#[test]
fn a_kernel_that_is_cut_short_is_refused() {
    for kernel in kernels() {
        let image = fs::read(&kernel.image).unwrap();
        for length in [0, 1, 0x1ff, 0x250, 0x1000, image.len() / 3, image.len() / 2] {
            let said = error(&image[..length]);
            assert_eq!(said.lines().count(), 1, "{length} bytes: {said}");
        }
        let elf = unpacked(&kernel);
        for length in [3, 63, 64, 200, elf.len() / 2] {
            let said = error(&elf[..length]);
            assert_eq!(said.lines().count(), 1, "{length} bytes of ELF: {said}");
        }
    }
}

#[test]
fn a_damaged_payload_is_refused() {
    for kernel in kernels() {
        let mut image = fs::read(&kernel.image).unwrap();
        let middle = image.len() / 2;
        // Debian's 6.1 is packed by lz4, which has no checksum: a few bytes may be in literals.
        image[middle..middle + (64 << 10)].fill(0xa5);
        let said = error(&image);
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}
