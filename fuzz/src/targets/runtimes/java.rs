//! Frames of HotSpot.

use kvmprof_introspection::ProcessRuntime;
use kvmprof_introspection::parts::{
    BareFrame, Executed, MAX_INLINED, ProcessMemory, hotspot_of_jdk_25,
};

use super::{Bytes, check};

/// Where the memory begins: first what leads to the code cache, then the registers of the first frame.
const BASE: u64 = 1 << 32;
const PLACES: [u64; 3] = [BASE, BASE + 8, BASE + 16];
const REGISTERS: u64 = BASE + 24;
/// Maximum number of frames that are followed, and of reads for one.
const MAX_FRAMES: usize = 64;
const MAX_READS: u32 = 208;
/// The number of this version among all of them.
const NUMBER: u8 = 6;

/// Follows the frames from the registers in `bytes` on, and reads the names of what is met.
pub fn run(bytes: &[u8]) {
    let base = BASE;
    let reads = 0;
    let mut memory = Bytes { bytes, base, reads };
    let Some(runtime) = hotspot_of_jdk_25(PLACES, &mut memory) else {
        return;
    };
    let process = ProcessRuntime::new(runtime, 0, 0x1000, 1);
    let mut register = |number: u64| memory.word(REGISTERS + 8 * number).unwrap_or(0);
    let [ip, sp, bp, rbx, r13] = [0, 1, 2, 3, 4].map(&mut register);
    let mut frame = BareFrame {
        ip,
        is_exact: sp % 2 == 1,
        sp: sp & !1,
        bp,
        rbx: Some(rbx),
        r13: Some(r13),
        is_generated: true,
    };
    let mut functions = 0;
    for _ in 0..MAX_FRAMES {
        memory.reads = 0;
        let executed = process.executed(frame, &mut memory);
        assert!(memory.reads <= MAX_READS);
        let Executed::Called(called) = executed else {
            break;
        };
        let [ip, sp, bp] = called.caller;
        assert!(sp > frame.sp && called.words().len() <= MAX_INLINED);
        functions += called.words().len();
        frame = BareFrame {
            ip,
            sp,
            bp,
            is_generated: true,
            ..BareFrame::default()
        };
    }
    check(&process.read_new(&mut memory), functions);
}

/// The memory of a thread of JDK 25 with a frame of compiled code, which has a method in another one, and one of the interpreter.
pub fn seed() -> Vec<u8> {
    let mut bytes = vec![0; 0x1001];
    bytes[0] = NUMBER;
    let mut put = |offset: u64, words: &[u64]| {
        let begin = usize::try_from(1 + offset).unwrap();
        let places = bytes[begin..].chunks_exact_mut(8);
        for (place, word) in places.zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    };
    let at = |offset: u64| BASE + offset;
    let (method, constant, pool, class) = (at(0x200), at(0x210), at(0x280), at(0x300));
    let stack = 0xf00;
    put(0, &[at(0x40), at(0x50), at(0xfff)]);
    put(24, &[at(0xb08), at(stack), 0x1234, 0, 0]);
    // The array, the interpreter's code at 0xe00, and the heap with all of it, of which all segments are one block.
    put(0x40, &[1, at(0x70)]);
    put(0x58, &[at(0xe00), 0x100 << 32]);
    put(0x70, &[at(0x80)]);
    put(0x80, &[at(0), at(0x1000), at(0x900)]);
    put(0x80 + 112 + 16, &[at(0x180)]);
    put(0x80 + 248, &[7]);
    put(0x180, &[u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7])]);
    // The method, which has a name and the line 7.
    put(0x208, &[constant]);
    put(0x218, &[pool, 0, 1 << 32 | 9, 2 << 32 | 4 << 16]);
    put(0x210 + 56, &[7 << 32]);
    put(0x280 + 24, &[class]);
    put(0x280 + 56, &[2 << 48, 4 << 32]);
    put(0x280 + 96, &[at(0x400)]);
    put(0x300 + 24, &[at(0x400)]);
    put(0x300 + 216, &[pool]);
    put(
        0x400,
        &[
            u64::from_le_bytes(*b"\x01\0\x34\x12\x05\0we"),
            u64::from_le_bytes(*b"ave\0\0\0\0\0"),
        ],
    );
    // The compiled code.
    let head = 0x908;
    put(0x900, &[1 << 32]);
    put(
        head + 16,
        &[
            at(0x420),
            0,
            0x100 << 32,
            4 << 32 | 0x300,
            5 << 48 | 224 << 32,
        ],
    );
    put(head + 80, &[method, 0, at(0x440)]);
    put(head + 192, &[0, 0x40]);
    put(0x420, &[method]);
    put(
        0x440,
        &[u64::from(u32::MAX), 0, 5 << 32 | 0x100, 0, 0x7fff_ffff, 0],
    );
    put(0x480, &[u64::from_le_bytes([0, 1, 2, 3, 0, 2, 2, 3])]);
    // Its frame, and that of the interpreter.
    put(stack + 16, &[at(stack + 0x80), at(0xe10)]);
    put(stack + 0x80 - 64, &[constant + 57]);
    put(
        stack + 0x80 - 24,
        &[method, 0, at(stack + 0x98), at(stack + 0xb0), at(0xe20)],
    );
    bytes
}
