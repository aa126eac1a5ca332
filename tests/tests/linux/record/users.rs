//! Names of user code from a recording, looked up in the simplest way.

use std::collections::BTreeMap;

use kvmprof_recording::Sample;
use kvmprof_recording::file::{Contents, Mapping, ProcessMappings, Segment, kernels_half};

/// The mappings and files of a recording.
pub struct Users<'a> {
    mappings: &'a [ProcessMappings],
    files: BTreeMap<u32, File>,
}

struct File {
    segments: Vec<Segment>,
    /// By address: length, name.
    functions: BTreeMap<u64, (u64, String)>,
}

impl<'a> Users<'a> {
    /// Those of a recording.
    pub fn new(contents: &'a Contents) -> Self {
        let files = contents.binaries.iter().map(|binary| {
            let functions = binary.functions();
            let file = File {
                segments: binary.info.segments.clone(),
                functions: functions
                    .map(|(address, length, name)| (address, (length, name.to_owned())))
                    .collect(),
            };
            (binary.info.id, file)
        });
        Self {
            mappings: &contents.mappings,
            files: files.collect(),
        }
    }

    fn mapping(&self, sample: &Sample, address: u64) -> Option<&Mapping> {
        let space = kernels_half(sample.address_space);
        let current = self
            .mappings
            .iter()
            .filter(|one| one.address_space == space && one.time <= sample.time)
            .max_by_key(|one| one.time)?;
        current
            .mappings
            .iter()
            .find(|mapping| (mapping.begin..mapping.end).contains(&address))
    }

    /// The file at `address`; empty if it isn't known.
    pub fn file(&self, sample: &Sample, address: u64) -> String {
        self.mapping(sample, address)
            .map_or_else(String::new, |mapping| mapping.file.clone())
    }

    /// The function at `address`, or the address itself.
    pub fn function(&self, sample: &Sample, address: u64) -> String {
        self.find(sample, address)
            .map_or_else(|| format!("{address:#x}"), str::to_owned)
    }

    fn find(&self, sample: &Sample, address: u64) -> Option<&str> {
        let mapping = self.mapping(sample, address)?;
        let file = self.files.get(&mapping.binary?)?;
        let offset = address - mapping.begin + mapping.offset;
        let own = file.segments.iter().find_map(|segment| {
            let inside = (segment.offset..segment.offset + segment.length).contains(&offset);
            inside.then(|| offset - segment.offset + segment.address)
        })?;
        let (begin, (length, name)) = file.functions.range(..=own).next_back()?;
        (own - begin < *length).then_some(name)
    }
}
