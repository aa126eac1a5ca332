//! The `kvmprof` ELF notes of a guest image, which tell the VMM where the current process is.
//!
//! A note's owner is `kvmprof` ([`OWNER`], with its NUL 8 bytes); its type says what the descriptor is.
//!
//! # Type 1, [`TYPE_LOCATIONS`]
//!
//! All integers are little-endian.
//!
//! | Offset | Field | Meaning |
//! |---|---|---|
//! | 0 | `u32 version` | 1 |
//! | 4 | `u32 count` | locations that follow, 0 to 8 |
//! | 8 + 48 n | a location | |
//!
//! Each location is 48 bytes:
//!
//! | Offset | Field | Meaning |
//! |---|---|---|
//! | 0 | `u32 what` | 1 pid, 2 interrupt nesting, 3 process group, 4 comm, 5 tid; others are passed over |
//! | 4 | `u32 base` | 0 absolute, 1 the GS base |
//! | 8 | `u32 width` | bytes of the value: 1, 2, 4 or 8, and always 16 for comm |
//! | 12 | `u32 depth` | offsets in use, 1 to 4 |
//! | 16 | `i64 offsets[4]` | those beyond `depth` are 0 |
//!
//! The value's address is base + `offsets[0]`; each further offset is added to the `u64` at the address so far, which
//! gives the next address. Addresses are guest-virtual, translated by the vCPU's CR3 at that moment; sums wrap around
//! at 2^64. Integers are signed. The guest's GS base must be the same in user and in kernel mode. Of two locations for
//! the same value the first counts.
//!
//! A value that can't be read is unknown. Pid 0 is the kernel itself.
//!
//! # Type 2, [`TYPE_START_ALL`]
//!
//! The VMM starts all vCPUs at once at the image's entry point, with rdi = index and rdx = number of vCPUs, instead of
//! leaving all but the first to wait for INIT and SIPI. The descriptor is empty or a `u32 version` = 1.

use crate::encoded::array;

/// The owner of all notes of this module, without its final NUL.
pub const OWNER: &str = "kvmprof";

/// Note type: locations of values ([`parse_note`]).
pub const TYPE_LOCATIONS: u32 = 1;

/// Note type: all vCPUs start at the entry point ([`check_start_all`]).
pub const TYPE_START_ALL: u32 = 2;

/// The version of both descriptors.
pub const VERSION: u32 = 1;

/// Maximum number of locations of a note.
pub const LOCATIONS_MAX: usize = 8;

/// Maximum number of offsets of a location.
pub const DEPTH_MAX: usize = 4;

/// Bytes of a comm value.
pub const COMM_WIDTH: u8 = 16;

const HEADER_BYTES: usize = 8;
const LOCATION_BYTES: usize = 48;

/// The start of a location's offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Base {
    /// Address 0.
    Absolute,
    /// The vCPU's GS base.
    Gs,
}

/// The location of one value in guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    /// The start of the chain of offsets.
    pub base: Base,
    /// Bytes of the value: 1, 2, 4, 8, or [`COMM_WIDTH`] for a comm.
    pub width: u8,
    depth: u8,
    offsets: [i64; DEPTH_MAX],
}

impl Location {
    /// Makes a location. `None` if `offsets` is empty or longer than [`DEPTH_MAX`], or the width isn't listed at
    /// [`Location::width`].
    pub fn new(base: Base, width: u8, offsets: &[i64]) -> Option<Self> {
        if !matches!(width, 1 | 2 | 4 | 8 | COMM_WIDTH) || offsets.is_empty() {
            return None;
        }
        let mut all = [0; DEPTH_MAX];
        all.get_mut(..offsets.len())?.copy_from_slice(offsets);
        Some(Self {
            base,
            width,
            depth: u8::try_from(offsets.len()).ok()?,
            offsets: all,
        })
    }

    /// The same chain with a beginning that is `distance` bytes farther, wrapping.
    #[must_use]
    pub fn moved(mut self, distance: u64) -> Self {
        let [first, ..] = &mut self.offsets;
        *first = first.wrapping_add_unsigned(distance);
        self
    }

    /// The offsets: the first is added to the base, each further one to the `u64` at the address so far. Never empty.
    pub fn offsets(&self) -> &[i64] {
        &self.offsets[..usize::from(self.depth)]
    }
}

/// The locations of a note of type [`TYPE_LOCATIONS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestNote {
    /// The current process's id.
    pub pid: Option<Location>,
    /// The number of interrupts being serviced; above 0 the vCPU is in interrupt mode.
    pub interrupt_nesting: Option<Location>,
    /// The current process's group.
    pub process_group: Option<Location>,
    /// The current thread's name, [`COMM_WIDTH`] bytes.
    pub comm: Option<Location>,
    /// The current thread's id.
    pub tid: Option<Location>,
}

/// Why a note is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteError {
    /// The descriptor is incomplete; the field is its number of bytes.
    Truncated(usize),
    /// A version other than [`VERSION`].
    Version(u32),
    /// More locations than [`LOCATIONS_MAX`].
    Count(u32),
    /// A location (its index) has an unknown base.
    Base(usize, u32),
    /// A location (its index) has a width that isn't allowed for what it locates.
    Width(usize, u32),
    /// A location (its index) has no offset or too many.
    Depth(usize, u32),
}

impl core::fmt::Display for NoteError {
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Truncated(bytes) => {
                write!(formatter, "The kvmprof note ends after {bytes} bytes")
            }
            Self::Version(version) => {
                write!(
                    formatter,
                    "The kvmprof note has version {version}, known is {VERSION}"
                )
            }
            Self::Count(count) => {
                write!(
                    formatter,
                    "The kvmprof note has {count} locations, allowed are {LOCATIONS_MAX}"
                )
            }
            Self::Base(index, base) => {
                write!(
                    formatter,
                    "Location {index} of the kvmprof note has base {base}, known are 0 and 1"
                )
            }
            Self::Width(index, width) => {
                write!(
                    formatter,
                    "Location {index} of the kvmprof note has the width {width}, allowed are 1, 2, 4, 8, and 16 for comm alone"
                )
            }
            Self::Depth(index, depth) => {
                write!(
                    formatter,
                    "Location {index} of the kvmprof note has {depth} offsets, allowed are 1 to {DEPTH_MAX}"
                )
            }
        }
    }
}

impl core::error::Error for NoteError {}

fn u32_at(bytes: &[u8], offset: usize) -> Result<u32, NoteError> {
    let field = array(bytes, offset).ok_or(NoteError::Truncated(bytes.len()))?;
    Ok(u32::from_le_bytes(field))
}

fn i64_at(bytes: &[u8], offset: usize) -> Result<i64, NoteError> {
    let field = array(bytes, offset).ok_or(NoteError::Truncated(bytes.len()))?;
    Ok(i64::from_le_bytes(field))
}

fn check_version(descriptor: &[u8]) -> Result<(), NoteError> {
    match u32_at(descriptor, 0)? {
        VERSION => Ok(()),
        version => Err(NoteError::Version(version)),
    }
}

/// Checks the descriptor of a note of type [`TYPE_START_ALL`].
///
/// # Errors
///
/// It is neither empty nor a known version.
pub fn check_start_all(descriptor: &[u8]) -> Result<(), NoteError> {
    if descriptor.is_empty() {
        return Ok(());
    }
    check_version(descriptor)
}

/// Parses the descriptor of a note of type [`TYPE_LOCATIONS`]. What comes after the announced locations is ignored.
///
/// # Errors
///
/// Any deviation from the layout in the module's documentation.
pub fn parse_note(descriptor: &[u8]) -> Result<GuestNote, NoteError> {
    check_version(descriptor)?;
    let announced = u32_at(descriptor, 4)?;
    let count = usize::try_from(announced).unwrap_or(usize::MAX);
    if count > LOCATIONS_MAX {
        return Err(NoteError::Count(announced));
    }
    let mut note = GuestNote::default();
    for index in 0..count {
        let start = HEADER_BYTES + index * LOCATION_BYTES;
        let entry = descriptor
            .get(start..start + LOCATION_BYTES)
            .ok_or(NoteError::Truncated(descriptor.len()))?;
        let what = u32_at(entry, 0)?;
        let found = match what {
            1 => &mut note.pid,
            2 => &mut note.interrupt_nesting,
            3 => &mut note.process_group,
            4 => &mut note.comm,
            5 => &mut note.tid,
            _ => continue,
        };
        let location = parse_location(entry, index, what == 4)?;
        found.get_or_insert(location);
    }
    Ok(note)
}

fn parse_location(entry: &[u8], index: usize, comm: bool) -> Result<Location, NoteError> {
    let base = match u32_at(entry, 4)? {
        0 => Base::Absolute,
        1 => Base::Gs,
        other => return Err(NoteError::Base(index, other)),
    };
    let width = u32_at(entry, 8)?;
    let width = match (u8::try_from(width), comm) {
        (Ok(COMM_WIDTH), true) => COMM_WIDTH,
        (Ok(narrow @ (1 | 2 | 4 | 8)), false) => narrow,
        _ => return Err(NoteError::Width(index, width)),
    };
    let announced = u32_at(entry, 12)?;
    let depth = usize::try_from(announced).unwrap_or(usize::MAX);
    let mut offsets = [0; DEPTH_MAX];
    for (position, offset) in offsets.iter_mut().enumerate() {
        *offset = i64_at(entry, 16 + 8 * position)?;
    }
    offsets
        .get(..depth)
        .and_then(|used| Location::new(base, width, used))
        .ok_or(NoteError::Depth(index, announced))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Descriptor {
        bytes: [u8; 512],
        length: usize,
    }

    impl Descriptor {
        fn new(version: u32, count: u32) -> Self {
            let mut descriptor = Self {
                bytes: [0; 512],
                length: 0,
            };
            descriptor.push(&version.to_le_bytes());
            descriptor.push(&count.to_le_bytes());
            descriptor
        }

        fn push(&mut self, bytes: &[u8]) {
            self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
            self.length += bytes.len();
        }

        fn location(mut self, fields: [u32; 4], offsets: [i64; 4]) -> Self {
            for field in fields {
                self.push(&field.to_le_bytes());
            }
            for offset in offsets {
                self.push(&offset.to_le_bytes());
            }
            self
        }

        fn bytes(&self) -> &[u8] {
            &self.bytes[..self.length]
        }
    }

    #[test]
    fn every_kind_of_location_is_parsed() {
        let descriptor = Descriptor::new(1, 5)
            .location([1, 1, 4, 2], [8, -16, 0, 0])
            .location([2, 1, 1, 1], [12, 0, 0, 0])
            .location([3, 0, 8, 4], [1, 2, 3, 4])
            .location([4, 1, 16, 1], [0, 0, 0, 0])
            .location([5, 0, 2, 1], [i64::MIN, 0, 0, 0]);
        let note = parse_note(descriptor.bytes()).unwrap();
        let expected = GuestNote {
            pid: Location::new(Base::Gs, 4, &[8, -16]),
            interrupt_nesting: Location::new(Base::Gs, 1, &[12]),
            process_group: Location::new(Base::Absolute, 8, &[1, 2, 3, 4]),
            comm: Location::new(Base::Gs, COMM_WIDTH, &[0]),
            tid: Location::new(Base::Absolute, 2, &[i64::MIN]),
        };
        assert_eq!(note, expected);
    }

    #[test]
    fn the_first_of_two_fields_wins_and_unknown_ones_are_skipped() {
        let descriptor = Descriptor::new(1, 3)
            .location([99, 99, 99, 99], [0; 4])
            .location([1, 0, 4, 1], [1, 0, 0, 0])
            .location([1, 0, 8, 1], [2, 0, 0, 0]);
        let note = parse_note(descriptor.bytes()).unwrap();
        let expected = GuestNote {
            pid: Location::new(Base::Absolute, 4, &[1]),
            ..GuestNote::default()
        };
        assert_eq!(note, expected);
    }

    #[test]
    fn bad_fields_are_named() {
        let one = |fields| parse_note(Descriptor::new(1, 1).location(fields, [0; 4]).bytes());
        for (version, count, error) in [
            (2, 0, NoteError::Version(2)),
            (1, 9, NoteError::Count(9)),
            (1, u32::MAX, NoteError::Count(u32::MAX)),
        ] {
            let refused = parse_note(Descriptor::new(version, count).bytes());
            assert_eq!(refused, Err(error));
        }
        assert_eq!(one([1, 2, 4, 1]), Err(NoteError::Base(0, 2)));
        for width in [0, 3, 16, 260, u32::MAX] {
            assert_eq!(one([1, 0, width, 1]), Err(NoteError::Width(0, width)));
        }
        assert_eq!(one([4, 0, 8, 1]), Err(NoteError::Width(0, 8)));
        for depth in [0, 5, 256, u32::MAX] {
            assert_eq!(one([1, 0, 4, depth]), Err(NoteError::Depth(0, depth)));
        }
    }

    #[test]
    fn every_truncation_is_an_error() {
        let descriptor = Descriptor::new(1, 2)
            .location([1, 1, 4, 1], [0; 4])
            .location([2, 1, 4, 1], [0; 4]);
        for length in 0..descriptor.bytes().len() {
            let cut = parse_note(&descriptor.bytes()[..length]);
            assert_eq!(cut.map(|_| ()), Err(NoteError::Truncated(length)));
        }
        assert!(parse_note(descriptor.bytes()).is_ok());
    }

    #[test]
    fn start_all_is_empty_or_of_version_one() {
        assert_eq!(check_start_all(&[]), Ok(()));
        assert_eq!(check_start_all(&1u32.to_le_bytes()), Ok(()));
        let later = check_start_all(&3u32.to_le_bytes());
        assert_eq!(later, Err(NoteError::Version(3)));
        assert_eq!(check_start_all(&[1]), Err(NoteError::Truncated(1)));
    }
}
