//! The code of functions for the page: instructions and source lines with their ticks.
//!
//! Only innermost frames count: their address is that of the instruction that the processor executed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};

use foldhash::fast::RandomState;
use serde_json::{Value, json};

use super::calls::Calls;
use crate::model::Table;
use crate::profile::Profile;
use crate::symbolize::{Assembly, CodeAddress, Resolved, SourceLine, SourceTexts};
use crate::text::visible;

/// Maximum number of functions, those with the most ticks of their own.
const MAX_FUNCTIONS: usize = 100;
/// Maximum size of a function's code, in bytes.
const MAX_CODE: usize = 16 << 10;
/// Maximum number of instructions of all functions.
const MAX_INSTRUCTIONS: usize = 20_000;
/// Maximum number of source lines of a function, and of all functions.
const MAX_LINES: u32 = 400;
const MAX_ALL_LINES: usize = 10_000;
/// Lines before and behind those with instructions.
const CONTEXT: u32 = 3;
/// Longest source line, in characters.
const MAX_LINE: usize = 300;
const TAB: &str = "        ";

/// A function's ticks by the address of the instruction.
struct Hits {
    function: u32,
    recording: usize,
    /// The start of the function, in a process that has it.
    begin: CodeAddress,
    /// The start of the function in its file.
    file_begin: u64,
    ticks: u64,
    /// Ticks by the distance from the start.
    by_offset: BTreeMap<u64, u64>,
}

/// The functions of `profile` that the innermost frames are in, those with the most ticks first; each once, of the recording that has the most ticks in it.
fn hits(profile: &Profile, calls: &Calls) -> Vec<Hits> {
    let mut found: HashMap<(u32, usize), Hits, RandomState> = HashMap::default();
    for (recording, own) in profile.recordings().enumerate() {
        for stack in own.stacks() {
            let ticks = stack.ticks;
            // The other functions at this address are inlined into it.
            let Some(frame) = own.frames(stack).find(|frame| !frame.is_inlined) else {
                continue;
            };
            let (Some(offset), Some(function)) = (frame.offset, calls.function_number(&frame))
            else {
                continue;
            };
            let hits = found.entry((function, recording)).or_insert_with(|| Hits {
                function,
                recording,
                begin: CodeAddress {
                    address: frame.address.wrapping_sub(offset),
                    ..frame.asked()
                },
                file_begin: frame.file_address.wrapping_sub(offset),
                ticks: 0,
                by_offset: BTreeMap::new(),
            });
            // A different function with the same name, such as a static one.
            if hits.file_begin == frame.file_address.wrapping_sub(offset) {
                hits.ticks += ticks;
                *hits.by_offset.entry(offset).or_default() += ticks;
            }
        }
    }
    let mut found: Vec<Hits> = found.into_values().collect();
    found.sort_by_key(|hits| (Reverse(hits.ticks), hits.function, hits.recording));
    let mut seen = HashSet::<u32, RandomState>::default();
    found.retain(|hits| seen.insert(hits.function));
    found
}

/// The instructions and lines that may still be added.
struct ListingLimits {
    instructions: usize,
    lines: usize,
}

/// The code of the functions with the most ticks that `--vmlinux` and `--sysroot` have, with the source text of `texts`. For each:
///
/// - `function`: its number; `begin`: its first address in hexadecimal; `ticks`: its number of ticks;
/// - `offsets`, `texts`, `ticksAt`, `places`: of each instruction its distance from the start, its text, its ticks, and the number of its source
///   line in `names`, -1 if that isn't known;
/// - `source`: the `file` that the function is in, the number of the `first` line, and of each line from that on its text in `texts` and its ticks in
///   `ticksAt`, with those of what is inlined there; null if the file isn't there.
pub fn json(profile: &Profile, calls: &Calls, texts: &SourceTexts) -> Value {
    if !profile.recordings().any(|own| own.resolver.has_code()) {
        return json!([]);
    }
    let recordings: Vec<&Profile> = profile.recordings().collect();
    let mut limits = ListingLimits {
        instructions: MAX_INSTRUCTIONS,
        lines: MAX_ALL_LINES,
    };
    let listed = hits(profile, calls).into_iter().take(MAX_FUNCTIONS);
    let listed = listed.filter_map(|hits| {
        let own = recordings.get(hits.recording)?;
        listing(own, &hits, texts, &mut limits)
    });
    Value::Array(listed.collect())
}

fn listing(
    profile: &Profile,
    hits: &Hits,
    texts: &SourceTexts,
    limits: &mut ListingLimits,
) -> Option<Value> {
    let code = profile.resolver.code(hits.begin, MAX_CODE)?;
    let resolve = |address: u64| {
        let distance = address.wrapping_sub(hits.file_begin);
        profile.resolver.resolve(CodeAddress {
            address: hits.begin.address.wrapping_add(distance),
            ..hits.begin
        })
    };
    let assembly = Assembly::new(hits.file_begin, |address| Some(resolve(address)));
    let (_, instructions) = assembly.instructions(&code, 1, true);
    limits.instructions = limits.instructions.checked_sub(instructions.len())?;
    let offsets: Vec<u64> = (instructions.iter())
        .map(|(offset, _)| *offset as u64)
        .collect();
    let ticks = ticks_of(&offsets, &hits.by_offset);
    let places: Vec<Resolved> = (offsets.iter())
        .map(|offset| resolve(hits.file_begin.wrapping_add(*offset)))
        .collect();
    let mut names: Table<&SourceLine> = Table::default();
    let inner = places.iter().map(|place| {
        let source = place.frames.first().and_then(|frame| frame.source.as_ref());
        source.map_or(-1, |source| i64::from(names.number(source)))
    });
    let inner: Vec<i64> = inner.collect();
    let own = places.iter().map(|place| {
        let source = place.frames.last().and_then(|frame| frame.source.as_ref());
        source.filter(|source| source.line > 0)
    });
    let own: Vec<Option<&SourceLine>> = own.collect();
    let source = source(&own, &ticks, texts, limits);
    let text = |(_, text): &(usize, String)| visible(text);
    Some(json!({
        "function": hits.function,
        "begin": format!("{:x}", hits.file_begin),
        "ticks": hits.ticks,
        "offsets": offsets,
        "texts": instructions.iter().map(text).collect::<Vec<_>>(),
        "ticksAt": ticks,
        "places": inner,
        "names": names.into_values().into_iter().map(shown_place).collect::<Vec<_>>(),
        "source": source,
    }))
}

/// The ticks of each instruction, by the start of instructions. A tick in the middle of an instruction counts for it: the kernel changes its code while it runs.
fn ticks_of(offsets: &[u64], by_offset: &BTreeMap<u64, u64>) -> Vec<u64> {
    let ends = offsets.iter().skip(1).copied().chain([u64::MAX]);
    let spans = offsets.iter().copied().zip(ends);
    spans
        .map(|(begin, end)| match end {
            // The length of the last one is unknown.
            u64::MAX => by_offset.get(&begin).copied().unwrap_or(0),
            _ => by_offset.range(begin..end).map(|(_, ticks)| ticks).sum(),
        })
        .collect()
}

fn shown_place(source: &SourceLine) -> String {
    visible(&format!("{}:{}", source.file, source.line))
}

/// The source lines of a function whose instructions come from the lines `own`.
fn source(
    own: &[Option<&SourceLine>],
    ticks: &[u64],
    texts: &SourceTexts,
    limits: &mut ListingLimits,
) -> Option<Value> {
    let mut files: BTreeMap<&str, usize> = BTreeMap::new();
    for line in own.iter().flatten() {
        *files.entry(&line.file).or_default() += 1;
    }
    let (file, _) = files.into_iter().max_by_key(|(_, count)| *count)?;
    let is_there = |line: &&SourceLine| *line.file == *file;
    let lines = || own.iter().flatten().copied().filter(is_there);
    let low = lines().map(|line| line.line).min()?;
    let first = low.saturating_sub(CONTEXT).max(1);
    let last = lines().map(|line| line.line).max()?.saturating_add(CONTEXT);
    let count = (last - first).min(MAX_LINES - 1) + 1;
    let text = texts.text(file)?;
    let shown = text.lines().skip(first as usize - 1).take(count as usize);
    let shown: Vec<String> = shown.map(shown_line).collect();
    // The file at that path is a different one.
    if shown.len() <= (low - first) as usize {
        return None;
    }
    limits.lines = limits.lines.checked_sub(shown.len())?;
    let mut by_line = vec![0; shown.len()];
    for (line, ticks) in own.iter().zip(ticks) {
        let index = line.filter(is_there).map(|line| line.line - first);
        if let Some(sum) = index.and_then(|index| by_line.get_mut(index as usize)) {
            *sum += ticks;
        }
    }
    Some(json!({ "file": visible(file), "first": first, "texts": shown, "ticksAt": by_line }))
}

fn shown_line(line: &str) -> String {
    let cut: String = line.chars().take(MAX_LINE).collect();
    visible(&cut.replace('\t', TAB))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_count_for_their_instruction() {
        let by_offset = BTreeMap::from([(0, 5), (3, 2), (4, 1), (9, 7), (12, 4)]);
        // One of three bytes, one of six, and the last one, which is followed by unknown code.
        assert_eq!(ticks_of(&[0, 3, 9], &by_offset), [5, 3, 7]);
        assert!(ticks_of(&[], &by_offset).is_empty());
    }

    #[test]
    fn lines_are_cut_and_have_no_tabs() {
        assert_eq!(shown_line("\tx\u{202e}y").find('x'), Some(8));
        assert!(!shown_line("\u{202e}").contains('\u{202e}'));
        assert_eq!(shown_line(&"a".repeat(1000)).len(), MAX_LINE);
    }
}
