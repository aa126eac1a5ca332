//! Memory of a thread that executes functions of JavaScript, as V8 of Node.js 20 has it.

use kvmprof_introspection::parts::{BareFrame, Executed, SpaceMemory, v8_of_node};
use kvmprof_introspection::{AddressSpace, ProcessRuntime, Registers};
use kvmprof_introspection_fixtures::linux_guest::{LinuxGuest, TABLES};

use crate::python::{MEMORY, PAGE, PAGES, process_guest};

/// Places in the process's memory: each function has a page of its own.
const STACK: u64 = 0x800;
const FRAME: u64 = 0x40;
const SCRIPT: u64 = 0x200;
const MAPS: u64 = 0x100;
const FUNCTIONS: u64 = PAGE;

/// A process whose running thread has some frames of JavaScript.
pub struct JavaScriptFrames {
    guest: LinuxGuest,
    process: ProcessRuntime,
    registers: Registers,
    count: u64,
}

impl JavaScriptFrames {
    /// `count` frames, each of a function of its own.
    pub fn new(count: u64) -> Self {
        let guest = process_guest();
        let put = |offset: u64, word: u64| guest.write(PAGES + offset, &word.to_le_bytes());
        let object = |offset: u64| MEMORY + offset + 1;
        // The maps of functions' data and of scripts, with the types of these.
        put(MAPS + 8, 262 << 32);
        put(MAPS + 0x20 + 8, 167 << 32);
        put(SCRIPT, object(MAPS + 0x20));
        for number in 0..count {
            let bp = STACK + number * FRAME;
            let (closure, shared) = (FUNCTIONS + number * PAGE, FUNCTIONS + number * PAGE + 0x40);
            put(bp - 16, object(closure));
            put(bp - 8, object(closure));
            put(closure, object(MAPS));
            put(closure + 24, object(shared));
            put(shared, object(MAPS));
            put(shared + 16, number << 1 | 1);
            put(shared + 32, object(SCRIPT));
        }
        Self {
            process: ProcessRuntime::new(v8_of_node(20).unwrap(), 0, TABLES, 1),
            registers: guest.user(),
            guest,
            count,
        }
    }

    /// Asks for each frame, and returns the number of those that execute a function.
    pub fn walk(&mut self) -> usize {
        let registers = Registers {
            cr3: TABLES,
            ..self.registers
        };
        let space = AddressSpace::new(&self.guest.memory, &registers);
        let mut memory = SpaceMemory::new(&self.guest.memory, &space);
        let are_functions = (0..self.count).filter(|number| {
            let bp = MEMORY + STACK + number * FRAME;
            let frame = BareFrame {
                sp: bp - 0x20,
                bp,
                is_generated: true,
                ..BareFrame::default()
            };
            let executed = self.process.executed(frame, &mut memory);
            matches!(executed, Executed::Function(_))
        });
        are_functions.count()
    }
}
