//! The memory slots of a guest: the parts of its physical memory, with their addresses in its VMM's address space.

use std::collections::HashSet;

use kvmprof_introspection::bytes::{array_at, u32_at, u64_at};
use vm_memory::GuestAddress;

use crate::backing::Backings;
use crate::host_kernel::{SlotLayout, SlotOrder};
use crate::{Backing, HostKernel};

/// Maximum number of memory slots of a guest (`KVM_MEM_SLOTS_NUM`, `include/linux/kvm_host.h`).
const MAX_SLOTS: usize = 32_767;
/// Slots from this number on are KVM's own (`KVM_USER_MEM_SLOTS`, `arch/x86/include/asm/kvm_host.h`).
const OWN_SLOTS: i16 = 32_764;
/// How often slots are read again if they have changed during the read.
const TRIES: usize = 16;
/// Bits of a page's address within the page.
const PAGE_SHIFT: u32 = 12;

/// Flags of a slot (`include/uapi/linux/kvm.h`; the last in `include/linux/kvm_host.h`).
const LOG_WRITES: u32 = 1;
const READ_ONLY: u32 = 1 << 1;
const GUEST_MEMFD: u32 = 1 << 2;
const INVALID: u32 = 1 << 16;
/// The bit of the generation that is set while the slots are being changed (`KVM_MEMSLOT_GEN_UPDATE_IN_PROGRESS`).
const CHANGING: u64 = 1 << 63;

/// One memory slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Its address in the guest's physical memory.
    pub address: GuestAddress,
    /// Its size, in bytes; never 0. Neither its guest-physical nor its host addresses wrap.
    pub bytes: u64,
    /// Its address in the VMM's address space.
    pub host_address: u64,
    /// Whether it is ROM, which the guest can only read.
    pub is_read_only: bool,
    /// Whether KVM notes which of its pages the guest writes to (`KVM_MEM_LOG_DIRTY_PAGES`).
    pub logs_writes: bool,
    /// What its memory is backed by.
    pub backing: Backing,
}

impl Slot {
    /// The first address behind it.
    pub fn end(&self) -> u64 {
        self.address.0.saturating_add(self.bytes)
    }
}

/// Identifies a state of a guest's slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Version {
    /// The address of the `struct kvm_memslots`: KVM alternates between two.
    table: u64,
    generation: u64,
}

/// The memory slots of a guest at one moment, by their guest-physical addresses.
#[derive(Clone, Debug, Default)]
pub struct Slots {
    /// The slots by address. They don't overlap.
    slots: Vec<Slot>,
    private_bytes: u64,
    version: Version,
}

/// A slot as it is in the kernel's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Usable(Slot),
    /// A slot with this many bytes that aren't in the VMM's address space: guest_memfd.
    Private(u64),
    /// A slot of KVM's own, or one that is being removed.
    Skipped,
}

impl Slots {
    /// Reads the slots of the guest whose `struct kvm` is at `kvm`; `None` if the guest has ended, or the slots
    /// overlap, or they changed during each read.
    pub(crate) fn read(kernel: &HostKernel, kvm: u64) -> Option<Self> {
        (0..TRIES).find_map(|_| {
            let version = Self::current_version(kernel, kvm)?;
            let entries = entries(kernel, version.table)?;
            let is_stable = version.generation & CHANGING == 0
                && Self::current_version(kernel, kvm)? == version;
            if is_stable {
                Self::arrange(&entries, version)
            } else {
                None
            }
        })
    }

    /// The version of the slots that the guest has now; two reads of the kernel's memory.
    pub(crate) fn current_version(kernel: &HostKernel, kvm: u64) -> Option<Version> {
        let memory = kernel.memory();
        let table = memory.pointer(kvm, kernel.layout().kvm.memslots)?;
        let generation = memory.u64(table, kernel.layout().slot.generation)?;
        Some(Version { table, generation })
    }

    /// The version of these slots.
    pub(crate) fn version(&self) -> Version {
        self.version
    }

    /// Puts slots into order; `None` if they overlap.
    fn arrange(entries: &[Entry], version: Version) -> Option<Self> {
        let mut all = Self {
            version,
            ..Self::default()
        };
        for entry in entries {
            match entry {
                Entry::Usable(slot) => all.slots.push(*slot),
                Entry::Private(bytes) => {
                    all.private_bytes = all.private_bytes.saturating_add(*bytes);
                }
                Entry::Skipped => {}
            }
        }
        all.slots.sort_unstable_by_key(|slot| slot.address);
        let mut end = 0;
        let is_disjoint = all.slots.iter().all(|slot| {
            let begins_behind = slot.address.0 >= end;
            end = slot.end();
            begins_behind
        });
        is_disjoint.then_some(all)
    }

    /// The slots of a guest of this process; `None` if they overlap.
    pub fn new(slots: &[Slot]) -> Option<Self> {
        let entries: Vec<Entry> = slots.iter().copied().map(Entry::Usable).collect();
        Self::arrange(&entries, Version::default())
    }

    /// The same slots, with what they are `backed` by.
    #[must_use]
    pub(crate) fn backed_by(mut self, backed: &Backings) -> Self {
        for slot in &mut self.slots {
            slot.backing = backed.at(slot.host_address, slot.bytes);
        }
        self
    }

    /// The slot with guest-physical address `address`.
    pub fn find(&self, address: GuestAddress) -> Option<&Slot> {
        let behind = self.slots.partition_point(|slot| slot.address <= address);
        let slot = self.slots.get(behind.checked_sub(1)?)?;
        (address.0 < slot.end()).then_some(slot)
    }

    /// All slots, in the order of their guest-physical addresses.
    pub fn iter(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter()
    }

    /// The size of the guest's memory, in bytes: the sum of all slots that the guest can write to.
    pub fn bytes(&self) -> u64 {
        let writable = self.slots.iter().filter(|slot| !slot.is_read_only);
        writable.fold(0, |sum: u64, slot| sum.saturating_add(slot.bytes))
    }

    /// The size of the memory in guest_memfds, in bytes. The VMM itself can't read that memory, and it isn't among
    /// the slots.
    pub fn private_bytes(&self) -> u64 {
        self.private_bytes
    }
}

/// All slots of the `struct kvm_memslots` at `table`, in any order.
fn entries(kernel: &HostKernel, table: u64) -> Option<Vec<Entry>> {
    match kernel.layout().slot.order {
        SlotOrder::Tree { .. } => tree(kernel, table),
        SlotOrder::Array { used, first } => array(kernel, table, used, first),
    }
}

fn array(kernel: &HostKernel, table: u64, used: u64, first: u64) -> Option<Vec<Entry>> {
    let layout = &kernel.layout().slot;
    let used = kernel.memory().u32(table, used)?;
    let used = u64::from(used);
    (used <= MAX_SLOTS as u64).then_some(())?;
    let first = table.checked_add(first)?;
    let read = |index: u64| entry_at(kernel, first.checked_add(index * layout.size)?);
    (0..used).map(|index| Some(read(index)?.0)).collect()
}

fn tree(kernel: &HostKernel, table: u64) -> Option<Vec<Entry>> {
    let layout = &kernel.layout().slot;
    let SlotOrder::Tree {
        root,
        node_index,
        node,
        node_size,
        left,
        right,
    } = layout.order
    else {
        return None;
    };
    let memory = kernel.memory();
    let node_index = memory.u32(table, node_index)?;
    // A slot is in two trees at most, the one that is used and its successor.
    (node_index < 2).then_some(())?;
    let node = node.checked_add(u64::from(node_index) * node_size)?;
    let mut open = vec![memory.u64(table, root)?];
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    while let Some(address) = open.pop() {
        if address == 0 {
            continue;
        }
        // A node that is reached twice belongs to no tree.
        (seen.insert(address) && found.len() < MAX_SLOTS).then_some(())?;
        let (entry, bytes) = entry_at(kernel, address.checked_sub(node)?)?;
        found.push(entry);
        for child in [left, right] {
            open.push(u64_at(&bytes, usize::try_from(node + child).ok()?)?);
        }
    }
    Some(found)
}

/// The `struct kvm_memory_slot` at `address`, and its bytes.
fn entry_at(kernel: &HostKernel, address: u64) -> Option<(Entry, Vec<u8>)> {
    let layout = &kernel.layout().slot;
    let mut bytes = vec![0; usize::try_from(layout.size).ok()?];
    kernel.memory().read(address, &mut bytes)?;
    Some((entry(&bytes, layout)?, bytes))
}

/// The slot in the bytes of a `struct kvm_memory_slot`; `None` if it isn't plausible.
fn entry(bytes: &[u8], layout: &SlotLayout) -> Option<Entry> {
    let at = |offset: u64| usize::try_from(offset).ok();
    let flags = u32_at(bytes, at(layout.flags)?)?;
    let id = i16::from_le_bytes(array_at(bytes, at(layout.id)?)?);
    let in_bytes = |pages: u64| pages.checked_mul(1 << PAGE_SHIFT);
    let size = in_bytes(u64_at(bytes, at(layout.npages)?)?)?;
    if flags & INVALID != 0 || size == 0 || !(0..OWN_SLOTS).contains(&id) {
        return Some(Entry::Skipped);
    }
    if flags & GUEST_MEMFD != 0 {
        return Some(Entry::Private(size));
    }
    let slot = Slot {
        address: GuestAddress(in_bytes(u64_at(bytes, at(layout.base_gfn)?)?)?),
        bytes: size,
        host_address: u64_at(bytes, at(layout.userspace_addr)?)?,
        is_read_only: flags & READ_ONLY != 0,
        logs_writes: flags & LOG_WRITES != 0,
        backing: Backing::Unknown,
    };
    slot.address.0.checked_add(size)?;
    slot.host_address.checked_add(size)?;
    Some(Entry::Usable(slot))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slot(address: u64, bytes: u64, host_address: u64) -> Slot {
        Slot {
            address: GuestAddress(address),
            bytes,
            host_address,
            is_read_only: false,
            logs_writes: false,
            backing: Backing::Unknown,
        }
    }

    #[test]
    fn only_addresses_in_slots_are_found() {
        let high = slot(1 << 32, 0x2000, 0x7000_0000);
        let low = slot(0x1000, 0x3000, 0x5000_0000);
        let next = slot(0x4000, 0x1000, 0x6000_0000);
        let slots = Slots::new(&[high, next, low]).unwrap();
        assert_eq!(slots.iter().collect::<Vec<_>>(), [&low, &next, &high]);
        let find = |address| slots.find(GuestAddress(address)).copied();
        assert_eq!([find(0x1000), find(0x3fff)], [Some(low); 2]);
        assert_eq!(find(0x4000), Some(next));
        assert_eq!(find((1 << 32) + 0x1fff), Some(high));
        for other in [0xfff, 0x5000, (1 << 32) + 0x2000, u64::MAX] {
            assert_eq!(find(other), None, "{other:#x}");
        }
        assert_eq!(slots.bytes(), 0x6000);
        assert_eq!(Slots::default().find(GuestAddress(0)), None);
    }

    #[test]
    fn slots_that_overlap_are_refused() {
        assert!(Slots::new(&[slot(0, 0x2000, 0), slot(0x1000, 0x1000, 0x9000)]).is_none());
        assert!(Slots::new(&[slot(0, 0x2000, 0), slot(0, 0x1000, 0x9000)]).is_none());
        assert!(Slots::new(&[slot(0, 0x2000, 0x9000), slot(0x2000, 0x1000, 0x9000)]).is_some());
    }

    const LAYOUT: SlotLayout = SlotLayout {
        generation: 0,
        order: SlotOrder::Array { used: 0, first: 0 },
        size: 40,
        base_gfn: 0,
        npages: 8,
        userspace_addr: 16,
        flags: 24,
        id: 28,
    };

    fn bytes(frame: u64, pages: u64, host_address: u64, flags: u32, id: i16) -> Vec<u8> {
        let mut bytes = [frame, pages, host_address].map(u64::to_le_bytes).concat();
        bytes.extend_from_slice(&flags.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
        bytes
    }

    #[test]
    fn flags_give_the_kind_of_a_slot() {
        let usable = Slot {
            is_read_only: true,
            logs_writes: true,
            ..slot(0x10_0000, 0x2000, 0x7f00_0000)
        };
        for (bytes, expected) in [
            (
                bytes(0x100, 2, 0x7f00_0000, 3, 0),
                Some(Entry::Usable(usable)),
            ),
            (
                bytes(0x100, 2, 0, GUEST_MEMFD, 0),
                Some(Entry::Private(0x2000)),
            ),
            (bytes(0x100, 2, 0, INVALID, 0), Some(Entry::Skipped)),
            (bytes(0x100, 0, 0, 0, 0), Some(Entry::Skipped)),
            (bytes(0xfee00, 1, 0, 0, OWN_SLOTS), Some(Entry::Skipped)),
            (bytes(0xfee00, 1, 0, 0, -1), Some(Entry::Skipped)),
            (bytes(1 << 52, 1, 0, 0, 0), None),
            (bytes(1, 1 << 52, 0, 0, 0), None),
            (bytes((1 << 52) - 1, 1, 0, 0, 0), None),
            (bytes(1, 1, u64::MAX, 0, 0), None),
            (vec![0; 20], None),
        ] {
            assert_eq!(entry(&bytes, &LAYOUT), expected, "{bytes:x?}");
        }
    }

    proptest! {
        /// The lookup of an address finds the same slot as a linear search.
        #[test]
        fn lookups_agree_with_a_linear_search(
            gaps in prop::collection::vec((0_u64..4, 1_u64..4), 0..20),
            address in 0_u64..130,
        ) {
            let mut end = 0;
            let all: Vec<Slot> = gaps.iter().map(|(gap, bytes)| {
                let begin = end + gap;
                end = begin + bytes;
                slot(begin, *bytes, begin)
            }).collect();
            let slots = Slots::new(&all).unwrap();
            let expected = all.iter().find(|slot| (slot.address.0..slot.end()).contains(&address));
            prop_assert_eq!(slots.find(GuestAddress(address)), expected);
        }
    }
}
