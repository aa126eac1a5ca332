//! The bytes of a kernel by address, and its named parts.

use super::Symbols;
use super::elf::{Segment, Vmlinux, notes_in_section};

/// A kernel's image: its file, or a copy from a running guest's memory.
#[derive(Debug)]
pub struct KernelImage<'a> {
    segments: Vec<Segment<'a>>,
    /// The file, if it is an ELF file, which may have sections and a symbol table.
    file: Option<Vmlinux<'a>>,
    is_running: bool,
    /// BTF that was made of the file's debug information.
    types: Option<&'a [u8]>,
    /// How far above its link-time addresses a running kernel is, once the segments have these.
    slide: u64,
}

impl<'a> KernelImage<'a> {
    /// The image in the file `file`.
    pub fn from_file(file: Vmlinux<'a>) -> Self {
        let segments = file.segments().to_vec();
        Self {
            file: Some(file),
            is_running: false,
            ..Self::from_memory(segments)
        }
    }

    /// The same with these types, in BTF, which aren't in the image itself.
    pub fn with_types(self, types: Option<&'a [u8]>) -> Self {
        Self { types, ..self }
    }

    /// The BTF in the image, or made of the file's debug information.
    pub fn types(&self, symbols: &Symbols) -> Option<&'a [u8]> {
        let own = || self.part(".BTF", symbols, ["__start_BTF", "__stop_BTF"]);
        self.types.or_else(|| own().map(|(_, section)| section))
    }

    /// The image of a kernel that doesn't run yet, laid out as in memory, from this link-time address on.
    pub fn flat(address: u64, data: &'a [u8]) -> Self {
        let segment = Segment {
            address,
            data,
            memory_length: data.len() as u64,
        };
        Self {
            is_running: false,
            ..Self::from_memory(vec![segment])
        }
    }

    /// The image of a running kernel. `segments` have run-time addresses.
    pub fn from_memory(segments: Vec<Segment<'a>>) -> Self {
        Self {
            segments,
            file: None,
            is_running: true,
            types: None,
            slide: 0,
        }
    }

    /// True if this is the image of a running kernel.
    pub fn is_running(&self) -> bool {
        self.is_running
    }

    /// The file, if the image is an ELF file.
    pub fn file(&self) -> Option<&Vmlinux<'a>> {
        self.file.as_ref()
    }

    /// The contiguous parts of the image.
    pub fn segments(&self) -> &[Segment<'a>] {
        &self.segments
    }

    /// Subtracts `distance` from the addresses of all segments, which is how far the running kernel was moved.
    pub fn move_down(&mut self, distance: u64) {
        self.slide = self.slide.wrapping_add(distance);
        for segment in &mut self.segments {
            segment.address = segment.address.wrapping_sub(distance);
        }
    }

    /// The link-time address of `address`, which the image's own bytes have: a running kernel has relocated those of
    /// places in its image, and no others.
    pub fn linked(&self, address: u64) -> u64 {
        let linked = address.wrapping_sub(self.slide);
        if self.contains(linked) {
            linked
        } else {
            address
        }
    }

    /// Whether `address` is between the ends of a running kernel's image.
    pub fn contains(&self, address: u64) -> bool {
        let ends = self.segments.first().zip(self.segments.last());
        ends.is_some_and(|(first, last)| {
            (first.address..last.address.saturating_add(last.memory_length)).contains(&address)
        })
    }

    /// What the image's own bytes have for link-time address `address`.
    pub fn relocated(&self, address: u64) -> u64 {
        address.wrapping_add(self.slide)
    }

    /// The bytes from virtual address `address` to the end of its segment.
    pub fn bytes_from(&self, address: u64) -> Option<&'a [u8]> {
        self.segments.iter().find_map(|segment| {
            let offset = usize::try_from(address.checked_sub(segment.address)?).ok()?;
            segment.data.get(offset..).filter(|bytes| !bytes.is_empty())
        })
    }

    /// The address and the bytes of the file's section `name`, or of the range between the two symbols `bounds`.
    pub fn part(
        &self,
        name: &str,
        symbols: &Symbols,
        bounds: [&str; 2],
    ) -> Option<(u64, &'a [u8])> {
        let section = self.file.as_ref();
        let section = section.and_then(|file| file.section(name.as_bytes()));
        section.or_else(|| self.between(symbols.addresses_of(bounds)))
    }

    /// The address and the bytes of the range with these bounds.
    pub fn between(&self, [start, stop]: [Option<u64>; 2]) -> Option<(u64, &'a [u8])> {
        let (start, stop) = (start?, stop?);
        let length = usize::try_from(stop.checked_sub(start)?).ok()?;
        Some((start, self.bytes_from(start)?.get(..length)?))
    }

    /// The notes of `owner`: their types and descriptors.
    pub fn notes(&self, symbols: &Symbols, owner: &[u8]) -> Vec<(u32, &'a [u8])> {
        if let Some(file) = &self.file {
            return file.notes(owner);
        }
        let section = self.part(".notes", symbols, ["__start_notes", "__stop_notes"]);
        section.map_or_else(Vec::new, |(_, section)| notes_in_section(section, owner))
    }
}
