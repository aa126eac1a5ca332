//! Finds the contents of a file.

use std::cell::LazyCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use kvmprof_recording::{Sysroot, elf};

use super::disk_files::{DiskFiles, GuestDisks};
use super::initrd::Initrd;
use kvmprof_introspection::{GuestKnowledge, LinuxKnowledge, MappedFile, SharedMemory};

/// Maximum length of a file that is read from a folder on the host, in bytes.
const MAX_FILE: u64 = 512 << 20;
/// Number of bytes at a file's start in which its build id is looked for, if the rest isn't available.
const START: u64 = 4096;

/// The places where the host can find the guest's files.
pub struct BinarySources {
    /// Guest memory, where the kernel keeps files that are in use.
    memory: SharedMemory,
    /// What is known of the kernel.
    knowledge: Arc<GuestKnowledge>,
    /// The initial RAM disk that the guest was started with. It stays open, because another file may replace it later.
    initrd: Option<File>,
    /// A folder on the host with the guest's files, or some of them.
    sysroot: Option<Sysroot>,
    /// The guest's disks.
    disks: GuestDisks,
    /// The unpacked initial RAM disk, once it was needed.
    unpacked: OnceLock<Option<Initrd>>,
}

/// A file's contents.
#[derive(Debug)]
pub struct Found {
    /// All bytes of the file.
    pub contents: Vec<u8>,
    /// The source of the contents, in words.
    pub source: &'static str,
}

impl BinarySources {
    /// Sources with all of these. `sysroot` takes precedence, because its files may have more symbols than those in the guest.
    pub fn new(
        memory: SharedMemory,
        knowledge: Arc<GuestKnowledge>,
        initrd: Option<File>,
        sysroot: Option<Sysroot>,
    ) -> Self {
        Self {
            memory,
            knowledge,
            initrd,
            sysroot,
            disks: GuestDisks::default(),
            unpacked: OnceLock::new(),
        }
    }

    /// The sources with these disks, too.
    #[must_use]
    pub fn with_disks(mut self, disks: GuestDisks) -> Self {
        self.disks = disks;
        self
    }

    /// Whether there is a folder on the host with files of the guest.
    pub(super) fn has_sysroot(&self) -> bool {
        self.sysroot.is_some()
    }

    /// The contents of `file`, if they are found anywhere.
    pub(super) fn file(&self, file: &MappedFile, disks: &DiskFiles) -> Option<Found> {
        let linux = self.knowledge.linux()?;
        let mapped = linux.file_contents(&self.memory, &file.identity, u64::MAX);
        let on_host = || self.sysroot.as_ref()?.read(&file.path, MAX_FILE);
        let in_initrd = || Some(self.initrd()?.read(&file.path)?.to_vec());
        let found = |contents, source| Found { contents, source };
        let elsewhere = {
            // This is needed only if there are several candidates.
            let expected = LazyCell::new(|| Expected::new(linux, self, file, mapped.as_deref()));
            on_host()
                .filter(|contents| expected.is_met_by(contents))
                .map(|contents| found(contents, "sysroot"))
                .or_else(|| {
                    // The guest executes the contents in its memory.
                    let contents = mapped.is_none().then(in_initrd)??;
                    expected
                        .is_met_by(&contents)
                        .then(|| found(contents, "initrd"))
                })
                .or_else(|| {
                    if mapped.is_some() {
                        return None;
                    }
                    let on_disks = disks.read(&self.disks, &file.path, MAX_FILE);
                    let mut fitting = on_disks.into_iter().filter(|it| expected.is_met_by(it));
                    fitting.next().map(|contents| found(contents, "disk"))
                })
        };
        elsewhere.or_else(|| Some(found(mapped?, "page cache")))
    }

    /// The code that the kernel gives to each process.
    pub(super) fn vdso(&self) -> Option<Found> {
        Some(Found {
            contents: self.knowledge.linux()?.vdso(&self.memory)?,
            source: "guest memory",
        })
    }

    fn initrd(&self) -> Option<&Initrd> {
        let unpack = || Initrd::unpack(&read_whole(self.initrd.as_ref()?)?);
        self.unpacked.get_or_init(unpack).as_ref()
    }
}

/// The contents of `file`, whose position other users may change; `None` if it can't be read.
fn read_whole(file: &File) -> Option<Vec<u8>> {
    let length = usize::try_from(file.metadata().ok()?.len()).ok()?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).ok()?;
    bytes.resize(length, 0);
    file.read_exact_at(&mut bytes, 0).ok()?;
    Some(bytes)
}

/// The known properties of the file in the guest.
struct Expected {
    length: u64,
    build_id: String,
}

impl Expected {
    fn new(
        linux: &LinuxKnowledge,
        sources: &BinarySources,
        file: &MappedFile,
        whole: Option<&[u8]>,
    ) -> Self {
        let start = match whole {
            Some(_) => None,
            None => linux.file_contents(&sources.memory, &file.identity, START),
        };
        Self {
            length: file.identity.length,
            build_id: whole.or(start.as_deref()).map(build_id).unwrap_or_default(),
        }
    }

    /// Whether `contents` are those of the same program: compares the build ids, or the lengths if one has no build id.
    fn is_met_by(&self, contents: &[u8]) -> bool {
        let theirs = build_id(contents);
        if self.build_id.is_empty() || theirs.is_empty() {
            contents.len() as u64 == self.length
        } else {
            theirs == self.build_id
        }
    }
}

fn build_id(contents: &[u8]) -> String {
    elf::parse(contents).map_or_else(|_| String::new(), |parsed| parsed.build_id)
}
