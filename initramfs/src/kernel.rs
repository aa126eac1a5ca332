//! Linux kernels as files: which release one is, and where its modules are.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::InitramfsError;

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

/// Files of every folder with a kernel's modules (kernel: Documentation/kbuild/kbuild.rst).
const MODULE_LISTS: [&str; 2] = ["modules.order", "modules.builtin"];
/// From the folder of a kernel in the tree that it was built in to the tree's top.
const TREE_TOP: &str = "../../..";

/// A Linux kernel that can be booted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// What `uname -r` says under it.
    pub version: String,
    /// The file with the kernel.
    pub image: PathBuf,
    /// The folder with its modules (`lib/modules/VERSION`), where there is one.
    pub modules: Option<PathBuf>,
}

impl Kernel {
    /// A kernel from a bzImage. Its modules are looked for where `dpkg -x` would have put them
    /// beside it (`../lib/modules/VERSION`, `../usr/lib/modules/VERSION`, or its own folder if
    /// that is named `VERSION`), in `lib/modules/VERSION` and `modules/VERSION` next to it, in
    /// `/lib/modules/VERSION`, and in the tree that the kernel was built in, if it lies there.
    ///
    /// # Errors
    /// [`InitramfsError::File`] when it cannot be read, [`InitramfsError::NotAKernel`] when it is something else,
    /// [`InitramfsError::CutShort`] when its end is missing. Missing modules are no error here.
    pub fn from_image(image: &Path) -> Result<Self, InitramfsError> {
        Self::of_version(image, image_version(image)?)
    }

    /// A kernel from another file than a bzImage, with the `version` that the file tells. Its modules are looked for in the same places.
    ///
    /// # Errors
    /// [`InitramfsError::NotAKernel`] when the version can't be a part of a path.
    pub fn of_version(image: &Path, version: String) -> Result<Self, InitramfsError> {
        if !is_version(&version) {
            return Err(InitramfsError::NotAKernel {
                path: image.to_owned(),
                reason: "its version is no name of a folder",
            });
        }
        let modules = module_places(image, &version)
            .into_iter()
            .find(|place| place.is_dir());
        Ok(Self {
            modules: modules.or_else(|| build_tree(image)),
            version,
            image: image.to_owned(),
        })
    }

    /// The folder in which this kernel's modules are below `folder`, which may be that folder itself, one of such folders, or the
    /// root of a system.
    #[must_use]
    pub fn modules_below(&self, folder: &Path) -> Option<PathBuf> {
        if has_module_lists(folder) {
            return Some(folder.to_owned());
        }
        let places = ["", "lib/modules", "usr/lib/modules"];
        let mut places = places
            .map(|place| folder.join(place).join(&self.version))
            .into_iter();
        places.find(|place| place.is_dir())
    }

    /// The folder with the kernel's modules.
    ///
    /// # Errors
    /// [`InitramfsError::ModulesMissing`], with all places that were tried.
    pub fn modules_folder(&self) -> Result<&Path, InitramfsError> {
        self.modules
            .as_deref()
            .ok_or_else(|| InitramfsError::ModulesMissing {
                version: self.version.clone(),
                searched: module_places(&self.image, &self.version),
            })
    }
}

fn has_module_lists(folder: &Path) -> bool {
    MODULE_LISTS.iter().all(|list| folder.join(list).is_file())
}

/// The top of the tree in which the image lies as `arch/x86/boot/bzImage`, if modules were built there.
fn build_tree(image: &Path) -> Option<PathBuf> {
    let folder = image.parent()?.canonicalize().ok()?;
    let top = folder
        .ends_with("arch/x86/boot")
        .then(|| folder.join(TREE_TOP))?;
    has_module_lists(&top).then_some(top)
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

fn image_version(image: &Path) -> Result<String, InitramfsError> {
    let mut setup = Vec::new();
    let length = File::open(image)
        .and_then(|file| {
            let length = file.metadata()?.len();
            file.take(SETUP_SIZE).read_to_end(&mut setup)?;
            Ok(length)
        })
        .map_err(InitramfsError::file("read", image))?;
    let version = version_in_setup(&setup).map_err(|reason| InitramfsError::NotAKernel {
        path: image.to_owned(),
        reason,
    })?;
    match least_length(&setup) {
        Some(least) if length < least => Err(InitramfsError::CutShort {
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
    if is_version(&word) {
        Ok(word)
    } else {
        Err(missing)
    }
}

/// Whether a word can be a kernel's version: it becomes part of a path.
fn is_version(word: &str) -> bool {
    !(word.is_empty() || word.contains('/') || word.starts_with('.'))
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
            let error = Kernel::from_image(file.path()).err();
            let text = error.map(|error| error.to_string());
            let is_cut = |text: &String| text.contains("5168 bytes of at least 5169");
            assert_eq!(text.is_none(), is_whole, "{text:?}");
            assert!(text.as_ref().is_none_or(is_cut), "{text:?}");
        }
    }

    #[test]
    fn a_text_file_as_kernel_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "not a kernel").unwrap();
        let error = Kernel::from_image(file.path()).unwrap_err().to_string();
        let name = file.path().display();
        for words in ["is no Linux kernel", &name.to_string()] {
            assert!(error.contains(words), "{error}");
        }
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
    fn a_missing_module_folder_is_an_error_with_the_searched_paths() {
        let root = tempfile::tempdir().unwrap();
        let image = root.path().join("vmlinuz");
        std::fs::write(&image, setup_with(0x300, b"9.9-test\0")).unwrap();
        let without = Kernel::from_image(&image).unwrap();
        let error = without.modules_folder().unwrap_err().to_string();
        assert!(error.contains("/lib/modules/9.9-test"), "{error}");
    }

    #[test]
    fn modules_are_found_below_a_folder_and_in_the_kernels_own_tree() {
        let root = tempfile::tempdir().unwrap();
        let boot = root.path().join("arch/x86/boot");
        std::fs::create_dir_all(&boot).unwrap();
        std::fs::write(boot.join("bzImage"), setup_with(0x300, b"9.9-test\0")).unwrap();
        let kernel = Kernel::from_image(&boot.join("bzImage")).unwrap();
        assert_eq!(kernel.modules, None);
        assert_eq!(kernel.modules_below(root.path()), None);
        for list in MODULE_LISTS {
            std::fs::write(root.path().join(list), "").unwrap();
        }
        let kernel = Kernel::from_image(&boot.join("bzImage")).unwrap();
        let found = kernel.modules.as_ref().unwrap().canonicalize().unwrap();
        assert_eq!(found, root.path().canonicalize().unwrap());
        assert_eq!(kernel.modules_below(root.path()).unwrap(), root.path());
        let system = tempfile::tempdir().unwrap();
        let modules = system.path().join("lib/modules/9.9-test");
        std::fs::create_dir_all(&modules).unwrap();
        assert_eq!(kernel.modules_below(system.path()), Some(modules));
    }
}
