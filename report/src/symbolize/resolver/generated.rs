//! Names of code that programs generate, by the maps that they write of it (perf maps).

use std::rc::Rc;

use kvmprof_recording::file::Mapping;

use super::{CodeAddress, Frame, Key, PerfMap, Resolved, Resolver, demangle, visible};

/// Maximum number of bytes of a perf map.
const MAX_MAP: u64 = 256 << 20;

impl Resolver {
    /// Resolves an address outside files, in `mapping` if it is known: it may be code that the program generated.
    pub(super) fn elsewhere(
        &self,
        module: &str,
        mapping: Option<&Mapping>,
        asked: CodeAddress,
    ) -> Resolved {
        let path = self.tables.spaces.perf_map(asked.mappings);
        let map = mapping.and_then(|mapping| Some((mapping, self.map(path)?)));
        let function = map.as_ref().and_then(|(mapping, (number, map))| {
            let (name, begin) = map.find(asked.address)?;
            // The file goes by its name alone: an earlier process with this pid may have written it, whose code was elsewhere.
            (mapping.begin <= begin).then_some((name, begin, *number))
        });
        let begin = function.map_or(asked.address, |(_, begin, _)| begin);
        let number = function.map(|(.., number)| number);
        let frames = self.once(Key::Process(asked.mappings, begin, number), || {
            let name = match function {
                Some((name, ..)) => visible(&demangle(name)),
                None => format!("{:#x}", asked.address),
            };
            let frame = Frame::new(name.into(), visible(module).into());
            vec![Frame {
                is_generated: function.is_some(),
                ..frame
            }]
        });
        Resolved {
            frames,
            offset: function.map(|(_, begin, _)| asked.address - begin),
            file_address: asked.address,
        }
    }

    /// The number and the functions of the perf map at `path` of the guest. `None` if no path is known.
    fn map(&self, path: &str) -> Option<(usize, Rc<PerfMap>)> {
        let sysroot = self
            .file_sources
            .sysroot
            .as_deref()
            .filter(|_| !path.is_empty())?;
        if let Some((number, map)) = self.maps.borrow().get(path) {
            return Some((*number, Rc::clone(map)));
        }
        let map = sysroot.text(path, MAX_MAP).ok().and_then(|text| {
            let is_whole = (text.len() as u64) < MAX_MAP;
            let map = Some(text).filter(|_| is_whole);
            let map = map.and_then(|text| PerfMap::parse(&text));
            if map.is_none() {
                let path = sysroot.shown(path);
                self.file_sources.notes.add(format!(
                    "{} is not used: it has more functions than are read",
                    visible(&path.display().to_string())
                ));
            }
            map
        });
        let mut maps = self.maps.borrow_mut();
        let found = (maps.len(), Rc::new(map.unwrap_or_default()));
        maps.insert(path.to_owned(), found.clone());
        Some(found)
    }
}
