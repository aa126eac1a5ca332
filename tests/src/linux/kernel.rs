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

/// The same, whose code doesn't tell where a mount's root is: the function that would isn't called by the guests of tests, and only returns.
///
/// # Panics
/// As [`undescribed`].
pub fn undescribed_without_mounts(kernel: &Kernel) -> Vec<u8> {
    let knowledge = kernel_knowledge(kernel);
    let symbols = knowledge.linux().expect("Linux").symbols();
    let function = symbols.address_of("mount_subtree").expect("a function");
    super::undescribed::with_return_at(&undescribed(kernel), function).expect("its code")
}

/// What isn't known of a kernel by its code, without the one thing that no kernel's code tells: where a directory has its entries.
pub fn unexpected_gaps(gaps: &[String]) -> Vec<&String> {
    let is_expected = |gap: &&String| gap.starts_with("No perf maps out of the guest's memory: ");
    gaps.iter().filter(|gap| !is_expected(gap)).collect()
}

/// The kernel without BTF, ORC, and names of variables: the image of one that is packed by zstd, [the ELF file](undescribed)
/// of another one.
pub fn undescribed_kernel(kernel: &Kernel) -> Vec<u8> {
    if kernel.version.starts_with("6.12.") {
        undescribed_image(kernel)
    } else {
        undescribed(kernel)
    }
}

/// The kernel's image, a bzImage, without BTF, ORC, and names of variables. With KASLR, it is moved as any other.
///
/// # Panics
/// If it has none of these, or isn't packed by zstd.
fn undescribed_image(kernel: &Kernel) -> Vec<u8> {
    /// Where the header has the number of setup sectors, and where in what follows them the payload is, and how long
    /// (`Documentation/arch/x86/boot.rst`).
    const SETUP_SECTORS: usize = 0x1f1;
    const PAYLOAD: usize = 0x248;
    const SECTOR: usize = 512;
    /// Without what is removed, this level makes it small enough, in a few seconds.
    const LEVEL: i32 = 12;
    /// The payload's last bytes are the length of what was packed.
    const TAIL: usize = 4;
    let mut image = fs::read(&kernel.image).expect("kernel image");
    let number = |place: usize| -> usize {
        let bytes = image[place..place + 4].try_into().expect("4 bytes");
        u32::from_le_bytes(bytes).try_into().expect("within a file")
    };
    let start = (usize::from(image[SETUP_SECTORS]) + 1) * SECTOR + number(PAYLOAD);
    let payload = start..start + number(PAYLOAD + 4) - TAIL;
    let packed = zstd::bulk::compress(&undescribed(kernel), LEVEL).expect("a packed kernel");
    let place = &mut image[payload];
    assert!(packed.len() <= place.len(), "{} bytes", packed.len());
    // The kernel's decompressor stops at the end of the only frame.
    place.fill(0);
    place[..packed.len()].copy_from_slice(&packed);
    image
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
