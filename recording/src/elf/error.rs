//! What can be wrong with a file.

/// Why a file has no functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BinaryError {
    /// It is something else.
    #[error("It is no ELF file for x86")]
    NotElf,
    /// It is one, but its headers lead nowhere.
    #[error("The ELF file is damaged: {0}")]
    Damaged(&'static str),
    /// Nothing in it can be executed.
    #[error("The ELF file has no executable segment")]
    NotExecutable,
}
