//! Programs and kernels as files: ELF and its notes, unwind information, debug information, lists of symbols, bzImage and its compressions.

use kvmprof_introspection::{
    Btf, BuildFiles, GuestKnowledge, UnwindTable, join_btf, notes, unpack_archive, unpack_kernel,
};
use kvmprof_recording::elf;
use kvmprof_recording::elf::go::{GoLines, GoTable, MAX_INLINED};

/// What an archive may unpack to, in bytes.
const UNPACKED: u64 = 1 << 20;
/// The number of Go's functions that are looked at, and of places in each.
const FUNCTIONS: usize = 16;
const PLACES: u64 = 64;

/// Reads the bytes as each of them.
pub fn run(data: &[u8]) {
    // Readers need files at aligned addresses.
    let words: Vec<u64> = data.chunks(8).map(word).collect();
    let aligned: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let data = &aligned[..data.len()];
    if let Ok(parsed) = elf::parse(data) {
        assert!(
            parsed
                .functions
                .is_sorted_by_key(|function| function.address)
        );
    }
    if let Some(lines) = GoLines::read(data) {
        let functions = GoTable::find(data).unwrap().functions();
        for function in functions.take(FUNCTIONS) {
            for address in function.begin..function.end.min(function.begin.saturating_add(PLACES)) {
                let frames = lines.frames(address);
                assert!(frames.iter().all(|frame| !frame.name.is_empty()));
                assert!(frames.len() <= MAX_INLINED);
            }
        }
    }
    notes(data, b"GNU");
    notes(data, b"kvmprof");
    if let Some(table) = UnwindTable::from_elf(data) {
        assert!(table.bytes() > 0);
        table.covers(0x40_1000);
        table.bias(0x40_0000, 0);
    }
    let _not_noted = GuestKnowledge::from_noted_image(data);
    if let Ok(unpacked) = unpack_archive(data, UNPACKED) {
        assert!(unpacked.len() as u64 <= UNPACKED);
    }
    if data.len() < 1 << 14 {
        let _no_kernel = unpack_kernel(data);
    }
    let mut files = BuildFiles::default();
    let _either = files.add_types("fuzzed", data);
    let _either = files.add_symbols("fuzzed", data);
    types(data);
}

fn word(chunk: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..chunk.len()].copy_from_slice(chunk);
    u64::from_le_bytes(word)
}

/// The bytes as BTF, and as a module's after a kernel's.
fn types(data: &[u8]) {
    if let Ok(btf) = Btf::parse(data) {
        btf.offset_of("task_struct", "pid");
        btf.size_of("task_struct");
        btf.enumerator("system_states", "SYSTEM_SCHEDULING");
        btf.structures("task_struct")
            .offset_within("context", "vdso");
    }
    let (kernel, module) = data.split_at(data.len() / 2);
    if let Ok(joined) = join_btf(kernel, module) {
        let _damaged = Btf::parse(&joined);
    }
}

/// Types; programs, Go's too, and archives are made by `fuzz/seeds`.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut builder = kvmprof_introspection_fixtures::btf::Builder::new();
    let inner = builder.structure("", &[("pid", 0, 0), ("comm", 0, 64)]);
    builder.structure("task_struct", &[("", inner, 128)]);
    builder.enumeration("system_states", &[("SYSTEM_SCHEDULING", 1)]);
    let kernel = builder.section();
    let mut builder = builder.split();
    builder.structure("module", &[("state", 0, 0)]);
    let mut both = kernel.clone();
    let mut module = builder.section();
    // The target cuts them in the middle.
    let length = both.len().max(module.len());
    both.resize(length, 0);
    module.resize(length, 0);
    both.extend(module);
    vec![("btf", kernel), ("btf-of-module", both)]
}
