//! Control of the guest: pause it, press its power button, reset it, end it.
//!
//! Only clients of the host open the device, any number of them at a time; `WIRE.md` has its commands. They have neither data nor an argument; their
//! answer is 0. All of them are ENXIO once the guest has ended.

const fn command(number: u32) -> u32 {
    ((b'C' as u32) << 8) | number
}

/// `CTL_PAUSE`: holds the vCPUs. It is answered when each has accounted for its ticks and has stopped. No effect on a guest that is paused.
pub const CTL_PAUSE: u32 = command(1);
/// `CTL_RESUME`: lets the vCPUs continue. No effect on a guest that runs.
pub const CTL_RESUME: u32 = command(2);
/// `CTL_POWER_BUTTON`: presses the power button. EAGAIN while the guest's kernel doesn't listen to it; EBUSY while the
/// guest is paused.
pub const CTL_POWER_BUTTON: u32 = command(3);
/// `CTL_RESET`: restarts the guest, or ends it with `--on-reset exit`. It is answered when that has been asked for.
pub const CTL_RESET: u32 = command(4);
/// `CTL_STOP`: ends the guest at once, as SIGINT does. It is answered when that has been asked for.
pub const CTL_STOP: u32 = command(5);
