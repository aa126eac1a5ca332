//! Turns of devices that give up all their queues after an error of the driver, until the next reset.

use super::{GuestMemory, MmioTransport, QueueError, VirtioDevice, Virtqueue};

/// Such a device.
pub(super) trait GivesUp: VirtioDevice {
    /// What the log calls it.
    const NAME: &'static str;

    /// Whether its queues are unusable until a reset.
    fn has_given_up(&self) -> bool;

    /// Its queues are unusable from now on. Returns its count of such errors.
    fn give_up(&mut self) -> &mut u64;
}

/// Has `serve` work on the queues of `transport`, if they can be used, and tells the driver. The result is that of `serve`, or the default.
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

/// Has `device` give up for an error of the driver, which is logged if it is the first: a hostile guest must not be able to fill
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
