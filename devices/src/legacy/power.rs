//! Power-off and reset by the guest: the sleep and reset registers of hardware-reduced ACPI (ACPI specification 6.5,
//! sections 4.8.3.7 and 4.8.3.6), and the keyboard controller's reset line, which kernels without ACPI use.

/// I/O port of the ACPI sleep control register.
pub const SLEEP_CONTROL_PORT: u16 = 0x600;
/// I/O port of the ACPI sleep status register. It reads as zero: no sleep state has been left.
pub const SLEEP_STATUS_PORT: u16 = 0x601;
/// I/O port of the ACPI reset register.
pub const RESET_PORT: u16 = 0x602;
/// I/O port on which a guest says how what it was started for has ended: a byte, as exit statuses of programs are. It is of
/// this machine alone; other machines have nothing there.
pub const EXIT_STATUS_PORT: u16 = 0x604;
/// The value that resets when written to [`RESET_PORT`].
pub const RESET_VALUE: u8 = 1;
/// Value of the sleep control register's SLP_TYP field that means S5, "soft off".
pub const SLEEP_TYPE_S5: u8 = 5;
/// I/O port of the keyboard controller's commands (writing) and status (reading).
pub const KEYBOARD_COMMAND_PORT: u16 = 0x64;

/// SLP_EN: go to sleep now.
const SLEEP_ENABLE: u8 = 1 << 5;
/// First bit of SLP_TYP, which has three bits.
const SLEEP_TYPE_SHIFT: u8 = 2;
const SLEEP_TYPE_MASK: u8 = 0b111;
/// "Pulse output line 0", which is wired to the processor's reset.
const KEYBOARD_RESET: u8 = 0xfe;

/// A guest's request to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerRequest {
    /// Turn off.
    PowerOff,
    /// Restart.
    Reset,
}

/// The request that a byte written to `port` makes, if any.
#[must_use]
pub fn write(port: u16, value: u8) -> Option<PowerRequest> {
    match (port, value) {
        (SLEEP_CONTROL_PORT, value)
            if value & SLEEP_ENABLE != 0
                && (value >> SLEEP_TYPE_SHIFT) & SLEEP_TYPE_MASK == SLEEP_TYPE_S5 =>
        {
            Some(PowerRequest::PowerOff)
        }
        (RESET_PORT, RESET_VALUE) | (KEYBOARD_COMMAND_PORT, KEYBOARD_RESET) => {
            Some(PowerRequest::Reset)
        }
        _ => None,
    }
}

/// Whether `port` is one of these registers. All of them read as zero; for the keyboard controller that means "ready
/// for a command", which kernels wait for.
#[must_use]
pub fn claims(port: u16) -> bool {
    matches!(
        port,
        SLEEP_CONTROL_PORT
            | SLEEP_STATUS_PORT
            | RESET_PORT
            | EXIT_STATUS_PORT
            | KEYBOARD_COMMAND_PORT
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_documented_values_power_off_or_reset() {
        let (off, reset) = (Some(PowerRequest::PowerOff), Some(PowerRequest::Reset));
        for (port, value, expected) in [
            (SLEEP_CONTROL_PORT, 0x20 | 5 << 2, off),
            // Another sleep state, and no enable bit.
            (SLEEP_CONTROL_PORT, 0x20 | 3 << 2, None),
            (SLEEP_CONTROL_PORT, 5 << 2, None),
            (RESET_PORT, 1, reset),
            (RESET_PORT, 0, None),
            (KEYBOARD_COMMAND_PORT, 0xfe, reset),
            (KEYBOARD_COMMAND_PORT, 0xd1, None),
            (0x70, 1, None),
        ] {
            assert_eq!(write(port, value), expected, "{port:#x} {value:#x}");
        }
    }

    #[test]
    fn only_its_own_ports_are_claimed() {
        assert!(claims(SLEEP_STATUS_PORT));
        assert!(!claims(0x60));
        assert!(!claims(0x603));
    }
}
