//! The contents of guest memory before the first instruction, kept so that a restart can load them again.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::image::{Image, ImageKind, LoadedKernel};
use super::kernel_file::open_file;
use super::kernel_part::KernelPart;
use super::{MachineConfig, acpi, boot_parameters, command_line, firmware, mp_table, registers};
use crate::error::MachineError;
use crate::layout;
use crate::memory::GuestMemory;
use crate::virtio::VirtioSlot;

/// The initial RAM disk of a guest, open.
#[derive(Debug)]
pub(super) struct Initrd(PathBuf, File);

impl Initrd {
    /// Opens the one at `path`.
    ///
    /// # Errors
    /// It can't be opened, or isn't a regular file.
    pub fn open(path: PathBuf) -> Result<Self, MachineError> {
        let (file, _) = open_file("initrd", &path)?;
        Ok(Self(path, file))
    }
}

/// Everything that is loaded. Files were read, or opened, once: files that replace them under their names later aren't used.
#[derive(Debug)]
pub struct Boot {
    image: Arc<Image>,
    initrd: Option<Initrd>,
    command_line: String,
    memory_bytes: u64,
    cpus: u8,
    virtio: Vec<VirtioSlot>,
}

impl Boot {
    /// The contents for `config`, of this kernel and this initial RAM disk, on a machine with this many vCPUs and virtio devices in these slots.
    ///
    /// # Errors
    /// The kernel takes no initial RAM disk.
    pub(super) fn new(
        config: &MachineConfig,
        image: Arc<Image>,
        initrd: Option<Initrd>,
        cpus: u8,
        virtio: Vec<VirtioSlot>,
    ) -> Result<Self, MachineError> {
        if let Some(Initrd(path, _)) = &initrd
            && image.lacks(KernelPart::InitialRamDisk)
        {
            return Err(MachineError::NoInitrd {
                kernel: image.name().to_owned(),
                initrd: path.clone(),
            });
        }
        let has_acpi = image.is_linux() && !image.lacks(KernelPart::Acpi);
        Ok(Self {
            command_line: command_line(&config.command_line, has_acpi, &virtio),
            image,
            initrd,
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
        initrd.map(|Initrd(_, file)| file.try_clone()).transpose()
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
            Some(Initrd(path, file)) => Some(boot_parameters::load_initrd(
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
