//! Parts of Linux kernels that a machine can't do without, or that a user needn't ask for.

/// A part that a kernel has or lacks by its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelPart {
    /// ACPI (`CONFIG_ACPI`), by which virtio devices are found.
    Acpi,
    /// The driver of the serial port (`CONFIG_SERIAL_8250`).
    SerialPort,
    /// Initial RAM disks (`CONFIG_BLK_DEV_INITRD`).
    InitialRamDisk,
}

impl KernelPart {
    /// A text that the part compares or registers, and so has in each build of it.
    fn text(self) -> &'static [u8] {
        match self {
            // The root pointer's signature (drivers/acpi/acpica/tbxfroot.c).
            Self::Acpi => b"RSD PTR ",
            // The platform driver's name (drivers/tty/serial/8250/8250_core.c).
            Self::SerialPort => b"serial8250",
            // The last name in an archive (init/initramfs.c).
            Self::InitialRamDisk => b"TRAILER!!!",
        }
    }

    /// Whether the kernel with these bytes, which aren't packed, may have the part. If not, it certainly doesn't.
    pub(super) fn may_be_in(self, kernel: &[u8]) -> bool {
        memchr::memmem::find(kernel, self.text()).is_some()
    }
}
