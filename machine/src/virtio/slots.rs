//! The slots of virtio devices: the registers and the interrupt of each.

use std::iter;

use kvmprof_devices::virtio::REGISTERS_SIZE;

use crate::error::MachineError;
use crate::layout;

/// Interrupts (GSIs) for virtio devices but the first: the pins of the I/O APIC after [`layout::VIRTIO_MMIO_GSI`], the first that isn't a
/// PC's, except those of a PC's clock (8, which KVM treats specially), coprocessor (13) and power button ([`layout::POWER_BUTTON_GSI`]).
const SHARED_LINES: [u32; 15] = [6, 7, 9, 10, 11, 12, 14, 15, 16, 17, 18, 19, 20, 21, 22];

/// A virtio-mmio device's place in the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtioSlot {
    /// Guest-physical address of its registers, within the 32-bit gap.
    pub address: u32,
    /// Size of its registers in bytes.
    pub size: u32,
    /// Its interrupt, edge-triggered: a GSI from 5 to 22.
    pub gsi: u32,
    /// Whether another device has the same interrupt.
    pub shared: bool,
}

/// The slots of `count` devices. If there are more devices than interrupts, devices share interrupts. The first device, which is the
/// console, doesn't.
///
/// # Errors
/// There are more devices than [`layout::VIRTIO_DEVICES_MAX`].
pub fn slots(count: usize) -> Result<Vec<VirtioSlot>, MachineError> {
    if count > layout::VIRTIO_DEVICES_MAX {
        return Err(MachineError::TooManyDevices { asked: count });
    }
    let lines = iter::once(layout::VIRTIO_MMIO_GSI).chain(SHARED_LINES.into_iter().cycle());
    let taken: Vec<u32> = lines.take(count).collect();
    let is_shared = |gsi: u32| taken.iter().filter(|line| **line == gsi).count() > 1;
    let addresses = (layout::VIRTIO_MMIO..).step_by(REGISTERS_SIZE as usize);
    let slot = |(address, gsi)| VirtioSlot {
        address,
        size: REGISTERS_SIZE,
        gsi,
        shared: is_shared(gsi),
    };
    Ok(addresses.zip(taken.iter().copied()).map(slot).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_has_registers_and_an_interrupt_of_its_own() {
        let slots = slots(1 + SHARED_LINES.len()).unwrap();
        assert_eq!((slots[0].address, slots[0].gsi), (0xd000_0000, 5));
        assert_eq!((slots[1].address, slots[1].gsi), (0xd000_1000, 6));
        assert_eq!((slots[15].address, slots[15].gsi), (0xd000_f000, 22));
        assert!(slots.iter().all(|slot| !slot.shared));
    }

    #[test]
    fn more_devices_share_interrupts_but_not_the_first_ones() {
        let slots = slots(layout::VIRTIO_DEVICES_MAX).unwrap();
        let with = |gsi| slots.iter().filter(move |slot| slot.gsi == gsi);
        assert_eq!(with(5).count(), 1);
        assert!(with(5).all(|slot| !slot.shared));
        assert_eq!(with(6).count(), 3);
        assert!(with(6).all(|slot| slot.shared));
        assert!(
            slots[1..]
                .iter()
                .all(|slot| SHARED_LINES.contains(&slot.gsi))
        );
        let mut ends = slots.iter().map(|slot| slot.address + slot.size);
        assert!(ends.all(|end| end < layout::IO_APIC));
    }

    #[test]
    fn there_is_a_limit() {
        let error = super::slots(layout::VIRTIO_DEVICES_MAX + 1).unwrap_err();
        assert!(error.to_string().contains("33"), "{error}");
    }
}
