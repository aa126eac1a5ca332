//! Linux kernels: Debian's, fetched as packages, or any file on this host.

mod apt;
pub(crate) mod modules;
mod packages;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

pub use packages::{busybox, cache_folder, passt};

use crate::LabError;

/// Names a kernel for the lab machine instead of Debian's: a path to a vmlinuz.
const KERNEL_VARIABLE: &str = "KVMPROF_LAB_KERNEL";

/// Offsets in a bzImage (Linux, `Documentation/arch/x86/boot.rst`).
const SETUP_SECTORS_AT: usize = 0x1f1;
const SIZE_AT: usize = 0x1f4;
const HEADER_MAGIC_AT: usize = 0x202;
const VERSION_POINTER_AT: usize = 0x20e;
const VERSION_POINTER_BASE: usize = 0x200;
/// How much of a bzImage holds its setup part: at most 64 sectors and the boot
/// sector, within which the version string lies.
const SETUP_SIZE: u64 = 65 * SECTOR;
const SECTOR: u64 = 512;
/// What the size is counted in, in bytes; the last unit need not be full.
const SIZE_UNIT: u64 = 16;
/// Sectors of the setup part where none are given.
const DEFAULT_SETUP_SECTORS: u64 = 4;

/// A Linux kernel that can be booted, in the lab or inside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// What `uname -r` says under it.
    pub version: String,
    /// The bzImage.
    pub image: PathBuf,
    /// The folder with its modules (`lib/modules/VERSION`), where there is one.
    pub modules: Option<PathBuf>,
}

impl Kernel {
    /// A kernel from a bzImage. Its modules are looked for where `dpkg -x`
    /// would have put them beside it (`../lib/modules/VERSION`,
    /// `../usr/lib/modules/VERSION`, or its own folder if that is named
    /// `VERSION`), in `lib/modules/VERSION` and `modules/VERSION` next to it,
    /// and in `/lib/modules/VERSION`.
    ///
    /// # Errors
    /// [`LabError::File`] when it cannot be read, [`LabError::NotAKernel`] when
    /// it is something else, [`LabError::CutShort`] when its end is missing. Missing modules are no error here.
    pub fn from_image(image: &Path) -> Result<Self, LabError> {
        let version = image_version(image)?;
        let modules = module_places(image, &version)
            .into_iter()
            .find(|place| place.is_dir());
        Ok(Self {
            version,
            image: image.to_owned(),
            modules,
        })
    }

    /// The kernel that the lab machine itself runs when none is named: the one
    /// in the environment's `KVMPROF_LAB_KERNEL`, or Debian's 6.1.
    ///
    /// # Errors
    /// As for [`Kernel::from_image`] and [`kernels`].
    pub fn for_lab() -> Result<Self, LabError> {
        match std::env::var_os(KERNEL_VARIABLE) {
            Some(image) => Self::from_image(Path::new(&image)),
            None => debian("6.1"),
        }
    }

    /// The folder with the kernel's modules.
    ///
    /// # Errors
    /// [`LabError::ModulesMissing`], with all places that were tried.
    pub(crate) fn modules_folder(&self) -> Result<&Path, LabError> {
        self.modules
            .as_deref()
            .ok_or_else(|| LabError::ModulesMissing {
                version: self.version.clone(),
                searched: module_places(&self.image, &self.version),
            })
    }
}

/// Debian's cloud kernels that tests run under kvmprof: 6.1, then 6.12.
/// Fetched on first use.
///
/// # Errors
/// A package unknown to apt, or one that cannot be fetched.
pub fn kernels() -> Result<Vec<Kernel>, LabError> {
    Ok(vec![debian("6.1")?, debian("6.12")?])
}

/// Fetches all packages that the lab uses, so that nothing later needs apt.
///
/// # Errors
/// As for [`kernels`].
pub fn fetch() -> Result<Vec<Kernel>, LabError> {
    busybox()?;
    passt()?;
    kernels()
}

fn debian(series: &str) -> Result<Kernel, LabError> {
    let unpacked = packages::unpacked(&packages::Wanted::CloudKernel(series))?;
    let boot = unpacked.join("boot");
    let listing = std::fs::read_dir(&boot).map_err(LabError::file("list", &boot))?;
    let image = listing
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"))
        })
        .ok_or_else(|| LabError::NotAKernel {
            path: boot.clone(),
            reason: "the package has no vmlinuz there",
        })?;
    Kernel::from_image(&image)
}

fn module_places(image: &Path, version: &str) -> Vec<PathBuf> {
    let folder = image.parent().unwrap_or(Path::new("."));
    let own = folder.ends_with(version).then(|| folder.to_owned());
    let near = [
        folder.join("../lib/modules").join(version),
        folder.join("../usr/lib/modules").join(version),
        folder.join("lib/modules").join(version),
        folder.join("modules").join(version),
        Path::new("/lib/modules").join(version),
    ];
    own.into_iter().chain(near).collect()
}

fn image_version(image: &Path) -> Result<String, LabError> {
    let mut setup = Vec::new();
    let length = File::open(image)
        .and_then(|file| {
            let length = file.metadata()?.len();
            file.take(SETUP_SIZE).read_to_end(&mut setup)?;
            Ok(length)
        })
        .map_err(LabError::file("read", image))?;
    let version = version_in_setup(&setup).map_err(|reason| LabError::NotAKernel {
        path: image.to_owned(),
        reason,
    })?;
    match least_length(&setup) {
        Some(least) if length < least => Err(LabError::CutShort {
            path: image.to_owned(),
            length,
            least,
        }),
        _ => Ok(version),
    }
}

/// How many bytes an image with this setup part has at least.
fn least_length(setup: &[u8]) -> Option<u64> {
    let sectors = match setup.get(SETUP_SECTORS_AT)? {
        0 => DEFAULT_SETUP_SECTORS,
        sectors => u64::from(*sectors),
    };
    let size: [u8; 4] = setup.get(SIZE_AT..SIZE_AT + 4)?.try_into().ok()?;
    let units = u64::from(u32::from_le_bytes(size));
    // The boot sector comes before the setup part, the kernel itself behind it.
    Some((1 + sectors) * SECTOR + (units * SIZE_UNIT).saturating_sub(SIZE_UNIT - 1))
}

/// The first word of the version string that the setup header points to.
fn version_in_setup(setup: &[u8]) -> Result<String, &'static str> {
    if setup.get(HEADER_MAGIC_AT..HEADER_MAGIC_AT + 4) != Some(b"HdrS") {
        return Err("it has no setup header");
    }
    let missing = "its setup header names no version";
    let pointer: [u8; 2] = setup
        .get(VERSION_POINTER_AT..VERSION_POINTER_AT + 2)
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or(missing)?;
    let start = usize::from(u16::from_le_bytes(pointer)) + VERSION_POINTER_BASE;
    let text = setup.get(start..).ok_or(missing)?;
    let word: String = text
        .iter()
        .take_while(|byte| byte.is_ascii_graphic())
        .map(|byte| char::from(*byte))
        .collect();
    // It becomes part of a path.
    if word.is_empty() || word.contains('/') || word.starts_with('.') {
        return Err(missing);
    }
    Ok(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup_with(pointer: u16, version: &[u8]) -> Vec<u8> {
        let mut setup = vec![0; 0x1400];
        setup[HEADER_MAGIC_AT..HEADER_MAGIC_AT + 4].copy_from_slice(b"HdrS");
        setup[VERSION_POINTER_AT..VERSION_POINTER_AT + 2].copy_from_slice(&pointer.to_le_bytes());
        let start = usize::from(pointer) + VERSION_POINTER_BASE;
        if start < setup.len() {
            setup[start..start + version.len()].copy_from_slice(version);
        }
        setup
    }

    #[test]
    fn the_version_is_the_first_word() {
        let setup = setup_with(0x300, b"6.1.0-1-cloud-amd64 (builder) #1\0");
        assert_eq!(version_in_setup(&setup).unwrap(), "6.1.0-1-cloud-amd64");
    }

    #[test]
    fn damaged_headers_are_refused() {
        assert!(version_in_setup(b"a text file").is_err());
        assert!(version_in_setup(&setup_with(0xffff, b"")).is_err());
        assert!(version_in_setup(&setup_with(0x300, b"\0")).is_err());
        assert!(version_in_setup(&setup_with(0x300, b"../../etc\0")).is_err());
    }

    #[test]
    fn an_image_without_its_end_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut image = setup_with(0x300, b"9.9-test\0");
        // 7 sectors with the boot sector, and 100 units, the last one not full.
        image[SETUP_SECTORS_AT] = 6;
        image[SIZE_AT] = 100;
        for (length, is_whole) in [(7 * 512 + 1585, true), (7 * 512 + 1584, false)] {
            image.resize(length, 0);
            std::fs::write(file.path(), &image).unwrap();
            match Kernel::from_image(file.path()) {
                Ok(_) => assert!(is_whole, "{length}"),
                Err(error) => {
                    assert!(!is_whole, "{length}");
                    let text = error.to_string();
                    assert!(text.contains("5168 bytes of at least 5169"), "{text}");
                }
            }
        }
    }

    #[test]
    fn a_text_file_as_kernel_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "not a kernel").unwrap();
        let error = Kernel::from_image(file.path()).unwrap_err().to_string();
        assert!(error.contains("is no Linux kernel"), "{error}");
        assert!(
            error.contains(&file.path().display().to_string()),
            "{error}"
        );
    }

    #[test]
    fn modules_are_found_where_dpkg_unpacks_them() {
        for (image, modules) in [
            ("boot/vmlinuz", "lib/modules/9.9-test"),
            ("boot/vmlinuz", "usr/lib/modules/9.9-test"),
            (
                "usr/lib/modules/9.9-test/vmlinuz",
                "usr/lib/modules/9.9-test",
            ),
        ] {
            let root = tempfile::tempdir().unwrap();
            let (image, modules) = (root.path().join(image), root.path().join(modules));
            std::fs::create_dir_all(&modules).unwrap();
            std::fs::create_dir_all(image.parent().unwrap()).unwrap();
            std::fs::write(&image, setup_with(0x300, b"9.9-test\0")).unwrap();
            let kernel = Kernel::from_image(&image).unwrap();
            let found = kernel.modules_folder().unwrap().canonicalize().unwrap();
            assert_eq!(found, modules.canonicalize().unwrap());
        }
    }

    #[test]
    fn a_kernel_without_modules_tells_where_they_were_looked_for() {
        let root = tempfile::tempdir().unwrap();
        let image = root.path().join("vmlinuz");
        std::fs::write(&image, setup_with(0x300, b"9.9-test\0")).unwrap();
        let without = Kernel::from_image(&image).unwrap();
        let error = without.modules_folder().unwrap_err().to_string();
        assert!(error.contains("/lib/modules/9.9-test"), "{error}");
    }
}
