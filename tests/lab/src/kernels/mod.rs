//! Linux kernels: Debian's, and those of microVM products, fetched as packages, or any file on this host.

mod apt;
mod packages;
mod pypi;

use std::path::{Path, PathBuf};

pub use kvmprof_initramfs::Kernel;
pub(crate) use packages::backport;
pub use packages::{
    busybox, cache_folder, debian_11_package, debian_12_package, debian_13_package, debian_package,
    passt,
};
pub use pypi::{BOXLITE, MICROSANDBOX, PYRO, PypiPackage, pypi_package};

use kvmprof_initramfs::InitramfsError;

use crate::LabError;

/// The environment variable that names a kernel for the lab machine instead of Debian's: a path to a vmlinuz.
const KERNEL_VARIABLE: &str = "KVMPROF_LAB_KERNEL";

/// The default kernel of the lab machine itself: the one that `KVMPROF_LAB_KERNEL` names, or Debian's 6.1.
///
/// # Errors
/// As for [`Kernel::from_image`] and [`kernels`].
pub(crate) fn kernel_for_lab() -> Result<Kernel, LabError> {
    match std::env::var_os(KERNEL_VARIABLE) {
        Some(image) => Ok(Kernel::from_image(Path::new(&image))?),
        None => debian("6.1"),
    }
}

/// Debian's cloud kernels that tests run under kvmprof: 6.1, then 6.12. They are fetched on first use.
///
/// # Errors
/// If apt doesn't know a package, or one cannot be fetched.
pub fn kernels() -> Result<Vec<Kernel>, LabError> {
    Ok(vec![debian("6.1")?, debian("6.12")?])
}

/// The ELF file with the debug symbols of a kernel of Debian's. Its package is fetched on first use: 300 MB, which unpack to 1.8 GB.
///
/// # Errors
/// If apt doesn't know the package, or it cannot be fetched.
pub fn debug_symbols(kernel: &Kernel) -> Result<PathBuf, LabError> {
    let package = format!("linux-image-{}-dbg", kernel.version);
    let unpacked = packages::unpacked(&packages::RequiredPackage::Named(&package))?;
    let path = unpacked.join(format!("usr/lib/debug/boot/vmlinux-{}", kernel.version));
    match path.is_file() {
        true => Ok(path),
        false => Err(LabError::PackageUnknown {
            pattern: format!("{package} with {}", path.display()),
        }),
    }
}

fn debian(series: &str) -> Result<Kernel, LabError> {
    let unpacked = packages::unpacked(&packages::RequiredPackage::CloudKernel(series))?;
    let boot = unpacked.join("boot");
    let listing = std::fs::read_dir(&boot).map_err(LabError::file("list", &boot))?;
    let image = listing
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"))
        })
        .ok_or_else(|| InitramfsError::NotAKernel {
            path: boot.clone(),
            reason: "the package has no vmlinuz there",
        })?;
    Ok(Kernel::from_image(&image)?)
}
