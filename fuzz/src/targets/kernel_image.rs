//! A Linux kernel's file: its notes, BTF, kallsyms and ORC.
//!
//! The first byte chooses: 0 to 2 have the rest be changes of a small kernel's file, 3 has it be the file, of which `fuzz/seeds-of-kernels`
//! cuts some out of real ones.

use kvmprof_introspection::{GuestKnowledge, LinuxKnowledge};
use kvmprof_introspection_fixtures::kernel::{HOT, Kernel, NEW, OLD};

use crate::input::{Input, edit};

const KERNELS: [Kernel; 3] = [OLD, HOT, NEW];

/// The file that an input stands for.
pub fn file(data: &[u8]) -> Vec<u8> {
    let mut input = Input::new(data);
    let Some(kernel) = KERNELS.get(usize::from(input.u8()) % (KERNELS.len() + 1)) else {
        return input.rest().to_vec();
    };
    let mut file = kernel.file();
    input.edit(&mut file);
    file
}

/// Learns what there is to learn from the file.
pub fn run(data: &[u8]) {
    if let Ok(knowledge) = GuestKnowledge::from_image(&file(data)) {
        knowledge.describe();
        knowledge.kallsyms();
        if let Some(symbols) = knowledge.linux().map(LinuxKnowledge::symbols) {
            symbols.function_at(u64::MAX);
            symbols.functions().count();
        }
    }
}

/// The kernels as they are, and changes at where things are.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let changed = |number: u8, edits: &[(u32, &[u8])]| {
        let edits = edits.iter().flat_map(|(at, new)| edit(*at, new));
        [number].into_iter().chain(edits).collect()
    };
    let place = |needle: &[u8]| {
        let file = HOT.file();
        let at = file.windows(needle.len()).position(|bytes| bytes == needle);
        u32::try_from(at.unwrap()).unwrap()
    };
    // BTF's magic; the header of its first type is 24 bytes on.
    let btf = place(&[0x9f, 0xeb, 1, 0]);
    let banner = place(b"Linux version");
    vec![
        ("old", changed(0, &[])),
        ("hot", changed(1, &[])),
        ("new", changed(2, &[])),
        (
            "btf",
            changed(1, &[(btf + 8, &[0xff]), (btf + 30, &[7, 0, 4])]),
        ),
        ("banner", changed(1, &[(banner + 14, b"99")])),
        ("header", changed(1, &[(0x38, &[3])])),
    ]
}
