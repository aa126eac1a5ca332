//! The contents of guest memory before the first instruction, kept so that a restart can load them again.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use super::image::{Image, ImageKind, LoadedKernel};
use super::kernel_file::{KernelFile, open_file};
use super::kernel_part::KernelPart;
use super::{MachineConfig, acpi, boot_parameters, command_line, firmware, mp_table, registers};
use crate::error::MachineError;
use crate::layout;
use crate::memory::GuestMemory;
use crate::virtio::VirtioSlot;

/// The files of a guest that are loaded, open.
#[derive(Debug)]
pub(super) struct BootFiles {
    kernel: KernelFile,
    initrd: Option<(PathBuf, File)>,
}

impl BootFiles {
    /// Opens those of `config`.
    ///
    /// # Errors
    /// One of them can't be opened, or isn't a regular file.
    pub fn open(config: &MachineConfig) -> Result<Self, MachineError> {
        let initrd = config.initrd.clone().map(|path| {
            let (file, _) = open_file("initrd", &path)?;
            Ok::<_, MachineError>((path, file))
        });
        Ok(Self {
            kernel: KernelFile::open(&config.kernel)?,
            initrd: initrd.transpose()?,
        })
    }
}

/// Everything that is loaded. Files were read, or opened, once: files that replace them under their names later aren't used.
#[derive(Debug)]
pub struct Boot {
    image: Image,
    initrd: Option<(PathBuf, File)>,
    command_line: String,
    memory_bytes: u64,
    cpus: u8,
    virtio: Vec<VirtioSlot>,
}

impl Boot {
    /// The contents for `config`, of these files, on a machine with this many vCPUs and virtio devices in these slots.
    ///
    /// # Errors
    /// A file can't be read, or isn't a kernel, or the kernel takes no initial RAM disk.
    pub(super) fn new(
        config: &MachineConfig,
        files: BootFiles,
        cpus: u8,
        virtio: Vec<VirtioSlot>,
    ) -> Result<Self, MachineError> {
        let image = Image::read(files.kernel)?;
        if let Some((path, _)) = &files.initrd
            && image.lacks(KernelPart::InitialRamDisk)
        {
            return Err(MachineError::NoInitrd {
                kernel: config.kernel.name(),
                initrd: path.clone(),
            });
        }
        let has_acpi = image.is_linux() && !image.lacks(KernelPart::Acpi);
        Ok(Self {
            command_line: command_line(&config.command_line, has_acpi, &virtio),
            image,
            initrd: files.initrd,
            memory_bytes: config.memory.bytes,
            cpus,
            virtio,
        })
    }

    /// The kernel.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Another descriptor of the initial RAM disk. The descriptors share one position: read the file by offsets.
    ///
    /// # Errors
    /// The host has no descriptor left.
    pub fn initrd(&self) -> io::Result<Option<File>> {
        let initrd = self.initrd.as_ref();
        initrd.map(|(_, file)| file.try_clone()).transpose()
    }

    /// The way in which the kernel is entered.
    pub fn kind(&self) -> ImageKind {
        self.image.kind()
    }

    /// Fills `memory`, which is all zero, with its contents before the first instruction.
    ///
    /// # Errors
    /// It doesn't fit, or the initial RAM disk can't be read.
    pub fn load(&self, memory: &GuestMemory) -> Result<LoadedKernel, MachineError> {
        let image = &self.image;
        let low_end = self.memory_bytes.min(layout::GAP_START);
        let kernel = image.load(memory, low_end)?;
        boot_parameters::load_command_line(memory, image, &self.command_line)?;
        let initrd = match &self.initrd {
            Some((path, file)) => Some(boot_parameters::load_initrd(
                memory, image, path, file, low_end,
            )?),
            None => None,
        };
        let rsdp = acpi::write(memory, self.cpus, &self.virtio)?;
        mp_table::write(memory, self.cpus)?;
        boot_parameters::write(
            memory,
            self.memory_bytes,
            image.kind(),
            &kernel,
            initrd,
            rsdp,
        )?;
        registers::write_boot_tables(memory, image.kind())?;
        firmware::write(memory)?;
        Ok(kernel)
    }
}
