//! HotSpot, the JVM of OpenJDK: stacks of methods of Java, and of what else is compiled to bytecode.
//!
//! # Frames
//!
//! All code that HotSpot makes is in its code cache, without unwind information:
//!
//! - The interpreter's code has a frame with a frame pointer for each method, with the method and the bytecode that has called. The
//!   stack pointer of the frame's caller is in there, too. While the interpreter executes a bytecode, R13 has its address. Just before and
//!   after calls, its code shows whether the frame pointer is that of its frame; where it doesn't, the stack ends.
//! - Compiled methods use RBP for anything. The blob of their code has the size of their frame, at whose end are the caller's RBP and the
//!   return address; at a function's first and last instructions, code shows how much of that is there. Debug information says which
//!   methods the compiler has put into it.
//! - What calls Java from C++ (`StubRoutines::call_stub`) has a frame pointer. Other code, as that which copies arrays, is looked at as any
//!   code without unwind information.
//!
//! C++ has frames between, by the unwind information of its files. A frame that can't be read ends the stack.
//!
//! # What is believed
//!
//! The process's memory describes itself ([`tables`]), and may say anything. Each of its processes has its own description, so that it
//! names nobody's functions but its own. It is read once, when the code cache is there: heaps of code stay where they are.
//! Names are another matter ([`names`]).

mod code;
#[cfg(test)]
mod hostile_tests;
mod layout;
mod names;
mod scopes;
mod tables;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use kvmprof_recording::Language;
use kvmprof_recording::file::LanguageFunction;

use super::{FunctionIdentity, InProcess, ProcessMemory, ProcessRuntime, ProgramFile, Runtime};
use crate::bytes::{u32_at, u64_at};
use crate::unwind::{BareFrame, CalledFrame, Executed, MAX_INLINED};
use code::{Blob, CodeHeap, FrameState, Kind};
use layout::{JDK_25, Layout, slot};
use names::Method;
use scopes::Scopes;
use tables::{Anchors, Tables};

/// Maximum size of a frame, and distance between a frame and its caller's stack pointer, in bytes.
const MAX_FRAME: u64 = 8 << 20;
/// Maximum number of bytes of the interpreter's code.
const MAX_INTERPRETER: u32 = 16 << 20;

/// HotSpot of a file: the process's memory describes it.
#[derive(Debug)]
struct File(Anchors);

/// HotSpot in `file`, if it has one that describes itself.
pub fn recognize(file: &ProgramFile<'_>) -> Option<Arc<dyn Runtime>> {
    Some(Arc::new(File(Anchors::find(file.contents)?)))
}

impl Runtime for File {
    fn language(&self) -> Language {
        Language::Java
    }

    fn in_process(&self, bias: u64, memory: &mut dyn ProcessMemory) -> InProcess {
        let Some(tables) = Tables::read(&self.0, bias, memory) else {
            return InProcess::NotYet;
        };
        let Some(layout) = Layout::find(&tables, memory) else {
            return InProcess::AsInFile;
        };
        let places = [
            tables.place("CodeCache", "_heaps"),
            tables.place("AbstractInterpreter", "_code"),
            tables.place("StubRoutines", "_call_stub_return_address"),
        ];
        let [Some(heaps), Some(interpreter), Some(call_stub)] = places else {
            return InProcess::AsInFile;
        };
        match HotSpot::started(layout, [heaps, interpreter, call_stub], memory) {
            Some(own) => InProcess::Own(Arc::new(own)),
            None => InProcess::NotYet,
        }
    }

    fn identity(
        &self,
        _function: u64,
        _memory: &mut dyn ProcessMemory,
    ) -> Option<FunctionIdentity> {
        None
    }

    fn describe(
        &self,
        _function: u64,
        _memory: &mut dyn ProcessMemory,
    ) -> Option<LanguageFunction> {
        None
    }
}

/// HotSpot of JDK 25 in a process with `memory`, which has at `places` the addresses of the array of code heaps and of the interpreter's code,
/// and the return address to what calls Java. For benchmarks, tests and fuzz targets. `None` if the memory has no such heaps.
pub fn of_jdk_25(places: [u64; 3], memory: &mut dyn ProcessMemory) -> Option<Arc<dyn Runtime>> {
    Some(Arc::new(HotSpot::started(JDK_25, places, memory)?))
}

/// HotSpot of a process.
#[derive(Debug)]
struct HotSpot {
    layout: Layout,
    heaps: Vec<CodeHeap>,
    /// The interpreter's code.
    interpreter: Range<u64>,
    /// Where methods return that C++ has called.
    call_stub: u64,
}

impl Runtime for HotSpot {
    fn language(&self) -> Language {
        Language::Java
    }

    fn executed(
        &self,
        frame: BareFrame,
        process: &ProcessRuntime,
        memory: &mut dyn ProcessMemory,
    ) -> Executed {
        let inside = frame.ip.wrapping_sub(u64::from(!frame.is_exact));
        if !self.has_code(inside) {
            return Executed::Unknown;
        }
        let called = if self.interpreter.contains(&inside) {
            self.interpreted(frame, process, memory)
        } else if frame.ip == self.call_stub && !frame.is_exact {
            return Executed::Runtime;
        } else {
            let blob = Blob::at(&self.layout.blobs, &self.heaps, inside, memory);
            match blob {
                Some(blob) if blob.kind == Kind::Other && frame.is_exact => {
                    return Executed::Unknown;
                }
                Some(blob) => self.of_blob(&blob, frame, process, memory),
                None => None,
            }
        };
        called.map_or(Executed::Lost, Executed::Called)
    }

    fn identity(&self, function: u64, memory: &mut dyn ProcessMemory) -> Option<FunctionIdentity> {
        let method = Method::read(&self.layout.methods, function, memory)?;
        Some(method.identity)
    }

    fn describe(&self, function: u64, memory: &mut dyn ProcessMemory) -> Option<LanguageFunction> {
        let layout = &self.layout;
        let method = Method::read(&layout.methods, function, memory)?;
        method.describe(&layout.methods, layout.has_no_zeros, memory)
    }
}

impl HotSpot {
    /// HotSpot with what is at `places`: see [`of_jdk_25`]. `None` if it isn't there yet.
    fn started(layout: Layout, places: [u64; 3], memory: &mut dyn ProcessMemory) -> Option<Self> {
        let [heaps, stubs, call_stub] = places;
        let [heaps, stubs] = [memory.word(heaps)?, memory.word(stubs)?];
        let call_stub = memory.word(call_stub).filter(|address| *address != 0)?;
        let field = |offset: usize| stubs.checked_add(offset as u64);
        let begin = memory.word(field(layout.heaps.stubs)?)?;
        let mut length = [0; 4];
        memory.read(field(layout.heaps.stubs_length)?, &mut length)?;
        let length = u32_at(&length, 0).filter(|length| *length <= MAX_INTERPRETER)?;
        Some(Self {
            heaps: CodeHeap::all(&layout.heaps, heaps, memory)?,
            interpreter: begin..begin.checked_add(length.into())?,
            call_stub,
            layout,
        })
    }

    fn has_code(&self, address: u64) -> bool {
        self.heaps.iter().any(|heap| heap.contains(address))
    }

    fn method(&self, address: u64, memory: &mut dyn ProcessMemory) -> Option<Method> {
        Method::read(&self.layout.methods, address, memory)
    }

    /// The frame with this caller, after a frame with the stack pointer `sp`. `None` if it can't be one.
    fn called(&self, sp: u64, caller: [u64; 3]) -> Option<CalledFrame> {
        let [ip, caller_sp, _] = caller;
        let distance = caller_sp.checked_sub(sp)?;
        let fits = (8..MAX_FRAME).contains(&distance) && caller_sp.is_multiple_of(8);
        (fits && self.has_code(ip.wrapping_sub(1))).then(|| CalledFrame::new(caller))
    }

    /// The frame of the method that the interpreter's code executes. `None` if it isn't known.
    fn interpreted(
        &self,
        frame: BareFrame,
        process: &ProcessRuntime,
        memory: &mut dyn ProcessMemory,
    ) -> Option<CalledFrame> {
        let BareFrame { sp, bp, .. } = frame;
        if !bp.is_multiple_of(8) || bp < sp {
            return None;
        }
        let mut words = [0; 80];
        memory.read(bp.checked_sub(slot::INSTRUCTION)?, &mut words)?;
        let below = |slot: u64| u64_at(&words, usize::try_from(slot::INSTRUCTION - slot).ok()?);
        let [caller, back] = [u64_at(&words, 64)?, u64_at(&words, 72)?];
        if frame.is_exact
            && let Some(is_sender_saved) = self.begins(frame.ip, memory)
        {
            // The frame isn't complete, but registers have what will be there.
            let sender = if is_sender_saved {
                below(slot::SENDER)
            } else {
                frame.r13
            };
            let method = frame.rbx?;
            let mut called = self.called(sp, [back, sender?, caller])?;
            let identity = self.method(method, memory)?.identity;
            called.push(process.word(method, &identity, Some(0)));
            return Some(called);
        }
        let address = below(slot::METHOD)?;
        let method = self.method(address, memory)?;
        let saved = below(slot::INSTRUCTION)?;
        let current = frame.r13.and_then(|instruction| method.offset(instruction));
        let is_its_own = !frame.is_exact
            || current.is_some()
            || method.code_length == 0 && saved == 0
            || self.has_called(frame, below(slot::LAST)?)
            || self.restores(frame.ip, memory);
        is_its_own.then_some(())?;
        let mut called = self.called(bp, [back, below(slot::SENDER)?, caller])?;
        let offset = current.or_else(|| method.offset(saved));
        called.push(process.word(address, &method.identity, offset));
        Some(called)
    }

    /// Whether the frame has just made a call: R13 has the stack pointer of the caller then, and so has the frame, itself or as a distance
    /// in words from the frame pointer. The frame of the called method isn't there yet.
    fn has_called(&self, frame: BareFrame, last: u64) -> bool {
        let distance = last.wrapping_mul(8);
        last != 0 && [Some(last), Some(frame.bp.wrapping_add(distance))].contains(&frame.r13)
    }

    /// Whether the code at `ip` reads the bytecode's address from the frame, as it does behind calls: `mov -0x40(%rbp),%r13`.
    fn restores(&self, ip: u64, memory: &mut dyn ProcessMemory) -> bool {
        const READS: &[u8] = &[0x4c, 0x8b, 0x6d, 0xc0];
        let mut code = [0; 24];
        let is_read = memory.read(ip, &mut code).is_some();
        is_read && code.windows(READS.len()).any(|part| part == READS)
    }

    /// If `ip` is where the interpreter makes a frame, after `push %rbp; mov %rsp,%rbp`: whether its caller's stack pointer has been saved
    /// by the instruction that follows, `push %r13`. RBX has the method.
    fn begins(&self, ip: u64, memory: &mut dyn ProcessMemory) -> Option<bool> {
        const FRAME: [u8; 6] = [0x55, 0x48, 0x8b, 0xec, 0x41, 0x55];
        /// Bytes of that code before the caller's stack pointer and all of it are saved, and how far the method's place is behind.
        const SET: usize = 4;
        const SAVED: usize = FRAME.len();
        const MAX_BEHIND: usize = 18;
        let mut code = [0; MAX_BEHIND + SAVED + SAVED - SET];
        memory.read(ip.checked_sub((MAX_BEHIND + SAVED) as u64)?, &mut code)?;
        let at = code.windows(FRAME.len()).rposition(|part| part == FRAME)?;
        let passed = (MAX_BEHIND + SAVED).checked_sub(at)?;
        (passed >= SET).then_some(passed >= SAVED)
    }

    /// The frame of compiled code, or of other code with a frame of a known size.
    fn of_blob(
        &self,
        blob: &Blob,
        frame: BareFrame,
        process: &ProcessRuntime,
        memory: &mut dyn ProcessMemory,
    ) -> Option<CalledFrame> {
        let BareFrame { ip, sp, bp, .. } = frame;
        let state = match (blob.kind, frame.is_exact) {
            (Kind::VirtualCall, true) => FrameState::Absent,
            (Kind::Compiled, true) => blob.state(ip, memory)?,
            _ => FrameState::Complete,
        };
        let mut words = [0; 16];
        let caller_sp = match state {
            FrameState::Absent => sp.checked_add(8)?,
            FrameState::Pushed => sp.checked_add(16)?,
            // Code without a frame of its own has made no call.
            FrameState::Unsaved | FrameState::Complete if blob.frame < 16 => return None,
            FrameState::Unsaved | FrameState::Complete => sp.checked_add(blob.frame)?,
        };
        let has_bp = matches!(state, FrameState::Pushed | FrameState::Complete);
        let linkage = words.get_mut(if has_bp { 0 } else { 8 }..)?;
        memory.read(caller_sp.checked_sub(linkage.len() as u64)?, linkage)?;
        let caller_bp = if has_bp { u64_at(&words, 0)? } else { bp };
        let mut called = self.called(sp, [u64_at(&words, 8)?, caller_sp, caller_bp])?;
        if blob.kind == Kind::Compiled {
            self.add_methods(&mut called, blob, ip, process, memory)?;
        }
        Some(called)
    }

    /// Adds what the compiled code of `blob` executes: its method, and those that were put into it. `None` if its own can't be read.
    fn add_methods(
        &self,
        called: &mut CalledFrame,
        blob: &Blob,
        ip: u64,
        process: &ProcessRuntime,
        memory: &mut dyn ProcessMemory,
    ) -> Option<()> {
        let layout = &self.layout;
        let own = u64_at(blob.head(), layout.blobs.method)?;
        let own_identity = self.method(own, memory)?.identity;
        let scopes = Scopes::at(&layout.blobs, blob, ip, layout.has_no_zeros, memory);
        let Some(mut scopes) = scopes else {
            called.push(process.word(own, &own_identity, None));
            return Some(());
        };
        // Those of a frame that isn't one in the end get no name.
        let mut methods = [(0, FunctionIdentity::default(), None); MAX_INLINED];
        let mut free = methods.iter_mut();
        loop {
            let scope = scopes.next(memory)?;
            let identity = match scope.method == own {
                true => own_identity,
                false => self.method(scope.method, memory)?.identity,
            };
            let Some(place) = free.next() else {
                called.is_cut = true;
                break;
            };
            *place = (scope.method, identity, scope.bytecode);
            if scope.is_outermost() {
                // The outermost one is the code's own.
                (scope.method == own).then_some(())?;
                break;
            }
        }
        let taken = MAX_INLINED - free.len();
        for (method, identity, bytecode) in methods.iter().take(taken) {
            called.push(process.word(*method, identity, *bytecode));
        }
        Some(())
    }
}
