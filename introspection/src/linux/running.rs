//! Finds the image of a running kernel from one vCPU's registers, and copies it out of guest memory.
//!
//! The kernel's mapping ([`KERNEL_MAP`]) contains the image and, far above it in kernels without KASLR, modules. The
//! exception handlers in the interrupt descriptor table are in the image. Memory that was only needed to boot may have
//! been unmapped, and may have any contents if it is still mapped.

use std::ops::Range;

use vm_memory::GuestAddress;

use super::from_kernel_image::release;
use super::placement::handler;
use super::{KERNEL_MAP, KERNEL_MAP_LENGTH};
use crate::image::{KernelImage, Segment};
use crate::{IntrospectionError, PhysicalMemory, Registers};
use kvmprof_paging::{AddressSpace, MappedRange, PAGE};

/// All addresses that the kernel's mapping can have.
const ALL: Range<u64> = KERNEL_MAP..KERNEL_MAP + KERNEL_MAP_LENGTH;
/// Maximum number of bytes that are copied. Distribution kernels have some 60 MB.
const MAX_COPIED: u64 = 256 << 20;
/// Maximum number of contiguous parts. A kernel has about five.
const MAX_SEGMENTS: usize = 64;
/// Maximum gap within an image, in bytes. Memory that was only needed to boot, which is unmapped, has some 10 MB.
/// Modules of kernels without KASLR begin 496 MiB above the image.
const MAX_GAP: u64 = 64 << 20;
/// Bytes that are copied at once.
const CHUNK: u64 = 2 << 20;
/// The processor's own exceptions: vectors that every kernel handles.
const EXCEPTIONS: u8 = 32;

/// A copy of a running kernel's image.
#[derive(Debug, Default)]
pub struct RunningImage {
    bytes: Vec<u8>,
    /// The contiguous parts: the run-time address of each, and the place of its copy.
    parts: Vec<(u64, Range<usize>)>,
}

impl RunningImage {
    /// Copies the kernel that a vCPU with `registers` runs, or that its user program runs on.
    ///
    /// # Errors
    /// No Linux kernel runs there yet, or another kernel does.
    pub fn read<M: PhysicalMemory>(
        memory: &M,
        registers: &Registers,
    ) -> Result<Self, IntrospectionError> {
        let space = AddressSpace::new(memory, registers);
        let entries = entry_points(&space, registers);
        let within = entries.iter().find(|address| ALL.contains(address));
        // KPTI's user half has at most the kernel's code without its data, so the other half comes first.
        for space in [space.kernel_half(), Some(space)].into_iter().flatten() {
            let mapped = space.mapped(&ALL);
            let image = Self::copy(memory, cluster(&mapped, within.copied()));
            if release(&image.image()).is_some() {
                return Ok(image);
            }
        }
        // Firmware, boot loaders and Linux's own decompressor run in the lower half of the addresses.
        Err(match entries.iter().any(|address| address >> 63 == 1) {
            true => IntrospectionError::OtherKernel,
            false => IntrospectionError::NoKernelYet,
        })
    }

    /// The image, with run-time addresses.
    pub fn image(&self) -> KernelImage<'_> {
        let segments = self.parts.iter().filter_map(|(address, range)| {
            let data = self.bytes.get(range.clone())?;
            Some(Segment {
                address: *address,
                data,
                memory_length: data.len() as u64,
            })
        });
        KernelImage::from_memory(segments.collect())
    }

    /// Copies the mapped ranges. Parts outside guest memory are gaps.
    fn copy<M: PhysicalMemory>(memory: &M, mapped: &[MappedRange]) -> Self {
        let mut copy = Self::default();
        for range in mapped {
            let mut done = 0;
            while done < range.length {
                let length = CHUNK.min(range.length - done);
                let (address, physical) = (range.address + done, range.physical + done);
                if copy.is_full(length) {
                    return copy;
                }
                if !copy.add(memory, address, physical, length) {
                    for page in (0..length).step_by(4096) {
                        if copy.is_full(PAGE) {
                            return copy;
                        }
                        copy.add(memory, address + page, physical + page, PAGE);
                    }
                }
                done += length;
            }
        }
        copy
    }

    fn is_full(&self, length: u64) -> bool {
        self.parts.len() >= MAX_SEGMENTS || self.bytes.len() as u64 + length > MAX_COPIED
    }

    /// Adds a copy of `length` bytes, at most [`CHUNK`]. False if a part of them isn't guest memory; nothing was added then.
    fn add<M: PhysicalMemory>(
        &mut self,
        memory: &M,
        address: u64,
        physical: u64,
        length: u64,
    ) -> bool {
        let start = self.bytes.len();
        let length = usize::try_from(length.min(CHUNK)).unwrap_or(0);
        self.bytes.resize(start + length, 0);
        let Some(room) = self.bytes.get_mut(start..) else {
            return false;
        };
        if memory.read_physical(GuestAddress(physical), room).is_none() {
            self.bytes.truncate(start);
            return false;
        }
        let end = self.bytes.len();
        match self.parts.last_mut() {
            Some((first, part)) if *first + part.len() as u64 == address => part.end = end,
            _ => self.parts.push((address, start..end)),
        }
        true
    }
}

/// Addresses of kernel code: the handlers of exceptions, and the program counter in kernel mode. Empty outside long mode.
fn entry_points<M: PhysicalMemory>(space: &AddressSpace<'_, M>, registers: &Registers) -> Vec<u64> {
    if !space.is_long_mode() {
        return Vec::new();
    }
    let handlers = (0..EXCEPTIONS).filter_map(|vector| handler(space, registers.idt_base, vector));
    let counter = (registers.cpl == 0).then_some(registers.rip);
    handlers.chain(counter).collect()
}

/// The ranges around `address` without a large gap between them. Without an address, or if it isn't mapped, the first
/// such ranges.
fn cluster(mapped: &[MappedRange], address: Option<u64>) -> &[MappedRange] {
    let after_gap = |pair: &[MappedRange]| pair[1].address.saturating_sub(pair[0].end()) > MAX_GAP;
    let position = address.and_then(|address| {
        let holds = |range: &MappedRange| (range.address..range.end()).contains(&address);
        mapped.iter().position(holds)
    });
    let position = position.unwrap_or(0);
    let before = mapped.get(..=position).unwrap_or_default();
    let start = before
        .windows(2)
        .rposition(after_gap)
        .map_or(0, |gap| gap + 1);
    let rest = mapped.get(position..).unwrap_or_default();
    let end = rest.windows(2).position(after_gap);
    let end = end.map_or(mapped.len(), |gap| position + gap + 1);
    mapped.get(start..end).unwrap_or_default()
}
