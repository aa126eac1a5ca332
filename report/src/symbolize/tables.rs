//! The symbols, mappings and files of a recording.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock, OnceLock};

use super::functions::FunctionTable;
use super::generated_code::GeneratedFiles;
use super::kallsyms::{FunctionAt, Symbols};
use super::labels::Labels;
use super::shared::Shared;
use super::spaces::{MappingSet, Spaces};
use kvmprof_recording::file::{Binary, Contents, LanguageFunction, Mapping, Segment};

/// A file of the guest. Equal files of several guests are shared.
#[derive(Debug)]
pub struct RecordedFile {
    /// The file's properties. The id, which only means something in one recording, is 0.
    binary: Binary,
    functions: OnceLock<FunctionTable>,
}

impl PartialEq for RecordedFile {
    fn eq(&self, other: &Self) -> bool {
        self.binary == other.binary
    }
}

impl Eq for RecordedFile {}

impl Hash for RecordedFile {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.binary.info.file.hash(state);
        self.binary.functions.hash(state);
    }
}

/// The files of all tables.
static FILES: LazyLock<Shared<RecordedFile>> = LazyLock::new(Shared::new);

impl RecordedFile {
    /// Its functions, by the file's own addresses.
    pub fn functions(&self) -> &FunctionTable {
        self.functions
            .get_or_init(|| FunctionTable::new(self.binary.functions()))
    }

    /// Whether the recording has no functions of it.
    pub fn has_no_functions(&self) -> bool {
        self.binary.functions.is_empty()
    }

    /// Its name, build id and segments.
    pub fn info(&self) -> &kvmprof_recording::file::BinaryInfo {
        &self.binary.info
    }
}

/// The symbols, mappings and files of a recording.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// The functions of the kernel and its modules; for a guest that isn't Linux, of its image.
    pub kernel: Arc<Symbols>,
    /// The mappings of all processes.
    pub spaces: Spaces,
    /// The labels of all processes.
    pub labels: Labels,
    /// The names of generated code of all processes.
    pub generated: GeneratedFiles,
    /// The functions of languages, by their numbers.
    functions: HashMap<u64, Arc<LanguageFunction>>,
    files: HashMap<u32, Arc<RecordedFile>>,
}

/// What is at an address.
#[derive(Clone, Copy, Debug)]
pub enum AddressLocation<'a> {
    /// A function of the kernel, of a module, or of the image of a guest without mappings.
    Kernel(FunctionAt<'a>),
    /// A mapping of a file, or of something in brackets.
    Mapping(&'a Mapping),
    /// Unknown.
    Unknown,
}

impl Tables {
    /// The tables of `contents`.
    pub fn new(contents: &Contents) -> Self {
        let mut tables = Self {
            spaces: Spaces::new(&contents.mappings),
            ..Self::default()
        };
        for block in contents.symbol_blocks() {
            tables.add_symbols(block);
        }
        for binary in &contents.binaries {
            tables.add_file(binary.clone());
        }
        tables.add_functions(&contents.functions);
        for code in &contents.generated_code {
            tables.generated.add(code);
        }
        for labels in &contents.labels {
            tables.labels.add(labels);
        }
        tables
    }

    /// Adds symbols of the kernel or its modules, in the form of `/proc/kallsyms`.
    pub fn add_symbols(&mut self, text: &str) {
        Arc::make_mut(&mut self.kernel).add(text);
    }

    /// Adds a file. It replaces a former one with its id.
    pub fn add_file(&mut self, mut binary: Binary) {
        let id = std::mem::take(&mut binary.info.id);
        let file = RecordedFile {
            functions: OnceLock::new(),
            binary,
        };
        self.files.insert(id, FILES.get(file));
    }

    /// Adds functions of languages. The first one with a number counts.
    pub fn add_functions(&mut self, functions: &[LanguageFunction]) {
        for function in functions {
            let known = self.functions.entry(function.function);
            known.or_insert_with(|| Arc::new(function.clone()));
        }
    }

    /// The function of a language with this number, if the recording has it.
    pub fn function(&self, number: u64) -> Option<&LanguageFunction> {
        self.functions.get(&number).map(Arc::as_ref)
    }

    /// The file of `mapping`, if the recording has it.
    pub fn file(&self, mapping: &Mapping) -> Option<&RecordedFile> {
        self.files.get(&mapping.binary?).map(Arc::as_ref)
    }

    /// What is at `address` in memory with `mappings`.
    pub fn locate(
        &self,
        mappings: MappingSet,
        address: u64,
        is_kernel: bool,
    ) -> AddressLocation<'_> {
        let is_image = || mappings.kernel_alone() == mappings;
        if is_kernel || is_image() && self.kernel.locate(address).is_some() {
            return self
                .kernel
                .locate_then(address, mappings.kernel())
                .map_or(AddressLocation::Unknown, AddressLocation::Kernel);
        }
        let mapping = self.spaces.find(mappings, address);
        mapping.map_or(AddressLocation::Unknown, AddressLocation::Mapping)
    }
}

/// The address in the file for `address` in `mapping`: the virtual address if it is in one of `segments`, else the
/// offset in the file.
pub fn file_address(mapping: &Mapping, segments: &[Segment], address: u64) -> u64 {
    let byte = (address - mapping.begin).wrapping_add(mapping.offset);
    segment_of(segments, byte).map_or(byte, |segment| {
        byte.wrapping_sub(segment.offset)
            .wrapping_add(segment.address)
    })
}

/// The one of `segments` that has byte number `byte` of their file.
pub(super) fn segment_of(segments: &[Segment], byte: u64) -> Option<Segment> {
    let mut segments = segments.iter();
    let found = segments.find(|segment| byte.wrapping_sub(segment.offset) < segment.length);
    found.copied()
}

/// The short name of a file: the last part of its path. Names in brackets are unchanged.
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

    /// Whatever name each recording has for it.
    #[test]
    fn a_file_of_many_guests_is_shared() {
        let file = |id, segments: &[Segment]| Binary {
            info: kvmprof_recording::file::BinaryInfo {
                id,
                file: "/usr/lib/libc.so.6".to_owned(),
                segments: segments.to_vec(),
                ..kvmprof_recording::file::BinaryInfo::default()
            },
            functions: "1000 10 malloc\n".to_owned(),
        };
        let tables = |file: Binary| {
            let mut tables = Tables::default();
            tables.add_file(file);
            tables
        };
        let (one, other) = (tables(file(3, &[])), tables(file(7, &[])));
        assert!(Arc::ptr_eq(&one.files[&3], &other.files[&7]));
        let elsewhere = tables(file(3, &[Segment::default()]));
        assert!(!Arc::ptr_eq(&one.files[&3], &elsewhere.files[&3]));
    }

    #[test]
    fn modules_are_named_after_their_files() {
        assert_eq!(module_name("/usr/lib/libc.so.6"), "libc.so.6");
        assert_eq!(module_name("[vdso]"), "[vdso]");
        assert_eq!(module_name(""), "[anon]");
        assert_eq!(module_name("a/"), "[anon]");
    }
}
