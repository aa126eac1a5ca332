//! The host's copies of the guest's files, and the proof that they are the same build.

use std::fs::File;
use std::io::{self, Read};

use object::Object;
use object::read::ReadCache;

use super::debug::{Parsed, invalid};
use super::functions::FunctionTable;
use super::tables::RecordedFile;
use kvmprof_recording::Sysroot;
use kvmprof_recording::elf::{self, Identity, Mismatch, hex};

/// Maximum size of a file, in bytes, whose code is compared or whose functions are read.
const MAX_FILE: u64 = 1 << 30;
/// Maximum size of a debug file, in bytes, whose checksum is computed.
const MAX_DEBUG_FILE: u64 = 16 << 30;
/// Maximum length of the name of a debug file, in bytes.
const MAX_NAME: usize = 255;

/// A file on the host that is proven to be the recorded one.
#[derive(Debug)]
pub struct HostCopy {
    /// The file.
    pub file: File,
}

impl HostCopy {
    /// The copy in `sysroot` of the guest's file at `path`, or why it isn't proven to be the one that `recorded` is about. `None` if there is no copy.
    pub fn open(
        sysroot: &Sysroot,
        path: &str,
        recorded: Option<&RecordedFile>,
    ) -> Option<Result<Self, Mismatch>> {
        let file = sysroot.file(path).ok()?;
        let Some(recorded) = recorded else {
            return Some(Err(Mismatch::Unknown));
        };
        let expected = Identity::recorded(recorded.info());
        let found = identity(&file, &expected);
        Some(expected.check(&found).map(|()| Self { file }))
    }

    /// The file's functions, from all its tables.
    pub fn functions(&self) -> FunctionTable {
        let parsed = read_whole(&self.file).ok();
        let parsed = parsed.and_then(|bytes| elf::parse(&bytes).ok());
        let functions = parsed.map_or_else(Vec::new, |parsed| parsed.functions);
        FunctionTable::of_binary(&functions)
    }

    /// The name of its debug file and that file's CRC-32 (`.gnu_debuglink`).
    pub fn debug_link(&self) -> Option<(String, u32)> {
        let cache = ReadCache::new(self.file.try_clone().ok()?);
        let elf = Parsed::parse(&cache).ok()?;
        let (name, crc32) = elf.gnu_debuglink().ok()??;
        let name = std::str::from_utf8(name).ok()?;
        let is_name = !name.is_empty() && name.len() <= MAX_NAME && !name.contains('/');
        is_name.then(|| (name.to_owned(), crc32))
    }
}

/// The properties of `file` that can be compared with those `expected`.
fn identity(file: &File, expected: &Identity) -> Identity {
    if !expected.build_id.is_empty()
        && let Ok(build_id) = build_id(file)
        && !build_id.is_empty()
    {
        return Identity {
            build_id,
            ..Identity::default()
        };
    }
    let whole = read_whole(file).ok();
    let found = whole.and_then(|bytes| Identity::of(&bytes).ok());
    found.unwrap_or_default()
}

fn build_id(file: &File) -> io::Result<String> {
    let cache = ReadCache::new(file.try_clone()?);
    let elf = Parsed::parse(&cache).map_err(invalid)?;
    let id = elf.build_id().map_err(invalid)?;
    Ok(hex(id.unwrap_or_default()))
}

/// The contents of `file`, from its start.
///
/// # Errors
/// It can't be read, or is too large.
pub fn read_whole(file: &File) -> io::Result<Vec<u8>> {
    if file.metadata()?.len() > MAX_FILE {
        return Err(invalid("the file is too large"));
    }
    let mut bytes = Vec::new();
    rewound(file)?.take(MAX_FILE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The CRC-32 of all of `file` (IEEE 802.3, as of `.gnu_debuglink`).
///
/// # Errors
/// It can't be read, or is too large.
pub fn crc32(file: &File) -> io::Result<u32> {
    if file.metadata()?.len() > MAX_DEBUG_FILE {
        return Err(invalid("the file is too large"));
    }
    let mut hasher = crc32fast::Hasher::new();
    let mut reader = rewound(file)?.take(MAX_DEBUG_FILE);
    let mut buffer = vec![0; 1 << 16];
    loop {
        match reader.read(&mut buffer)? {
            0 => return Ok(hasher.finalize()),
            read => hasher.update(buffer.get(..read).unwrap_or_default()),
        }
    }
}

/// `file` from its start. Its position isn't shared with a concurrent reader.
fn rewound(file: &File) -> io::Result<File> {
    use std::io::Seek;
    let mut file = file.try_clone()?;
    file.rewind()?;
    Ok(file)
}
