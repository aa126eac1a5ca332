//! Names, files and lines of functions.

use kvmprof_recording::file::LanguageFunction;

use super::super::ProcessMemory;
use super::Shared;
use super::layout::{Layout, TAG, integer, scope};
use super::strings::{Characters, characters, text};
use super::{instance_type, read_object};
use crate::bytes::u64_at;

/// Maximum number of local variables of a function. The name of one with more is unknown.
const MAX_LOCALS: u64 = 4096;
/// Maximum number of characters of a script before a function. The line of one that begins later is unknown.
const MAX_BEFORE: usize = 1 << 20;
/// Bytes of a script that are read at once.
const CHUNK: usize = 4096;
/// The name of functions without one, and of scripts, as V8's own profiler has it.
const ANONYMOUS: &str = "(anonymous)";
/// Words behind a function's local variables: the place in a class, its name and the place of that, the name by its place, begin and end.
const WORDS: usize = 6;

/// The function of `shared`.
pub fn describe(
    layout: &Layout,
    shared: &Shared,
    memory: &mut dyn ProcessMemory,
) -> Option<LanguageFunction> {
    let read = |memory: &mut dyn ProcessMemory| {
        let own = own_name(layout, shared.scope, memory)?;
        let script = shared.script.as_ref();
        let file = script.and_then(|script| text(script.name, memory));
        let source = script.and_then(|script| characters(script.source, memory));
        Some((own, file, source))
    };
    let found = read(memory)?;
    let ((name, begin), file, source) = &found;
    let line = source.and_then(|source| line_at(&source, *begin, memory));
    // What was read has moved meanwhile if its references are others now.
    memory.forget();
    (read(memory)? == found).then_some(())?;
    let before = shared.script.as_ref().map_or(0, |it| it.line_offset);
    let line = line.and_then(|line| line.checked_add_signed(before));
    Some(LanguageFunction {
        function: 0,
        name: name.clone(),
        file: file.clone().unwrap_or_default(),
        line: line.unwrap_or(0),
        lines: Vec::new(),
    })
}

/// The name of the function with this `ScopeInfo` or name, and where in its script it begins.
fn own_name(
    layout: &Layout,
    reference: u64,
    memory: &mut dyn ProcessMemory,
) -> Option<(String, usize)> {
    let named = |name: Option<String>| {
        let name = name.filter(|name| !name.is_empty());
        name.unwrap_or_else(|| ANONYMOUS.to_owned())
    };
    if reference & TAG == 0 {
        return Some((named(None), 0));
    }
    let mut head = [0; 8 * (1 + scope::VARIABLES)];
    let at = read_object(reference, memory, &mut head)?;
    if instance_type(&head, memory)? != layout.scope {
        return Some((named(Some(text(reference, memory)?)), 0));
    }
    let word = |index: usize| integer(u64_at(&head, 8 * (1 + index))?);
    let flags = u64::try_from(word(scope::FLAGS)?).ok()?;
    if flags & scope::TYPE != scope::OF_FUNCTION {
        // A script or a module.
        return Some((named(None), 0));
    }
    let locals = u64::try_from(word(scope::LOCALS)?).ok()?;
    (locals <= MAX_LOCALS).then_some(())?;
    let names = if locals < scope::INLINED { locals } else { 1 };
    let variables = at.checked_add(head.len() as u64)?;
    let mut words = [0; 8 * WORDS];
    let class = usize::from(flags & scope::HAS_CLASS != 0);
    // Functions always have both.
    (flags & scope::HAS_NAME != 0 && flags & scope::HAS_INFERRED != 0).then_some(())?;
    let words = words.get_mut(..8 * (WORDS - 1 + class))?;
    memory.read(variables.checked_add(8 * (names + locals))?, words)?;
    let word = |index: usize| u64_at(words, 8 * (class + index));
    let (name, inferred) = (word(0)?, word(2)?);
    let [place, begin, end] = [word(1)?, word(3)?, word(4)?].map(integer);
    (place.is_some() && begin? <= end?).then_some(())?;
    let begin = usize::try_from(begin?).ok()?;
    let is_unnamed = name & TAG == 0;
    let name = match is_unnamed {
        true => None,
        false => Some(text(name, memory)?),
    };
    let name = name.filter(|name| !name.is_empty());
    // `undefined` is no string.
    Some((named(name.or_else(|| text(inferred, memory))), begin))
}

/// The line of character number `place` of `source`, from 1. Lines end as the language's do (ECMAScript, section 12.3).
fn line_at(source: &Characters, place: usize, memory: &mut dyn ProcessMemory) -> Option<u32> {
    (place <= source.length.min(MAX_BEFORE)).then_some(())?;
    let width = source.width();
    let mut line = 1;
    let mut before = 0;
    let mut chunk = [0; CHUNK];
    for begin in (0..place * width).step_by(CHUNK) {
        let bytes = chunk.get_mut(..(place * width - begin).min(CHUNK))?;
        memory.read(source.address.checked_add(begin as u64)?, bytes)?;
        for bytes in bytes.chunks_exact(width) {
            let unit = bytes
                .iter()
                .rev()
                .fold(0_u16, |unit, byte| unit << 8 | u16::from(*byte));
            let ends = match unit {
                0x0a => before != 0x0d,
                0x0d | 0x2028 | 0x2029 => true,
                _ => false,
            };
            line += u32::from(ends);
            before = unit;
        }
    }
    Some(line)
}
