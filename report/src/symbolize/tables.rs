//! What a recording itself has to name addresses by.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use super::functions::FunctionTable;
use super::kallsyms::{Found, Symbols};
use super::spaces::{MappingSet, Spaces};
use kvmprof_recording::file::{Binary, Contents, Mapping, Segment};

/// A file of the guest.
#[derive(Debug)]
pub struct RecordedFile {
    binary: Binary,
    functions: OnceLock<FunctionTable>,
}

impl RecordedFile {
    /// Its functions, by its own addresses.
    pub fn functions(&self) -> &FunctionTable {
        self.functions
            .get_or_init(|| FunctionTable::of(self.binary.functions()))
    }

    /// What file it is.
    pub fn facts(&self) -> &kvmprof_recording::file::BinaryFacts {
        &self.binary.facts
    }
}

/// The symbols, mappings and files of a recording.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// The kernel and its modules; of a guest that isn't Linux, its image.
    pub kernel: Arc<Symbols>,
    /// What was mapped where.
    pub spaces: Spaces,
    files: HashMap<u32, Arc<RecordedFile>>,
}

/// Where an address is.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// In a function of the kernel, of a module, or of the image of a guest without mappings.
    Kernel(Found<'a>),
    /// In a mapping: of a file, or of something else in brackets.
    Mapping(&'a Mapping),
    /// Nothing is known.
    Unknown,
}

impl Tables {
    /// Those of `contents`.
    pub fn of(contents: &Contents) -> Self {
        let mut tables = Self {
            spaces: Spaces::of(&contents.mappings),
            ..Self::default()
        };
        for block in contents.symbol_blocks() {
            tables.add_symbols(block);
        }
        for binary in &contents.binaries {
            tables.add_file(binary.clone());
        }
        tables
    }

    /// Adds symbols of the kernel or its modules, in the form of `/proc/kallsyms`.
    pub fn add_symbols(&mut self, text: &str) {
        Arc::make_mut(&mut self.kernel).add(text);
    }

    /// Adds a file; the last one of an id counts.
    pub fn add_file(&mut self, binary: Binary) {
        let file = RecordedFile {
            functions: OnceLock::new(),
            binary,
        };
        self.files.insert(file.facts().id, Arc::new(file));
    }

    /// The file that `mapping` is of, if the recording has it.
    pub fn file(&self, mapping: &Mapping) -> Option<&RecordedFile> {
        self.files.get(&mapping.binary?).map(Arc::as_ref)
    }

    /// Where `address` is in memory that has `mappings`.
    pub fn locate(&self, mappings: MappingSet, address: u64, is_kernel: bool) -> Place<'_> {
        let found = |symbols: &'_ Symbols| symbols.locate(address).is_some();
        if is_kernel || mappings == MappingSet::default() && found(&self.kernel) {
            return self
                .kernel
                .locate(address)
                .map_or(Place::Unknown, Place::Kernel);
        }
        let mapping = self.spaces.find(mappings, address);
        mapping.map_or(Place::Unknown, Place::Mapping)
    }
}

/// What `address` in `mapping` is by the file itself: the virtual address if `segments` has it, or else the byte in
/// the file.
pub fn file_address(mapping: &Mapping, segments: &[Segment], address: u64) -> u64 {
    let byte = (address - mapping.begin).wrapping_add(mapping.offset);
    let mut segments = segments.iter();
    let segment = segments.find(|segment| byte.wrapping_sub(segment.offset) < segment.length);
    segment.map_or(byte, |segment| {
        byte.wrapping_sub(segment.offset)
            .wrapping_add(segment.address)
    })
}

/// What a file is called: the last part of its path; what is in brackets, as it is.
pub fn module_name(file: &str) -> &str {
    let name = file.rsplit('/').next().unwrap_or(file);
    match name {
        "" => "[anon]",
        _ if file.starts_with('[') => file,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_file() {
        let mapping = Mapping {
            begin: 0x7f00_0000_1000,
            end: 0x7f00_0000_3000,
            offset: 0x1000,
            ..Mapping::default()
        };
        let segments = [Segment {
            offset: 0x1100,
            address: 0x40_2100,
            length: 0x800,
        }];
        let at = |address| file_address(&mapping, &segments, address);
        assert_eq!(at(0x7f00_0000_1100), 0x40_2100);
        assert_eq!(at(0x7f00_0000_18ff), 0x40_28ff);
        assert_eq!(at(0x7f00_0000_1900), 0x1900);
    }

    #[test]
    fn modules_are_called_by_their_files() {
        assert_eq!(module_name("/usr/lib/libc.so.6"), "libc.so.6");
        assert_eq!(module_name("[vdso]"), "[vdso]");
        assert_eq!(module_name(""), "[anon]");
        assert_eq!(module_name("a/"), "[anon]");
    }
}
