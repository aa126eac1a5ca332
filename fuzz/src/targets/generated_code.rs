//! Files in which processes write the names of code that they generate: perf maps and jitdump files, which are read while they grow. The input has the format
//! and the length of a step, then the file.

use kvmprof_profiling::binaries::read_while_growing;

use crate::input::Input;

/// Reads the file, step by step.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let is_dump = input.u8() % 2 == 1;
    let step = usize::from(input.u8()) + 1;
    let file = input.rest();
    let lengths: Vec<usize> = (0..file.len()).step_by(step).chain([file.len()]).collect();
    let read = read_while_growing(is_dump, file, &lengths);
    assert!(read.iter().all(|(begins, _)| !begins), "it only grows");
    let lines: String = read.into_iter().map(|(_, lines)| lines).collect();
    assert!(lines.is_empty() || lines.ends_with('\n'));
    if is_dump {
        for line in lines.lines() {
            let words: Vec<&str> = line.splitn(3, ' ').collect();
            let is_number = |word: &str| u64::from_str_radix(word, 16).is_ok();
            assert!(words.len() == 3 && words[..2].iter().all(|word| is_number(word)));
        }
        // Each is of a record of its own.
        assert!(lines.lines().count() <= file.len() / 16);
    } else {
        let end = file
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |last| last + 1);
        assert_eq!(lines, String::from_utf8_lossy(&file[..end]));
    }
}

/// A perf map, and a jitdump file with two functions, of which one moves.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let map = [
        &[0, 9][..],
        b"7f00 20 JS:~dye loom.js:3\n0x7f40 8 Builtin:Call\n7f60 1",
    ]
    .concat();
    let mut dump = vec![1, 99];
    dump.extend(0x4a69_5444_u32.to_le_bytes());
    dump.extend(
        [1_u32, 40, 62, 0, 7, 0, 0, 0, 0]
            .iter()
            .flat_map(|word| word.to_le_bytes()),
    );
    let mut record = |kind: u32, words: &[u64], rest: &[u8]| {
        let size = u32::try_from(16 + 8 * words.len() + rest.len()).unwrap();
        dump.extend(
            [kind, size, 0, 0]
                .iter()
                .flat_map(|word| word.to_le_bytes()),
        );
        dump.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        dump.extend(rest);
    };
    record(0, &[7, 0x7000, 0x7000, 16, 1], b"dye\0\xcc\xcc\xcc\xcc");
    record(0, &[7, 0x8000, 0x8000, 16, 2], b"weave\0\xcc");
    record(2, &[0; 4], b"");
    record(1, &[7, 0x9000, 0x7000, 0x9000, 16, 1], b"");
    record(3, &[], b"");
    vec![("perf_map", map), ("jit_dump", dump)]
}
