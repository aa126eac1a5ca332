//! Tells builds of a program apart.

use object::Endianness;
use object::elf::{FileHeader32, FileHeader64};

use super::BinaryError;
use super::file::{Elf, Header};
use crate::file::{BinaryInfo, Segment};

/// What tells a build of a program from others of the same name and length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The build id in hexadecimal; empty if the file has none.
    pub build_id: String,
    /// The executable segments.
    pub segments: Vec<Segment>,
    /// The CRC-32 (IEEE 802.3) of the bytes of these segments, one after the other, without those of the ELF header: what
    /// removes symbols changes that. `None` if not all of them are known.
    pub code_crc32: Option<u32>,
}

/// Why a file isn't proven to be another one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The build ids differ.
    #[error("its build id is {found}, the recorded one {expected}")]
    BuildId {
        /// The file's.
        found: String,
        /// The one that it should have.
        expected: String,
    },
    /// Both have code, which differs.
    #[error("its code is not the recorded file's")]
    Code,
    /// There is nothing to compare.
    #[error("nothing in the recording tells whether it is the same build")]
    Unknown,
}

impl Identity {
    /// The identity of the ELF file whose contents are `bytes`.
    ///
    /// # Errors
    /// As [`super::parse`].
    pub fn of(bytes: &[u8]) -> Result<Self, BinaryError> {
        match bytes.get(4) {
            _ if !bytes.starts_with(&object::elf::ELFMAG) => Err(BinaryError::NotElf),
            Some(1) => Ok(Self::of_elf(&Elf::<FileHeader32<Endianness>>::parse(
                bytes,
            )?)),
            Some(2) => Ok(Self::of_elf(&Elf::<FileHeader64<Endianness>>::parse(
                bytes,
            )?)),
            _ => Err(BinaryError::NotElf),
        }
    }

    fn of_elf<H: Header>(elf: &Elf<'_, H>) -> Self {
        let segments = elf.executable_segments();
        Self {
            build_id: elf.build_id(),
            code_crc32: code_crc32(elf.bytes, &segments),
            segments,
        }
    }

    /// What a recording has of a file's identity.
    pub fn recorded(info: &BinaryInfo) -> Self {
        Self {
            build_id: info.build_id.clone(),
            segments: info.segments.clone(),
            code_crc32: info.code_crc32,
        }
    }

    /// The code in `contents`, which are those of this file, as far as they have it: its start in the file and its bytes, as
    /// [`Self::code_crc32`] has them.
    pub fn code<'c>(&self, contents: &'c [u8]) -> impl Iterator<Item = (u64, &'c [u8])> {
        let header = match contents.get(4) {
            Some(1) => size_of::<FileHeader32<Endianness>>(),
            _ => size_of::<FileHeader64<Endianness>>(),
        };
        self.segments.iter().filter_map(move |segment| {
            let begin = usize::try_from(segment.offset).ok()?;
            let end = begin.checked_add(usize::try_from(segment.length).ok()?)?;
            let begin = begin.max(header);
            Some((begin as u64, contents.get(begin..end)?))
        })
    }

    /// Compares the file `found` with this one: by the build ids if both have one, else by their code. Neither name nor
    /// length proves anything.
    ///
    /// # Errors
    /// It is another file, or nothing proves that it is the same.
    pub fn check(&self, found: &Self) -> Result<(), Mismatch> {
        if !self.build_id.is_empty() && !found.build_id.is_empty() {
            return if self.build_id == found.build_id {
                Ok(())
            } else {
                Err(self.other_build_id(&found.build_id))
            };
        }
        match self.code_crc32.zip(found.code_crc32) {
            Some((left, right)) if left == right && self.segments == found.segments => Ok(()),
            Some(_) => Err(Mismatch::Code),
            None if self.build_id.is_empty() => Err(Mismatch::Unknown),
            None => Err(self.other_build_id("none")),
        }
    }

    fn other_build_id(&self, found: &str) -> Mismatch {
        Mismatch::BuildId {
            found: found.to_owned(),
            expected: self.build_id.clone(),
        }
    }
}

/// [`Identity::code_crc32`] of the file with `contents` and `segments`.
pub fn code_crc32(contents: &[u8], segments: &[Segment]) -> Option<u32> {
    let identity = Identity {
        segments: segments.to_vec(),
        ..Identity::default()
    };
    let mut hasher = crc32fast::Hasher::new();
    let mut count = 0;
    for (_, code) in identity.code(contents) {
        hasher.update(code);
        count += 1;
    }
    (count == segments.len()).then(|| hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(build_id: &str, code_crc32: Option<u32>) -> Identity {
        Identity {
            build_id: build_id.to_owned(),
            code_crc32,
            ..Identity::default()
        }
    }

    #[test]
    fn a_file_is_identified_only_by_proof() {
        let with_id = identity("11", Some(1));
        let other_id = Mismatch::BuildId {
            found: "22".to_owned(),
            expected: "11".to_owned(),
        };
        assert_eq!(with_id.check(&identity("11", Some(2))), Ok(()));
        assert_eq!(with_id.check(&identity("22", Some(1))), Err(other_id));
        // Without a build id in both, the code decides.
        assert_eq!(with_id.check(&identity("", Some(1))), Ok(()));
        assert_eq!(with_id.check(&identity("", Some(2))), Err(Mismatch::Code));
        let unknown = with_id.check(&identity("", None));
        assert!(matches!(unknown, Err(Mismatch::BuildId { .. })));
        let without = identity("", Some(1));
        assert_eq!(without.check(&identity("11", Some(1))), Ok(()));
        assert_eq!(without.check(&identity("", None)), Err(Mismatch::Unknown));
        let elsewhere = Identity {
            segments: vec![Segment::default()],
            ..without.clone()
        };
        assert_eq!(without.check(&elsewhere), Err(Mismatch::Code));
    }
}
