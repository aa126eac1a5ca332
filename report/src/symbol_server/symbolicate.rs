//! `/symbolicate/v5`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

use super::{LibraryLocation, RequestError, SymbolServer, resolve};
use crate::budget::{BudgetWriter, OutputBudget};
use crate::profile::Profile;
use crate::symbolize::{Frame, SourceLine};

/// Maximum number of addresses of a request.
const MAX_ADDRESSES: usize = 1 << 18;

/// Maximum size of an answer in bytes: all addresses of a request can have the same long name.
const MAX_ANSWER: u64 = 128 << 20;

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
struct Response<'a> {
    results: Vec<JobResult<'a>>,
}

#[derive(Serialize)]
struct JobResult<'a> {
    /// By `name/id`: whether it is known; null if there is no address of it.
    found_modules: BTreeMap<String, Option<bool>>,
    stacks: Vec<Vec<FrameResult<'a>>>,
}

#[derive(Serialize)]
struct FrameResult<'a> {
    frame: usize,
    module: &'a str,
    module_offset: Hexadecimal,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function_offset: Option<Hexadecimal>,
    #[serde(flatten)]
    source: SourceLocation,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    inlines: Vec<InlinedFunction>,
}

/// A function that is inlined at an address.
#[derive(Serialize)]
struct InlinedFunction {
    function: Text,
    #[serde(flatten)]
    source: SourceLocation,
}

/// A source line.
#[derive(Default, Serialize)]
struct SourceLocation {
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

/// A number in the protocol's form of addresses: `"0x1f"`.
struct Hexadecimal(i64);

impl Serialize for Hexadecimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:#x}", self.0))
    }
}

impl SourceLocation {
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
    let answer = Response {
        results: results.collect(),
    };
    let mut text = Vec::new();
    let budget = OutputBudget::new(MAX_ANSWER);
    let out = BudgetWriter {
        out: &mut text,
        budget: &budget,
    };
    // There is no other error.
    serde_json::to_writer(out, &answer).map_err(|_| RequestError::TooLong(MAX_ANSWER))?;
    Ok(text)
}

/// A library of a job's memory map.
struct Module<'a> {
    name: &'a str,
    /// Its locations in the recording.
    locations: Option<&'a [LibraryLocation]>,
}

impl Job {
    fn result<'a>(&'a self, server: &'a SymbolServer, profile: &Profile) -> JobResult<'a> {
        let frames = self.stacks.iter().flatten();
        let asked: BTreeSet<i64> = frames.map(|(module, _)| *module).collect();
        let modules = self.memory_map.iter().map(|(name, id)| Module {
            name,
            locations: server.library(name, id),
        });
        let modules: Vec<Module<'a>> = modules.collect();
        let found_modules = (0..).zip(self.memory_map.iter().zip(&modules));
        let found_modules = found_modules.map(|(index, ((name, id), module))| {
            let found = module.locations.is_some();
            (
                format!("{name}/{id}"),
                asked.contains(&index).then_some(found),
            )
        });
        let stack = |stack: &Vec<(i64, i64)>| {
            let frames = stack.iter().enumerate();
            let frames = frames.map(|(number, (module, offset))| {
                let index = usize::try_from(*module).ok();
                let module = index.and_then(|index| modules.get(index));
                frame(profile, number, module, *offset)
            });
            frames.collect()
        };
        JobResult {
            found_modules: found_modules.collect(),
            stacks: self.stacks.iter().map(stack).collect(),
        }
    }
}

/// Frame `number` of a stack, which is at `offset` of `module`.
fn frame<'a>(
    profile: &Profile,
    number: usize,
    module: Option<&Module<'a>>,
    offset: i64,
) -> FrameResult<'a> {
    let resolved = module.and_then(|module| {
        let offset = u32::try_from(offset).ok()?;
        resolve(profile, module.locations?, offset)
    });
    let frames: &[Frame] = resolved.as_ref().map_or(&[], |resolved| &resolved.frames);
    let (outer, inlined) = match frames.split_last() {
        Some((outer, inlined)) => (Some(outer), inlined),
        None => (None, &[][..]),
    };
    let from_begin = resolved
        .as_ref()
        .map(|resolved| resolved.offset.unwrap_or(0));
    let inlines = inlined.iter().map(|frame| InlinedFunction {
        function: Text(Arc::clone(&frame.function)),
        source: SourceLocation::of(frame.source.as_ref()),
    });
    FrameResult {
        frame: number,
        module: module.map_or("", |module| module.name),
        module_offset: Hexadecimal(offset),
        function: outer.map(|frame| Text(Arc::clone(&frame.function))),
        function_offset: from_begin.map(|bytes| Hexadecimal(bytes.cast_signed())),
        source: SourceLocation::of(outer.and_then(|frame| frame.source.as_ref())),
        inlines: inlines.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Request;
    use super::*;
    use crate::symbolize::SourceTexts;

    fn asked(body: &str) -> String {
        let profile = Profile::default();
        let server = SymbolServer::new(&profile, SourceTexts::default());
        let answer = server.answer(&profile, Request::Symbolicate, body.as_bytes());
        String::from_utf8(answer).unwrap()
    }

    #[test]
    fn modules_without_frames_are_omitted() {
        let answer = asked(
            r#"{"jobs":[{"memoryMap":[["a","1"],["b","2"],["c","3"]],"stacks":[[[2,16],[0,17]],[[-1,18],[9,19]]]}]}"#,
        );
        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
        let result = &answer["results"][0];
        let expected = serde_json::json!({ "a/1": false, "b/2": null, "c/3": false });
        assert_eq!(result["found_modules"], expected);
        assert_eq!(result["stacks"][0][0]["module"], "c");
        assert_eq!(result["stacks"][1][1]["module"], "");
    }

    /// One name of a megabyte for all addresses of a request would be a terabyte.
    #[test]
    fn an_answer_is_bounded() {
        let name = "n".repeat(1 << 20);
        let frames = vec!["[0,1]"; 1000].join(",");
        let answer = asked(&format!(
            r#"{{"memoryMap":[["{name}","1"]],"stacks":[[{frames}]]}}"#
        ));
        let expected = r#"{"error":"The answer would have more than 134217728 bytes"}"#;
        assert_eq!(answer, expected);
    }
}
