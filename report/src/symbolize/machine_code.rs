//! The machine code of ELF files.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use object::read::ReadCache;
use object::{Object, ObjectSection, SectionKind};

use super::debug::{Parsed, invalid};

/// Maximum number of sections with code.
const MAX_SECTIONS: usize = 1 << 16;

/// Where the code of a file is.
#[derive(Debug)]
pub struct MachineCode {
    file: File,
    sections: Vec<Section>,
    /// Whether all sections of the file with code are known. What is in others can't be read.
    pub is_whole: bool,
}

#[derive(Debug)]
struct Section {
    address: u64,
    offset: u64,
    length: u64,
}

/// Says that not all code of the file called `shown` can be read.
pub fn incomplete(shown: &str) -> String {
    format!(
        "{shown} has more sections with code than are read: instructions of the others are missing"
    )
}

impl MachineCode {
    /// The code of `file`; none if it has only debug information.
    ///
    /// # Errors
    /// It can't be read, or isn't a 64-bit ELF file.
    pub fn of(file: &File) -> io::Result<Self> {
        let cache = ReadCache::new(file.try_clone()?);
        let elf = Parsed::parse(&cache).map_err(invalid)?;
        let code = elf
            .sections()
            .filter(|section| section.kind() == SectionKind::Text);
        // Sections of debug files have no bytes.
        let mut sections = code.filter_map(|section| {
            let (offset, length) = section.file_range()?;
            Some(Section {
                address: section.address(),
                offset,
                length: length.min(section.size()),
            })
        });
        Ok(Self {
            sections: sections.by_ref().take(MAX_SECTIONS).collect(),
            is_whole: sections.next().is_none(),
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    /// The code of an object file with this number of sections.
    fn of_sections(count: usize) -> MachineCode {
        let folder = tempfile::tempdir().unwrap();
        let object = folder.path().join("code.o");
        let mut command = Command::new("cc");
        command.args(["-c", "-x", "assembler", "-", "-o"]);
        let mut compiler = (command.arg(&object).stdin(Stdio::piped()))
            .spawn()
            .unwrap();
        let text = (0..count).map(|number| format!(".section .text.{number},\"ax\"\nret\n"));
        let text: String = text.collect();
        let mut input = compiler.stdin.take().unwrap();
        input.write_all(text.as_bytes()).unwrap();
        drop(input);
        assert!(compiler.wait().unwrap().success());
        MachineCode::of(&File::open(object).unwrap()).unwrap()
    }

    #[test]
    fn a_file_with_too_many_sections_is_incomplete() {
        assert!(of_sections(3).is_whole);
        assert!(!of_sections(MAX_SECTIONS + 1).is_whole);
    }
}
