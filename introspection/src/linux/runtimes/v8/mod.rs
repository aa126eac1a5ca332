//! V8, as Node.js has it: stacks of functions of JavaScript.
//!
//! # Frames
//!
//! Each activation of a function has a frame of machine code with a frame pointer (RBP), whichever of V8's parts executes it: the
//! interpreter (Ignition), whose handlers have no frames of their own, or code that the baseline compiler (Sparkplug) or the optimizing
//! ones (Maglev, TurboFan) have made. Right below its frame pointer it has the function's context, then the `JSFunction`. Frames of V8's
//! own code, as those between JavaScript and C++, have the number of their kind in place of the context, which is a small integer
//! (`src/execution/frame-constants.h`). The walk of the stack finds frames of C++ by their unwind tables; code of V8 has none, and it
//! asks here what it executes. V8's built-in code is a long stretch of its file without unwind tables, which V8 may have mapped elsewhere,
//! too.
//!
//! So a frame whose two words are there (a function that has just begun hasn't put them yet) names its function exactly, with one
//! exception: functions that an optimizing compiler has put into another one have no frame, and count as the outer one. Which line of a
//! function is executed isn't known: V8 keeps that only for functions whose errors have been printed, or while it is being profiled.
//!
//! # Names
//!
//! A function is known by its `SharedFunctionInfo`, which closures of the same code share. Objects move: the collector copies them, and uses
//! the memory again. At a tick, a function's number is made of the places of its `SharedFunctionInfo` and of what belongs to it, and of what
//! it has for all its life: the numbers of its script and of its function in there. The thread that reads names computes the number
//! again before and after. If anything has moved since, the number is another one: the tick's function gets no name, and is met again at
//! another tick, with its new number. What the name's strings consist of is read twice with all references on the way: the collector
//! changes these before it uses the memory again, so the same references twice are those of strings that were there meanwhile.
//! At a tick, the collector may be about to move objects: one that has moved has the address of its copy in place of its map.

#[cfg(test)]
mod hostile_tests;
mod layout;
mod names;
mod strings;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use kvmprof_recording::Language;
use kvmprof_recording::file::LanguageFunction;

use super::{FunctionIdentity, ProcessMemory, ProcessRuntime, ProgramFile, Runtime};
use crate::bytes::{u32_at, u64_at};
use crate::unwind::{BareFrame, Executed};
use layout::{
    FUNCTION, INSTANCE_TYPE, Layout, NODE_18, NODE_20, SHARED, TAG, object, script, shared,
};

/// Numbers of kinds of frames are below. V8 11.3 has 28.
const MAX_KIND: u64 = 64;
/// Objects are above this address: V8 reserves its memory where the kernel places mappings. Numbers are below.
const LOWEST: u64 = 1 << 32;

/// V8 of a file.
#[derive(Debug)]
struct V8 {
    layout: Layout,
}

/// V8 in `file`, if it has one whose layout is known.
pub fn recognize(file: &ProgramFile<'_>) -> Option<Arc<dyn Runtime>> {
    let layout = Layout::find(file.contents)?;
    Some(Arc::new(V8 { layout }))
}

/// V8 as this version of Node.js has it, for benchmarks, tests and fuzz targets. `None` if its layout isn't known.
pub fn of_node(version: u32) -> Option<Arc<dyn Runtime>> {
    let layout = match version {
        18 => NODE_18,
        20 => NODE_20,
        _ => return None,
    };
    Some(Arc::new(V8 { layout }))
}

/// What the names of a function are read from.
struct Shared {
    /// The `ScopeInfo` or the name.
    scope: u64,
    /// What it is told from others by, besides its place.
    identity: FunctionIdentity,
    script: Option<Script>,
}

/// The script of a function.
struct Script {
    source: u64,
    name: u64,
    /// The number of lines before its text.
    line_offset: i32,
}

impl Runtime for V8 {
    fn language(&self) -> Language {
        Language::JavaScript
    }

    fn executed(
        &self,
        frame: BareFrame,
        process: &ProcessRuntime,
        memory: &mut dyn ProcessMemory,
    ) -> Executed {
        let BareFrame {
            sp,
            bp,
            is_generated,
            ..
        } = frame;
        let place = bp.wrapping_sub(FUNCTION);
        // What is below the stack pointer isn't the frame's, or not yet.
        if bp < FUNCTION || sp > place || !bp.is_multiple_of(8) {
            return Executed::Unknown;
        }
        let mut words = [0; 16];
        if memory.read(place, &mut words).is_none() {
            return Executed::Unknown;
        }
        let (Some(function), Some(context)) = (u64_at(&words, 0), u64_at(&words, 8)) else {
            return Executed::Unknown;
        };
        if context & TAG == 0 {
            // Only V8's built-in code makes frames from which it calls C++. In other code, RBP is what that call has left there.
            let kind = context >> 1;
            let leads_out = self.layout.exits.contains(&kind) && is_generated;
            return match (1..MAX_KIND).contains(&kind) && !leads_out {
                true => Executed::Runtime,
                false => Executed::Unknown,
            };
        }
        let is_object = |word: u64| object(word).is_some_and(|address| address >= LOWEST);
        if !is_object(context) || !is_object(function) {
            return Executed::Unknown;
        }
        match self.function(function, memory) {
            Some((at, identity)) => Executed::Function(process.word(at, &identity, None)),
            None => Executed::Unread,
        }
    }

    fn identity(&self, function: u64, memory: &mut dyn ProcessMemory) -> Option<FunctionIdentity> {
        let (_, shared) = self.shared(function.checked_add(TAG)?, memory)?;
        Some(shared.identity)
    }

    fn describe(&self, function: u64, memory: &mut dyn ProcessMemory) -> Option<LanguageFunction> {
        let (_, shared) = self.shared(function.checked_add(TAG)?, memory)?;
        names::describe(&self.layout, &shared, memory)
    }
}

impl V8 {
    /// The address and the identity of the `SharedFunctionInfo` of the `JSFunction` that `function` refers to.
    fn function(
        &self,
        function: u64,
        memory: &mut dyn ProcessMemory,
    ) -> Option<(u64, FunctionIdentity)> {
        let mut bytes = [0; SHARED + 8];
        read_object(function, memory, &mut bytes)?;
        let (at, shared) = self.shared(u64_at(&bytes, SHARED)?, memory)?;
        Some((at, shared.identity))
    }

    /// The `SharedFunctionInfo` that `reference` refers to, and its address. `None` if there is none.
    fn shared(&self, reference: u64, memory: &mut dyn ProcessMemory) -> Option<(u64, Shared)> {
        let mut bytes = [0; shared::LENGTH];
        let at = read_object(reference, memory, &mut bytes)?;
        (instance_type(&bytes, memory)? == self.layout.shared).then_some(())?;
        let scope = u64_at(&bytes, shared::SCOPE)?;
        let script = u64_at(&bytes, shared::SCRIPT)?;
        let mut identity = [
            scope,
            script,
            u32_at(&bytes, shared::PARAMETERS)?.into(),
            u32_at(&bytes, shared::LITERAL)?.into(),
            0,
            0,
            0,
            0,
        ];
        let mut head = [0; script::LENGTH];
        // Built-in functions have none.
        let is_script = read_object(script, memory, &mut head).is_some()
            && instance_type(&head, memory) == Some(self.layout.script);
        let script = if is_script {
            let found = Script {
                source: u64_at(&head, script::SOURCE)?,
                name: u64_at(&head, script::NAME)?,
                line_offset: layout::integer(u64_at(&head, script::LINE_OFFSET)?)?,
            };
            let number = u64_at(&head, script::NUMBER)?;
            [identity[4], identity[5], identity[6]] = [found.source, found.name, number];
            Some(found)
        } else {
            None
        };
        let found = Shared {
            scope,
            identity,
            script,
        };
        Some((at, found))
    }
}

/// Fills `bytes` with the object that `reference` refers to, and returns its address. An object that the collector has moved is read from
/// its new place.
fn read_object(reference: u64, memory: &mut dyn ProcessMemory, bytes: &mut [u8]) -> Option<u64> {
    let at = object(reference)?;
    memory.read(at, bytes)?;
    let map = u64_at(bytes, 0)?;
    if map & TAG != 0 {
        return Some(at);
    }
    memory.read(map, bytes)?;
    (u64_at(bytes, 0)? & TAG != 0).then_some(map)
}

/// The type of the object that begins with `bytes`.
fn instance_type(bytes: &[u8], memory: &mut dyn ProcessMemory) -> Option<u16> {
    let map = object(u64_at(bytes, 0)?)?;
    let mut number = [0; 2];
    memory.read(map.checked_add(INSTANCE_TYPE)?, &mut number)?;
    Some(u16::from_le_bytes(number))
}
