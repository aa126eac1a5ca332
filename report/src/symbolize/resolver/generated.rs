//! Names of code that programs generate, by the maps that they write of it (perf maps).

use kvmprof_recording::file::Mapping;

use super::{CodeAddress, Frame, Key, Resolved, Resolver, demangle, visible};

impl Resolver {
    /// Resolves an address outside files, in `mapping` if it is known: it may be code that the program generated.
    pub(super) fn elsewhere(
        &self,
        module: &str,
        mapping: Option<&Mapping>,
        asked: CodeAddress,
    ) -> Resolved {
        let line = mapping
            .and_then(|mapping| (self.maps).line(&self.tables, &self.file_sources, mapping, asked));
        let begin = line.as_ref().map_or(asked.address, |line| line.begin);
        let number = line.as_ref().map(|line| (line.map, line.number));
        let frames = self.once(Key::Process(asked.mappings, begin, number), || {
            let name = match &line {
                Some(line) => visible(&demangle(&line.name)),
                None => format!("{:#x}", asked.address),
            };
            let frame = Frame::new(name.into(), visible(module).into());
            vec![Frame {
                is_generated: line.is_some(),
                ..frame
            }]
        });
        Resolved {
            frames,
            offset: line.map(|line| asked.address - line.begin),
            file_address: asked.address,
        }
    }
}
