//! The kernels that are profiled.

use std::fs;

use object::LittleEndian;
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection};

use kvmprof_introspection::GuestKnowledge;
use kvmprof_lab::Kernel;

/// Debian's kernel of this series, `6.1` or `6.12`.
///
/// # Panics
/// If it is unavailable.
pub fn debian(series: &str) -> Kernel {
    kvmprof_lab::kernels()
        .expect("Debian's kernels")
        .into_iter()
        .find(|kernel| kernel.version.starts_with(&format!("{series}.")))
        .unwrap_or_else(|| panic!("Debian has no kernel {series}"))
}

/// The knowledge that kvmprof gets from the kernel's image.
///
/// # Panics
/// If it gets none.
pub fn kernel_knowledge(kernel: &Kernel) -> GuestKnowledge {
    let image = fs::read(&kernel.image).expect("kernel image");
    GuestKnowledge::from_kernel_image(&image).expect("a kernel with symbols and BTF")
}

/// The ELF file in the kernel's image.
///
/// # Panics
/// If there is none.
pub fn unpacked(kernel: &Kernel) -> Vec<u8> {
    let image = fs::read(&kernel.image).expect("kernel image");
    kvmprof_introspection::unpack_kernel(&image)
        .expect("kernel payload")
        .into_owned()
}

/// The ELF file in the kernel's image without BTF, ORC, and names of variables.
///
/// # Panics
/// If it has none of these.
pub fn undescribed(kernel: &Kernel) -> Vec<u8> {
    super::undescribed::undescribed(&unpacked(kernel)).expect("a kernel that describes itself")
}

/// The ELF file in the kernel's image with the owner of its Xen notes renamed, so that it doesn't announce that PVH can boot it.
///
/// # Panics
/// If it has no such note.
pub fn without_pvh(kernel: &Kernel) -> Vec<u8> {
    let mut elf = unpacked(kernel);
    let file = ElfFile64::<LittleEndian>::parse(elf.as_slice()).expect("an ELF file");
    let section = file.section_by_name(".notes").expect("a section .notes");
    let (start, length) = section.file_range().expect("a section with contents");
    let index = |number: u64| usize::try_from(number).expect("within the file");
    let notes = &mut elf[index(start)..index(start + length)];
    let owners: Vec<usize> = (0..notes.len() - 4)
        .filter(|at| &notes[*at..*at + 4] == b"Xen\0")
        .collect();
    assert!(!owners.is_empty(), "{} has no Xen notes", kernel.version);
    for owner in owners {
        notes[owner..owner + 3].copy_from_slice(b"Nox");
    }
    elf
}
