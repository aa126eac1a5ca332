//! The firmware: only the code at the reset vector, which resets the machine.
//!
//! Linux needs it. With hardware-reduced ACPI, Linux assumes that EFI resets the machine. Without EFI, it doesn't try the ACPI reset
//! register but jumps to a PC's firmware (kernel: arch/x86/kernel/reboot.c, `reboot_init` and `native_machine_emergency_restart`).

use kvmprof_devices::legacy::power;
use vm_memory::{Bytes, GuestAddress};

use crate::error::{MachineError, write_error};
use crate::layout;
use crate::memory::GuestMemory;

/// Writes the code to the reset vector.
///
/// # Errors
/// Guest memory ends below the reset vector. No accepted memory size is that small.
pub(super) fn write(memory: &GuestMemory) -> Result<(), MachineError> {
    memory
        .write_slice(&reset_code(), GuestAddress(layout::RESET_VECTOR))
        .map_err(write_error("the reset vector"))
}

/// 16-bit code that writes the ACPI reset register.
fn reset_code() -> [u8; 9] {
    let [port_low, port_high] = power::RESET_PORT.to_le_bytes();
    #[rustfmt::skip]
    let code = [
        0xba, port_low, port_high, // mov dx, port
        0xb0, power::RESET_VALUE,  // mov al, value
        0xee,                      // out dx, al
        0xf4,                      // hlt
        0xeb, 0xfd,                // jmp to hlt
    ];
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_fits_below_the_first_megabyte() {
        let end = layout::RESET_VECTOR + reset_code().len() as u64;
        assert!(end <= layout::HIGH_MEMORY);
    }
}
