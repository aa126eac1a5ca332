//! The names of user code in recordings: the mappings of processes, and the mapped files.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use kvmprof_abi::text::task_name;
use kvmprof_recording::file::{Mapping, ProcessLabels, ProcessMappings};
use kvmprof_recording::status::LimitsStatus;

use crate::binaries::{BinaryLoader, BinarySources, FileId};
use kvmprof_introspection::{Area, Backing, MappedFile, ProcessMap};

/// Maximum number of address spaces that are kept for recorders that start later.
const MAX_SPACES: usize = 4096;
/// Maximum size of these in bytes.
const MAX_SPACES_BYTES: usize = 128 << 20;
/// Maximum number of files that are known. Beyond it, those of processes that have ended are forgotten, the least recently used ones first,
/// then others. A file that is forgotten gets another number when a process is found that executes it.
const MAX_FILES: usize = 16_384;
/// Maximum size in bytes of files' blocks that are kept for recorders that start later. Beyond it, files are forgotten too.
const MAX_KEPT: usize = 256 << 20;
/// Maximum size in bytes of blocks of languages' functions that are kept for these. Beyond it, the oldest ones are forgotten.
const MAX_FUNCTIONS: usize = 32 << 20;

/// The address spaces and files of the processes that vCPUs have met, as blocks for recordings.
pub struct Processes {
    /// The address spaces, by page-table root.
    spaces: BTreeMap<u64, Space>,
    spaces_bytes: usize,
    turns: u64,
    files: HashMap<Key, KnownFile>,
    next_file: FileId,
    loader: BinaryLoader,
    kept: BTreeMap<FileId, Arc<[u8]>>,
    kept_bytes: usize,
    /// Blocks of functions of languages, in the order in which they were read.
    functions: VecDeque<Arc<[u8]>>,
    functions_bytes: usize,
    /// [`MAX_FILES`] and [`MAX_KEPT`], except in tests.
    max_files: usize,
    max_kept: usize,
    forgotten_spaces: u64,
    /// The number of files that were forgotten although a known address space has them.
    forgotten_files: u64,
}

/// A file's number in recordings, and when it was last mapped: the higher, the later.
#[derive(Clone, Copy, Debug)]
struct KnownFile {
    id: FileId,
    turn: u64,
}

/// The newest map of an address space, its block, and its turn: the higher, the newer.
#[derive(Debug)]
struct Space {
    map: Arc<ProcessMap>,
    block: Arc<[u8]>,
    files: Vec<FileId>,
    turn: u64,
}

impl Space {
    fn bytes(&self) -> usize {
        self.map.bytes() + self.block.len() + size_of_val(&*self.files)
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum Key {
    File(Arc<MappedFile>),
    Vdso,
}

impl Processes {
    /// No address spaces and files. Files are searched for in `sources`.
    pub fn new(sources: BinarySources) -> Self {
        Self {
            spaces: BTreeMap::new(),
            spaces_bytes: 0,
            turns: 0,
            files: HashMap::new(),
            next_file: 0,
            loader: BinaryLoader::new(sources),
            kept: BTreeMap::new(),
            kept_bytes: 0,
            functions: VecDeque::new(),
            functions_bytes: 0,
            max_files: MAX_FILES,
            max_kept: MAX_KEPT,
            forgotten_spaces: 0,
            forgotten_files: 0,
        }
    }

    /// Takes the mappings and labels that a vCPU has found. Returns blocks for recordings if they have changed.
    pub fn enter(&mut self, map: Arc<ProcessMap>) -> Option<Arc<[u8]>> {
        self.turns += 1;
        let files: Vec<Option<FileId>> = map.areas.iter().map(|area| self.file(area)).collect();
        self.loader.load(Arc::clone(&map), files.clone());
        let known = self.spaces.get(&map.root);
        // Another vCPU may have found the same map.
        if known.is_some_and(|space| {
            let found = &space.map;
            found.pid == map.pid
                && found.name == map.name
                && found.perf_map == map.perf_map
                && found.labels == map.labels
                && found.areas == map.areas
        }) {
            return None;
        }
        let mut block = mappings(&map, &files).to_block()?;
        block.extend(labels(&map));
        let block: Arc<[u8]> = block.into();
        let space = Space {
            block: Arc::clone(&block),
            files: files.into_iter().flatten().collect(),
            turn: self.turns,
            map,
        };
        self.spaces_bytes += space.bytes();
        if let Some(before) = self.spaces.insert(space.map.root, space) {
            self.spaces_bytes -= before.bytes();
        }
        while self.spaces.len() > MAX_SPACES || self.spaces_bytes > MAX_SPACES_BYTES {
            self.forget_oldest();
        }
        self.forget_files();
        Some(block)
    }

    /// Forgets all address spaces, because the guest restarts. Files stay known.
    pub fn forget_spaces(&mut self) {
        self.spaces.clear();
        self.spaces_bytes = 0;
    }

    fn forget_oldest(&mut self) {
        let oldest = self.spaces.iter().min_by_key(|(_, space)| space.turn);
        let root = oldest.map(|(root, _)| *root);
        if let Some(space) = root.and_then(|root| self.spaces.remove(&root)) {
            self.spaces_bytes -= space.bytes();
            self.forgotten_spaces += 1;
        }
    }

    /// The number of the file of `area` in recordings.
    fn file(&mut self, area: &Area) -> Option<FileId> {
        let key = match &area.backing {
            Backing::File(file) => Key::File(Arc::clone(file)),
            // In the range of 32-bit programs, the vDSO is another one.
            Backing::Vdso if area.begin > u64::from(u32::MAX) => Key::Vdso,
            Backing::Vdso | Backing::Anonymous => return None,
        };
        if let Some(known) = self.files.get_mut(&key) {
            known.turn = self.turns;
            return Some(known.id);
        }
        // Numbers aren't used again: recordings have files under them.
        let id = self.next_file;
        self.next_file = id.checked_add(1)?;
        let turn = self.turns;
        self.files.insert(key, KnownFile { id, turn });
        Some(id)
    }

    /// Forgets files beyond the limits, until an eighth of the room is free.
    fn forget_files(&mut self) {
        let is_over = self.files.len() > self.max_files || self.kept_bytes > self.max_kept;
        if !is_over {
            return;
        }
        let used: BTreeSet<FileId> = self
            .spaces
            .values()
            .flat_map(|space| space.files.clone())
            .collect();
        let mut oldest: Vec<(bool, u64, FileId)> = (self.files.values())
            .map(|file| (used.contains(&file.id), file.turn, file.id))
            .collect();
        oldest.sort_unstable();
        let mut forgotten = BTreeSet::new();
        for (is_used, _, id) in oldest {
            let count = self.files.len() - forgotten.len();
            if count <= self.max_files - self.max_files / 8
                && self.kept_bytes <= self.max_kept - self.max_kept / 8
            {
                break;
            }
            if let Some(block) = self.kept.remove(&id) {
                self.kept_bytes -= block.len();
            }
            forgotten.insert(id);
            if is_used && self.forgotten_files == 0 {
                log::warn!(
                    "The names of the guest's programs take more than {} MiB: a recording that starts later lacks those of programs that have run for long",
                    self.max_kept >> 20
                );
            }
            self.forgotten_files += u64::from(is_used);
        }
        self.files.retain(|_, file| !forgotten.contains(&file.id));
    }

    /// Enters what limits have cost until now.
    pub fn enter_omissions(&self, limits: &mut LimitsStatus) {
        limits.forgotten_address_spaces = self.forgotten_spaces;
        limits.forgotten_files = self.forgotten_files;
        self.loader.enter_omissions(limits);
    }

    /// Whether files are still to be read.
    pub fn is_loading(&self) -> bool {
        self.loader.is_busy()
    }

    /// The blocks of files that have been read since the last call.
    pub fn loaded(&mut self) -> Vec<Arc<[u8]>> {
        let blocks = self.loader.take();
        for (id, block) in &blocks {
            match id {
                Some(id) => self.keep(*id, block),
                None => self.keep_functions(block),
            }
        }
        self.forget_files();
        blocks.into_iter().map(|(_, block)| block).collect()
    }

    fn keep_functions(&mut self, block: &Arc<[u8]>) {
        self.functions_bytes += block.len();
        self.functions.push_back(Arc::clone(block));
        while self.functions_bytes > MAX_FUNCTIONS
            && let Some(oldest) = self.functions.pop_front()
        {
            self.functions_bytes -= oldest.len();
        }
    }

    fn keep(&mut self, id: FileId, block: &Arc<[u8]>) {
        // It may have been forgotten while it was read.
        if !self.files.values().any(|file| file.id == id) {
            return;
        }
        self.kept_bytes += block.len();
        if let Some(before) = self.kept.insert(id, Arc::clone(block)) {
            self.kept_bytes -= before.len();
        }
    }

    /// The blocks with which a recording starts.
    pub fn known(&self) -> impl Iterator<Item = &Arc<[u8]>> {
        let spaces = self.spaces.values().map(|space| &space.block);
        self.kept.values().chain(spaces).chain(&self.functions)
    }
}

/// `map` in the form of recordings. `files` are the numbers of its areas' files in recordings.
fn mappings(map: &ProcessMap, files: &[Option<FileId>]) -> ProcessMappings {
    let mappings = map.areas.iter().zip(files).map(|(area, file)| Mapping {
        begin: area.begin,
        end: area.end,
        offset: area.offset,
        file: area.name().to_owned(),
        binary: *file,
    });
    ProcessMappings {
        address_space: map.root,
        pid: map.pid,
        name: task_name(&map.name).collect(),
        perf_map: map.perf_map.path.clone(),
        time: map.time,
        mappings: mappings.collect(),
    }
}

/// The block of the labels of `map`; empty without any.
fn labels(map: &ProcessMap) -> Vec<u8> {
    let labels = ProcessLabels {
        pid: map.pid,
        time: map.time,
        labels: map.labels.clone(),
    };
    let is_there = !labels.labels.is_empty();
    is_there
        .then(|| labels.to_block())
        .flatten()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use vm_memory::GuestAddress;

    use super::*;
    use kvmprof_introspection::{FileIdentity, GuestKnowledge};
    use kvmprof_machine::GuestMemory;

    fn processes() -> Processes {
        let memory = GuestMemory::from_ranges(&[(GuestAddress(0), 4096)]).unwrap();
        let knowledge = Arc::new(GuestKnowledge::unknown());
        Processes::new(BinarySources::new(Arc::new(memory), knowledge, None, None))
    }

    fn file(path: &str, number: u64) -> Backing {
        Backing::File(Arc::new(MappedFile {
            path: path.to_owned(),
            identity: FileIdentity {
                number,
                ..FileIdentity::default()
            },
        }))
    }

    fn map(root: u64, pid: i32, backings: &[Backing]) -> Arc<ProcessMap> {
        let areas = (1_u64..).zip(backings).map(|(index, backing)| Area {
            begin: index << 33,
            end: (index << 33) + 4096,
            offset: 4096,
            backing: backing.clone(),
        });
        Arc::new(ProcessMap::new(root, pid, 5, areas.collect()))
    }

    #[test]
    fn known_mappings_are_not_repeated() {
        let mut processes = processes();
        let first = [file("/bin/a", 1)];
        assert!(processes.enter(map(0x1000, 1, &first)).is_some());
        assert!(processes.enter(map(0x1000, 1, &first)).is_none());
        for (root, pid, backing) in [
            (0x2000, 1, file("/bin/a", 1)),
            (0x1000, 2, file("/bin/a", 1)),
            (0x1000, 2, file("/bin/a", 2)),
            (0x1000, 2, Backing::Anonymous),
        ] {
            assert!(processes.enter(map(root, pid, &[backing])).is_some());
        }
        assert_eq!(processes.known().count(), 2);
    }

    #[test]
    fn files_keep_their_numbers() {
        let mut processes = processes();
        let mut ids = |map: &ProcessMap| -> Vec<Option<FileId>> {
            map.areas.iter().map(|area| processes.file(area)).collect()
        };
        let (one, two, three) = (file("/bin/a", 1), file("/bin/b", 2), file("/bin/a", 3));
        let (none, vdso) = (Backing::Anonymous, Backing::Vdso);
        let all = [one.clone(), two, none, vdso, one, three];
        let expected = [Some(0), Some(1), None, Some(2), Some(0), Some(3)];
        assert_eq!(ids(&map(0x1000, 1, &all)), expected);
        assert_eq!(ids(&map(0x2000, 2, &all)), expected);
        let mut low = map(0x1000, 1, &[Backing::Vdso]).areas[0].clone();
        low.begin = 0x1000;
        assert_eq!(processes.file(&low), None);
    }

    #[test]
    fn endless_programs_leave_names_of_the_newest() {
        let mut processes = processes();
        (processes.max_files, processes.max_kept) = (64, 64_000);
        let server = [file("/bin/server", 0)];
        processes.enter(map(0x1000, 1, &server));
        let id = |processes: &mut Processes, backing: &Backing| {
            let known = map(0x1000, 1, std::slice::from_ref(backing));
            processes.file(&known.areas[0]).unwrap()
        };
        assert_eq!(id(&mut processes, &server[0]), 0);
        let block: Arc<[u8]> = vec![0; 4000].into();
        processes.keep(0, &block);
        let mut last = 0;
        for number in 1..1000 {
            let program = file("/tmp/program", number);
            // Each runs in the memory of the one before.
            processes.enter(map(0x2000, 2, std::slice::from_ref(&program)));
            let next = id(&mut processes, &program);
            assert!(next > last, "{next} was another file's number");
            last = next;
            processes.keep(next, &block);
            processes.forget_files();
            assert!(processes.files.len() <= 64 && processes.kept_bytes <= 64_000);
            assert!(processes.kept.contains_key(&next));
            assert!(processes.kept.contains_key(&0), "its process runs");
        }
        // The thread that reads files may lag: what it has refused isn't due to this limit.
        let forgotten = |processes: &Processes| {
            let mut limits = LimitsStatus::default();
            processes.enter_omissions(&mut limits);
            (limits.forgotten_files, limits.forgotten_address_spaces)
        };
        // Files of ended programs only aren't counted as missing.
        assert_eq!(forgotten(&processes), (0, 0));
        assert_eq!(id(&mut processes, &server[0]), 0);
        // A late result is of a file that was forgotten.
        processes.keep(1, &block);
        assert!(!processes.kept.contains_key(&1));
        // A program that was forgotten is read again.
        assert!(id(&mut processes, &file("/tmp/program", 1)) > last);
        let sum: usize = processes.kept.values().map(|block| block.len()).sum();
        assert_eq!(processes.kept_bytes, sum);
        // If all are in use, some are forgotten, and that is reported.
        for root in 3..100 {
            let program = file("/tmp/program", root);
            processes.enter(map(root << 13, 2, std::slice::from_ref(&program)));
        }
        assert!(forgotten(&processes).0 > 0 && processes.files.len() <= 64);
    }

    #[test]
    fn a_guest_with_endless_processes_fills_no_memory() {
        let mut processes = processes();
        for root in 1..=MAX_SPACES as u64 + 100 {
            processes.enter(map(root << 13, 1, &[Backing::Anonymous]));
        }
        assert_eq!(processes.known().count(), MAX_SPACES);
        assert!(!processes.spaces.contains_key(&(1 << 13)));
        let mut limits = LimitsStatus::default();
        processes.enter_omissions(&mut limits);
        assert_eq!(limits.forgotten_address_spaces, 100);
        let long = file(&"x".repeat(4000), 1);
        let many = vec![long; 1000];
        for root in 1..=100 {
            processes.enter(map(root << 13, 2, &many));
        }
        assert!(processes.spaces_bytes <= MAX_SPACES_BYTES);
        let sum: usize = processes.spaces.values().map(Space::bytes).sum();
        assert_eq!(processes.spaces_bytes, sum);
    }
}
