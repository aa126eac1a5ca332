//! A small Linux user space around busybox.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use kvmprof_initramfs::InitramfsError;

use super::Archive;
use crate::LabError;
use crate::kernels::{self, Kernel};

/// Names that the builder itself, or the init script, uses.
const NOT_LINKED: [&str; 2] = ["busybox", "init"];

/// Builds an initramfs with busybox in `/bin`, an init script and more files.
///
/// The script is `/init`, the guest's first process. Busybox's shell runs it with nothing mounted yet. Every applet is a link in `/bin`.
#[derive(Debug, Clone, Default)]
pub struct InitramfsBuilder {
    init: Option<String>,
    contents: Vec<(String, u32, Vec<u8>)>,
    host_files: Vec<(PathBuf, String)>,
    links: Vec<(String, String)>,
    modules: Option<(Kernel, Vec<String>)>,
    gzip: bool,
}

impl InitramfsBuilder {
    /// Makes a builder with busybox and the usual empty folders, without an init script.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes this script `/init`. Without a `#!` line, it is run by `/bin/sh`.
    #[must_use]
    pub fn init(mut self, script: &str) -> Self {
        let shebang = if script.starts_with("#!") {
            ""
        } else {
            "#!/bin/sh\n"
        };
        self.init = Some(format!("{shebang}{script}"));
        self
    }

    /// Adds a file with these contents and permissions at an absolute path.
    #[must_use]
    pub fn contents(mut self, destination: &str, mode: u32, contents: impl Into<Vec<u8>>) -> Self {
        self.contents
            .push((destination.to_owned(), mode, contents.into()));
        self
    }

    /// Adds a file or folder of the host at an absolute path; keeps modes.
    #[must_use]
    pub fn add(mut self, source: impl Into<PathBuf>, destination: &str) -> Self {
        self.host_files
            .push((source.into(), destination.to_owned()));
        self
    }

    /// Adds a symbolic link.
    #[must_use]
    pub fn link(mut self, destination: &str, target: &str) -> Self {
        self.links.push((destination.to_owned(), target.to_owned()));
        self
    }

    /// Adds these modules of the kernel, and all modules that they need, as `/modules/*.ko`. Their names sort in the order in which
    /// `insmod` has to load them, as a shell's pattern lists them. Modules that are built into the kernel are left out.
    #[must_use]
    pub fn modules(mut self, kernel: &Kernel, names: &[&str]) -> Self {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        self.modules = Some((kernel.clone(), names));
        self
    }

    /// Sets whether to compress with gzip. This is off by default, because in emulation unpacking takes longer than reading does.
    #[must_use]
    pub fn gzip(mut self, gzip: bool) -> Self {
        self.gzip = gzip;
        self
    }

    /// Builds the archive.
    ///
    /// # Errors
    /// If a file cannot be read, a destination is not an absolute plain path, the kernel lacks a module, or busybox cannot be fetched.
    pub fn build(&self) -> Result<Vec<u8>, LabError> {
        let mut archive = Archive::new();
        add_user_space(&mut archive, &kernels::busybox()?)?;
        for (source, destination) in &self.host_files {
            add_host_file(&mut archive, source, destination)?;
        }
        for (destination, mode, contents) in &self.contents {
            archive.file(destination, *mode, contents)?;
        }
        for (destination, target) in &self.links {
            archive.link(destination, target)?;
        }
        if let Some((kernel, names)) = &self.modules {
            let ordered = kvmprof_initramfs::in_load_order(kernel, names)?;
            for (number, module) in ordered.iter().enumerate() {
                let place = format!("/modules/{number:03}-{}.ko", module.name);
                archive.file(&place, 0o644, &module.contents)?;
            }
        }
        if let Some(init) = &self.init {
            archive.file("/init", 0o755, init.as_bytes())?;
        }
        let bytes = archive.finish()?;
        if !self.gzip {
            return Ok(bytes);
        }
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder
            .write_all(&bytes)
            .and_then(|()| encoder.finish())
            .map_err(LabError::file("compress", "the initramfs"))
    }

    /// Builds the archive into a file.
    ///
    /// # Errors
    /// As for [`InitramfsBuilder::build`], or if the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), LabError> {
        fs::write(path, self.build()?).map_err(LabError::file("write", path))
    }
}

/// Busybox with all its applets, and the folders that a user space expects.
fn add_user_space(archive: &mut Archive, busybox: &Path) -> Result<(), LabError> {
    for folder in ["/dev", "/proc", "/sys", "/run", "/root", "/etc"] {
        archive.folder(folder, 0o755)?;
    }
    archive.folder("/tmp", 0o1777)?;
    // The kernel opens the console for the first process, before anything is mounted.
    archive.character_device("/dev/console", 0o600, 5, 1)?;
    archive.character_device("/dev/null", 0o666, 1, 3)?;
    archive.file("/etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\n")?;
    archive.file("/etc/group", 0o644, b"root:x:0:\n")?;
    add_host_file(archive, busybox, "/bin/busybox")?;
    for applet in applets(busybox)? {
        archive.link(&format!("/bin/{applet}"), "busybox")?;
    }
    Ok(())
}

/// The names of busybox's applets. Busybox is a static program for this same architecture, so it can be asked here, which is quicker than
/// linking in emulation.
fn applets(busybox: &Path) -> Result<Vec<String>, LabError> {
    let listed = Command::new(busybox)
        .arg("--list")
        .output()
        .map_err(LabError::file("run", busybox))?;
    let names: Vec<String> = String::from_utf8_lossy(&listed.stdout)
        .lines()
        .filter(|name| !name.contains('/') && !NOT_LINKED.contains(name))
        .map(str::to_owned)
        .collect();
    if names.is_empty() {
        return Err(LabError::Fetch {
            command: format!("{} --list", busybox.display()),
            message: "it named no applet".to_owned(),
        });
    }
    Ok(names)
}

/// Adds a file, or a folder with everything in it, keeping modes. A symbolic link is followed if it is named itself, and kept if it is in a
/// folder.
pub(crate) fn add_host_file(
    archive: &mut Archive,
    source: &Path,
    destination: &str,
) -> Result<(), LabError> {
    let metadata = fs::metadata(source).map_err(LabError::file("read", source))?;
    let mode = metadata.permissions().mode();
    if metadata.is_file() {
        // The format's own limit, checked before the file is read.
        if u32::try_from(metadata.len()).is_err() {
            let error = io::ErrorKind::FileTooLarge.into();
            return Err(LabError::file("put into an initramfs", source)(error));
        }
        let contents = fs::read(source).map_err(LabError::file("read", source))?;
        return Ok(archive.file(destination, mode, &contents)?);
    }
    if !metadata.is_dir() {
        return Err(LabError::FileKind(source.to_owned()));
    }
    archive.folder(destination, mode)?;
    let listing = fs::read_dir(source).map_err(LabError::file("list", source))?;
    let mut children = listing
        .map(|child| child.map(|child| child.path()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(LabError::file("list", source))?;
    children.sort();
    for child in children {
        let name = child
            .file_name()
            .and_then(|name| name.to_str())
            .ok_or_else(|| InitramfsError::Destination(child.display().to_string()))?;
        let place = format!("{}/{name}", destination.trim_end_matches('/'));
        if child.is_symlink() {
            let target = fs::read_link(&child).map_err(LabError::file("read", &child))?;
            archive.link(&place, &target.to_string_lossy())?;
        } else {
            add_host_file(archive, &child, &place)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_packed_with_its_modes_and_links() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("inner/script");
        fs::create_dir(folder.path().join("inner")).unwrap();
        fs::write(&script, "echo").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o750)).unwrap();
        std::os::unix::fs::symlink("script", folder.path().join("inner/link")).unwrap();
        let mut archive = Archive::new();
        add_host_file(&mut archive, folder.path(), "/lab/folder/").unwrap();
        let text = String::from_utf8(archive.finish().unwrap()).unwrap();
        for expected in [
            "lab/folder/inner/script\0",
            "lab/folder/inner/link\0",
            "000081e8",
        ] {
            assert!(text.contains(expected), "{expected:?} is missing in {text}");
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let missing = Path::new("/nonexistent/file");
        let error = add_host_file(&mut Archive::new(), missing, "/lab/file").unwrap_err();
        assert_eq!(error.to_string(), "Cannot read /nonexistent/file");
    }

    #[test]
    fn a_file_beyond_the_formats_limit_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 32).unwrap();
        let error = add_host_file(&mut Archive::new(), file.path(), "/x").unwrap_err();
        assert!(error.to_string().starts_with("Cannot put into"), "{error}");
    }

    #[test]
    fn a_device_is_refused() {
        let error = add_host_file(&mut Archive::new(), Path::new("/dev/null"), "/x").unwrap_err();
        assert!(matches!(error, LabError::FileKind(_)));
    }
}
