//! Builds kernel images, with symbols in any layout.

use super::btf::Builder;
use super::kallsyms::{Layout, kallsyms};
use crate::image::btf::KIND_STRUCT;

/// The images' link-time address, the same as that of real kernels.
pub const TEXT: u64 = 0xffff_ffff_8100_0000;
/// A kernel for tests.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// The layout of its symbol table.
    pub layout: Layout,
    /// Whether it has `pcpu_hot`.
    pub hot: bool,
    /// Whether it has BTF.
    pub btf: bool,
    /// Whether its BTF describes modules.
    pub modules: bool,
    /// Whether its `preempt_count` also counts disabled interrupts.
    pub counts_disabled: bool,
    /// How the kernel stores the areas of address spaces.
    pub areas: Areas,
}

/// How a kernel stores the areas of address spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Areas {
    /// In a list, as before 6.1.
    List,
    /// In a maple tree.
    Tree,
}

/// A kernel of 5.0 to 6.1.
pub const OLD: Kernel = Kernel {
    layout: Layout::Relative50,
    hot: false,
    btf: true,
    modules: true,
    counts_disabled: false,
    areas: Areas::List,
};
/// A kernel of 6.4 to 6.14, with `pcpu_hot`.
pub const HOT: Kernel = Kernel {
    layout: Layout::Relative64,
    hot: true,
    btf: true,
    modules: true,
    counts_disabled: false,
    areas: Areas::Tree,
};
/// A kernel since 6.15. Its per-CPU symbols are ordinary addresses.
pub const NEW: Kernel = Kernel {
    layout: Layout::Relative615,
    hot: false,
    btf: true,
    modules: true,
    counts_disabled: false,
    areas: Areas::Tree,
};

pub use super::offsets;

/// Offsets in the per-CPU area, in bytes.
pub mod per_cpu {
    /// `current_task`, or `pcpu_hot` that starts with it.
    pub const CURRENT: u64 = 0x100;
    /// `__preempt_count`, 4 bytes.
    pub const PREEMPT_COUNT: u64 = 0x108;
    /// `local_interrupt_disable_state`.
    pub const DISABLE_STATE: u64 = 0x110;
}

/// Offsets in a task's structures, in bytes from the start of each.
pub use super::task_offsets as task;

/// Offsets in locks, in bytes.
pub mod lock {
    /// `mutex.owner`.
    pub const MUTEX_OWNER: u64 = 0x8;
    /// `rw_semaphore.owner`.
    pub const RWSEM_OWNER: u64 = 0x10;
}

/// Offsets in a `struct module`, in bytes.
pub use super::module_offsets as module;

/// The build id of all kernels.
pub const BUILD_ID: &[u8; 20] = b"0123456789abcdefghij";
/// The notes of all kernels: one of Linux, and GNU's build id (elf(5)).
const NOTES: &[u8] = b"\x06\0\0\0\x01\0\0\0\0\x01\0\0Linux\0\0\0\0\0\0\0\
    \x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\x000123456789abcdefghij";

impl Kernel {
    /// Whether the kernel's modules have `mem[]` instead of `core_layout`.
    pub fn has_module_memories(self) -> bool {
        !matches!(
            self.layout,
            Layout::Relative46 | Layout::Relative50 | Layout::Relative62 | Layout::Absolute
        )
    }

    fn add_modules(self, builder: &mut Builder) {
        let bits = |bytes: u64| u32::try_from(bytes * 8).unwrap();
        let mut members = vec![
            ("state", 1, bits(module::STATE)),
            ("list", 1, bits(module::LIST)),
            ("name", 1, bits(module::NAME)),
            ("build_id", 1, bits(module::BUILD_ID)),
            ("kallsyms", 1, bits(module::KALLSYMS)),
            ("arch", 1, bits(module::ORC)),
        ];
        if self.has_module_memories() {
            members.push(("mem", 1, bits(module::TEXT)));
            let memory = [("base", 1, 0), ("size", 1, bits(module::MEMORY_SIZE))];
            let id = builder.structure("module_memory", &memory);
            let length = u32::try_from(module::MEMORY_LENGTH).unwrap();
            builder.resize(id, memory.len(), length);
            builder.enumeration("mod_mem_type", &[("MOD_TEXT", 0), ("MOD_INIT_TEXT", 4)]);
        } else {
            members.push(("core_layout", 1, bits(module::TEXT)));
            members.push(("init_layout", 1, bits(module::INIT_LAYOUT)));
            builder.structure(
                "module_layout",
                &[("base", 1, 0), ("text_size", 1, bits(module::TEXT_SIZE))],
            );
        }
        builder.structure("module", &members);
        builder.enumeration(
            "module_state",
            &[("MODULE_STATE_LIVE", 0), ("MODULE_STATE_UNFORMED", 3)],
        );
        builder.structure(
            "mod_kallsyms",
            &[
                ("symtab", 1, 0),
                ("num_symtab", 1, 64),
                ("strtab", 1, 128),
                ("typetab", 1, 192),
            ],
        );
        builder.structure(
            "mod_arch_specific",
            &[
                ("num_orcs", 1, 0),
                ("orc_unwind_ip", 1, 64),
                ("orc_unwind", 1, 128),
            ],
        );
        builder.structure("mod_tree_root", &[("root", 1, 0)]);
        builder.structure("latch_tree_root", &[("seq", 1, 0)]);
    }

    /// Whether per-CPU symbols are ordinary addresses.
    pub fn per_cpu_is_linked(self) -> bool {
        matches!(self.layout, Layout::Relative615 | Layout::Relative70)
    }

    /// The base of per-CPU symbols.
    pub fn per_cpu_start(self) -> u64 {
        if self.per_cpu_is_linked() {
            TEXT + offsets::PER_CPU_LOAD
        } else {
            0
        }
    }

    /// The offset of the per-CPU area for boot, and of absent CPUs, in a kernel with this `slide`.
    pub fn boot_offset(self, slide: u64) -> u64 {
        if self.per_cpu_is_linked() {
            0
        } else {
            TEXT + slide + offsets::PER_CPU_LOAD
        }
    }

    fn btf_section(self) -> Vec<u8> {
        let bits = |bytes: u64| u32::try_from(bytes * 8).unwrap();
        let mut builder = Builder::new();
        builder.enumeration(
            "system_states",
            &[("SYSTEM_BOOTING", 0), ("SYSTEM_SCHEDULING", 1)],
        );
        // Before 5.14 and before 5.16.
        let is_old = self.areas == Areas::List;
        let state = if is_old { "state" } else { "__state" };
        let cpu = if is_old { "status" } else { "cpu" };
        let info = builder.structure("thread_info", &[("flags", 1, 0), (cpu, 1, bits(task::CPU))]);
        let scheduling = builder.structure("sched_info", &[("pcount", 1, 0), ("run_delay", 1, 64)]);
        let thread = builder.structure("thread_struct", &[("sp0", 1, 0), ("sp", 1, 64)]);
        builder.structure(
            "task_struct",
            &[
                ("thread_info", info, 0),
                (if is_old { "cpu" } else { "wake_cpu" }, 1, bits(task::CPU)),
                (state, 1, bits(task::STATE)),
                ("on_cpu", 1, bits(task::ON_CPU)),
                ("nvcsw", 1, bits(task::SWITCHES)),
                ("nivcsw", 1, bits(task::SWITCHES + 8)),
                ("sched_info", scheduling, bits(task::RUN_DELAY - 8)),
                ("thread", thread, bits(task::STACK - 8)),
                ("thread_node", 1, bits(task::THREAD_NODE)),
                ("pid", 1, bits(task::PID)),
                ("tgid", 1, bits(task::TGID)),
                ("signal", 1, bits(task::SIGNAL)),
                ("comm", 1, bits(task::COMM)),
                ("group_leader", 1, bits(task::LEADER)),
                ("mm", 1, bits(task::MM)),
                ("start_time", 1, bits(task::START_TIME)),
                ("self_exec_id", 1, bits(task::EXEC_ID)),
                ("exit_state", 1, bits(task::EXIT_STATE)),
                ("real_parent", 1, bits(task::PARENT)),
                ("tasks", 1, bits(task::TASKS)),
                ("thread_pid", 1, bits(task::OWN_PID)),
                ("fs", 1, bits(task::FILESYSTEM)),
                ("cred", 1, bits(task::CREDENTIALS)),
            ],
        );
        builder.structure("cred", &[("uid", 1, bits(task::USER))]);
        super::processes::describe(&mut builder, self.areas);
        let signal = [
            ("live", 1, bits(task::LIVE)),
            ("flags", 1, bits(task::SIGNAL_FLAGS)),
            // Bit 1 of 4 bytes, the width of which is in the upper byte.
            ("is_child_subreaper", 1, 1 << 24 | (bits(task::REAPERS) + 1)),
            ("thread_head", 1, bits(task::THREAD_HEAD)),
            ("pids", 1, bits(0x20)),
        ];
        builder.composite(KIND_STRUCT, true, "signal_struct", &signal);
        builder.structure("mutex", &[("owner", 1, bits(lock::MUTEX_OWNER))]);
        builder.structure("rw_semaphore", &[("owner", 1, bits(lock::RWSEM_OWNER))]);
        builder.structure(
            "pid",
            &[
                ("level", 1, bits(task::LEVEL)),
                ("numbers", 1, bits(task::NUMBER - 4)),
            ],
        );
        let number = builder.structure("upid", &[("nr", 1, bits(4))]);
        let length = u32::try_from(task::NUMBER_LENGTH).unwrap();
        builder.resize(number, 1, length);
        let hot = builder.structure("", &[("current_task", 1, 0), ("preempt_count", 1, 64)]);
        builder.structure("pcpu_hot", &[("", hot, 0)]);
        if self.modules {
            self.add_modules(&mut builder);
        }
        builder.section()
    }

    fn symbols(self, btf_length: u64) -> Vec<(u64, char, String)> {
        let vdso = if self.per_cpu_is_linked() {
            "vdso64_image"
        } else {
            "vdso_image_64"
        };
        let mut symbols: Vec<(u64, char, String)> = [
            (0, 'T', "_text"),
            (offsets::BANNER, 'D', "linux_banner"),
            (offsets::DIVIDE_ERROR, 'T', "asm_exc_divide_error"),
            (offsets::PAGE_FAULT, 'T', "asm_exc_page_fault"),
            (offsets::EARLY_HANDLERS, 'T', "early_idt_handler_array"),
            (offsets::PER_CPU_OFFSET, 'R', "__per_cpu_offset"),
            (offsets::PER_CPU_OFFSET + 16, 'R', "after_per_cpu_offset"),
            (offsets::SYSTEM_STATE, 'D', "system_state"),
            (offsets::PANIC_CPU, 'D', "panic_cpu"),
            (offsets::PAGE_OFFSET_BASE, 'R', "page_offset_base"),
            (offsets::VMEMMAP_BASE, 'R', "vmemmap_base"),
            (offsets::JIFFIES, 'D', "jiffies_64"),
            (offsets::VDSO_IMAGE, 'R', vdso),
            (offsets::BTF, 'R', "__start_BTF"),
            (offsets::BTF + btf_length, 'R', "__stop_BTF"),
            (offsets::MODULES, 'd', "modules"),
            (offsets::INIT_TASK, 'D', "init_task"),
            (offsets::FRAMED, 'T', "__sched_text_start"),
            (offsets::SCHEDULER_END, 'T', "__sched_text_end"),
            (offsets::OWNER_LOOPS[0], 't', "mutex_spin_on_owner.isra.0"),
            (offsets::OWNER_LOOPS[1], 't', "rwsem_spin_on_owner"),
            (offsets::OWNER_LOOPS[2], 'T', "preempt_schedule"),
            (
                offsets::SPIN_LOOPS[0],
                'T',
                "native_queued_spin_lock_slowpath",
            ),
            (offsets::SPIN_LOOPS[1], 'T', "queued_read_lock_slowpath"),
            (offsets::SPIN_LOOPS[2], 'T', "queued_write_lock_slowpath"),
            (offsets::SPIN_LOOPS[3], 'T', "schedule_idle"),
            (offsets::MODULE_TREE, 'd', "mod_tree"),
            (offsets::PAGE_TABLES, 'D', "init_top_pgt"),
            (offsets::ORC[0], 'r', "__start_orc_unwind_ip"),
            (offsets::ORC[0] + 12, 'r', "__stop_orc_unwind_ip"),
            (offsets::ORC[1], 'r', "__start_orc_unwind"),
            (offsets::ORC[1] + 18, 'r', "__stop_orc_unwind"),
            (offsets::DO_ONE_INITCALL, 'T', "do_one_initcall"),
            (offsets::INITCALLS[0], 't', "first_initcall"),
            (offsets::INITCALLS[1], 't', "second_initcall"),
            (offsets::INITCALLS[2], 'T', "after_initcalls"),
            (offsets::INITCALL_TABLE, 'D', "__initcall_start"),
            (offsets::INITCALL_TABLE + 8, 'D', "__initcall_end"),
            (offsets::NOTES, 'R', "__start_notes"),
            (offsets::NOTES + NOTES.len() as u64, 'R', "__stop_notes"),
            (offsets::END, 'B', "_end"),
        ]
        .into_iter()
        .map(|(offset, kind, name)| (TEXT + offset, kind, name.to_owned()))
        .collect();
        let mut names = match (self.hot, self.btf) {
            (true, _) => vec![(per_cpu::CURRENT, "pcpu_hot")],
            (false, _) => vec![
                (per_cpu::CURRENT, "current_task"),
                (per_cpu::PREEMPT_COUNT, "__preempt_count"),
            ],
        };
        let kind = if self.per_cpu_is_linked() {
            'D'
        } else {
            let load = TEXT + offsets::PER_CPU_LOAD;
            symbols.push((load, 'D', "__per_cpu_load".to_owned()));
            'A'
        };
        if self.counts_disabled {
            names.push((per_cpu::DISABLE_STATE, "local_interrupt_disable_state"));
        }
        for (offset, name) in names {
            symbols.push((self.per_cpu_start() + offset, kind, name.to_owned()));
        }
        for number in 0..700 {
            symbols.push((TEXT + 0x2100 + number * 2, 't', format!("filler_{number}")));
        }
        // A name with more tokens than one length byte can express.
        symbols.push((TEXT + 0x2f00, 't', format!("filler_{}", "x".repeat(300))));
        symbols
    }

    /// The bytes to load at [`TEXT`].
    pub fn image(self) -> Vec<u8> {
        self.image_at(0)
    }

    /// The bytes in memory after the image was relocated to [`TEXT`] and `slide`.
    pub fn image_at(self, slide: u64) -> Vec<u8> {
        let mut image = vec![0; usize::try_from(offsets::END).unwrap()];
        let mut put = |offset: u64, bytes: &[u8]| {
            let offset = usize::try_from(offset).unwrap();
            image[offset..offset + bytes.len()].copy_from_slice(bytes);
        };
        put(
            offsets::BANNER,
            b"Linux version 6.99.0-test (nobody) #1 SMP\n\0",
        );
        put(offsets::NOTES, NOTES);
        let boot = self.boot_offset(slide);
        for cpu in 0..2 {
            put(offsets::PER_CPU_OFFSET + cpu * 8, &boot.to_le_bytes());
        }
        put(offsets::PANIC_CPU, &(-1_i32).to_le_bytes());
        put(
            offsets::PAGE_OFFSET_BASE,
            &0xffff_8880_0000_0000_u64.to_le_bytes(),
        );
        let functions = [offsets::FRAMED, offsets::ENTRY, offsets::STACK_END];
        let unwound = (offsets::ORC[0]..).step_by(4).zip(functions);
        let called = (offsets::INITCALL_TABLE..).step_by(4);
        let called = called.zip(offsets::INITCALLS).take(2);
        for (place, function) in unwound.chain(called) {
            let distance = i32::try_from(function.cast_signed() - place.cast_signed()).unwrap();
            put(place, &distance.to_le_bytes());
        }
        let entries = [[24, 0, 0, 0, 5, 2], [0, 0, 0, 0, 5, 3], [0, 0, 0, 0, 0, 1]];
        put(offsets::ORC[1], entries.as_flattened());
        let section = if self.btf {
            self.btf_section()
        } else {
            Vec::new()
        };
        assert!(offsets::BTF + section.len() as u64 <= offsets::SYMBOLS);
        put(offsets::BTF, &section);
        let symbols = self.symbols(section.len() as u64);
        let symbols: Vec<_> = symbols
            .iter()
            .filter(|(_, _, name)| self.btf || !name.ends_with("_BTF"))
            .map(|(address, kind, name)| {
                let slide = if *address >= TEXT { slide } else { 0 };
                (*address + slide, *kind, name.as_str())
            })
            .collect();
        let table = kallsyms(self.layout, &symbols, TEXT + slide + offsets::SYMBOLS);
        assert!(offsets::SYMBOLS + table.len() as u64 <= offsets::PAGE_TABLES);
        put(offsets::SYMBOLS, &table);
        image
    }

    /// The kernel's file: an ELF header, one loadable segment, its notes.
    pub fn file(self) -> Vec<u8> {
        let image = self.image();
        let length = image.len() as u64;
        let mut file = b"\x7fELF\x02\x01\x01".to_vec();
        file.resize(16, 0);
        let mut words = |words: &[(u64, usize)]| {
            for (word, width) in words {
                file.extend_from_slice(&word.to_le_bytes()[..*width]);
            }
        };
        // Elf64_Ehdr from e_type on.
        words(&[
            (2, 2),
            (62, 2),
            (1, 4),
            (TEXT, 8),
            (64, 8),
            (0, 8),
            (0, 4),
            (64, 2),
            (56, 2),
        ]);
        words(&[(2, 2), (64, 2), (0, 2), (0, 2)]);
        // Elf64_Phdr: PT_LOAD.
        words(&[
            (1, 4),
            (5, 4),
            (4096, 8),
            (TEXT, 8),
            (0, 8),
            (length, 8),
            (length, 8),
            (4096, 8),
        ]);
        // Elf64_Phdr: PT_NOTE.
        let notes = NOTES.len() as u64;
        words(&[
            (4, 4),
            (4, 4),
            (4096 + offsets::NOTES, 8),
            (TEXT + offsets::NOTES, 8),
            (0, 8),
            (notes, 8),
            (notes, 8),
            (4, 8),
        ]);
        file.resize(4096, 0);
        file.extend_from_slice(&image);
        file
    }
}
