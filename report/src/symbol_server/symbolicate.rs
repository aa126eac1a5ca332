//! `/symbolicate/v5`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

use super::{RequestError, SymbolServer, resolve};
use crate::profile::Profile;
use crate::symbolize::{Frame, SourceLine};

/// Maximum number of addresses of a request.
const MAX_ADDRESSES: usize = 1 << 18;

/// One job, or a list of them.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Body {
    jobs: Vec<Job>,
    memory_map: Option<MemoryMap>,
    stacks: Option<Stacks>,
}

/// Names and debug ids of libraries.
type MemoryMap = Vec<(String, String)>;
/// A library's index in the map, and an address in it, for each frame of each stack.
type Stacks = Vec<Vec<(i64, i64)>>;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Job {
    memory_map: MemoryMap,
    stacks: Stacks,
}

#[derive(Serialize)]
struct Answer {
    results: Vec<JobResult>,
}

#[derive(Serialize)]
struct JobResult {
    /// By `name/id`: whether it is known; null if there is no address of it.
    found_modules: BTreeMap<String, Option<bool>>,
    stacks: Vec<Vec<FrameResult>>,
}

#[derive(Serialize)]
struct FrameResult {
    frame: usize,
    module: String,
    module_offset: Hexadecimal,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function_offset: Option<Hexadecimal>,
    #[serde(flatten)]
    place: Place,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    inlines: Vec<Inlined>,
}

/// A function that is inlined at an address.
#[derive(Serialize)]
struct Inlined {
    function: Text,
    #[serde(flatten)]
    place: Place,
}

/// A source line.
#[derive(Default, Serialize)]
struct Place {
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

/// A name.
struct Text(Arc<str>);

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// A number as the protocol has addresses: `"0x1f"`.
struct Hexadecimal(i64);

impl Serialize for Hexadecimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:#x}", self.0))
    }
}

impl Place {
    fn of(source: Option<&SourceLine>) -> Self {
        Self {
            file: source.map(|source| Text(Arc::clone(&source.file))),
            line: source.map(|source| source.line).filter(|line| *line > 0),
        }
    }
}

/// The answer to the request with this `body`.
pub fn answer(
    server: &SymbolServer,
    profile: &Profile,
    body: &[u8],
) -> Result<Vec<u8>, RequestError> {
    let Body {
        mut jobs,
        memory_map,
        stacks,
    } = serde_json::from_slice(body)?;
    if let (Some(memory_map), Some(stacks)) = (memory_map, stacks) {
        jobs.push(Job { memory_map, stacks });
    }
    let stacks = jobs.iter().flat_map(|job| &job.stacks);
    if stacks.map(Vec::len).sum::<usize>() > MAX_ADDRESSES {
        return Err(RequestError::TooMany(MAX_ADDRESSES));
    }
    let results = jobs.iter().map(|job| job.result(server, profile));
    let answer = Answer {
        results: results.collect(),
    };
    Ok(serde_json::to_vec(&answer)?)
}

impl Job {
    fn result(&self, server: &SymbolServer, profile: &Profile) -> JobResult {
        let asked = |index: usize| {
            let mut frames = self.stacks.iter().flatten();
            frames.any(|(module, _)| usize::try_from(*module) == Ok(index))
        };
        let found_modules = self.memory_map.iter().enumerate();
        let found_modules = found_modules.map(|(index, (name, id))| {
            let found = server.library(name, id).is_some();
            (format!("{name}/{id}"), asked(index).then_some(found))
        });
        let stack = |stack: &Vec<(i64, i64)>| {
            let frames = stack.iter().enumerate();
            let frames = frames.map(|(number, (module, offset))| {
                self.frame(server, profile, number, *module, *offset)
            });
            frames.collect()
        };
        JobResult {
            found_modules: found_modules.collect(),
            stacks: self.stacks.iter().map(stack).collect(),
        }
    }

    fn frame(
        &self,
        server: &SymbolServer,
        profile: &Profile,
        number: usize,
        module: i64,
        offset: i64,
    ) -> FrameResult {
        let index = usize::try_from(module).ok();
        let module = index.and_then(|index| self.memory_map.get(index));
        let resolved = module.and_then(|(name, id)| {
            let places = server.library(name, id)?;
            resolve(profile, places, u32::try_from(offset).ok()?)
        });
        let frames: &[Frame] = resolved.as_ref().map_or(&[], |resolved| &resolved.frames);
        let (outer, inlined) = match frames.split_last() {
            Some((outer, inlined)) => (Some(outer), inlined),
            None => (None, &[][..]),
        };
        let from_begin = resolved
            .as_ref()
            .map(|resolved| resolved.offset.unwrap_or(0));
        let inlines = inlined.iter().map(|frame| Inlined {
            function: Text(Arc::clone(&frame.function)),
            place: Place::of(frame.source.as_ref()),
        });
        FrameResult {
            frame: number,
            module: module.map_or_else(String::new, |(name, _)| name.clone()),
            module_offset: Hexadecimal(offset),
            function: outer.map(|frame| Text(Arc::clone(&frame.function))),
            function_offset: from_begin.map(|bytes| Hexadecimal(bytes.cast_signed())),
            place: Place::of(outer.and_then(|frame| frame.source.as_ref())),
            inlines: inlines.collect(),
        }
    }
}
