//! CPython: stacks of functions of Python.
//!
//! The interpreter is a function of C, `_PyEval_EvalFrameDefault`, which has a frame on the thread's stack for each time that it is
//! called from C, and executes one or several functions of Python meanwhile. What it executes is a list of frames that begins at the
//! thread's `PyThreadState`. The list has structures on the thread's stack, one for each call of the interpreter: these show which frame
//! of C has executed which frames of Python.

#[cfg(test)]
mod hostile_tests;
mod layout;
mod names;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use kvmprof_recording::file::LanguageFunction;
use kvmprof_recording::{Language, elf};

use super::{FunctionIdentity, ProcessMemory, ProgramFile, Runtime, Sink, Thread};
use crate::bytes::{u32_at, u64_at};
use layout::{Calls, Instructions, Layout, STRUCTURE_BYTES};

/// Maximum number of interpreters of a process, and of threads of all of them, that are searched for the running one.
const MAX_INTERPRETERS: usize = 8;
const MAX_THREADS: usize = 128;
/// Maximum number of frames that are visited for one stack, those of calls of the interpreter included.
const MAX_FRAMES: usize = 1536;
/// `PyThreadState` of 3.10 has at most this number of bytes.
const MAX_STATE: u64 = 512;
/// `FRAME_OWNED_BY_CSTACK` (3.12, 3.13; `Include/internal/pycore_frame.h`), `FRAME_OWNED_BY_INTERPRETER` (3.14 on): the first frame of a call of the interpreter, which has no
/// function.
const OF_CALL: u8 = 3;
/// Where the number of the last part of a code object, its instructions, is (`PyVarObject.ob_size`).
const SIZE: usize = 16;
/// The constants of a code object (`co_consts`).
const CONSTANTS: usize = 24;
/// Bytes of an instruction.
const UNIT: u64 = 2;
/// Bits of a reference to an object that are no part of its address (`_PyStackRef`, 3.14).
const TAGS: u64 = 7;

/// The interpreter of a file.
#[derive(Debug)]
struct Python {
    layout: Layout,
    /// `_PyRuntime`, by the addresses of the file.
    runtime: u64,
    /// `_PyEval_EvalFrameDefault`, if its stack frames hold those of the language ([`Calls::Held`]).
    interpreter: Range<u64>,
}

/// The interpreter that `file` has, if it has one whose version is known.
pub fn recognize(file: &ProgramFile<'_>) -> Option<Arc<dyn Runtime>> {
    let runtime = elf::variable(file.contents, "_PyRuntime")?;
    let version = elf::variable(file.contents, "Py_Version");
    let version = version.map(|version| version.contents);
    let layout = Layout::find(runtime.contents, version, file.path)?;
    let interpreter = match layout.calls {
        Calls::Held => elf::function(file.contents, "_PyEval_EvalFrameDefault")?,
        _ => 0..0,
    };
    Some(Arc::new(Python {
        layout,
        runtime: runtime.address,
        interpreter,
    }))
}

/// The interpreter of this version (`PY_VERSION_HEX`), whose `_PyRuntime` is at `runtime`, for benchmarks, tests and fuzz targets. `None` if its
/// layout is in no table.
pub fn of_version(version: u32, runtime: u64) -> Option<Arc<dyn Runtime>> {
    Some(Arc::new(Python {
        layout: Layout::of_version(version)?,
        runtime,
        interpreter: runtime..runtime,
    }))
}

/// A frame of the interpreter.
#[derive(Clone, Copy, Debug)]
struct Frame {
    code: u64,
    caller: u64,
    instruction: u64,
    /// `owner`; for 3.11 `is_entry`.
    owner: u8,
}

impl Runtime for Python {
    fn language(&self) -> Language {
        Language::Python
    }

    fn walk(&self, thread: Thread, memory: &mut dyn ProcessMemory, sink: &mut Sink<'_>) {
        let Some(state) = self.thread_state(thread, memory) else {
            // A thread that hasn't run Python has none.
            return;
        };
        let walked = match self.layout.calls {
            Calls::Held => self.walk_held(state, thread.bias, memory, sink),
            Calls::Single { frame, before } => self.walk_single(state, frame, before, memory, sink),
            Calls::Linked { current, before } => {
                self.walk_linked(state, current, before, memory, sink)
            }
            Calls::Shimmed { current } => {
                let call = memory.word(state.wrapping_add(self.layout.top));
                let top = call.and_then(|call| memory.word(call.wrapping_add(current)));
                top.and_then(|top| self.walk_shimmed(top, memory, sink))
            }
            Calls::Direct => {
                let top = memory.word(state.wrapping_add(self.layout.top));
                top.and_then(|top| self.walk_shimmed(top, memory, sink))
            }
        };
        if walked.is_none() {
            sink.cut();
        }
    }

    fn identity(&self, function: u64, memory: &mut dyn ProcessMemory) -> Option<FunctionIdentity> {
        let mut bytes = [0; STRUCTURE_BYTES];
        let layout = &self.layout.function;
        let fields = [
            layout.file,
            layout.name,
            layout.qualified_name,
            layout.lines,
        ];
        let end = fields.into_iter().max()?.max(layout.first_line);
        let end = usize::try_from(end).ok()?.checked_add(8)?;
        let bytes = bytes.get_mut(..end.max(CONSTANTS + 8))?;
        memory.read(function, bytes)?;
        let at = |offset: u64| u64_at(bytes, usize::try_from(offset).ok()?);
        let [file, name, qualified_name, lines] = fields.map(at);
        Some([
            u64_at(bytes, SIZE)?,
            u64_at(bytes, CONSTANTS)?,
            u32_at(bytes, usize::try_from(layout.first_line).ok()?)?.into(),
            file?,
            name?,
            qualified_name?,
            lines?,
            0,
        ])
    }

    fn describe(&self, function: u64, memory: &mut dyn ProcessMemory) -> Option<LanguageFunction> {
        names::describe(&self.layout, function, memory)
    }
}

impl Python {
    /// The `PyThreadState` of `thread`: the one in the interpreters' lists with its thread id. `None` if there is none.
    fn thread_state(&self, thread: Thread, memory: &mut dyn ProcessMemory) -> Option<u64> {
        if thread.pointer == 0 {
            return None;
        }
        let layout = &self.layout;
        let runtime = self.runtime.wrapping_add(thread.bias);
        let mut interpreter = memory.word(runtime.wrapping_add(layout.interpreters))?;
        let mut left = MAX_THREADS;
        for _ in 0..MAX_INTERPRETERS {
            if interpreter == 0 {
                return None;
            }
            let mut state = memory.word(interpreter.wrapping_add(layout.threads))?;
            while state != 0 {
                left = left.checked_sub(1)?;
                if memory.word(state.wrapping_add(layout.thread_id))? == thread.pointer {
                    return Some(state);
                }
                state = memory.word(state.wrapping_add(layout.next_thread))?;
            }
            interpreter = memory.word(interpreter.wrapping_add(layout.next_interpreter))?;
        }
        None
    }

    fn frame(&self, address: u64, memory: &mut dyn ProcessMemory) -> Option<Frame> {
        let layout = &self.layout;
        let mut bytes = [0; STRUCTURE_BYTES];
        let fields = [layout.code, layout.caller, layout.instruction, layout.owner];
        let end = usize::try_from(fields.into_iter().max()?)
            .ok()?
            .checked_add(8)?;
        let bytes = bytes.get_mut(..end)?;
        memory.read(address, bytes)?;
        let [code, caller, instruction, owner] = fields.map(|field| usize::try_from(field).ok());
        Some(Frame {
            code: u64_at(bytes, code?)? & !TAGS,
            caller: u64_at(bytes, caller?)?,
            instruction: u64_at(bytes, instruction?)?,
            owner: *bytes.get(owner?)?,
        })
    }

    /// Walks the list of the frames, each of which has a call of the interpreter of its own. `None` if it can't be walked to its end.
    fn walk_held(
        &self,
        state: u64,
        bias: u64,
        memory: &mut dyn ProcessMemory,
        sink: &mut Sink<'_>,
    ) -> Option<()> {
        let Range { start, end } = self.interpreter;
        sink.hold_in(start.wrapping_add(bias)..end.wrapping_add(bias));
        let mut at = memory.word(state.wrapping_add(self.layout.top))?;
        for _ in 0..MAX_FRAMES {
            if at == 0 {
                return Some(());
            }
            let frame = self.frame(at, memory)?;
            let has_room = self.add(&frame, memory, sink)? && sink.end_run(at);
            has_room.then_some(())?;
            at = frame.caller;
        }
        None
    }

    /// Walks the list of the calls of the interpreter, and the frames of each. `None` if it can't be walked to its end.
    fn walk_linked(
        &self,
        state: u64,
        current: u64,
        before: u64,
        memory: &mut dyn ProcessMemory,
        sink: &mut Sink<'_>,
    ) -> Option<()> {
        let mut call = memory.word(state.wrapping_add(self.layout.top))?;
        let mut left = MAX_FRAMES;
        loop {
            let outer = memory.word(call.wrapping_add(before))?;
            // The outermost one is a part of the thread's state, and executes nothing.
            if outer == 0 {
                return Some(());
            }
            let outer_frame = memory.word(outer.wrapping_add(current))?;
            let mut at = memory.word(call.wrapping_add(current))?;
            loop {
                left = left.checked_sub(1)?;
                let frame = self.frame(at, memory)?;
                if !self.add(&frame, memory, sink)? {
                    sink.end_run(call);
                    return None;
                }
                if frame.owner != 0 {
                    // The first frame of a call continues that of the call before.
                    (frame.caller == outer_frame).then_some(())?;
                    break;
                }
                at = frame.caller;
            }
            sink.end_run(call).then_some(())?;
            call = outer;
        }
    }

    /// Walks the list of the calls of the interpreter and that of the frames side by side. `None` if they can't be walked to their ends, or
    /// have different lengths, as at the start and end of a call.
    fn walk_single(
        &self,
        state: u64,
        frame: u64,
        before: u64,
        memory: &mut dyn ProcessMemory,
        sink: &mut Sink<'_>,
    ) -> Option<()> {
        let first = memory.word(state.wrapping_add(self.layout.top))?;
        let top = memory.word(state.wrapping_add(frame))?;
        let (mut call, mut at) = (first, top);
        let mut count = 0;
        loop {
            // The outermost call is a part of the thread's state, and executes nothing. The call before it has any address.
            let is_outermost = call.wrapping_sub(state) < MAX_STATE;
            if is_outermost || at == 0 {
                (is_outermost && at == 0).then_some(())?;
                break;
            }
            let outer = memory.word(call.wrapping_add(before))?;
            count += 1;
            (count <= MAX_FRAMES).then_some(())?;
            at = memory.word(at.wrapping_add(self.layout.caller))?;
            call = outer;
        }
        (call, at) = (first, top);
        for _ in 0..count {
            let frame = self.frame(at, memory)?;
            let has_room = self.add(&frame, memory, sink)? && sink.end_run(call);
            has_room.then_some(())?;
            at = frame.caller;
            call = memory.word(call.wrapping_add(before))?;
        }
        Some(())
    }

    /// Walks the frames from the one at `at` on. `None` if they can't be walked to the end.
    fn walk_shimmed(
        &self,
        mut at: u64,
        memory: &mut dyn ProcessMemory,
        sink: &mut Sink<'_>,
    ) -> Option<()> {
        let (mut is_in_call, mut is_full) = (false, false);
        for _ in 0..MAX_FRAMES {
            if at == 0 {
                return (!is_in_call).then_some(());
            }
            let frame = self.frame(at, memory)?;
            if frame.owner == OF_CALL && frame.caller == 0 && !is_in_call {
                // From 3.15 on, the list ends with a part of the thread's state, which executes nothing.
                return Some(());
            }
            is_in_call = frame.owner != OF_CALL;
            if !is_in_call {
                sink.end_run(at).then_some(())?;
                // Further calls have no room.
                (!is_full).then_some(())?;
            } else if !is_full {
                is_full = !self.add(&frame, memory, sink)?;
            }
            at = frame.caller;
        }
        None
    }

    /// Hands `frame` to `sink`. False if there is no more room; `None` if the frame has no function.
    fn add(
        &self,
        frame: &Frame,
        memory: &mut dyn ProcessMemory,
        sink: &mut Sink<'_>,
    ) -> Option<bool> {
        let identity = self.identity(frame.code, memory)?;
        let offset = match self.layout.function.instructions {
            Instructions::Address(instructions) => {
                let begin = frame.code.wrapping_add(instructions);
                // The instruction before the first one is that of a frame that has executed nothing.
                let [units, ..] = identity;
                let distance = frame.instruction.wrapping_sub(begin) / UNIT;
                Some(distance).filter(|distance| *distance < units)
            }
            Instructions::Number => u64::try_from(low_number(frame.instruction)).ok(),
            Instructions::Byte => {
                let byte = u64::try_from(low_number(frame.instruction)).ok();
                byte.map(|byte| byte / UNIT)
            }
        };
        let offset = offset.and_then(|offset| u32::try_from(offset).ok());
        Some(sink.frame(frame.code, &identity, offset))
    }
}

/// The signed number in the lower half of `word`.
fn low_number(word: u64) -> i32 {
    let [a, b, c, d, ..] = word.to_le_bytes();
    i32::from_le_bytes([a, b, c, d])
}
