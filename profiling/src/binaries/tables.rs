//! The unwind tables of files, within a limit.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvmprof_introspection::{Runtime, UnwindTable};

use super::FileId;

/// Maximum number of bytes of unwind tables, and of files that are known.
const MAX_BYTES: usize = 512 << 20;
const MAX_FILES: usize = 65_536;

/// The unwind tables of the files that have been read. Beyond the limits, those that no process uses any more are forgotten, the least
/// recently used ones first: their files are read again when a process needs them.
#[derive(Debug)]
pub struct Tables {
    files: BTreeMap<FileId, Entry>,
    bytes: usize,
    turns: u64,
    /// [`MAX_BYTES`] and [`MAX_FILES`], except in tests.
    max_bytes: usize,
    max_files: usize,
    has_warned: bool,
}

#[derive(Debug)]
struct Entry {
    /// `None` for a file without a table.
    table: Option<Arc<UnwindTable>>,
    /// The runtime of a language that the file has.
    runtime: Option<Arc<dyn Runtime>>,
    /// The higher, the later it was used.
    turn: u64,
}

impl Entry {
    fn bytes(&self) -> usize {
        self.table.as_ref().map_or(0, |table| table.bytes())
    }

    fn is_used(&self) -> bool {
        let count = self.table.as_ref().map_or(0, Arc::strong_count);
        count > 1
    }
}

impl Default for Tables {
    fn default() -> Self {
        Self {
            files: BTreeMap::new(),
            bytes: 0,
            turns: 0,
            max_bytes: MAX_BYTES,
            max_files: MAX_FILES,
            has_warned: false,
        }
    }
}

impl Tables {
    /// Whether file `id` has been read, and not been forgotten.
    pub fn has(&self, id: FileId) -> bool {
        self.files.contains_key(&id)
    }

    /// The table of file `id`, if it has one.
    pub fn get(&mut self, id: FileId) -> Option<Arc<UnwindTable>> {
        self.turns += 1;
        let entry = self.files.get_mut(&id)?;
        entry.turn = self.turns;
        entry.table.clone()
    }

    /// The runtime of a language that file `id` has, if it has one.
    pub fn runtime(&self, id: FileId) -> Option<Arc<dyn Runtime>> {
        self.files.get(&id)?.runtime.clone()
    }

    /// Notes that file `id` has this runtime.
    pub fn put_runtime(&mut self, id: FileId, runtime: Arc<dyn Runtime>) {
        if let Some(entry) = self.files.get_mut(&id) {
            entry.runtime = Some(runtime);
        }
    }

    /// Notes that file `id` has been read, and its table. False if there is no room for the table: then the file has none.
    pub fn put(&mut self, id: FileId, table: Option<UnwindTable>) -> bool {
        if let Some(before) = self.files.remove(&id) {
            self.bytes -= before.bytes();
        }
        let bytes = table.as_ref().map_or(0, UnwindTable::bytes);
        if self.bytes + bytes > self.max_bytes || self.files.len() >= self.max_files {
            self.make_room(bytes);
        }
        let has_room = self.bytes + bytes <= self.max_bytes;
        if !has_room && !self.has_warned {
            self.has_warned = true;
            log::warn!(
                "The unwind tables of the guest's programs take {} MiB. Stacks of further programs are unwound by frame pointers",
                self.max_bytes >> 20
            );
        }
        self.turns += 1;
        let entry = Entry {
            table: table.filter(|_| has_room).map(Arc::new),
            runtime: None,
            turn: self.turns,
        };
        self.bytes += entry.bytes();
        self.files.insert(id, entry);
        has_room
    }

    /// Forgets files that no process uses until an eighth of the room is free, and `bytes` more.
    fn make_room(&mut self, bytes: usize) {
        let mut unused: Vec<(u64, FileId)> = (self.files.iter())
            .filter(|(_, entry)| !entry.is_used())
            .map(|(id, entry)| (entry.turn, *id))
            .collect();
        unused.sort_unstable();
        for (_, id) in unused {
            let has_room = self.bytes.saturating_add(bytes) <= self.max_bytes - self.max_bytes / 8
                && self.files.len() < self.max_files - self.max_files / 8;
            if has_room {
                break;
            }
            if let Some(entry) = self.files.remove(&id) {
                self.bytes -= entry.bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> UnwindTable {
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        UnwindTable::from_elf(&program).unwrap()
    }

    #[test]
    fn endless_programs_leave_tables_of_the_newest() {
        let table = table();
        let mut tables = Tables {
            max_bytes: table.bytes() * 4,
            ..Tables::default()
        };
        tables.put(0, Some(table.clone()));
        let used = tables.get(0).unwrap();
        for id in 1..20 {
            tables.put(id, Some(table.clone()));
            assert!(tables.bytes <= tables.max_bytes);
            assert!(tables.get(id).is_some(), "{id}");
            assert!(tables.get(0).is_some(), "a process uses it");
        }
        assert!(!tables.has(1), "it would be read again");
        drop(used);
        for id in 20..30 {
            tables.put(id, Some(table.clone()));
        }
        assert!(!tables.has(0));
        // Where all are in use there is no room.
        let all: Vec<_> = (0..30).filter_map(|id| tables.get(id)).collect();
        assert_eq!(all.len() * table.bytes(), tables.bytes);
        let more = [40, 41, 42, 43, 44].map(|id| {
            let has_room = tables.put(id, Some(table.clone()));
            let kept = tables.get(id);
            assert_eq!(has_room, kept.is_some(), "{id}");
            kept
        });
        assert!(more[4].is_none() && tables.has(44) && tables.has_warned);
        assert!(tables.bytes <= tables.max_bytes);
    }

    #[test]
    fn files_without_tables_are_forgotten_too() {
        let mut tables = Tables {
            max_files: 64,
            ..Tables::default()
        };
        for id in 0..1000 {
            tables.put(id, None);
            assert!(tables.has(id) && tables.files.len() <= 64);
        }
        assert!(!tables.has(0));
    }
}
