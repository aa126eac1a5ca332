//! The errors of ELF files.

/// Why a file has no functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BinaryError {
    /// It isn't an ELF file.
    #[error("It is no ELF file for x86")]
    NotElf,
    /// It is an ELF file, but its headers are invalid.
    #[error("The ELF file is damaged: {0}")]
    Damaged(&'static str),
    /// It has no executable segment.
    #[error("The ELF file has no executable segment")]
    NotExecutable,
}
