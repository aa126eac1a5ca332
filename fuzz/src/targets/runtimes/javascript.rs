//! Frames of V8.

use kvmprof_introspection::ProcessRuntime;
use kvmprof_introspection::parts::{BareFrame, Executed, ProcessMemory, v8_of_node};

use super::{Bytes, check};

/// Versions of Node.js.
pub const VERSIONS: [u32; 2] = [20, 18];
/// Where the memory begins: above all numbers.
const BASE: u64 = 1 << 32;
/// The first frame pointer, and how many are followed.
const FIRST: u64 = BASE + 0x40;
const MAX_FRAMES: usize = 64;
/// Maximum number of reads for one frame.
const MAX_READS: u32 = 10;
/// The number of the seed's version among all of them.
const NUMBER: u8 = 4;

/// Asks for each frame of the chain at [`FIRST`] in `bytes`, and reads the names of what is met.
pub fn run(version: usize, bytes: &[u8]) {
    let runtime = v8_of_node(VERSIONS[version]).unwrap();
    let process = ProcessRuntime::new(runtime, 0, 0x1000, 1);
    let base = BASE;
    let reads = 0;
    let mut memory = Bytes { bytes, base, reads };
    let (mut bp, mut functions) = (FIRST, 0);
    for _ in 0..MAX_FRAMES {
        memory.reads = 0;
        let sp = bp.saturating_sub(0x20);
        let is_generated = functions % 2 == 0;
        let executed = process.executed(
            BareFrame {
                sp,
                bp,
                is_generated,
                ..BareFrame::default()
            },
            &mut memory,
        );
        assert!(memory.reads <= MAX_READS);
        functions += usize::from(matches!(executed, Executed::Function(_)));
        match memory.word(bp) {
            Some(caller) => bp = caller,
            None => break,
        }
    }
    check(&process.read_new(&mut memory), functions);
}

/// The memory of a thread with a frame of a function of V8 11.3, one of V8's own, and another one of a function.
pub fn seed() -> Vec<u8> {
    let mut bytes = vec![0; 0x801];
    bytes[0] = NUMBER;
    let mut put = |offset: usize, words: &[u64]| {
        let places = bytes[1 + offset..].chunks_exact_mut(8);
        for (place, word) in places.zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
    };
    let object = |offset: u64| BASE + offset + 1;
    let (context, closure) = (object(0x400), object(0x100));
    put(0x30, &[closure, context, BASE + 0x70]);
    put(0x68, &[17 << 1, BASE + 0xa0]);
    put(0x90, &[closure, context, FIRST]);
    // The closure, its function, and the maps, each with the type of its objects.
    put(0x100, &[object(0x700), 0, 0, object(0x140)]);
    put(
        0x140,
        &[
            object(0x700),
            0,
            object(0x180),
            0,
            object(0x200),
            1 << 16,
            3 << 32,
        ],
    );
    for (map, number) in [(0x700, 262_u64), (0x720, 261), (0x740, 167), (0x760, 40)] {
        put(map, &[object(0x780), number << 32]);
    }
    // A name and its place, the name by its place, begin and end.
    let name = [
        object(0x280),
        u64::MAX << 32,
        object(0x280),
        4 << 32,
        9 << 32,
    ];
    put(0x180, &[object(0x720), 0x41_71e2 << 32, 0, 0]);
    put(0x1a0, &name);
    put(0x200, &[object(0x740), object(0x2c0), object(0x280), 0]);
    put(0x200 + 64, &[7 << 32]);
    put(
        0x280,
        &[object(0x760), 5 << 32, u64::from_le_bytes(*b"weave\0\0\0")],
    );
    put(
        0x2c0,
        &[
            object(0x760),
            12 << 32,
            u64::from_le_bytes(*b"a\r\nb c d"),
            0,
        ],
    );
    bytes
}
