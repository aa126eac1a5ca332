//! Images in the form PE32+ that UEFI has loaded (Microsoft, "PE Format"; UEFI specification 2.10, section 2.1.1).

use super::{bytes, word};
use crate::PhysicalMemory;
use crate::bytes::{array_at, u16_at, u32_at, u64_at};

/// How far before an address the image that it is in may begin.
const MAX_DISTANCE: u64 = 8 << 20;
/// Images begin at a page.
const PAGE: u64 = 4096;
/// The bytes of headers that are read, at most.
const HEADERS: usize = 1024;
/// `IMAGE_FILE_MACHINE_AMD64`.
const AMD64: u16 = 0x8664;
/// The magic number of PE32+.
const PE32_PLUS: u16 = 0x20b;
/// Bytes of the signature and the file header before the optional header.
const BEFORE_OPTIONAL: usize = 24;
/// Offsets in the optional header.
const ENTRY: usize = 16;
const IMAGE_BASE: usize = 24;
const SIZE_OF_IMAGE: usize = 56;
const DIRECTORIES: usize = 108;
const DEBUG_DIRECTORY: usize = 112 + 6 * 8;
/// A debug directory's entry, and its type of a CodeView record.
const DEBUG_ENTRY: u32 = 28;
const CODE_VIEW: u32 = 2;
const MAX_DEBUG_ENTRIES: u32 = 16;
/// The longest path in a CodeView record that is read.
const PATH: usize = 256;

/// The headers of an image.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    /// Where it is.
    pub base: u64,
    pub size: u32,
    /// The distance of its first instruction.
    pub entry: u32,
    headers: [u8; HEADERS],
    /// Where the optional header is in `headers`.
    optional: usize,
}

/// The image that a loader has put around `address`. That its header names the address where it is proves this: a copy of its file has another.
pub fn find<M: PhysicalMemory>(memory: &M, address: u64) -> Option<Image> {
    let mut base = address & !(PAGE - 1);
    let first = address.saturating_sub(MAX_DISTANCE).max(PAGE);
    while base >= first {
        if bytes::<2, M>(memory, base) == Some(*b"MZ")
            && let Some(image) = Image::read(memory, base)
            && image.image_base() == Some(base)
        {
            return (address - base < u64::from(image.size)).then_some(image);
        }
        base -= PAGE;
    }
    None
}

impl Image {
    /// Reads the headers at `base`.
    pub fn read<M: PhysicalMemory>(memory: &M, base: u64) -> Option<Self> {
        let headers: [u8; HEADERS] = bytes(memory, base)?;
        let signature = usize::try_from(u32_at(&headers, 0x3c)?).ok()?;
        let optional = signature.checked_add(BEFORE_OPTIONAL)?;
        let image = Self {
            base,
            size: u32_at(&headers, optional.checked_add(SIZE_OF_IMAGE)?)?,
            entry: u32_at(&headers, optional + ENTRY)?,
            headers,
            optional,
        };
        let is_pe = headers.starts_with(b"MZ")
            && array_at(&headers, signature) == Some(*b"PE\0\0")
            && u16_at(&headers, signature + 4) == Some(AMD64)
            && u16_at(&headers, optional) == Some(PE32_PLUS);
        (is_pe && image.entry < image.size && u64::from(image.size) <= MAX_DISTANCE)
            .then_some(image)
    }

    /// The address that the image was loaded to, by its header.
    fn image_base(&self) -> Option<u64> {
        u64_at(&self.headers, self.optional + IMAGE_BASE)
    }

    /// Whether another image has the same headers, but for the address that it is loaded to.
    pub fn is_same(&self, other: &Self) -> bool {
        let without_base = |image: &Self| {
            let mut headers = image.headers;
            let base = image.optional + IMAGE_BASE;
            if let Some(bytes) = headers.get_mut(base..base + 8) {
                bytes.fill(0);
            }
            let end = image.optional + DEBUG_DIRECTORY;
            headers.get(..end).map(<[u8]>::to_vec)
        };
        without_base(self) == without_base(other)
    }

    /// The name of the file that the image was linked from, without its folder and its last extension, as a CodeView record has it.
    pub fn debug_name<M: PhysicalMemory>(&self, memory: &M) -> Option<String> {
        let count = u32_at(&self.headers, self.optional + DIRECTORIES)?;
        (count > 6).then_some(())?;
        let directory = u32_at(&self.headers, self.optional + DEBUG_DIRECTORY)?;
        let length = u32_at(&self.headers, self.optional + DEBUG_DIRECTORY + 4)?;
        let entries = (length / DEBUG_ENTRY).min(MAX_DEBUG_ENTRIES);
        let paths = (0..entries).filter_map(|index| {
            let entry = directory.checked_add(index * DEBUG_ENTRY)?;
            let entry: [u8; DEBUG_ENTRY as usize] =
                bytes(memory, self.inside(entry, DEBUG_ENTRY)?)?;
            (u32_at(&entry, 12)? == CODE_VIEW).then_some(())?;
            self.code_view_path(memory, u32_at(&entry, 20)?)
        });
        paths.filter_map(|path| base_name(&path)).next()
    }

    /// The path in the CodeView record `distance` bytes after the image's beginning: of the form RSDS or NB10.
    fn code_view_path<M: PhysicalMemory>(&self, memory: &M, distance: u32) -> Option<Vec<u8>> {
        let record = self.inside(distance, 4)?;
        let before = match &bytes::<4, M>(memory, record)? {
            b"RSDS" => 24,
            b"NB10" => 16,
            _ => return None,
        };
        let begin = record.checked_add(before)?;
        // Its end may be that of the image.
        let room = (self.base + u64::from(self.size)).checked_sub(begin)?;
        let mut path = [0; PATH];
        let length = usize::try_from(room).unwrap_or(PATH).min(PATH);
        let path = path.get_mut(..length)?;
        memory.read_physical(vm_memory::GuestAddress(begin), path)?;
        let end = path.iter().position(|byte| *byte == 0)?;
        path.get(..end).map(<[u8]>::to_vec)
    }

    /// The address of `length` bytes `distance` bytes after the image's beginning, if they are in the image.
    fn inside(&self, distance: u32, length: u32) -> Option<u64> {
        let end = distance.checked_add(length)?;
        (end <= self.size).then(|| self.base + u64::from(distance))
    }
}

/// The last part of a path, without its extension.
fn base_name(path: &[u8]) -> Option<String> {
    let path = std::str::from_utf8(path).ok()?;
    let file = path.rsplit(['/', '\\']).next()?;
    word(file.rsplit_once('.').map_or(file, |(stem, _)| stem))
}
