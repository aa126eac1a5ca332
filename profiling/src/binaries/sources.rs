//! Finds the contents of a file.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use kvmprof_recording::Sysroot;
use kvmprof_recording::elf::{Identity, Mismatch};
use kvmprof_recording::file::LanguageFunction;

use super::disk_files::{DiskFiles, GuestDisks};
use super::generated_code::GrowingFile;
use super::initrd::Initrd;
use kvmprof_introspection::{
    FileIdentity, GuestKnowledge, LinuxKnowledge, MappedFile, PerfMapPlace, ProcessInstance,
    ProcessRuntime, SharedMemory,
};

/// Maximum length of a file that is read from a folder on the host, in bytes.
const MAX_FILE: u64 = 512 << 20;
/// Number of bytes at a file's start in which its build id is looked for, if the rest isn't available.
const START: u64 = 4096;
/// Maximum number of files of the folder that are said not to be the guest's.
const MAX_REFUSED: usize = 64;

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
    /// The paths of files that were found to be others than the guest's.
    refused: RefCell<BTreeSet<String>>,
}

/// A file's contents.
#[derive(Debug)]
pub struct FileContents {
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
            refused: RefCell::default(),
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
    pub(super) fn file(&self, file: &MappedFile, disks: &DiskFiles) -> Option<FileContents> {
        let linux = self.knowledge.linux()?;
        let mapped = linux.file_contents(&self.memory, &file.identity, u64::MAX);
        let guests = GuestFile::new(linux, &self.memory, file, mapped.as_deref());
        let on_host = || self.sysroot.as_ref()?.read(&file.path, MAX_FILE);
        let in_initrd = || Some(self.initrd()?.read(&file.path)?.to_vec());
        let found = |contents, source| FileContents { contents, source };
        if let Some(contents) = on_host() {
            if guests.is(&contents) {
                return Some(found(contents, "sysroot"));
            }
            self.refuse(&file.path);
        }
        // The guest executes the contents in its memory.
        if let Some(mapped) = mapped {
            return Some(found(mapped, "page cache"));
        }
        let in_initrd = in_initrd().filter(|contents| guests.is(contents));
        in_initrd
            .map(|contents| found(contents, "initrd"))
            .or_else(|| {
                let on_disks = disks.read(&self.disks, &file.path, MAX_FILE);
                let mut fitting = on_disks.into_iter().filter(|it| guests.is(it));
                fitting.next().map(|contents| found(contents, "disk"))
            })
    }

    /// Says that the file at `path` in the folder on the host isn't the guest's.
    fn refuse(&self, path: &str) {
        let mut refused = self.refused.borrow_mut();
        if refused.len() < MAX_REFUSED && refused.insert(path.to_owned()) {
            let shown = self.sysroot.as_ref().map(|sysroot| sysroot.shown(path));
            // Guests choose paths.
            let shown = shown.unwrap_or_default().display().to_string();
            log::warn!(
                "{} is not used: it is not proven to be the file that the guest executes",
                shown.escape_debug()
            );
        }
    }

    /// The code that the kernel gives to each process.
    pub(super) fn vdso(&self) -> Option<FileContents> {
        Some(FileContents {
            contents: self.knowledge.linux()?.vdso(&self.memory)?,
            source: "guest memory",
        })
    }

    /// Has `runtime` read what its process says about it.
    pub(super) fn prepare(&self, runtime: &ProcessRuntime) {
        if let Some(linux) = self.knowledge.linux() {
            runtime.prepare(linux, &self.memory);
        }
    }

    /// The functions that `runtime` has met since the last call.
    pub(super) fn new_functions(&self, runtime: &ProcessRuntime) -> Vec<LanguageFunction> {
        let linux = self.knowledge.linux();
        linux.map_or_else(Vec::new, |linux| runtime.new_functions(linux, &self.memory))
    }

    /// Whether `process` executes the program that it did. `None` if that is unknown.
    pub(super) fn still_executes(&self, process: &ProcessInstance) -> Option<bool> {
        let linux = self.knowledge.linux()?;
        linux.still_executes(&self.memory, process)
    }

    /// The perf map at `place`, if it is in guest memory. `room` is the number of directory entries that may still be visited.
    pub(super) fn perf_map_file(
        &self,
        place: &PerfMapPlace,
        room: &mut usize,
    ) -> Option<FileIdentity> {
        let linux = self.knowledge.linux()?;
        linux.perf_map_file(&self.memory, place, room)
    }

    /// The guest's `file`, in its page cache.
    pub(super) fn growing_file(&self, file: &FileIdentity) -> impl GrowingFile {
        CachedFile {
            sources: self,
            file: *file,
        }
    }

    fn initrd(&self) -> Option<&Initrd> {
        let unpack = || Initrd::unpack(&read_whole(self.initrd.as_ref()?)?);
        self.unpacked.get_or_init(unpack).as_ref()
    }
}

/// A file in the guest's page cache.
struct CachedFile<'s> {
    sources: &'s BinarySources,
    file: FileIdentity,
}

impl GrowingFile for CachedFile<'_> {
    fn read(&self, begin: u64, limit: u64) -> Option<(Vec<u8>, u64)> {
        let linux = self.sources.knowledge.linux()?;
        linux.growing_file(&self.sources.memory, &self.file, begin, limit)
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

/// What is known of a file in the guest. Neither its path nor its length proves that another file is the same.
struct GuestFile<'a> {
    linux: &'a LinuxKnowledge,
    memory: &'a SharedMemory,
    file: &'a MappedFile,
    /// Of what is known of its contents: all of them, or their start.
    identity: OnceCell<Identity>,
    whole: Option<&'a [u8]>,
}

impl<'a> GuestFile<'a> {
    fn new(
        linux: &'a LinuxKnowledge,
        memory: &'a SharedMemory,
        file: &'a MappedFile,
        whole: Option<&'a [u8]>,
    ) -> Self {
        Self {
            linux,
            memory,
            file,
            identity: OnceCell::new(),
            whole,
        }
    }

    fn identity(&self) -> &Identity {
        self.identity.get_or_init(|| {
            let start = match self.whole {
                Some(_) => None,
                None => (self.linux).file_contents(self.memory, &self.file.identity, START),
            };
            let known = self.whole.or(start.as_deref());
            let identity = known.and_then(|bytes| Identity::of(bytes).ok());
            identity.unwrap_or_default()
        })
    }

    /// Whether `contents` are proven to be those of the same program: by the build ids, by the code, or by those parts of the code
    /// that are in guest memory.
    fn is(&self, contents: &[u8]) -> bool {
        let Ok(found) = Identity::of(contents) else {
            return false;
        };
        match self.identity().check(&found) {
            Ok(()) => true,
            Err(Mismatch::Unknown) => self.has_code_of(contents, &found),
            Err(Mismatch::BuildId { .. } | Mismatch::Code) => false,
        }
    }

    /// Whether some of the code of `contents` is in guest memory, and none of that differs.
    fn has_code_of(&self, contents: &[u8], found: &Identity) -> bool {
        let mut equal = 0;
        for (begin, code) in found.code(contents) {
            let identity = &self.file.identity;
            match (self.linux).compare_file(self.memory, identity, begin, code) {
                Some(pages) => equal += pages,
                None => return false,
            }
        }
        equal > 0
    }
}
