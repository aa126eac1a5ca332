//! Debian's kernels, laid out in memory as they run, give the same facts as their files.

use kvmprof_introspection::{GuestKnowledge, LinuxKnowledge};
use kvmprof_tests::linux::{RunningGuest, unpacked};

use super::kernels;

/// Enough for the kernels.
const MEMORY: usize = 192 << 20;
/// Slides: none, and one that leaves just enough room.
const SLIDES: [u64; 2] = [0, 0x3a00_0000];

#[test]
fn a_running_kernel_gives_the_same_facts_as_its_file() {
    for kernel in kernels() {
        let elf = unpacked(&kernel);
        for slide in SLIDES {
            let image = GuestKnowledge::from_kernel_image(&elf).unwrap();
            let from_file = image.linux().unwrap();
            let symbols = from_file.symbols();
            let guest = RunningGuest::new(&elf, symbols, slide, MEMORY);
            let expected = layouts(from_file);
            let rip = symbols.address_of("do_syscall_64").unwrap() + slide;
            for registers in [RunningGuest::kernel(rip), RunningGuest::user()] {
                let memory = GuestKnowledge::from_memory(&guest.memory, &registers).unwrap();
                let from_memory = memory.linux().unwrap();
                from_file.locate(&guest.memory, &registers);
                let what = format!("{} at {slide:#x}, CPL {}", kernel.version, registers.cpl);
                assert_eq!(from_memory.slide(), Some(slide), "{what}");
                assert_eq!(from_file.slide(), Some(slide), "{what}");
                assert!(memory.kallsyms() == image.kallsyms(), "{what}");
                assert_eq!(
                    from_memory.has_panicked(&guest.memory),
                    Some(false),
                    "{what}"
                );
                assert_eq!(layouts(from_memory), expected, "{what}");
                agree(from_memory, from_file, &what);
            }
        }
    }
}

/// Checks that the facts from memory and from the file are the same.
fn agree(memory: &LinuxKnowledge, image: &LinuxKnowledge, what: &str) {
    assert_eq!(memory.release(), image.release(), "{what}");
    assert_eq!(memory.build_id(), image.build_id(), "{what}");
    assert_eq!(memory.build_id().len(), 40, "{what}");
    // The file's last section, for encrypted memory, is scratch space beyond the kernel proper.
    let (start, end) = (image.image().start, image.symbols().address_of("_end"));
    assert_eq!(Some(memory.image()), end.map(|end| start..end), "{what}");
    assert!(memory.image().end <= image.image().end, "{what}");
    let (ours, theirs) = (memory.symbols(), image.symbols());
    assert_eq!(ours.len(), theirs.len(), "{what}");
    assert!(ours.functions().eq(theirs.functions()), "{what}");
    for variable in ["init_task", "jiffies", "__per_cpu_offset", "current_task"] {
        let address = theirs.address_of(variable);
        assert_eq!(ours.address_of(variable), address, "{what}: {variable}");
    }
    let (orc, expected) = (memory.orc().expect(what), image.orc().expect(what));
    assert_eq!(orc.len(), expected.len(), "{what}");
    for (address, _, name) in theirs.functions() {
        for address in [address, address + 7] {
            let entry = expected.find(address);
            assert_eq!(orc.find(address), entry, "{what}: {name}");
        }
    }
    assert!(memory.modules().can_be_found(), "{what}");
}

/// The addresses of variables and the offsets in structures, as text.
pub(super) fn layouts(linux: &LinuxKnowledge) -> String {
    let text = format!("{linux:?}");
    let mut found = String::new();
    for fields in [" addresses: "..", orc: ", ", processes: "..", build_id: "] {
        let start = text.find(fields.start).expect("fields");
        let length = text[start..].find(fields.end).expect("fields");
        found.push_str(&text[start..start + length]);
    }
    found
}
