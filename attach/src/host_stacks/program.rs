//! The files that a VMM executes: their functions and unwind tables.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use kvmprof_introspection::{UnwindTable, UserUnwinder};
use kvmprof_recording::elf;
use kvmprof_recording::file::BinaryFunction;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2};

use super::named;
use crate::process_mappings::{MAX_BYTES, ProcessMapping, list};

/// Maximum numbers of mappings, and of bytes of one file and of all files, that are read. The files are untrusted.
const MAX_MAPPINGS: usize = 1024;
const MAX_FILE: u64 = 256 << 20;
const MAX_FILES: u64 = 512 << 20;

/// The executable files that a process has mapped.
#[derive(Debug)]
pub struct Program {
    mappings: Vec<Mapping>,
    unwinder: UserUnwinder,
}

/// A part of a file, with code.
#[derive(Debug)]
struct Mapping {
    begin: u64,
    end: u64,
    offset: u64,
    file: Arc<Code>,
}

/// A file with code.
#[derive(Debug)]
struct Code {
    /// The last part of its path.
    name: String,
    file: File,
    segments: Vec<kvmprof_recording::file::Segment>,
    /// Its functions, by address.
    functions: Vec<BinaryFunction>,
    table: Option<Arc<UnwindTable>>,
}

/// The executable files that a process has mapped, open and not read yet.
#[derive(Debug, Default)]
pub struct OpenProgram {
    /// The mappings, each with the number of its file.
    mappings: Vec<(u64, u64, u64, usize)>,
    files: Vec<OpenFile>,
}

#[derive(Debug)]
struct OpenFile {
    /// The last part of its path.
    name: String,
    file: File,
    length: u64,
}

impl OpenProgram {
    /// Opens the files that process `pid` has mapped now. A file that was replaced after it was mapped is left out.
    ///
    /// # Errors
    /// Its mappings can't be read.
    pub fn open(pid: i32) -> io::Result<Self> {
        // A path that isn't UTF-8 leads to no file.
        let mappings = list(pid, MAX_BYTES)?;
        let folder = open(
            format!("/proc/{pid}/root"),
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        let mut known: Vec<(u64, &str, Option<usize>)> = Vec::new();
        let mut opened = Self {
            mappings: Vec::new(),
            files: Vec::new(),
        };
        let of_files = ProcessMapping::executable(&mappings).filter(|found| !found.path.is_empty());
        for found in of_files.take(MAX_MAPPINGS) {
            let earlier = known
                .iter()
                .find(|(inode, path, _)| (*inode, *path) == (found.inode, found.path));
            let number = match earlier {
                Some((.., number)) => *number,
                None => {
                    let number = open_file(&found, &folder).map(|(file, length)| {
                        opened.files.push(OpenFile {
                            name: found.path.rsplit('/').next().unwrap_or_default().to_owned(),
                            file,
                            length,
                        });
                        opened.files.len() - 1
                    });
                    known.push((found.inode, found.path, number));
                    number
                }
            };
            let ProcessMapping { range, offset, .. } = found;
            let mapping = number.map(|number| (range.start, range.end, offset, number));
            opened.mappings.extend(mapping);
        }
        Ok(opened)
    }

    /// Reads the files.
    pub fn read(self) -> Program {
        let mut room = MAX_FILES;
        let files = self.files.into_iter();
        let files: Vec<Option<Arc<Code>>> = files
            .map(|file| Code::read(file, &mut room).map(Arc::new))
            .collect();
        let mappings = self.mappings.into_iter();
        let mappings = mappings.filter_map(|(begin, end, offset, number)| {
            let file = files.get(number)?.clone()?;
            Some(Mapping {
                begin,
                end,
                offset,
                file,
            })
        });
        let mappings: Vec<Mapping> = mappings.collect();
        let tables = mappings.iter().filter_map(|mapping| {
            let table = mapping.file.table.clone()?;
            Some((mapping.begin, mapping.end, mapping.offset, table))
        });
        let unwinder = UserUnwinder::new(tables);
        Program { mappings, unwinder }
    }
}

impl Program {
    /// The unwinder of its stacks.
    pub fn unwinder(&self) -> &UserUnwinder {
        &self.unwinder
    }

    fn mapping(&self, address: u64) -> Option<&Mapping> {
        let mut mappings = self.mappings.iter();
        mappings.find(|mapping| (mapping.begin..mapping.end).contains(&address))
    }

    /// The 8 bytes of code that end right before `address`, out of the file.
    pub fn code_before(&self, address: u64) -> Option<[u8; 8]> {
        let begin = address.checked_sub(8)?;
        let mapping = self.mapping(begin)?;
        let mut bytes = [0; 8];
        let place = mapping.offset.checked_add(begin - mapping.begin)?;
        mapping.file.file.read_exact_at(&mut bytes, place).ok()?;
        Some(bytes)
    }

    /// The name of the function at `address`, with its file. If the function has no name, its offset in the file stands for the name. `None` outside
    /// of the files' code.
    pub fn name(&self, address: u64) -> Option<String> {
        let mapping = self.mapping(address)?;
        let place = mapping.offset.checked_add(address - mapping.begin)?;
        let file = &mapping.file;
        Some(named(&file.function(place)?, &file.name))
    }
}

impl Code {
    /// Reads an open file. `None` if it isn't a program, or if there is no `room` for its bytes.
    fn read(open: OpenFile, room: &mut u64) -> Option<Self> {
        let OpenFile { name, file, length } = open;
        (length <= MAX_FILE).then_some(())?;
        *room = room.checked_sub(length)?;
        let mut contents = Vec::new();
        (&file).take(length).read_to_end(&mut contents).ok()?;
        let parsed = elf::parse(&contents).ok()?;
        Some(Self {
            name,
            file,
            segments: parsed.segments,
            functions: parsed.functions,
            table: UnwindTable::from_elf(&contents).map(Arc::new),
        })
    }

    /// The function that contains byte number `place` of the file: its name, or its offset in the file.
    fn function(&self, place: u64) -> Option<Cow<'_, str>> {
        let mut segments = self.segments.iter();
        let segment =
            segments.find(|segment| place.wrapping_sub(segment.offset) < segment.length)?;
        let address = (place - segment.offset).checked_add(segment.address)?;
        let after = self
            .functions
            .partition_point(|function| function.address <= address);
        let before = after
            .checked_sub(1)
            .and_then(|index| self.functions.get(index));
        let function = before.filter(|function| {
            function.length == 0 || address - function.address < function.length
        });
        Some(match function {
            Some(function) if !function.name.is_empty() => Cow::Borrowed(&function.name),
            _ => {
                let begin = function.map_or(address, |function| function.address);
                Cow::Owned(format!("{}+{begin:#x}", self.name))
            }
        })
    }
}

/// Opens the file of `mapping` below `folder`, and returns its length, too. The process can have put anything at the file's path. Only a regular file is
/// opened: opening some devices has side effects, and opening a pipe waits.
fn open_file(mapping: &ProcessMapping<'_>, folder: &OwnedFd) -> Option<(File, u64)> {
    let place = openat2(
        folder,
        mapping.path.trim_start_matches('/'),
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS,
    )
    .ok()?;
    let status = fstat(&place).ok()?;
    let device = (
        rustix::fs::major(status.st_dev),
        rustix::fs::minor(status.st_dev),
    );
    // A file system without a device of its own (major number 0), such as btrfs, has another number in stat(2) than in the list of mappings.
    let is_there = device == mapping.device || device.0 == 0;
    let is_regular = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
    (is_regular && is_there && status.st_ino == mapping.inode).then_some(())?;
    let file = File::open(format!("/proc/self/fd/{}", place.as_raw_fd())).ok()?;
    Some((file, u64::try_from(status.st_size).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_file_that_was_mapped_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let root = open(
            folder.path(),
            OFlags::PATH | OFlags::DIRECTORY,
            Mode::empty(),
        )
        .unwrap();
        let path = |name| folder.path().join(name);
        std::fs::write(path("file"), b"contents").unwrap();
        std::os::unix::fs::symlink("file", path("link")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path("pipe"),
            FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        let status = rustix::fs::stat(path("file")).unwrap();
        let device = (
            rustix::fs::major(status.st_dev),
            rustix::fs::minor(status.st_dev),
        );
        let mapping = |path, inode| ProcessMapping {
            is_executable: true,
            is_shared: false,
            range: 0x1000..0x2000,
            offset: 0,
            device,
            inode,
            path,
        };
        let (mut file, length) = open_file(&mapping("/file", status.st_ino), &root).unwrap();
        let mut contents = String::new();
        file.read_to_string(&mut contents).unwrap();
        assert_eq!((contents.as_str(), length), ("contents", 8));
        assert!(open_file(&mapping("/link", status.st_ino), &root).is_none());
        assert!(open_file(&mapping("/file", status.st_ino + 1), &root).is_none());
        // Opening it would block until a writer opens it.
        let pipe = rustix::fs::stat(path("pipe")).unwrap().st_ino;
        assert!(open_file(&mapping("/pipe", pipe), &root).is_none());
        let other = ProcessMapping {
            device: (device.0 + 1, device.1),
            ..mapping("/file", status.st_ino)
        };
        assert_eq!(open_file(&other, &root).is_some(), device.0 == 0);
    }

    #[inline(never)]
    fn known_function(value: u64) -> u64 {
        std::hint::black_box(value).rotate_left(7) ^ 0x1234
    }

    #[test]
    fn this_process_has_its_own_functions() {
        let own = OpenProgram::open(std::process::id().cast_signed()).unwrap();
        let own = own.read();
        let address = known_function as fn(u64) -> u64 as usize as u64;
        assert_eq!(known_function(1), 128 ^ 0x1234);
        let name = own.name(address + 1).unwrap();
        assert!(name.contains("known_function"), "{name}");
        assert_eq!(own.name(1), None);
        // SAFETY: the first 8 bytes of a function that is longer than that are readable.
        let code = unsafe { std::ptr::read_unaligned(address as *const [u8; 8]) };
        assert_eq!(own.code_before(address + 8), Some(code));
        assert_eq!(own.code_before(4), None);
        let path = std::fs::read_link("/proc/self/exe").unwrap();
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        assert!(name.ends_with(&format!("[host:{file}]")), "{name}");
    }
}
