//! Code that the kernel has made at run time and lists: BPF programs and the trampolines and dispatchers that call them (`bpf_kallsyms`,
//! `kernel/bpf/core.c`, since 5.7), and the trampolines of ftrace, copies of its own code (`ftrace_ops_trampoline_list`, `kernel/trace/ftrace.c`, since
//! 5.9). In `/proc/kallsyms` they are functions of the modules `bpf` and `__builtin__ftrace`.

use std::ops::Range;
use std::sync::Arc;

use crate::PhysicalMemory;
use crate::Symbols;
use crate::bytes::u64_at;
use crate::image::types::Types;

use super::super::view::KernelView;
use super::list::List;
use super::module::{Module, ModuleInfo, is_sound};
use super::reader::BoundedReader;

/// The modules' names.
const OF_PROGRAMS: &str = "bpf";
const OF_TRAMPOLINES: &str = "__builtin__ftrace";
/// The name of each of ftrace's trampolines.
const TRAMPOLINE: &str = "ftrace_trampoline";
/// Maximum number of entries of a list. Hosts of containers have some hundreds.
const MAX_ENTRIES: usize = 2048;
/// Maximum number of bytes of a name (`KSYM_NAME_LEN`).
const MAX_NAME: usize = 512;
/// The number of bytes of a name that tell whether it is another program: `bpf_prog_`, and a hash of its instructions.
const NAME_BEGIN: usize = 40;
/// Maximum length of a structure, in bytes.
const MAX_LENGTH: usize = 4096;
/// `FTRACE_OPS_FL_SAVE_REGS` (`include/linux/ftrace.h`): the trampoline saves all registers.
const SAVES_REGISTERS: u64 = 1 << 2;

/// Code that the kernel has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Generated {
    /// A BPF program or a trampoline, with its name.
    Program(String),
    /// A trampoline of ftrace, which is a copy of the code from this link-time address on.
    Trampoline(u64),
}

impl Generated {
    /// The name of its only function.
    pub fn name(&self) -> &str {
        match self {
            Self::Program(name) => name,
            Self::Trampoline(_) => TRAMPOLINE,
        }
    }
}

/// Where its lists are, and what is in them.
#[derive(Debug)]
pub struct GeneratedLayout {
    programs: Option<ProgramLayout>,
    trampolines: Option<TrampolineLayout>,
}

/// Offsets in bytes from the start of a `struct bpf_ksym`.
#[derive(Debug)]
struct ProgramLayout {
    list: List,
    start: usize,
    end: usize,
    name: Range<usize>,
    /// The number of bytes of the structure that are read.
    bytes: usize,
}

/// Offsets in bytes from the start of a `struct ftrace_ops`.
#[derive(Debug)]
struct TrampolineLayout {
    list: List,
    flags: usize,
    start: usize,
    length: usize,
    /// The link-time addresses of what they are copies of: `ftrace_caller`, and the one that saves all registers.
    originals: [Option<u64>; 2],
    /// The number of bytes of the structure that are read.
    bytes: usize,
}

impl GeneratedLayout {
    /// Finds the lists, those for which there is enough information.
    pub fn find(symbols: &Symbols, types: &Types<'_>) -> Self {
        Self {
            programs: ProgramLayout::find(symbols, types),
            trampolines: TrampolineLayout::find(symbols, types),
        }
    }

    /// The lists.
    pub fn lists(&self) -> [Option<List>; 2] {
        let programs = self.programs.as_ref().map(|layout| layout.list);
        let trampolines = self.trampolines.as_ref().map(|layout| layout.list);
        [programs, trampolines]
    }

    /// The listed code. What is in `before` isn't read again.
    pub fn read<M: PhysicalMemory>(
        &self,
        view: &KernelView<'_, M>,
        reader: &mut BoundedReader<'_, M>,
        before: impl Fn(&ModuleInfo) -> Option<Arc<Module>>,
    ) -> Vec<Arc<Module>> {
        let mut found = Vec::new();
        let mut add = |list: List, bytes, info: &dyn Fn(u64, &[u8]) -> Option<ModuleInfo>| {
            let structures = list.structures(view, MAX_ENTRIES);
            let read =
                structures.filter_map(|address| info(address, &reader.bytes(address, bytes)?));
            found.extend(read);
        };
        if let Some(layout) = &self.programs {
            add(layout.list, layout.bytes, &|at, bytes| {
                layout.info(at, bytes)
            });
        }
        if let Some(layout) = &self.trampolines {
            add(layout.list, layout.bytes, &|at, bytes| {
                layout.info(at, bytes)
            });
        }
        let found = found.into_iter();
        let modules = found.map(|info| {
            let known = before(&info);
            known.unwrap_or_else(|| Arc::new(Module::generated(info, reader)))
        });
        modules.collect()
    }

    /// Whether the structure at `address` still is that of the code at `start`, according to two reads. Allocates nothing.
    pub fn is_unchanged<M: PhysicalMemory>(
        &self,
        view: &KernelView<'_, M>,
        address: u64,
        start: u64,
        code: &Generated,
    ) -> bool {
        let at = |offset: usize| address.wrapping_add(offset as u64);
        let starts = |offset: usize| view.u64(at(offset)) == Some(start);
        match (code, &self.programs, &self.trampolines) {
            (Generated::Program(name), Some(layout), _) => {
                let is_called = || {
                    let found = view.read_array::<NAME_BEGIN>(at(layout.name.start))?;
                    let found = found.split(|byte| *byte == 0).next()?;
                    Some(name.as_bytes().starts_with(found) && found.is_empty() == name.is_empty())
                };
                starts(layout.start) && is_called() == Some(true)
            }
            (Generated::Trampoline(original), _, Some(layout)) => {
                let flags = view.u64(at(layout.flags));
                let is_same = flags.is_some_and(|flags| layout.original(flags) == Some(*original));
                starts(layout.start) && is_same
            }
            _ => false,
        }
    }
}

impl ProgramLayout {
    /// `None` for a kernel without BPF's compiler, or with too little information.
    fn find(symbols: &Symbols, types: &Types<'_>) -> Option<Self> {
        let [head, tree] = symbols.addresses_of(["bpf_kallsyms", "bpf_tree"]);
        let member = |name| usize::try_from(types.offset_of("bpf_ksym", name)?).ok();
        let (start, end, name) = (member("start")?, member("end")?, member("name")?);
        let entry = member("lnode")?;
        // The list's entry comes behind the name.
        let name_length = entry.checked_sub(name)?.min(MAX_NAME);
        let bytes = start.max(end).max(entry) + 16;
        (bytes <= MAX_LENGTH).then_some(Self {
            list: List {
                head: head?,
                changes: Some(tree?.checked_add(types.offset_of("latch_tree_root", "seq")?)?),
                entry,
            },
            start,
            end,
            name: name..name + name_length,
            bytes,
        })
    }

    /// What the structure at `address` says; `None` if it is invalid.
    fn info(&self, address: u64, bytes: &[u8]) -> Option<ModuleInfo> {
        let text = u64_at(bytes, self.start)?..u64_at(bytes, self.end)?;
        let name = bytes.get(self.name.clone())?;
        let name = name.split(|byte| *byte == 0).next()?;
        // A function without a readable name is still there.
        let is_readable = name.iter().all(u8::is_ascii_graphic);
        let name = std::str::from_utf8(name).ok().filter(|_| is_readable);
        let program = Generated::Program(name.unwrap_or_default().to_owned());
        is_sound(&text).then(|| ModuleInfo::generated(address, OF_PROGRAMS, text, program))
    }
}

impl TrampolineLayout {
    /// `None` for a kernel without ftrace, or with too little information.
    fn find(symbols: &Symbols, types: &Types<'_>) -> Option<Self> {
        let [head, plain, saving] = symbols.addresses_of([
            "ftrace_ops_trampoline_list",
            "ftrace_caller",
            "ftrace_regs_caller",
        ]);
        let member = |name| usize::try_from(types.offset_of("ftrace_ops", name)?).ok();
        let (flags, start) = (member("flags")?, member("trampoline")?);
        let (length, entry) = (member("trampoline_size")?, member("list")?);
        let bytes = flags.max(start).max(length).max(entry) + 16;
        (bytes <= MAX_LENGTH).then_some(Self {
            list: List {
                head: head?,
                changes: None,
                entry,
            },
            flags,
            start,
            length,
            originals: [plain, saving],
            bytes,
        })
    }

    /// What a trampoline with these `flags` is a copy of.
    fn original(&self, flags: u64) -> Option<u64> {
        let [plain, saving] = self.originals;
        if flags & SAVES_REGISTERS != 0 {
            saving
        } else {
            plain
        }
    }

    /// What the structure at `address` says; `None` if it is invalid.
    fn info(&self, address: u64, bytes: &[u8]) -> Option<ModuleInfo> {
        let start = u64_at(bytes, self.start)?;
        let text = start..start.checked_add(u64_at(bytes, self.length)?)?;
        let original = self.original(u64_at(bytes, self.flags)?)?;
        let trampoline = Generated::Trampoline(original);
        is_sound(&text).then(|| ModuleInfo::generated(address, OF_TRAMPOLINES, text, trampoline))
    }
}

#[cfg(test)]
mod tests {
    use kvmprof_introspection_fixtures::kernel::{HOT, Kernel, NEW, OLD, TEXT, offsets};
    use kvmprof_introspection_fixtures::linux_guest::{DIRECT_MAP, IMAGE, SLIDE};
    use kvmprof_introspection_fixtures::programs::{
        PROGRAM_STRIDE, PROGRAM_STRUCTURES, PROGRAMS, program,
    };
    use kvmprof_recording::StackEnd;
    use proptest::prelude::*;
    use vm_memory::{Bytes, GuestAddress};

    use super::super::tests::{load, located, modules, names, unwind};
    use super::*;
    use crate::Registers;
    use crate::test_guest::LinuxGuest;

    /// The physical address of the stack of a vCPU in a program.
    const STACK: u64 = 0x50_0000;
    /// `nopl; push %rbp; mov %rsp,%rbp; nop; leave; ret`.
    const CODE: &[u8] = &[
        0x0f, 0x1f, 0x44, 0, 0, 0x55, 0x48, 0x89, 0xe5, 0x90, 0xc9, 0xc3,
    ];

    fn guest(kernel: Kernel, programs: &[(&str, &[u8])]) -> LinuxGuest {
        let guest = located(kernel);
        load(&guest, &[("first", 1)]);
        guest.compile(programs);
        guest
    }

    /// A vCPU in the second program, called by the first one, called by the kernel.
    fn in_program(guest: &LinuxGuest) -> Registers {
        let frame = DIRECT_MAP + STACK;
        let end = TEXT + SLIDE + offsets::STACK_END + 1;
        // What the second program has put there, and the first one.
        guest.words(STACK, &[frame + 24, PROGRAMS + 10, 1, 0, end]);
        Registers {
            rip: PROGRAMS + PROGRAM_STRIDE + 9,
            rsp: frame - 8,
            rbp: frame,
            ..guest.kernel(0)
        }
    }

    #[test]
    fn programs_have_names_and_callers_while_they_are_listed() {
        for kernel in [OLD, HOT, NEW] {
            let programs = [("bpf_prog_1_weave", CODE), ("bpf_prog_2_dye", CODE)];
            let guest = guest(kernel, &programs);
            let registers = in_program(&guest);
            let mut introspector = guest.introspector(0);
            let mut unwound = || unwind(&mut introspector, &guest, &registers);
            let (broken, whole) = ((1, StackEnd::Broken), (3, StackEnd::Complete));
            assert_eq!(unwound(), broken);
            guest.read_modules();
            assert_eq!(unwound(), whole);
            let shown = ["bpf_prog_1_weave\t[bpf]", "bpf_prog_2_dye\t[bpf]"];
            assert_eq!(names(&guest)[1..], shown);
            // The first one has gone, and another one is at its place.
            guest.compile(&[("bpf_prog_3_card", CODE), programs[1]]);
            assert_eq!(unwound(), broken);
            guest.read_modules();
            assert_eq!(unwound(), whole);
            assert_eq!(names(&guest)[1..], ["bpf_prog_3_card\t[bpf]", shown[1]]);
            let log = modules(&guest).functions_after(0).unwrap();
            assert!(log.text.contains("bpf_prog_1_weave"), "{}", log.text);
            guest.compile(&[]);
            guest.read_modules();
            assert_eq!(names(&guest).len(), 1);
        }
    }

    #[test]
    fn code_without_a_frame_or_a_readable_name_is_there() {
        let guest = guest(HOT, &[("dispatcher", &[0x90; 12]), ("two words", CODE)]);
        guest.read_modules();
        assert_eq!(names(&guest)[1..], ["dispatcher\t[bpf]"]);
        let functions = modules(&guest).loaded().functions();
        let unnamed = format!("{:016x} ? [end]\t[bpf]\n", PROGRAMS + PROGRAM_STRIDE);
        assert!(functions.contains(&unnamed), "{functions}");
        let registers = Registers {
            rip: PROGRAMS,
            ..in_program(&guest)
        };
        let broken = (1, StackEnd::Broken);
        assert_eq!(
            unwind(&mut guest.introspector(0), &guest, &registers),
            broken
        );
    }

    proptest! {
        #[test]
        fn hostile_lists_are_bounded(
            scribbles in prop::collection::vec((0..4_u64, any::<u64>()), 0..20),
            places in prop::collection::vec((0..2_u64, 0..22_u64), 20),
        ) {
            let guest = guest(HOT, &[("weave", CODE), ("dye", CODE)]);
            for ((kind, value), (index, word)) in scribbles.into_iter().zip(places) {
                let structure = PROGRAM_STRUCTURES + index * 0x1000;
                let value = match kind {
                    0 => DIRECT_MAP + PROGRAM_STRUCTURES + value % 0x2000,
                    1 => PROGRAMS + value % 0x2_0000,
                    2 => TEXT + SLIDE + offsets::PROGRAMS,
                    _ => value,
                };
                let place = match word {
                    0..2 => IMAGE + offsets::PROGRAMS + 8 * word,
                    2..4 => structure + program::LIST + 8 * (word - 2),
                    _ => structure + 8 * (word - 4),
                };
                guest.memory.write_obj(value, GuestAddress(place)).unwrap();
            }
            guest.read_modules();
            let loaded = modules(&guest).loaded();
            prop_assert!(loaded.len() <= 1 + 2 * MAX_ENTRIES);
            let functions = loaded.functions();
            prop_assert!(functions.lines().all(|line| line.is_ascii() && line.ends_with(']')));
            unwind(&mut guest.introspector(0), &guest, &in_program(&guest));
        }
    }
}
