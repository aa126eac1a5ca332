//! `kvmprof run --root`: a guest whose root is a folder of the host.

use std::env;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use kvmprof_cli::command_line::{ExitStatus, WithStatus, usage};
use kvmprof_initramfs::{Kernel, RootSettings, STATUS_MARK, root_disk, root_initramfs};
use kvmprof_introspection::release_of_file;
use kvmprof_machine::console::Console;
use kvmprof_machine::disk::{Backing, DiskFormat, DiskOptions};
use kvmprof_machine::share::{ShareOptions, ShareSource};
use kvmprof_machine::{Image, KernelPart, KernelSource, MachineDevices};
use kvmprof_vmm::vm::{OnReset, VmConfig, VmEnd};
use rustix::fs::{MemfdFlags, memfd_create};

/// Bytes of the disk for the status: as many as kernels read when they look for partitions, or they complain.
const STATUS_DISK: u64 = 64 << 10;

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

/// What starts such a guest, and what takes its status.
pub struct RootDisk {
    /// An initial RAM disk, or a disk for a kernel that takes no initial RAM disk.
    file: File,
    takes_initrd: bool,
    /// A disk for the status, if the kernel has no ACPI: it can't power off, and may let no process use the port for the status.
    status: Option<File>,
}

impl RootDisk {
    /// Has the guest of `config` start with it. The files of `config` exist while this lives.
    pub fn give_to(&self, config: &mut VmConfig) {
        if self.takes_initrd {
            config.machine.initrd = Some(path_of(&self.file));
        } else {
            // These words come first, because those after a lone `--` aren't for the kernel.
            let disk = disk_name(config.disks.len());
            let words = format!("root=/dev/{disk} rootfstype=ext4 ro init=/init ");
            config.machine.command_line.insert_str(0, &words);
            config.disks.push(raw_disk(&self.file, true));
        }
        if let Some(status) = &self.status {
            config.disks.push(raw_disk(status, false));
            config.on_reset = OnReset::Exit;
        }
    }

    /// Whether `end` is one that the guest makes itself in order.
    pub fn is_orderly(&self, end: &VmEnd) -> bool {
        match end {
            VmEnd::PowerOff => true,
            VmEnd::Reset => self.status.is_some(),
            _ => false,
        }
    }

    /// The status that the guest has left on the disk for it; `None` if there is none.
    fn status(&self) -> Option<u8> {
        let mut said = [0; STATUS_MARK.len() + 1];
        self.status.as_ref()?.read_exact_at(&mut said, 0).ok()?;
        let [status] = said.strip_prefix(STATUS_MARK)? else {
            return None;
        };
        Some(*status)
    }
}

/// A path of an open file.
fn path_of(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

fn raw_disk(file: &File, readonly: bool) -> DiskOptions {
    DiskOptions {
        path: path_of(file),
        readonly,
        format: Some(DiskFormat::Raw),
        serial: String::new(),
        backing: Backing::default(),
    }
}

/// The guest's name of the disk with this index, of which there are few.
fn disk_name(index: usize) -> String {
    let letter = (b'a'..=b'z').nth(index).map_or('z', char::from);
    format!("vd{letter}")
}

fn file_in_memory() -> anyhow::Result<File> {
    let file = memfd_create("kvmprof-root", MemfdFlags::CLOEXEC);
    Ok(File::from(
        file.context("Cannot make the disk that starts the guest")?,
    ))
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

    /// Makes what starts the guest of `config`, with the modules that its kernel needs, which is `unpacked` if it isn't packed; `None` without a root.
    pub fn make_disk(
        &self,
        config: &VmConfig,
        unpacked: Option<&Image>,
    ) -> anyhow::Result<Option<RootDisk>> {
        let (Some(root), KernelSource::Path(path)) = (&self.root, &config.kernel) else {
            return Ok(None);
        };
        let lacks = |part| unpacked.is_some_and(|image| image.lacks(part));
        let takes_initrd = !lacks(KernelPart::InitialRamDisk);
        let mut kernel = kernel_of(path, unpacked)?;
        self.find_modules(&mut kernel, root)?;
        let mut settings = self.settings(root, &config.console)?;
        let mut status = None;
        if lacks(KernelPart::Acpi) {
            let index = config.disks.len() + usize::from(!takes_initrd);
            settings.status = Some(disk_name(index));
            let file = file_in_memory()?;
            file.set_len(STATUS_DISK)
                .context("Cannot make the disk for the status")?;
            status = Some(file);
        }
        let disk = match takes_initrd {
            true => root_initramfs(&kernel, &settings)?,
            false => root_disk(&kernel, &settings)?,
        };
        let mut file = file_in_memory()?;
        file.write_all(&disk)
            .context("Cannot write the disk that starts the guest")?;
        Ok(Some(RootDisk {
            file,
            takes_initrd,
            status,
        }))
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
            status: None,
            command: self.exec.clone(),
            modules: if is_hvc {
                vec!["virtio_console"]
            } else {
                Vec::new()
            },
        })
    }

    /// The status of a guest that was started with `disk`, and whose machine has ended normally.
    pub fn status(&self, devices: &MachineDevices, disk: &RootDisk) -> anyhow::Result<ExitStatus> {
        let failed = |message: &str| {
            Err(WithStatus {
                message: message.to_owned(),
                status: ExitStatus::FAILURE,
            }
            .into())
        };
        match (devices.exit_status().or_else(|| disk.status()), &self.exec) {
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
    use kvmprof_machine::{MachineConfig, MemoryOptions};

    use super::*;

    fn config() -> VmConfig {
        let kernel = KernelSource::Path("libkrunfw.so".into());
        let machine = MachineConfig {
            initrd: None,
            command_line: "quiet -- one".to_owned(),
            memory: MemoryOptions::private(64 << 20),
            cpus: 1,
        };
        let mut config = VmConfig::new(kernel, machine);
        config.on_reset = OnReset::Restart;
        config.disks.push("own.raw".parse().unwrap());
        config
    }

    fn disk(takes_initrd: bool, status: Option<File>) -> RootDisk {
        RootDisk {
            file: file_in_memory().unwrap(),
            takes_initrd,
            status,
        }
    }

    #[test]
    fn an_initrd_starts_most_guests() {
        let mut config = config();
        let disk = disk(true, None);
        disk.give_to(&mut config);
        assert_eq!(config.machine.initrd, Some(path_of(&disk.file)));
        assert_eq!((config.disks.len(), config.on_reset), (1, OnReset::Restart));
        assert_eq!(config.machine.command_line, "quiet -- one");
        assert!(disk.is_orderly(&VmEnd::PowerOff) && !disk.is_orderly(&VmEnd::Reset));
    }

    #[test]
    fn disks_start_other_guests_and_take_their_status() {
        let mut config = config();
        let status = file_in_memory().unwrap();
        status.set_len(STATUS_DISK).unwrap();
        let disk = disk(false, Some(status));
        disk.give_to(&mut config);
        assert_eq!(config.machine.initrd, None);
        let line = "root=/dev/vdb rootfstype=ext4 ro init=/init quiet -- one";
        assert_eq!(config.machine.command_line, line);
        let readonly: Vec<bool> = config.disks.iter().map(|disk| disk.readonly).collect();
        assert_eq!(readonly, [false, true, false]);
        assert_eq!(config.on_reset, OnReset::Exit);
        assert!(disk.is_orderly(&VmEnd::Reset));
        assert_eq!(disk.status(), None);
        // As the guest writes to its last disk.
        let last = config.disks.last().unwrap();
        let file = File::options().write(true).open(&last.path).unwrap();
        file.write_all_at(b"ended:\x07", 0).unwrap();
        assert_eq!(disk.status(), Some(7));
    }

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
