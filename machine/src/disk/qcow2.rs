//! qcow2 images (QEMU: docs/interop/qcow2.rst): the checks before the crate imago opens an image, the checks of its backing files, and the
//! access to its data.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use imago::format::Format;
use imago::format::gate::ImplicitOpenGate;
use imago::qcow2::Qcow2;
use imago::{FormatAccess, FormatDriverBuilder, StorageOpenOptions};

use super::DiskError;
use super::file::{ClusterLimit, HostFile};

const MAGIC: [u8; 4] = *b"QFI\xfb";
/// Size of a header of version 2 in bytes. Headers of later versions begin with the same fields.
const HEADER: usize = 72;
/// Number of bytes of a header that are read: the size of a header of version 3 without optional fields.
const HEADER_READ: usize = 104;
/// The type of the header extension with names of features, and the size of each of its entries in bytes.
const FEATURE_NAMES: u32 = 0x6803_f857;
const FEATURE_NAME: u64 = 48;
/// Maximum number of backing files of an image.
const BACKING_MAX: usize = 16;
/// Maximum number of entries of a level 1 table (32 MiB), as in QEMU.
const LEVEL_1_MAX: u64 = 4 << 20;
/// Maximum size of a refcount table in bytes, as in QEMU.
const REFCOUNT_TABLE_MAX: u64 = 8 << 20;
/// The bits of a table's entry that are an offset in the file.
const OFFSET_MASK: u64 = 0x00ff_ffff_ffff_fe00;

/// Whether the file begins with the magic number of qcow2.
pub fn has_magic(file: &HostFile) -> io::Result<bool> {
    let mut start = [0; MAGIC.len()];
    file.read_at(&mut start, 0)?;
    Ok(start == MAGIC)
}

/// An open qcow2 image with its backing files.
pub struct Qcow2Image {
    /// Discarding needs exclusive access, because it changes where the disk's data is in the file.
    access: RwLock<FormatAccess<HostFile>>,
    path: PathBuf,
    writable: bool,
}

impl fmt::Debug for Qcow2Image {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut image = formatter.debug_struct("Qcow2Image");
        image.field("path", &self.path).finish_non_exhaustive()
    }
}

impl Qcow2Image {
    /// Opens the image in `file`. Its backing files have to be within `folder`, if one is given.
    ///
    /// # Errors
    /// The image is damaged, needs an unsupported feature, or names backing files that can't be opened.
    pub fn open(
        file: HostFile,
        writable: bool,
        folder: Option<PathBuf>,
    ) -> Result<Self, DiskError> {
        let path = file.path().to_owned();
        check(&file, writable)?.set();
        let refusal = Rc::default();
        let gate = BackingGate {
            disk: path.clone(),
            folder,
            depth: 0,
            refusal: Rc::clone(&refusal),
            checked: None,
        };
        let opened = Qcow2::<HostFile>::builder(file).write(writable).open(gate);
        let opened = opened.map_err(|source| {
            let refusal: Option<DiskError> = refusal.borrow_mut().take();
            let path = path.clone();
            refusal.unwrap_or(DiskError::Qcow2 { path, source })
        })?;
        Ok(Self {
            access: RwLock::new(FormatAccess::new(opened)),
            path,
            writable,
        })
    }

    pub fn bytes(&self) -> u64 {
        self.shared().size()
    }

    pub fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.shared().read(bytes, offset)
    }

    pub fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.shared().write(bytes, offset)
    }

    /// Writes data and tables to the file, and then the file to the host's disk.
    pub fn flush(&self) -> io::Result<()> {
        let access = self.shared();
        access.flush()?;
        access.sync()
    }

    pub fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.alone().discard_to_any(offset, length)
    }

    pub fn zero(&self, offset: u64, length: u64) -> io::Result<()> {
        self.shared().write_zeroes(offset, length)
    }

    fn shared(&self) -> RwLockReadGuard<'_, FormatAccess<HostFile>> {
        self.access.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn alone(&self) -> RwLockWriteGuard<'_, FormatAccess<HostFile>> {
        self.access.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Qcow2Image {
    fn drop(&mut self) {
        if !self.writable {
            return;
        }
        if let Err(error) = self.flush() {
            log::error!(
                "The disk {} isn't all written: {error}",
                self.path.display()
            );
        }
    }
}

/// The fields of a header that are checked.
struct Header {
    cluster: u64,
    encrypted: bool,
    level_1_entries: u64,
    level_1_offset: u64,
    refcount_offset: u64,
    refcount_clusters: u64,
    external_data: bool,
    /// Size of the header in bytes; 0 in version 2, which has no extensions.
    length: u64,
}

impl Header {
    fn decode(bytes: &[u8; HEADER_READ]) -> Result<Self, String> {
        let word = |at: usize| {
            let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
            u64::from(u32::from_be_bytes(*field.unwrap_or(&[0; 4])))
        };
        let long = |at: usize| word(at) << 32 | word(at + 4);
        let version = word(4);
        if version != 2 && version != 3 {
            return Err(format!("its version is {version}, not 2 or 3"));
        }
        let cluster_bits = word(20);
        if !(9..=21).contains(&cluster_bits) {
            return Err(format!(
                "clusters of 2^{cluster_bits} bytes aren't possible"
            ));
        }
        Ok(Self {
            cluster: 1 << cluster_bits,
            encrypted: word(32) != 0,
            level_1_entries: word(36),
            level_1_offset: long(40),
            refcount_offset: long(48),
            refcount_clusters: word(56),
            // Incompatible feature 2, of version 3.
            external_data: version == 3 && long(72) & 1 << 2 != 0,
            length: if version == 3 { word(100) } else { 0 },
        })
    }
}

/// Refuses images whose tables aren't completely in the file, because a guest would notice that late, by errors or zeroes. Returns the limit
/// to be set, because a read beyond the file's last cluster has to fail, too.
fn check(file: &HostFile, writable: bool) -> Result<ClusterLimit, DiskError> {
    let path = file.path();
    let damaged = |what: String| DiskError::Damaged {
        path: path.to_owned(),
        what,
    };
    let mut bytes = [0; HEADER_READ];
    file.read_at(&mut bytes, 0).map_err(DiskError::open(path))?;
    if file.length() < HEADER as u64 {
        return Err(damaged("it has no whole header".to_owned()));
    }
    let header = Header::decode(&bytes).map_err(damaged)?;
    let unsupported = |what| DiskError::Unsupported {
        path: path.to_owned(),
        what,
    };
    if header.encrypted {
        return Err(unsupported("it is encrypted"));
    }
    if header.external_data {
        return Err(unsupported("its data is in another file"));
    }
    if header.level_1_entries > LEVEL_1_MAX {
        return Err(damaged("its level 1 table is too large".to_owned()));
    }
    let inside = |offset: u64, length: u64| {
        (offset.checked_add(length)).is_some_and(|end| end <= file.length())
    };
    if !inside(header.level_1_offset, 8 * header.level_1_entries) {
        return Err(damaged("its level 1 table is beyond its end".to_owned()));
    }
    let refcounts = header.refcount_clusters.saturating_mul(header.cluster);
    if refcounts == 0 || header.refcount_offset == 0 {
        return Err(damaged("it has no refcount table".to_owned()));
    }
    if !inside(header.refcount_offset, refcounts) {
        return Err(damaged("its refcount table is beyond its end".to_owned()));
    }
    if refcounts > REFCOUNT_TABLE_MAX {
        return Err(damaged("its refcount table is too large".to_owned()));
    }
    if header.length != 0 {
        check_extensions(file, &header)
            .map_err(DiskError::open(path))?
            .map_err(damaged)?;
    }
    let beyond = |what, table: Table| match check_offsets(file, &header, table) {
        Err(TableError::Io(source)) => Err(DiskError::open(path)(source)),
        Err(TableError::Beyond(offset)) => Err(damaged(format!(
            "{what} at byte {offset} is beyond its end"
        ))),
        Ok(gap) => Ok(gap),
    };
    let level_1 = header.level_1_offset..header.level_1_offset + 8 * header.level_1_entries;
    beyond("a level 2 table", level_1)?;
    let refcounts = header.refcount_offset..header.refcount_offset + refcounts;
    // To add missing refcounts, imago (0.2.6) searches for free space by these same refcounts, until its stack overflows. Only QEMU makes
    // such images, when it shrinks one.
    if beyond("a refcount block", refcounts)? && writable {
        return Err(damaged(
            "its refcount table has a gap: add ,readonly, or use a copy made by qemu-img convert"
                .to_owned(),
        ));
    }
    Ok(file.cluster_limit(header.cluster))
}

/// Checks the extensions after the header, each of which has a type, a length and data. The inner error says what is wrong with them.
fn check_extensions(file: &HostFile, header: &Header) -> io::Result<Result<(), String>> {
    let mut offset = header.length;
    if offset < HEADER_READ as u64 || !offset.is_multiple_of(8) {
        return Ok(Err(format!("its header has {offset} bytes")));
    }
    while offset + 8 <= header.cluster {
        let mut bytes = [0; 8];
        file.read_at(&mut bytes, offset)?;
        let [kind @ .., l0, l1, l2, l3] = bytes;
        let length = u64::from(u32::from_be_bytes([l0, l1, l2, l3]));
        offset += 8;
        match u32::from_be_bytes(kind) {
            0 => return Ok(Ok(())),
            FEATURE_NAMES if !length.is_multiple_of(FEATURE_NAME) => {
                return Ok(Err("its names of features make no sense".to_owned()));
            }
            _ => offset = offset.saturating_add(length.next_multiple_of(8)),
        }
    }
    Ok(Err("its header has no end".to_owned()))
}

enum TableError {
    Io(io::Error),
    Beyond(u64),
}

/// The range of a table in the file. Its entries have 8 bytes.
type Table = Range<u64>;

/// Checks that the clusters to which a table's entries point are in the file. Returns whether the table has a gap: its first entry is
/// empty, or an empty entry comes before one that isn't.
fn check_offsets(file: &HostFile, header: &Header, table: Table) -> Result<bool, TableError> {
    let mut chunk = vec![0; 64 << 10];
    let end = file.length().next_multiple_of(header.cluster);
    let (mut is_first, mut has_empty, mut has_gap) = (true, false, false);
    let mut offset = table.start;
    while offset < table.end {
        let step = usize::try_from(table.end - offset)
            .unwrap_or(usize::MAX)
            .min(chunk.len());
        let entries = chunk.get_mut(..step).unwrap_or_default();
        file.read_at(entries, offset).map_err(TableError::Io)?;
        for entry in entries.chunks_exact(8) {
            let entry = entry
                .first_chunk()
                .map_or(0, |entry| u64::from_be_bytes(*entry));
            let place = entry & OFFSET_MASK;
            if place != 0 && place.saturating_add(header.cluster) > end {
                return Err(TableError::Beyond(place));
            }
            has_gap |= if is_first {
                place == 0
            } else {
                has_empty && place != 0
            };
            has_empty |= place == 0;
            is_first = false;
        }
        offset += step as u64;
    }
    Ok(has_gap)
}

/// Decides which backing files are opened. The reason of a refusal is kept, because imago's own error says less.
struct BackingGate {
    disk: PathBuf,
    folder: Option<PathBuf>,
    depth: usize,
    refusal: Rc<RefCell<Option<DiskError>>>,
    /// The result of the check of the backing file that was opened last, if that begins as a qcow2 image does. The image that names the file
    /// determines whether it is one: a guest can make a raw disk begin so, too.
    checked: Option<Result<ClusterLimit, DiskError>>,
}

impl BackingGate {
    fn open_backing(&self, path: &Path) -> Result<HostFile, DiskError> {
        if self.depth >= BACKING_MAX {
            return Err(DiskError::BackingTooDeep {
                path: self.disk.clone(),
                most: BACKING_MAX,
            });
        }
        let real = path.canonicalize().map_err(DiskError::open(path))?;
        if self
            .folder
            .as_ref()
            .is_some_and(|folder| !real.starts_with(folder))
        {
            return Err(DiskError::BackingElsewhere {
                path: self.disk.clone(),
                backing: real,
            });
        }
        HostFile::open(&real, false)
    }

    fn keep(&self, refusal: DiskError) -> io::Error {
        let error = io::Error::other(refusal.to_string());
        self.refusal.borrow_mut().get_or_insert(refusal);
        error
    }
}

impl ImplicitOpenGate<HostFile> for BackingGate {
    fn open_format<F: FormatDriverBuilder<HostFile>>(
        &mut self,
        builder: F,
    ) -> io::Result<FormatAccess<HostFile>> {
        if F::FORMAT != Format::Raw && F::FORMAT != Format::Qcow2 {
            return Err(io::Error::other(
                "a backing file of this format isn't supported",
            ));
        }
        let checked = self.checked.take();
        if F::FORMAT == Format::Qcow2
            && let Some(checked) = checked
        {
            checked.map_err(|refusal| self.keep(refusal))?.set();
        }
        let next = Self {
            disk: self.disk.clone(),
            folder: self.folder.clone(),
            depth: self.depth + 1,
            refusal: Rc::clone(&self.refusal),
            checked: None,
        };
        Ok(FormatAccess::new(builder.open(next)?))
    }

    fn open_storage(&mut self, options: StorageOpenOptions) -> io::Result<HostFile> {
        let path = options.get_filename();
        let path = path.ok_or_else(|| io::Error::other("a backing file without a name"))?;
        let file = self
            .open_backing(path)
            .map_err(|refusal| self.keep(refusal))?;
        // If the image names qcow2 as this file's format and the file has no magic number, imago refuses it. Only `open_format`, which imago
        // calls next, knows the format, but has the file no more.
        self.checked = has_magic(&file)?.then(|| check(&file, false));
        Ok(file)
    }
}
