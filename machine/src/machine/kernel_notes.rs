//! The notes of an ELF file that say which kernel it is.

use kvmprof_abi::note;
use object::LittleEndian;
use object::elf::{NT_GNU_ABI_TAG, PT_NOTE, ProgramHeader64};
use object::read::elf::ProgramHeader;

/// Most notes of a file. Kernels have some twenty. A hostile file may have all of its notes in each of its segments.
const NOTES_MAX: usize = 4096;

/// Owner of the notes with a guest's options.
const NOTE_OWNER: &[u8] = note::OWNER.as_bytes();

/// Owner of the note that makes an ELF file a PVH kernel.
const XEN_NOTE_OWNER: &[u8] = b"Xen";
/// `XEN_ELFNOTE_PHYS32_ENTRY`: its descriptor is the physical address of the entry point.
const XEN_NOTE_PHYS32_ENTRY: u32 = 18;

/// Owner of notes that every Linux since 4.19 has (kernel: include/linux/build-salt.h).
const LINUX_NOTE_OWNER: &[u8] = b"Linux";

/// The notes of an ELF file that determine how to start it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct KernelNotes {
    /// It has the note of a kernel that starts on all vCPUs.
    pub start_all: bool,
    /// The physical address at which a PVH kernel is entered.
    pub pvh_entry: Option<u32>,
    /// It is a Linux.
    pub linux: bool,
    /// It is a program of an operating system.
    pub program: bool,
}

impl KernelNotes {
    /// Those in the segments of `file`.
    ///
    /// # Errors
    /// They are damaged, or too many.
    pub fn read(segments: &[ProgramHeader64<LittleEndian>], file: &[u8]) -> Result<Self, String> {
        let endian = LittleEndian;
        let mut found = Self::default();
        let mut left = NOTES_MAX;
        for segment in segments.iter().filter(|s| s.p_type(endian) == PT_NOTE) {
            let notes = segment
                .notes(endian, file)
                .map_err(|error| error.to_string())?;
            let Some(mut notes) = notes else { continue };
            while let Some(found_note) = notes.next().map_err(|error| error.to_string())? {
                left = left.checked_sub(1).ok_or("it has too many notes")?;
                found.linux |= found_note.name() == LINUX_NOTE_OWNER;
                match (found_note.name(), found_note.n_type(endian).0) {
                    (NOTE_OWNER, note::TYPE_START_ALL) => found.start_all = true,
                    (b"GNU", kind) if kind == NT_GNU_ABI_TAG.0 => found.program = true,
                    (XEN_NOTE_OWNER, XEN_NOTE_PHYS32_ENTRY) => {
                        let entry = found_note
                            .desc()
                            .first_chunk()
                            .ok_or("its PVH note is too short")?;
                        found.pvh_entry = Some(u32::from_le_bytes(*entry));
                    }
                    _ => {}
                }
            }
        }
        Ok(found)
    }
}
