//! Kernel modules: where they are, what they need, in which order they load.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use lzma_rust2::XzReader;

use crate::{InitramfsError, Kernel};

/// Longest chain of modules that need each other; the kernel's own are short.
const DEPTH_MAX: usize = 32;
/// No module is this large unpacked.
const MODULE_SIZE_MAX: u64 = 256 << 20;

/// A module ready to be loaded.
#[derive(Debug)]
pub struct Module {
    /// Its name, with underscores.
    pub name: String,
    /// The ELF file, unpacked.
    pub contents: Vec<u8>,
}

/// The wanted modules and all that they need, in an order that loads. What the
/// kernel has built in is left out.
pub fn in_load_order(
    kernel: &Kernel,
    wanted: &[impl AsRef<str>],
) -> Result<Vec<Module>, InitramfsError> {
    let folder = kernel.modules_folder()?;
    let mut resolver = Resolver {
        version: &kernel.version,
        files: module_files(folder)?,
        built_in: built_in(folder)?,
        done: BTreeSet::new(),
        ordered: Vec::new(),
    };
    for name in wanted {
        resolver.add(&normal(name.as_ref()), DEPTH_MAX)?;
    }
    Ok(resolver.ordered)
}

struct Resolver<'a> {
    version: &'a str,
    files: BTreeMap<String, PathBuf>,
    built_in: BTreeSet<String>,
    done: BTreeSet<String>,
    ordered: Vec<Module>,
}

impl Resolver<'_> {
    fn add(&mut self, name: &str, depth: usize) -> Result<(), InitramfsError> {
        if self.built_in.contains(name) || !self.done.insert(name.to_owned()) {
            return Ok(());
        }
        let missing = || InitramfsError::ModuleMissing {
            version: self.version.to_owned(),
            module: name.to_owned(),
        };
        let path = self.files.get(name).ok_or_else(missing)?;
        let deeper = depth.checked_sub(1).ok_or_else(missing)?;
        let contents = unpacked(path)?;
        for needed in needs(&contents) {
            self.add(&normal(&needed), deeper)?;
        }
        self.ordered.push(Module {
            name: name.to_owned(),
            contents,
        });
        Ok(())
    }
}

/// Module names are written with either sign; the kernel takes both as one.
fn normal(name: &str) -> String {
    name.replace('-', "_")
}

/// `kvm-amd.ko.xz` is the module `kvm_amd`.
fn module_name(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str()?;
    let (stem, extension) = name.split_once(".ko")?;
    ["", ".xz", ".zst", ".gz"]
        .contains(&extension)
        .then(|| normal(stem))
}

fn module_files(folder: &Path) -> Result<BTreeMap<String, PathBuf>, InitramfsError> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(InitramfsError::file("list", &folder))? {
            let entry = entry.map_err(InitramfsError::file("list", &folder))?;
            let kind = entry
                .file_type()
                .map_err(InitramfsError::file("read", entry.path()))?;
            // An installed kernel has links to its sources here: not followed.
            if kind.is_dir() {
                folders.push(entry.path());
            } else if let Some(name) = module_name(&entry.path()) {
                files.insert(name, entry.path());
            }
        }
    }
    Ok(files)
}

fn built_in(folder: &Path) -> Result<BTreeSet<String>, InitramfsError> {
    let list = folder.join("modules.builtin");
    let text = fs::read_to_string(&list).map_err(InitramfsError::file("read", &list))?;
    Ok(text
        .lines()
        .filter_map(|line| module_name(Path::new(line)))
        .collect())
}

fn unpacked(path: &Path) -> Result<Vec<u8>, InitramfsError> {
    let bytes = fs::read(path).map_err(InitramfsError::file("read", path))?;
    let mut contents = Vec::new();
    let unpacked = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => read_bounded(XzReader::new(bytes.as_slice(), false), &mut contents),
        Some("zst") => zstd::Decoder::new(bytes.as_slice())
            .and_then(|decoder| read_bounded(decoder, &mut contents)),
        Some("gz") => read_bounded(GzDecoder::new(bytes.as_slice()), &mut contents),
        _ => return Ok(bytes),
    };
    unpacked.map_err(InitramfsError::file("unpack", path))?;
    Ok(contents)
}

fn read_bounded(reader: impl Read, contents: &mut Vec<u8>) -> std::io::Result<()> {
    reader.take(MODULE_SIZE_MAX).read_to_end(contents).map(drop)
}

/// The names in the module's `depends=` entry. A package that was only
/// unpacked has no modules.dep, so the module itself is asked.
fn needs(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value: String = module[at + KEY.len()..]
        .iter()
        .take_while(|byte| byte.is_ascii_graphic())
        .map(|byte| char::from(*byte))
        .collect();
    value
        .split(',')
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_from_modinfo() {
        let module = b"\x7fELF..\0license=GPL\0depends=kvm,irq-bypass\0name=x\0";
        assert_eq!(needs(module), ["kvm", "irq-bypass"]);
        assert!(needs(b"\0depends=\0name=x\0").is_empty());
        assert!(needs(b"nothing").is_empty());
    }

    #[test]
    fn names_are_normalised() {
        let packed = module_name(Path::new("a/kvm-amd.ko.xz"));
        assert_eq!(packed.unwrap(), "kvm_amd");
        assert_eq!(module_name(Path::new("kvm.ko")).unwrap(), "kvm");
        assert_eq!(module_name(Path::new("modules.order")), None);
        assert_eq!(module_name(Path::new("x.kobold")), None);
    }

    fn kernel_with(modules: &[(&str, &str)], built_in: &str) -> (tempfile::TempDir, Kernel) {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("kernel")).unwrap();
        for (file, depends) in modules {
            let contents = format!("\0depends={depends}\0");
            fs::write(folder.path().join("kernel").join(file), contents).unwrap();
        }
        fs::write(folder.path().join("modules.builtin"), built_in).unwrap();
        let kernel = Kernel {
            version: "9.9-test".to_owned(),
            image: PathBuf::from("vmlinuz"),
            modules: Some(folder.path().to_owned()),
        };
        (folder, kernel)
    }

    fn order(kernel: &Kernel, wanted: &[&str]) -> Vec<String> {
        let modules = in_load_order(kernel, wanted).unwrap();
        modules.into_iter().map(|module| module.name).collect()
    }

    #[test]
    fn dependencies_load_first_and_once() {
        let kvm = [("kvm-amd.ko", "kvm,ccp"), ("kvm.ko", "irqbypass")];
        let modules = [&kvm[..], &[("irqbypass.ko", "")]].concat();
        let (_folder, kernel) = kernel_with(&modules, "kernel/drivers/crypto/ccp.ko\n");
        let expected = ["irqbypass", "kvm", "kvm_amd"];
        assert_eq!(order(&kernel, &["kvm", "kvm-amd"]), expected);
    }

    #[test]
    fn circular_dependencies_end() {
        let (_folder, kernel) = kernel_with(&[("a.ko", "b"), ("b.ko", "a")], "");
        assert_eq!(order(&kernel, &["a"]), ["b", "a"]);
    }

    #[test]
    fn a_missing_module_is_named() {
        let (_folder, kernel) = kernel_with(&[("a.ko", "gone")], "");
        let error = in_load_order(&kernel, &["a"]).unwrap_err().to_string();
        assert!(error.contains("9.9-test has no gone"), "{error}");
    }
}
