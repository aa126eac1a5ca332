//! Turns of devices that give up all their queues after an error of the driver, until the next reset.

use super::{GuestMemory, MmioTransport, QueueError, VirtioDevice, Virtqueue};

/// A device that gives up all its queues after an error of the driver.
pub(super) trait GivesUp: VirtioDevice {
    /// The device's name in the log.
    const NAME: &'static str;

    /// Whether the device's queues are unusable until a reset.
    fn has_given_up(&self) -> bool;

    /// Makes the device's queues unusable from now on. Returns its count of such errors.
    fn give_up(&mut self) -> &mut u64;
}

/// Calls `serve` with the queues of `transport`, if they can be used, and informs the driver. Returns the result of `serve`, or else the default.
pub(super) fn take_turn<D: GivesUp, T: Default>(
    transport: &mut MmioTransport<D>,
    memory: &GuestMemory,
    serve: impl FnOnce(&mut D, &mut [Virtqueue]) -> Result<T, QueueError>,
) -> T {
    let mut result = T::default();
    if let Some((device, queues)) = transport.running()
        && !device.has_given_up()
    {
        result = serve(device, queues).unwrap_or_else(|error| {
            give_up_for(device, &error);
            T::default()
        });
    }
    if transport.device().has_given_up() {
        transport.need_reset();
    }
    transport.note_used(memory);
    result
}

/// Makes `device` give up after an error of the driver. Only the first error is logged: a hostile guest must not be able to fill
/// the log.
pub(super) fn give_up_for<D: GivesUp>(device: &mut D, error: &QueueError) {
    let faults = device.give_up();
    *faults += 1;
    if *faults == 1 {
        log::warn!(
            "{}: the queues aren't served before the next reset: {error}",
            D::NAME
        );
    }
}
