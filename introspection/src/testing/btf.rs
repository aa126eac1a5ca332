//! Builds BTF sections (`Documentation/bpf/btf.rst`).

use crate::image::btf::{KIND_ENUM, KIND_STRUCT, MAGIC};

/// Builds a BTF section.
#[derive(Debug, Default)]
pub struct Builder {
    types: Vec<u8>,
    strings: Vec<u8>,
    count: u32,
    /// Bytes of the strings before these: those of the section that this one extends.
    base_strings: u32,
}

impl Builder {
    /// A section without types.
    pub fn new() -> Self {
        Self {
            strings: vec![0],
            ..Self::default()
        }
    }

    /// A module's section, whose types and strings continue these.
    pub fn split(&self) -> Self {
        Self {
            base_strings: self.base_strings + u32::try_from(self.strings.len()).unwrap(),
            count: self.count,
            ..Self::default()
        }
    }

    fn string(&mut self, string: &str) -> u32 {
        if string.is_empty() {
            return 0;
        }
        let offset = self.base_strings + u32::try_from(self.strings.len()).unwrap();
        self.strings.extend_from_slice(string.as_bytes());
        self.strings.push(0);
        offset
    }

    fn words(&mut self, words: &[u32]) {
        for word in words {
            self.types.extend_from_slice(&word.to_le_bytes());
        }
    }

    /// Adds a type with members (name, type, bit offset). Returns its id.
    pub fn composite(
        &mut self,
        kind: u32,
        flag: bool,
        name: &str,
        members: &[(&str, u32, u32)],
    ) -> u32 {
        let name = self.string(name);
        let count = u32::try_from(members.len()).unwrap();
        self.words(&[name, u32::from(flag) << 31 | kind << 24 | count, 8]);
        for (name, id, offset) in members {
            let name = self.string(name);
            self.words(&[name, *id, *offset]);
        }
        self.count += 1;
        self.count
    }

    /// Adds a structure with members (name, type, bit offset). Returns its id.
    pub fn structure(&mut self, name: &str, members: &[(&str, u32, u32)]) -> u32 {
        self.composite(KIND_STRUCT, false, name, members)
    }

    /// Adds a structure of `bytes` bytes without named members. Returns its id.
    pub fn sized_structure(&mut self, name: &str, bytes: u32) -> u32 {
        let name = self.string(name);
        self.words(&[name, KIND_STRUCT << 24, bytes]);
        self.count += 1;
        self.count
    }

    /// Adds a nameless type of `kind`, followed by `tail`. Returns its id.
    pub fn other(&mut self, kind: u32, count: u32, tail: &[u32]) -> u32 {
        self.words(&[0, kind << 24 | count, 0]);
        self.words(tail);
        self.count += 1;
        self.count
    }

    /// Adds a type of `kind` called `name` that refers to type `id`. Returns its id.
    pub fn refers(&mut self, kind: u32, name: &str, id: u32) -> u32 {
        let name = self.string(name);
        self.words(&[name, kind << 24, id]);
        self.count += 1;
        self.count
    }

    /// Adds an enumeration with its enumerators (name, value). Returns its id.
    pub fn enumeration(&mut self, name: &str, enumerators: &[(&str, u32)]) -> u32 {
        let name = self.string(name);
        let count = u32::try_from(enumerators.len()).unwrap();
        self.words(&[name, KIND_ENUM << 24 | count, 4]);
        for (name, value) in enumerators {
            let name = self.string(name);
            self.words(&[name, *value]);
        }
        self.count += 1;
        self.count
    }

    /// Sets the size of structure `id`, the last one added, to `bytes` bytes.
    pub fn resize(&mut self, id: u32, members: usize, bytes: u32) {
        assert_eq!(id, self.count);
        let place = self.types.len() - members * 12 - 4;
        self.types[place..place + 4].copy_from_slice(&bytes.to_le_bytes());
    }

    /// The section with its header.
    pub fn section(&self) -> Vec<u8> {
        let types = u32::try_from(self.types.len()).unwrap();
        let strings = u32::try_from(self.strings.len()).unwrap();
        let mut section = MAGIC.to_le_bytes().to_vec();
        section.extend_from_slice(&[1, 0]);
        for word in [24, 0, types, types, strings] {
            section.extend_from_slice(&word.to_le_bytes());
        }
        section.extend_from_slice(&self.types);
        section.extend_from_slice(&self.strings);
        section
    }
}
