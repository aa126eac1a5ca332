//! Memory of a thread that executes functions of Python, as CPython 3.12 has it.

use std::sync::Arc;

use kvmprof_introspection::parts::{LanguageFrames, python_of_version};
use kvmprof_introspection::{ProcessRuntime, Registers};
use kvmprof_introspection_fixtures::kernel::HOT;
use kvmprof_introspection_fixtures::linux_guest::{LinuxGuest, TABLES};
use kvmprof_introspection_fixtures::page_tables::Tables;

const VERSION: u32 = 0x030c_01f0;
/// Where the process has its memory, and where the guest has that.
pub const MEMORY: u64 = 0x7f00_0000_0000;
pub const PAGES: u64 = 0x52_0000;
pub const PAGE: u64 = 4096;
const COUNT: u64 = 64;
/// Places in that memory: each function and some frames have pages of their own.
const INTERPRETER: u64 = 0x100;
const THREAD: u64 = 0x200;
const CALL: u64 = 0x400;
const SHIM: u64 = 0x500;
const FRAMES: u64 = PAGE;
const FRAME: u64 = 0x180;
const CODE: u64 = 16 * PAGE;
const POINTER: u64 = MEMORY + 0xf00;

/// A guest with a process that has [`COUNT`] pages at [`MEMORY`].
pub fn process_guest() -> LinuxGuest {
    let guest = LinuxGuest::new(HOT);
    let mut tables = Tables::new(guest.memory.clone(), TABLES, 4);
    tables.skip_to(PAGES + COUNT * PAGE);
    for page in 0..COUNT {
        tables.map(MEMORY + page * PAGE, PAGES + page * PAGE, 1);
    }
    guest
}

/// A process whose running thread has some frames of Python.
pub struct PythonFrames {
    guest: LinuxGuest,
    process: ProcessRuntime,
    registers: Registers,
    frames: LanguageFrames,
}

impl PythonFrames {
    /// `count` frames, each of a function of its own.
    pub fn new(count: u64) -> Self {
        let guest = process_guest();
        let put = |offset: u64, word: u64| guest.write(PAGES + offset, &word.to_le_bytes());
        put(40, MEMORY + INTERPRETER);
        put(INTERPRETER + 72, MEMORY + THREAD);
        put(THREAD + 136, POINTER);
        put(THREAD + 56, MEMORY + CALL);
        put(CALL, MEMORY + FRAMES);
        for number in 0..count {
            let (frame, code) = (FRAMES + number * FRAME, CODE + number * (PAGE + 0x200));
            let is_last = number + 1 == count;
            put(frame, MEMORY + code);
            put(
                frame + 8,
                MEMORY + if is_last { SHIM } else { frame + FRAME },
            );
            put(frame + 56, MEMORY + code + 192 + 8);
            put(code + 16, 64);
            put(code + 120, number);
        }
        put(SHIM + 64, 3 << 48);
        let runtime = python_of_version(VERSION, MEMORY).unwrap();
        Self {
            process: ProcessRuntime::new(Arc::clone(&runtime), 0, TABLES, 1),
            registers: Registers {
                cr3: TABLES,
                fs_base: POINTER,
                ..guest.user()
            },
            guest,
            frames: LanguageFrames::default(),
        }
    }

    /// Walks the frames, and returns their number.
    pub fn walk(&mut self) -> usize {
        self.frames.clear();
        self.process
            .walk(&self.guest.memory, &self.registers, &mut self.frames);
        self.frames.length()
    }
}
