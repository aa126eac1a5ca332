//! The kernels that are profiled.

use std::fs;

use kvmprof::introspection::GuestKnowledge;
use kvmprof_lab::Kernel;

/// Debian's kernel of this series, `6.1` or `6.12`.
///
/// # Panics
/// When it cannot be had.
pub fn debian(series: &str) -> Kernel {
    kvmprof_lab::kernels()
        .expect("Debian's kernels")
        .into_iter()
        .find(|kernel| kernel.version.starts_with(&format!("{series}.")))
        .unwrap_or_else(|| panic!("Debian has no kernel {series}"))
}

/// What kvmprof learns from the kernel's image.
///
/// # Panics
/// When it learns nothing.
pub fn kernel_knowledge(kernel: &Kernel) -> GuestKnowledge {
    let image = fs::read(&kernel.image).expect("kernel image");
    GuestKnowledge::from_kernel_image(&image).expect("a kernel with symbols and BTF")
}

/// The ELF file in the kernel's image.
///
/// # Panics
/// When there is none.
pub fn unpacked(kernel: &Kernel) -> Vec<u8> {
    let image = fs::read(&kernel.image).expect("kernel image");
    kvmprof::introspection::unpack_kernel(&image)
        .expect("kernel payload")
        .into_owned()
}
