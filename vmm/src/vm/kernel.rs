//! A guest's kernel, as its machine loads it.

use std::sync::Arc;

use super::VmError;
use kvmprof_introspection::KernelBundle;
use kvmprof_machine::{BundledKernel, Image, KernelFile};

/// Reads and checks a kernel, unless it was read already.
///
/// # Errors
/// The file can't be read, or isn't a kernel.
pub fn read_kernel(kernel: KernelFile) -> Result<Arc<Image>, VmError> {
    kernel.read(parse_kernel)
}

/// Checks a kernel in the `bytes` of a file with this name, which may be a library that has one.
///
/// # Errors
/// It isn't a kernel for x86-64, is damaged, or its library doesn't tell where it has to be.
pub fn parse_kernel(name: String, bytes: Arc<[u8]>) -> Result<Image, VmError> {
    let Some(kernel) = KernelBundle::find(&bytes).map_err(|source| VmError::Library {
        name: name.clone(),
        source,
    })?
    else {
        return Ok(Image::parse(name, bytes)?);
    };
    let KernelBundle {
        load,
        entry,
        contents,
    } = kernel;
    let start = contents.as_ptr().addr() - bytes.as_ptr().addr();
    let kernel = BundledKernel {
        load,
        entry,
        contents: start..start + contents.len(),
    };
    Ok(Image::bundled(name, bytes, kernel)?)
}

#[cfg(test)]
mod tests {
    use kvmprof_introspection_fixtures::library::{Function, Library};
    use kvmprof_machine::{ImageKind, KernelPart, KernelSource};

    use super::*;

    const LIBRARY: Library<'_> = Library {
        function: Function::Framed,
        load: 0x100_0000,
        entry: 0x100_0010,
        length: 0x20,
        contents: b"Linux version 6.12.0 TRAILER!!! and more",
    };

    fn parse(file: Vec<u8>) -> Result<Image, VmError> {
        parse_kernel("test".to_owned(), file.into())
    }

    #[test]
    fn a_library_gives_its_kernel() {
        let image = parse(LIBRARY.file()).unwrap();
        assert_eq!(image.kind(), ImageKind::ElfLinux);
        assert!(image.is_linux() && !image.lacks(KernelPart::InitialRamDisk));
        assert!(image.lacks(KernelPart::SerialPort));
        assert_eq!(image.memory_end(), 0x100_0020);
        assert_eq!(**image.bytes(), *LIBRARY.file());
    }

    #[test]
    fn a_library_whose_kernel_has_no_place_is_refused() {
        let function = Function::Empty;
        let error = parse(
            Library {
                function,
                ..LIBRARY
            }
            .file(),
        );
        let said = error.unwrap_err().to_string();
        assert_eq!(said, "The kernel test can't be taken out of its library");
        let low = Library {
            load: 0x8000,
            entry: 0x8000,
            ..LIBRARY
        };
        let said = parse(low.file()).unwrap_err().to_string();
        assert!(said.contains("wants to be loaded at 0x8000"), "{said}");
    }

    #[test]
    fn other_files_are_read_by_the_machine() {
        let source = KernelSource::Embedded(kvmprof_demo_guest::ELF);
        let image = read_kernel(KernelFile::open(&source).unwrap()).unwrap();
        assert_eq!(image.kind(), ImageKind::StartAll);
        let said = parse(b"\x1f\x8b\x08 vmlinux.gz".to_vec());
        assert!(said.unwrap_err().to_string().contains("compressed"));
    }

    /// The file may be another one by then, or be gone.
    #[test]
    fn a_kernel_is_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libkrunfw.so");
        std::fs::write(&path, LIBRARY.file()).unwrap();
        let source = KernelSource::Path(path.clone());
        let image = read_kernel(KernelFile::open(&source).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let read = KernelSource::Image(Arc::clone(&image));
        assert_eq!(read.name(), source.name());
        let file = KernelFile::open(&read).unwrap();
        assert!(file.is_elf());
        assert!(Arc::ptr_eq(&image, &read_kernel(file).unwrap()));
    }
}
