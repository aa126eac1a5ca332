//! `kvmprof run --root`: a guest whose root is a folder of the host.

use std::env;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use kvmprof_cli::command_line::{ExitStatus, WithStatus, usage};
use kvmprof_initramfs::{Kernel, RootSettings, root_disk, root_initramfs};
use kvmprof_introspection::release_of_file;
use kvmprof_machine::console::Console;
use kvmprof_machine::disk::{Backing, DiskFormat, DiskOptions};
use kvmprof_machine::share::{ShareOptions, ShareSource};
use kvmprof_machine::{Image, KernelPart, MachineDevices};
use kvmprof_vmm::vm::VmConfig;
use rustix::fs::{MemfdFlags, memfd_create};

/// The tag of the folder in the guest.
const TAG: &str = "kvmprof-root";

/// Options about the root of the guest.
#[derive(Clone, Debug, Args)]
pub struct RootOptions {
    /// Start the guest with this folder of the host as its root, and a shell on its console. What the guest changes is in
    /// its memory, and gone at its end; with ,rw the folder itself is changed
    #[arg(long, value_name = "DIR[,rw]", value_parser = parse_root, conflicts_with = "initrd")]
    root: Option<Root>,
    /// The kernel's modules, if they aren't near it, in /lib/modules or in the root: the folder lib/modules/RELEASE, or one
    /// that has it
    #[arg(long, value_name = "DIR", requires = "root")]
    modules: Option<PathBuf>,
    /// A command of the guest's shell, in place of an interactive one. The guest powers off after it; its exit status is
    /// that of kvmprof run
    #[arg(
        long,
        value_name = "COMMAND",
        requires = "root",
        conflicts_with = "init"
    )]
    exec: Option<String>,
    /// A program of the root that is the guest's first process, such as /sbin/init, in place of a shell
    #[arg(long, value_name = "PATH", requires = "root")]
    init: Option<String>,
}

#[derive(Clone, Debug)]
struct Root {
    folder: PathBuf,
    writable: bool,
}

fn parse_root(text: &str) -> Result<Root, String> {
    let (folder, writable) = match text.strip_suffix(",rw") {
        Some(folder) => (folder, true),
        None => (text, false),
    };
    if folder.is_empty() {
        return Err("the root has to be a folder".to_owned());
    }
    Ok(Root {
        folder: folder.into(),
        writable,
    })
}

/// What starts such a guest: an initial RAM disk, or a disk for a kernel that takes no initial RAM disk.
pub struct RootDisk {
    file: File,
    takes_initrd: bool,
}

impl RootDisk {
    /// Has the guest of `config` start with it. The files of `config` exist while this lives.
    pub fn give_to(&self, config: &mut VmConfig) {
        let path = PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        if self.takes_initrd {
            config.machine.initrd = Some(path);
            return;
        }
        // Disks are named in their order: vda and so on. There are at most 16.
        let letter = (b'a'..=b'z')
            .nth(config.disks.len())
            .map_or('z', char::from);
        // These words come first, because those after a lone `--` aren't for the kernel.
        let words = format!("root=/dev/vd{letter} rootfstype=ext4 ro init=/init ");
        config.machine.command_line.insert_str(0, &words);
        config.disks.push(DiskOptions {
            path,
            readonly: true,
            format: Some(DiskFormat::Raw),
            serial: String::new(),
            backing: Backing::default(),
        });
    }
}

impl RootOptions {
    /// The folder, if a folder is the root.
    pub fn folder(&self) -> Option<&Path> {
        self.root.as_ref().map(|root| root.folder.as_path())
    }

    /// The folder as a share for the guest.
    pub fn share(&self) -> Option<ShareOptions> {
        let root = self.root.as_ref()?;
        Some(ShareOptions {
            source: ShareSource::Folder {
                path: root.folder.clone(),
                readonly: !root.writable,
            },
            tag: TAG.to_owned(),
        })
    }

    /// Makes what starts the guest, with the modules that the kernel needs; `None` without a root.
    pub fn make_disk(&self, kernel: &Path, console: &Console) -> anyhow::Result<Option<RootDisk>> {
        let Some(root) = &self.root else {
            return Ok(None);
        };
        let unpacked = Image::open_unpacked(kernel)?;
        let takes_initrd =
            !(unpacked.as_ref()).is_some_and(|image| image.lacks(KernelPart::InitialRamDisk));
        let mut kernel = kernel_of(kernel, unpacked.as_ref())?;
        self.find_modules(&mut kernel, root)?;
        let settings = self.settings(root, console)?;
        let disk = match takes_initrd {
            true => root_initramfs(&kernel, &settings)?,
            false => root_disk(&kernel, &settings)?,
        };
        let file = memfd_create("kvmprof-root", MemfdFlags::CLOEXEC);
        let mut file = File::from(file.context("Cannot make the disk that starts the guest")?);
        file.write_all(&disk)
            .context("Cannot write the disk that starts the guest")?;
        Ok(Some(RootDisk { file, takes_initrd }))
    }

    fn find_modules(&self, kernel: &mut Kernel, root: &Root) -> anyhow::Result<()> {
        if let Some(folder) = &self.modules {
            let found = kernel.modules_below(folder);
            let missing = || {
                let folder = folder.display();
                let version = &kernel.version;
                usage(format_args!(
                    "--modules: {folder} has no modules of the kernel {version}, neither itself nor in lib/modules/{version}"
                ))
            };
            kernel.modules = Some(found.ok_or_else(missing)?);
        } else if kernel.modules.is_none() {
            kernel.modules = kernel.modules_below(&root.folder);
        }
        Ok(())
    }

    fn settings(&self, root: &Root, console: &Console) -> anyhow::Result<RootSettings> {
        for (option, text) in [("--init", &self.init), ("--exec", &self.exec)] {
            let is_bad =
                |text: &String| text.contains('\0') || option == "--init" && text.contains('\n');
            if text.as_ref().is_some_and(is_bad) {
                return Err(usage(format_args!(
                    "{option} has a character that can't be passed on"
                )));
            }
        }
        let is_hvc = *console == Console::Hvc;
        let terminal = env::var("TERM").ok();
        let is_plain = |term: &String| term.bytes().all(|byte| byte.is_ascii_graphic());
        let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout()).ok();
        Ok(RootSettings {
            tag: TAG.to_owned(),
            writable: root.writable,
            console: if is_hvc { "hvc0" } else { "ttyS0" }.to_owned(),
            terminal: terminal.filter(is_plain),
            size: size.map(|size| (size.ws_row, size.ws_col)),
            init: self.init.clone(),
            command: self.exec.clone(),
            modules: if is_hvc {
                vec!["virtio_console"]
            } else {
                Vec::new()
            },
        })
    }

    /// The status of a guest whose machine has ended normally.
    pub fn status(&self, devices: &MachineDevices) -> anyhow::Result<ExitStatus> {
        let failed = |message: &str| {
            Err(WithStatus {
                message: message.to_owned(),
                status: ExitStatus::FAILURE,
            }
            .into())
        };
        match (devices.exit_status(), &self.exec) {
            (None, None) | (Some(0), _) => Ok(ExitStatus::SUCCESS),
            (None, Some(_)) => {
                failed("The guest has ended before the command did; its console may say why")
            }
            (Some(status), Some(_)) => Ok(ExitStatus::of_command(status)),
            (Some(_), None) => {
                failed("The guest couldn't be started from the folder; its console says why")
            }
        }
    }
}

/// The kernel in this file, and where its modules are.
fn kernel_of(path: &Path, unpacked: Option<&Image>) -> anyhow::Result<Kernel> {
    let needed = "--root needs a Linux kernel: a bzImage, an ELF vmlinux, or a library with one";
    let Some(image) = unpacked else {
        return Kernel::from_image(path).context(needed);
    };
    let release = release_of_file(image.bytes()).context(needed)?;
    Kernel::of_version(path, release).context(needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_is_read_only_by_default() {
        let root = parse_root("/srv/root").unwrap();
        assert_eq!(
            (root.folder.as_path(), root.writable),
            (Path::new("/srv/root"), false)
        );
        let root = parse_root("/srv/a,b,rw").unwrap();
        assert_eq!(
            (root.folder.as_path(), root.writable),
            (Path::new("/srv/a,b"), true)
        );
        assert!(parse_root(",rw").is_err());
    }
}
