//! The initial RAM disk of a guest whose root is a shared folder: the program of `init/`, its settings, and modules.

use std::fmt::Write;

use crate::ext2::Ext2;
use crate::{Archive, InitramfsError, Kernel, Module, in_load_order};

/// What the program writes to [`RootSettings::status`] before the status, a byte (`init/init.c`).
pub const STATUS_MARK: &[u8] = b"ended:";

/// The program.
const INIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/init.elf"));

/// The folders, which the program mounts on, or takes modules from.
const FOLDERS: [&str; 5] = ["/dev", "/lower", "/modules", "/root", "/upper"];
/// The kernel opens it for the first process, before anything is mounted.
const CONSOLE: &str = "/dev/console";

/// What the guest is to do. No text may have a line feed or NUL but the command, which may have line feeds.
#[derive(Clone, Debug, Default)]
pub struct RootSettings {
    /// The file system's tag.
    pub tag: String,
    /// Whether the folder itself is the root; if not, it is read-only, below an overlay in the guest's memory.
    pub writable: bool,
    /// The console's device, such as `ttyS0`.
    pub console: String,
    /// What kind of terminal that is, for `TERM`.
    pub terminal: Option<String>,
    /// The terminal's rows and columns.
    pub size: Option<(u16, u16)>,
    /// The program that is the guest's first process.
    pub init: Option<String>,
    /// Else a command that a shell runs; the guest powers off after it.
    pub command: Option<String>,
    /// A disk's device, such as `vdb`, for a kernel that can't power off, and may let no process use ports: how the command ends is written there, and
    /// the guest resets itself.
    pub status: Option<String>,
    /// More modules that are loaded, if the kernel has them as such.
    pub modules: Vec<&'static str>,
}

impl RootSettings {
    /// What can't be done without; what the kernel has built in is no module.
    fn needed_modules(&self) -> Vec<&'static str> {
        let mut modules = vec!["virtio_mmio", "virtiofs"];
        if !self.writable {
            modules.push("overlay");
        }
        modules.extend(&self.modules);
        modules
    }

    fn text(&self, modules: &[String]) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{name}={value}");
        };
        for module in modules {
            line("module", module);
        }
        line("tag", &self.tag);
        line("writable", if self.writable { "1" } else { "0" });
        line("console", &self.console);
        if let Some(terminal) = &self.terminal {
            line("TERM", terminal);
        }
        if let Some((rows, columns)) = self.size {
            line("rows", &rows.to_string());
            line("columns", &columns.to_string());
        }
        if let Some(init) = &self.init {
            line("init", init);
        }
        if let Some(status) = &self.status {
            line("status", status);
        }
        if let Some(command) = &self.command {
            // Last, and without an end: all that follows is the command.
            let _ = write!(text, "command={command}");
        }
        text
    }
}

/// The archive, not compressed. A kernel without a folder of modules has to have all built in.
///
/// # Errors
/// The kernel has modules, but not one that is needed, or it can't be read.
pub fn root_initramfs(kernel: &Kernel, settings: &RootSettings) -> Result<Vec<u8>, InitramfsError> {
    let mut archive = Archive::new();
    for folder in FOLDERS {
        archive.folder(folder, 0o755)?;
    }
    archive.character_device(CONSOLE, 0o600, 5, 1)?;
    for (path, mode, contents) in files(kernel, settings)? {
        archive.file(&path, mode.into(), &contents)?;
    }
    archive.finish()
}

/// The same files on a disk (ext2), for a kernel that takes no initial RAM disk: its first process is `/init`.
///
/// # Errors
/// As for [`root_initramfs`], and a file is too large.
pub fn root_disk(kernel: &Kernel, settings: &RootSettings) -> Result<Vec<u8>, InitramfsError> {
    let mut disk = Ext2::new();
    for folder in FOLDERS {
        disk.folder(folder)?;
    }
    disk.character_device(CONSOLE, 0o600, [5, 1])?;
    for (path, mode, contents) in files(kernel, settings)? {
        disk.file(&path, mode, contents)?;
    }
    disk.finish()
}

/// The files: their paths, permissions and contents.
fn files(
    kernel: &Kernel,
    settings: &RootSettings,
) -> Result<Vec<(String, u16, Vec<u8>)>, InitramfsError> {
    let modules: Vec<Module> = match kernel.modules {
        Some(_) => in_load_order(kernel, &settings.needed_modules())?,
        None => Vec::new(),
    };
    let mut files = vec![("/init".to_owned(), 0o755, INIT.to_vec())];
    let mut names = Vec::new();
    for module in modules {
        let name = format!("/modules/{}.ko", module.name);
        names.push(name.clone());
        files.push((name, 0o644, module.contents));
    }
    let settings = settings.text(&names).into_bytes();
    files.push(("/settings".to_owned(), 0o600, settings));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_last_and_unsplit() {
        let settings = RootSettings {
            tag: "root".to_owned(),
            console: "hvc0".to_owned(),
            size: Some((24, 80)),
            status: Some("vdb".to_owned()),
            command: Some("a\nb=c".to_owned()),
            ..RootSettings::default()
        };
        let text = settings.text(&["/modules/a.ko".to_owned()]);
        assert_eq!(
            text,
            "module=/modules/a.ko\ntag=root\nwritable=0\nconsole=hvc0\nrows=24\ncolumns=80\nstatus=vdb\ncommand=a\nb=c"
        );
    }

    #[test]
    fn a_folder_that_is_written_needs_no_overlay() {
        let mut settings = RootSettings::default();
        assert!(settings.needed_modules().contains(&"overlay"));
        settings.writable = true;
        assert_eq!(settings.needed_modules(), ["virtio_mmio", "virtiofs"]);
    }

    #[test]
    fn a_kernel_without_modules_has_all_built_in() {
        let kernel = Kernel {
            version: "9.9-test".to_owned(),
            image: "bzImage".into(),
            modules: None,
        };
        let settings = RootSettings::default();
        let archive = root_initramfs(&kernel, &settings).unwrap();
        let has = |text: &[u8]| archive.windows(text.len()).any(|window| window == text);
        assert!(has(b"\0settings\0") || has(b"settings\0"));
        assert!(has(INIT));
        let disk = root_disk(&kernel, &settings).unwrap();
        let settings = settings.text(&[]);
        for text in [INIT, settings.as_bytes()] {
            assert!(disk.windows(text.len()).any(|window| window == text));
        }
    }
}
