//! Mappings, and the places of frames in them.
//!
//! A recording has any number of processes, which have a file at different addresses, while a location of the format has one address for all
//! samples. So addresses in files are those of the files themselves, and the mapping is that of a program that the system has loaded there:
//! readers that know the file find its functions by the formula for any mapping.

use kvmprof_recording::file::{Mapping, Segment};

use crate::export::{Event, Library, Source};
use crate::profile::{Stack, StackFrame};
use crate::symbolize::{AddressLocation, KERNEL};

/// Bytes of a page.
const PAGE: u64 = 4096;

/// The addresses of a mapping: the first one, the one behind the last one, and the offset in the file of the first one. All are 0 if nothing
/// is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Range {
    pub begin: u64,
    pub end: u64,
    pub offset: u64,
}

/// All addresses. Readers take it for a mapping whose addresses are those of the file.
pub const ALL: Range = Range {
    begin: 0,
    end: u64::MAX,
    offset: 0,
};

/// The code of a mapping.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// The kernel of a Linux guest, without its modules.
    Kernel,
    /// An executable segment of a file.
    File(Library, Range),
    /// Code of which no file is known: the module, and whether it is the kernel's.
    Other(String, bool),
}

/// A place in code.
#[derive(Clone, Debug)]
pub struct Place {
    pub code: Code,
    /// The address in the file; without a file, the address itself.
    pub address: u64,
}

/// The places of the frames of `event`; `None` for notes.
pub fn places(source: &Source, event: &Event) -> Vec<Option<Place>> {
    source.of_frames(event, |stack, frame| Some(place(source, stack, frame)))
}

fn place(source: &Source, stack: &Stack, frame: &StackFrame) -> Place {
    let profile = source.profile();
    let resolver = &profile.resolver;
    match (resolver.tables()).locate(stack.mappings, frame.address, frame.is_kernel) {
        AddressLocation::Mapping(mapping) => {
            if let Some(library) = Library::of_mapping(profile, mapping) {
                let range = match resolver.segment(mapping, frame.address) {
                    Some(segment) => of_segment(segment),
                    None => of_offsets(mapping),
                };
                let code = Code::File(library, range);
                let address = frame.file_address;
                return Place { code, address };
            }
        }
        AddressLocation::Kernel(found) if frame.is_kernel && **found.module == *KERNEL => {
            if let Some(kernel) = &profile.contents.kernel {
                return Place {
                    code: Code::Kernel,
                    address: frame.address.wrapping_sub(kernel.slide),
                };
            }
        }
        _ => {}
    }
    Place {
        code: Code::Other(frame.frame.module.to_string(), frame.is_kernel),
        address: frame.address,
    }
}

/// The addresses at which `segment` is loaded: whole pages, as the system does it.
fn of_segment(segment: Segment) -> Range {
    let before = segment.address % PAGE;
    let is_in_pages = segment.offset % PAGE == before;
    let before = if is_in_pages { before } else { 0 };
    let end = segment.address.saturating_add(segment.length);
    Range {
        begin: segment.address - before,
        end: end.checked_next_multiple_of(PAGE).unwrap_or(end),
        offset: segment.offset - before,
    }
}

/// The offsets of `mapping` in its file, which are its addresses if the file's segments aren't known.
fn of_offsets(mapping: &Mapping) -> Range {
    Range {
        begin: mapping.offset,
        end: (mapping.offset).saturating_add(mapping.end.saturating_sub(mapping.begin)),
        offset: mapping.offset,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_loaded_in_pages() {
        let range = |address, offset, length| {
            let segment = Segment {
                offset,
                address,
                length,
            };
            let Range { begin, end, offset } = of_segment(segment);
            (begin, end, offset)
        };
        assert_eq!(
            range(0x40_1040, 0x1040, 0x1fc0),
            (0x40_1000, 0x40_3000, 0x1000)
        );
        assert_eq!(range(0x2000, 0x1000, 1), (0x2000, 0x3000, 0x1000));
        // What no system would load stays as it is, and nothing overflows.
        assert_eq!(range(0x2010, 0x1000, 1), (0x2010, 0x3000, 0x1000));
        assert_eq!(
            range(u64::MAX - 1, 0xffe, u64::MAX),
            (u64::MAX - 0xfff, u64::MAX, 0)
        );
    }
}
