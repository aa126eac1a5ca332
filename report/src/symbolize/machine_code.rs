//! The machine code of ELF files.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use object::read::ReadCache;
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection, SectionKind};

/// Maximum number of sections with code.
const MAX_SECTIONS: usize = 1 << 16;

/// Where the code of a file is.
#[derive(Debug)]
pub struct MachineCode {
    file: File,
    sections: Vec<Section>,
}

#[derive(Debug)]
struct Section {
    address: u64,
    offset: u64,
    length: u64,
}

impl MachineCode {
    /// The code of `file`; none if it has only debug information.
    ///
    /// # Errors
    /// It can't be read, or isn't a 64-bit ELF file.
    pub fn of(file: &File) -> io::Result<Self> {
        let cache = ReadCache::new(file.try_clone()?);
        let elf = ElfFile64::<'_, Endianness, _>::parse(&cache)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let code = elf
            .sections()
            .filter(|section| section.kind() == SectionKind::Text);
        // Sections of debug files have no bytes.
        let sections = code.filter_map(|section| {
            let (offset, length) = section.file_range()?;
            Some(Section {
                address: section.address(),
                offset,
                length: length.min(section.size()),
            })
        });
        Ok(Self {
            sections: sections.take(MAX_SECTIONS).collect(),
            file: file.try_clone()?,
        })
    }

    /// At most `length` bytes of code from `address` on, by the file's own addresses; `None` if there is no code.
    pub fn read(&self, address: u64, length: usize) -> Option<Vec<u8>> {
        let mut sections = self.sections.iter();
        let (section, distance) = sections.find_map(|section| {
            let distance = address.checked_sub(section.address)?;
            (distance < section.length).then_some((section, distance))
        })?;
        let left = usize::try_from(section.length - distance).unwrap_or(usize::MAX);
        let mut bytes = vec![0; length.min(left)];
        let offset = section.offset.checked_add(distance)?;
        self.file.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }
}
