//! Memory of a thread that executes methods of Java, as HotSpot of JDK 25 has compiled them.

use kvmprof_introspection::parts::{BareFrame, Executed, SpaceMemory, hotspot_of_jdk_25};
use kvmprof_introspection::{AddressSpace, ProcessRuntime, Registers};
use kvmprof_introspection_fixtures::linux_guest::{LinuxGuest, TABLES};

use crate::python::{MEMORY, PAGES, process_guest};

/// Places in the process's memory: what leads to the code cache, the code of one method, two methods, what belongs to the code, and frames.
const HEAP: u64 = 0x80;
const MAP: u64 = 0x1000;
const BLOCK: u64 = 0x2000;
const HEAD: u64 = BLOCK + 8;
const CODE: u64 = HEAD + 0x100;
const METHODS: u64 = 0x4000;
const DATA: u64 = 0x8000;
const STACK: u64 = 0xa000;
/// Bytes of a frame.
const FRAME: u64 = 32;
/// Where in its code a frame has called.
const CALL: u64 = 0x80;

/// A process whose running thread has some frames of a method that the compiler has put another one into.
pub struct JavaFrames {
    guest: LinuxGuest,
    process: ProcessRuntime,
    registers: Registers,
    count: u64,
}

impl JavaFrames {
    /// `count` frames.
    pub fn new(count: u64) -> Self {
        let guest = process_guest();
        let put = |offset: u64, word: u64| guest.write(PAGES + offset, &word.to_le_bytes());
        let at = |offset: u64| MEMORY + offset;
        let head = [
            (0, at(0x20)),
            (8, at(0x30)),
            (16, at(0xff)),
            (0x20, 1),
            (0x28, at(0x60)),
            (0x60, at(HEAP)),
            (HEAP, at(0)),
            (HEAP + 8, at(0x4000)),
            (HEAP + 16, at(BLOCK)),
            (HEAP + 128, at(MAP)),
            (HEAP + 248, 7),
            (MAP, 0x0706_0504_0302_0100),
            (BLOCK, 1 << 32),
            (HEAD + 16, at(DATA)),
            (HEAD + 32, 0x100 << 32),
            (HEAD + 40, 4 << 32 | 0x300),
            (HEAD + 48, 5 << 48 | 224 << 32),
            (HEAD + 80, at(METHODS)),
            (HEAD + 96, at(DATA + 0x100)),
            (HEAD + 200, 0x400),
            (DATA, at(METHODS)),
            (DATA + 8, at(METHODS + 0x1000)),
            // The scopes: the second method, put into the first one.
            (DATA + 0x500, 0x0003_0302_0302_0100),
        ];
        head.into_iter()
            .for_each(|(offset, word)| put(offset, word));
        // 64 places: the scope of the second method is that of the call.
        for number in 0..64 {
            put(DATA + 0x100 + 16 * number, 4 << 32 | (4 * number));
        }
        for method in [METHODS, METHODS + 0x1000] {
            put(method + 8, at(method + 0x100));
            put(method + 0x108, at(method + 0x200));
            put(method + 0x120, 2 << 32 | 20 << 16);
            put(method + 0x218, at(method + 0x400));
            put(method + 0x418, at(method + 0x600));
            put(method + 0x400 + 216, at(method + 0x200));
        }
        for number in 1..=count {
            put(STACK + number * FRAME - 8, at(CODE + CALL));
        }
        let registers = Registers {
            cr3: TABLES,
            ..guest.user()
        };
        let space = AddressSpace::new(&guest.memory, &registers);
        let mut memory = SpaceMemory::new(&guest.memory, &space);
        let places = [at(0), at(8), at(16)];
        let runtime = hotspot_of_jdk_25(places, &mut memory).unwrap();
        Self {
            process: ProcessRuntime::new(runtime, 0, TABLES, 1),
            registers,
            guest,
            count,
        }
    }

    /// Asks for each frame, and returns the number of those that execute both methods.
    pub fn walk(&mut self) -> usize {
        let space = AddressSpace::new(&self.guest.memory, &self.registers);
        let mut memory = SpaceMemory::new(&self.guest.memory, &space);
        let mut frame = BareFrame {
            ip: MEMORY + CODE + CALL,
            sp: MEMORY + STACK,
            ..BareFrame::default()
        };
        let mut methods = 0;
        for _ in 0..self.count {
            let Executed::Called(called) = self.process.executed(frame, &mut memory) else {
                break;
            };
            methods += called.words().len();
            let [ip, sp, bp] = called.caller;
            frame = BareFrame {
                ip,
                sp,
                bp,
                ..BareFrame::default()
            };
        }
        methods / 2
    }
}
