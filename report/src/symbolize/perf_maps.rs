//! The names of generated code: of a recording, and of files on the host.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use kvmprof_recording::file::Mapping;

use super::files::FileSources;
use super::frame::CodeAddress;
use super::perf_map::{PerfMap, WrittenPieces};
use super::tables::Tables;
use crate::text::visible;

/// Maximum number of bytes of a file on the host.
const MAX_MAP: u64 = 256 << 20;

/// Identifies a perf map: by the number of a process's file in the recording, or by the path in the guest of one on the host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum MapKey {
    Recorded(u32),
    OnHost(String),
}

/// The perf maps that have been read.
#[derive(Clone, Debug, Default)]
pub struct PerfMaps {
    maps: RefCell<HashMap<MapKey, (usize, Rc<PerfMap>)>>,
    /// The number of the next one that is read.
    next: Cell<usize>,
}

impl PerfMaps {
    /// The number of perf maps that are kept.
    pub fn len(&self) -> usize {
        self.maps.borrow().len()
    }

    /// Forgets all of them.
    pub fn forget(&self) {
        self.maps.take();
    }

    /// Forgets file `number` of the recording, which has more lines now.
    pub fn forget_recorded(&self, number: u32) {
        self.maps.borrow_mut().remove(&MapKey::Recorded(number));
    }

    /// The line for an address in `mapping`, in the names that the process has written: in the recording, else in the folder on the host.
    pub fn line(
        &self,
        tables: &Tables,
        sources: &FileSources,
        mapping: &Mapping,
        asked: CodeAddress,
    ) -> Option<GeneratedLine> {
        let state = asked.mappings.generated();
        let recorded = || {
            let (number, map) = self.recorded(tables, sources, state.file()?);
            line_of(number, &map, asked.address, state.pieces)
        };
        let on_host = || {
            let (number, map) = self.on_host(sources, tables.spaces.perf_map(asked.mappings))?;
            line_of(number, &map, asked.address, WrittenPieces::UNKNOWN)
        };
        // The file goes by its name alone: an earlier process with this pid may have written it, whose code was elsewhere.
        let is_inside = |line: &GeneratedLine| mapping.begin <= line.begin;
        recorded()
            .filter(is_inside)
            .or_else(|| on_host().filter(is_inside))
    }

    /// The number and the functions of a file of the recording.
    fn recorded(&self, tables: &Tables, sources: &FileSources, file: u32) -> (usize, Rc<PerfMap>) {
        self.map(MapKey::Recorded(file), || {
            let map = PerfMap::parse(tables.generated.lines(file));
            if map.is_none() {
                let note = "A process's names of generated code are not used: it has more functions than are read";
                sources.notes.add(note.to_owned());
            }
            map
        })
    }

    /// The number and the functions of the perf map at `path` of the guest, in the folder on the host. `None` without path or folder.
    fn on_host(&self, sources: &FileSources, path: &str) -> Option<(usize, Rc<PerfMap>)> {
        let sysroot = sources.sysroot.as_deref().filter(|_| !path.is_empty())?;
        Some(self.map(MapKey::OnHost(path.to_owned()), || {
            let text = sysroot.text(path, MAX_MAP).ok()?;
            let is_whole = (text.len() as u64) < MAX_MAP;
            let map = Some(text).filter(|_| is_whole);
            let map = map.and_then(|text| PerfMap::parse([text.as_ref()]));
            if map.is_none() {
                let path = sysroot.shown(path);
                sources.notes.add(format!(
                    "{} is not used: it has more functions than are read",
                    visible(&path.display().to_string())
                ));
            }
            map
        }))
    }

    /// The perf map `key` and its number, which `read` reads if it isn't known.
    fn map(&self, key: MapKey, read: impl FnOnce() -> Option<PerfMap>) -> (usize, Rc<PerfMap>) {
        if let Some((number, map)) = self.maps.borrow().get(&key) {
            return (*number, Rc::clone(map));
        }
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        let found = (number, Rc::new(read().unwrap_or_default()));
        self.maps.borrow_mut().insert(key, found.clone());
        found
    }
}

/// A line of a perf map.
#[derive(Debug)]
pub struct GeneratedLine {
    /// The name of its function.
    pub name: Box<str>,
    /// The function's first address.
    pub begin: u64,
    /// The number of the map, and of the line in it.
    pub map: usize,
    pub number: usize,
}

/// The line for `address` in `map`, with the number `number`.
fn line_of(
    number: usize,
    map: &PerfMap,
    address: u64,
    pieces: WrittenPieces,
) -> Option<GeneratedLine> {
    let found = map.find(address, pieces)?;
    Some(GeneratedLine {
        name: found.name.into(),
        begin: found.begin,
        map: number,
        number: found.number,
    })
}
