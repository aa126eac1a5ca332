//! Turns of devices that give up all their queues after an error of the driver, until the next reset.

use super::{GuestMemory, MmioTransport, QueueError, VirtioDevice, Virtqueue};

/// Such a device.
pub(super) trait GivesUp: VirtioDevice {
    /// Whether its queues are unusable until a reset.
    fn has_given_up(&self) -> bool;

    /// Its queues are unusable from now on, for this reason.
    fn give_up(&mut self, error: &QueueError);
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
            device.give_up(&error);
            T::default()
        });
    }
    if transport.device().has_given_up() {
        transport.need_reset();
    }
    transport.note_used(memory);
    result
}

/// Counts an error of the driver, and logs the first: a hostile guest must not be able to fill the log. `what` (`virtio-net: the
/// queues aren't`) isn't served any more.
pub(super) fn count_fault(faults: &mut u64, what: &str, error: &QueueError) {
    *faults += 1;
    if *faults == 1 {
        log::warn!("{what} served before the next reset: {error}");
    }
}
