//! The names of firmware's code for recorders, with the times since when they hold.

use std::fmt::Write;

use super::{NamedCode, Noted};
use crate::NewFunctions;
use kvmprof_recording::file::{GoneCode, SymbolChange};

/// Maximum number of bytes of text, so that a guest with made-up images can't fill recordings.
const MAX_TEXT: usize = 1 << 20;
/// Maximum number of images that are known at a time.
const MAX_IMAGES: usize = 1024;

/// All names until now.
#[derive(Debug, Default)]
pub struct FirmwareLog {
    /// Those that hold now, by address. They don't overlap.
    current: Vec<NamedCode>,
    text: String,
    /// The time of the last change.
    last: u64,
}

impl FirmwareLog {
    /// The code at a place was `found` to be this; with nothing, no name holds there any more.
    pub fn add(&mut self, noted: &Noted, found: Option<NamedCode>) {
        let address = noted.address;
        let range = found
            .as_ref()
            .map_or((address, address + 1), |code| (code.begin, code.end));
        let overlaps = |code: &NamedCode| code.begin < range.1 && range.0 < code.end;
        if let Some(found) = &found
            && self.current.iter().any(|code| code == found)
        {
            return;
        }
        let gone: Vec<NamedCode> = self.current.extract_if(.., |code| overlaps(code)).collect();
        let room = MAX_TEXT.saturating_sub(self.text.len());
        let has_room = room > (gone.len() + 2) * 256 && self.current.len() < MAX_IMAGES;
        if gone.is_empty() && (found.is_none() || !has_room) {
            return;
        }
        self.change(noted.time, &gone);
        if let Some(found) = found.filter(|_| has_room) {
            let NamedCode { begin, end, name } = &found;
            // Writing to a String cannot fail.
            let _ = writeln!(self.text, "{begin:016x} t {name}\t[firmware]");
            let _ = writeln!(self.text, "{end:016x} ? [end]\t[firmware]");
            self.current.push(found);
        }
    }

    /// Nothing holds from `time` on.
    pub fn end(&mut self, time: u64) {
        let gone = std::mem::take(&mut self.current);
        if !gone.is_empty() {
            self.change(time, &gone);
        }
    }

    /// Begins a change, in which these names end.
    fn change(&mut self, time: u64, gone: &[NamedCode]) {
        self.last = self.last.max(time);
        self.text += &SymbolChange::at(self.last).to_string();
        for NamedCode { begin, end, .. } in gone {
            self.text += &GoneCode(*begin..*end).to_string();
        }
    }

    /// The text after its first `known` bytes.
    pub fn after(&self, known: u64) -> Option<NewFunctions> {
        let text = self.text.get(usize::try_from(known).ok()?..)?;
        (!text.is_empty()).then(|| NewFunctions {
            text: text.to_owned(),
            known: self.text.len() as u64,
        })
    }
}
