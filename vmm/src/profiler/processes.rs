//! What names user code in recordings: the mappings of processes, and the files that are mapped.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kvmprof_report::file::{Mapping, ProcessMappings};

use crate::binaries::{BinaryLoader, BinarySources, FileId};
use crate::introspection::{Area, Backing, MappedFile, ProcessMap};

/// Address spaces that are remembered for recorders that start later.
const MAX_SPACES: usize = 4096;
/// Files that are told apart.
const MAX_FILES: usize = 65_536;
/// Bytes of files' blocks that are kept for recorders that start later.
const MAX_KEPT: usize = 256 << 20;

/// See the module's documentation.
#[derive(Debug)]
pub struct Processes {
    /// By page-table root.
    spaces: BTreeMap<u64, Space>,
    turns: u64,
    files: HashMap<Key, FileId>,
    loader: BinaryLoader,
    kept: Vec<Arc<[u8]>>,
    kept_bytes: usize,
}

/// The newest map of an address space, its block, and when it came.
#[derive(Debug)]
struct Space {
    map: Arc<ProcessMap>,
    block: Arc<[u8]>,
    turn: u64,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum Key {
    File(Arc<MappedFile>),
    Vdso,
}

impl Processes {
    /// Knows none; files are looked for in `sources`.
    pub fn new(sources: BinarySources) -> Self {
        Self {
            spaces: BTreeMap::new(),
            turns: 0,
            files: HashMap::new(),
            loader: BinaryLoader::new(sources),
            kept: Vec::new(),
            kept_bytes: 0,
        }
    }

    /// Takes what a vCPU has found; the result is a block for recordings, if that is news.
    pub fn enter(&mut self, map: Arc<ProcessMap>) -> Option<Arc<[u8]>> {
        let files: Vec<Option<FileId>> = map.areas.iter().map(|area| self.file(area)).collect();
        self.loader.load(Arc::clone(&map), files.clone());
        let known = self.spaces.get(&map.root);
        // Another vCPU may have found the same.
        if known.is_some_and(|space| space.map.pid == map.pid && space.map.areas == map.areas) {
            return None;
        }
        let block: Arc<[u8]> = mappings(&map, &files).to_block()?.into();
        self.turns += 1;
        let space = Space {
            block: Arc::clone(&block),
            turn: self.turns,
            map,
        };
        if known.is_none() && self.spaces.len() >= MAX_SPACES {
            self.forget_oldest();
        }
        self.spaces.insert(space.map.root, space);
        Some(block)
    }

    fn forget_oldest(&mut self) {
        let oldest = self.spaces.iter().min_by_key(|(_, space)| space.turn);
        if let Some(root) = oldest.map(|(root, _)| *root) {
            self.spaces.remove(&root);
        }
    }

    /// What recordings call the file of `area`.
    fn file(&mut self, area: &Area) -> Option<FileId> {
        let key = match &area.backing {
            Backing::File(file) => Key::File(Arc::clone(file)),
            // Where 32-bit programs have theirs, that is another one.
            Backing::Vdso if area.begin > u64::from(u32::MAX) => Key::Vdso,
            Backing::Vdso | Backing::Anonymous => return None,
        };
        let next = FileId::try_from(self.files.len()).ok()?;
        if self.files.len() >= MAX_FILES {
            return self.files.get(&key).copied();
        }
        Some(*self.files.entry(key).or_insert(next))
    }

    /// The blocks of files that have been read since the last call.
    pub fn loaded(&mut self) -> Vec<Arc<[u8]>> {
        let blocks = self.loader.take();
        self.keep(blocks)
    }

    /// As [`Processes::loaded`], after all have been read, or after `patience`.
    pub fn all_loaded(&mut self, patience: Duration) -> Vec<Arc<[u8]>> {
        let blocks = self.loader.take_all(patience);
        self.keep(blocks)
    }

    fn keep(&mut self, blocks: Vec<Arc<[u8]>>) -> Vec<Arc<[u8]>> {
        for block in &blocks {
            if self.kept_bytes + block.len() <= MAX_KEPT {
                self.kept_bytes += block.len();
                self.kept.push(Arc::clone(block));
            }
        }
        blocks
    }

    /// The blocks that a recording starts with.
    pub fn known(&self) -> impl Iterator<Item = &Arc<[u8]>> {
        let spaces = self.spaces.values().map(|space| &space.block);
        self.kept.iter().chain(spaces)
    }
}

/// `map` as recordings have it; `files` are what they call the files of its areas.
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
        time: map.time,
        mappings: mappings.collect(),
    }
}
