//! The memory of a process whose vCPU stands still.

use kvmprof_devices::profiling::profil::{Blocked, ProcessMemory};
use kvmprof_introspection::{AddressSpace, NotWritable, PhysicalMemory, WritableMemory};
use vm_memory::GuestAddress;

use crate::sampling::StoppedVcpu;
use kvmprof_machine::GuestMemory;

/// Size of the smallest page in bytes.
const PAGE: u64 = 4096;

impl StoppedVcpu<'_> {
    /// The physical address of virtual address `address`, for a write.
    fn place(&self, address: u64) -> Result<GuestAddress, Blocked> {
        let space = AddressSpace::new(self.memory, self.registers);
        space.user_store(address).map_err(|reason| match reason {
            NotWritable::Forbidden => Blocked::Fault,
            // The guest's kernel maps the page when the process needs it, if the process may write it at all.
            NotWritable::Absent | NotWritable::ReadOnly => {
                let may = self
                    .introspector
                    .can_write(self.memory, self.registers, address);
                if may == Some(false) {
                    Blocked::Fault
                } else {
                    Blocked::NotYet
                }
            }
        })
    }

    /// The physical addresses of the `N` bytes from `address` on, for a write.
    fn locate<const N: usize>(&self, address: u64) -> Result<PhysicalPlace<N>, Blocked> {
        let in_page = address % PAGE;
        let first = self.place(address)?;
        if in_page + N as u64 <= PAGE {
            return Ok(PhysicalPlace {
                first,
                second: first,
                split: N,
            });
        }
        let next = address.checked_add(PAGE - in_page).ok_or(Blocked::Fault)?;
        Ok(PhysicalPlace {
            first,
            second: self.place(next)?,
            split: usize::try_from(PAGE - in_page).map_err(|_| Blocked::Fault)?,
        })
    }
}

/// The place of `N` bytes in physical memory, which may be on two pages.
struct PhysicalPlace<const N: usize> {
    first: GuestAddress,
    /// The address of the bytes after the first `split` bytes.
    second: GuestAddress,
    split: usize,
}

impl<const N: usize> PhysicalPlace<N> {
    fn read(&self, memory: &GuestMemory) -> Result<[u8; N], Blocked> {
        let mut bytes = [0; N];
        let (first, second) = bytes.split_at_mut(self.split);
        let read = memory.read_physical(self.first, first);
        read.ok_or(Blocked::Fault)?;
        if !second.is_empty() {
            let read = memory.read_physical(self.second, second);
            read.ok_or(Blocked::Fault)?;
        }
        Ok(bytes)
    }

    fn write(&self, memory: &GuestMemory, bytes: [u8; N]) -> Result<(), Blocked> {
        let (first, second) = bytes.split_at(self.split);
        if !second.is_empty() {
            // One half must not be written without the other.
            if !memory.contains(self.first) {
                return Err(Blocked::Fault);
            }
            let written = memory.write_physical(self.second, second);
            written.ok_or(Blocked::Fault)?;
        }
        let written = memory.write_physical(self.first, first);
        written.ok_or(Blocked::Fault)
    }
}

/// The memory of the process that runs in user mode.
impl ProcessMemory for StoppedVcpu<'_> {
    fn update_count(
        &mut self,
        address: u64,
        change: &mut dyn FnMut(u16) -> Option<u16>,
    ) -> Result<(), Blocked> {
        let place = self.locate(address)?;
        let count = u16::from_le_bytes(place.read(self.memory)?);
        match change(count) {
            Some(count) => place.write(self.memory, count.to_le_bytes()),
            None => Ok(()),
        }
    }

    fn store_word(&mut self, address: u64, word: u64) -> Result<(), Blocked> {
        let place = self.locate(address)?;
        place.write(self.memory, word.to_le_bytes())
    }
}
