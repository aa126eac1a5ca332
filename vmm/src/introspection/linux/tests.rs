use std::sync::Arc;

use kvmprof_devices::profiling::Mode;
use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::introspection::paging::PTI_USER;
use crate::introspection::paging::tests::{Memory, Tables, long_mode};
use crate::introspection::testing::{Kernel, Layout, TEXT, offsets, per_cpu, task};
use crate::introspection::{GuestKnowledge, Identity, VcpuIntrospector};

const SLIDE: u64 = 0x1240_0000;
const DIRECT_MAP: u64 = 0xffff_9123_4000_0000;
const IDT: u64 = 0xffff_fe00_0000_0000;
/// Physical addresses.
const TABLES: u64 = 0x1_0000;
const USER_TABLES: u64 = TABLES | PTI_USER;
const IDT_PAGE: u64 = 0x9000;
const IMAGE: u64 = 0x40_0000;
const TASKS: u64 = 0x20_0000;
const AREAS: [u64; 2] = [0x30_0000, 0x31_0000];
const MEMORY: usize = 0x60_0000;

const OLD: Kernel = Kernel {
    layout: Layout::Relative50,
    hot: false,
    btf: true,
    counts_disabled: false,
};
const HOT: Kernel = Kernel {
    layout: Layout::Relative64,
    hot: true,
    btf: true,
    counts_disabled: false,
};
const NEW: Kernel = Kernel {
    layout: Layout::Relative615,
    hot: false,
    btf: true,
    counts_disabled: false,
};

/// A running kernel with KPTI, two CPUs and three tasks, of pids 0, 41 and 42.
struct Guest {
    kernel: Kernel,
    memory: Memory,
    knowledge: Arc<GuestKnowledge>,
}

impl Guest {
    fn new(kernel: Kernel) -> Self {
        Self::with_levels(kernel, 4)
    }

    fn with_levels(kernel: Kernel, levels: u32) -> Self {
        let memory = Memory::from_ranges(&[(GuestAddress(0), MEMORY)]).unwrap();
        // The kernel's tables: all memory, the image, the interrupt descriptor table. The user's, right
        // behind them: the table alone.
        let mut tables = Tables::new(memory.clone(), TABLES, levels);
        tables.skip_to(TABLES + 0x4000);
        for physical in (0..MEMORY as u64).step_by(2 << 20) {
            tables.map(DIRECT_MAP + physical, physical, 2);
        }
        tables.map(TEXT + SLIDE, IMAGE, 2);
        tables.map(IDT, IDT_PAGE, 1);
        let mut user = Tables::new(memory.clone(), USER_TABLES, levels);
        user.skip_to(TABLES + 0x2_0000);
        user.map(IDT, IDT_PAGE, 1);
        let guest = Self {
            kernel,
            memory,
            knowledge: Arc::new(GuestKnowledge::from_kernel_image(&kernel.file()).unwrap()),
        };
        guest.write(IMAGE, &kernel.image());
        guest.gate(14, offsets::PAGE_FAULT);
        guest.set(offsets::PAGE_OFFSET_BASE, DIRECT_MAP);
        guest.set(offsets::SYSTEM_STATE, 1_u32);
        for (cpu, area) in (0..).zip(AREAS) {
            guest.set(offsets::PER_CPU_OFFSET + cpu * 8, guest.base(area));
        }
        for (index, pid) in (0..).zip([0, 41, 42]) {
            guest.task(index, pid, pid + 100, pid + 1000);
        }
        guest.run(0, 1);
        guest.run(1, 2);
        guest
    }

    fn write(&self, physical: u64, bytes: &[u8]) {
        self.memory
            .write_slice(bytes, GuestAddress(physical))
            .unwrap();
    }

    fn set<T: vm_memory::ByteValued>(&self, variable: u64, value: T) {
        self.memory
            .write_obj(value, GuestAddress(IMAGE + variable))
            .unwrap();
    }

    fn gate(&self, vector: u64, handler: u64) {
        let handler = (TEXT + SLIDE + handler).to_le_bytes();
        let [a, b, c, d, e, f, g, h] = handler;
        self.write(
            IDT_PAGE + vector * 16,
            &[a, b, 0x10, 0, 0, 0x8e, c, d, e, f, g, h, 0, 0, 0, 0],
        );
    }

    /// The offset of the per-CPU area at physical address `area`.
    fn base(&self, area: u64) -> u64 {
        let start = self.kernel.per_cpu_start();
        let slide = if self.kernel.per_cpu_is_linked() {
            SLIDE
        } else {
            0
        };
        (DIRECT_MAP + area).wrapping_sub(start).wrapping_sub(slide)
    }

    /// Writes task `index` with its signal structure and process group.
    fn task(&self, index: u64, tgid: i32, pid: i32, group: i32) {
        let at = TASKS + index * 0x1000;
        let (tgid, pid) = if tgid == 0 { (0, 0) } else { (tgid, pid) };
        self.write(at + task::PID, &pid.to_le_bytes());
        self.write(at + task::TGID, &tgid.to_le_bytes());
        let mut comm = *b"0123456789abcdef";
        let name = format!("task-{tgid}\0");
        let length = name.len().min(comm.len());
        comm[..length].copy_from_slice(&name.as_bytes()[..length]);
        self.write(at + task::COMM, &comm);
        self.write(at + task::SIGNAL, &(DIRECT_MAP + at + 0x400).to_le_bytes());
        self.write(
            at + 0x400 + task::GROUP,
            &(DIRECT_MAP + at + 0x800).to_le_bytes(),
        );
        self.write(at + 0x800 + task::NUMBER, &group.to_le_bytes());
    }

    /// Makes task `index` current on `cpu`.
    fn run(&self, cpu: usize, index: u64) {
        let current = DIRECT_MAP + TASKS + index * 0x1000;
        self.write(AREAS[cpu] + per_cpu::CURRENT, &current.to_le_bytes());
    }

    fn preempt_count(&self, cpu: usize, count: u32) {
        self.write(AREAS[cpu] + per_cpu::PREEMPT_COUNT, &count.to_le_bytes());
    }

    fn user(&self) -> Registers {
        Registers {
            rip: 0x40_1000,
            cpl: 3,
            idt_base: IDT,
            ..long_mode(USER_TABLES | 0x801, false)
        }
    }

    fn kernel(&self, cpu: usize) -> Registers {
        Registers {
            rip: TEXT + SLIDE + 0x2200,
            gs_base: self.base(AREAS[cpu]),
            idt_base: IDT,
            ..long_mode(TABLES | 1, false)
        }
    }

    fn introspector(&self, vcpu: u16) -> VcpuIntrospector {
        VcpuIntrospector::new(self.knowledge.clone(), vcpu)
    }

    /// What a vCPU that has seen nothing yet makes of `registers`.
    fn identify(&self, vcpu: u16, registers: &Registers) -> Identity {
        self.introspector(vcpu)
            .identify(&self.memory, registers, false, true)
    }
}

fn expected(mode: Mode, tgid: i32) -> Identity {
    let mut identity = Identity::unknown(mode);
    identity.pid = tgid;
    identity.tid = if tgid == 0 { 0 } else { tgid + 100 };
    identity.process_group = tgid + 1000;
    let name = format!("task-{tgid}");
    identity.comm[..name.len()].copy_from_slice(name.as_bytes());
    identity
}

#[test]
fn identifies_user_and_kernel_mode_of_every_generation() {
    for kernel in [OLD, HOT, NEW] {
        for layout in Layout::ALL {
            // Each layout of per-CPU symbols goes with some layouts of kallsyms.
            let kernel = Kernel { layout, ..kernel };
            let guest = Guest::new(kernel);
            assert_eq!(
                guest.identify(0, &guest.user()),
                expected(Mode::User, 41),
                "{kernel:?}"
            );
            assert_eq!(guest.identify(1, &guest.user()), expected(Mode::User, 42));
            assert_eq!(
                guest.identify(0, &guest.kernel(0)),
                expected(Mode::Kernel, 41)
            );
            assert_eq!(
                guest.identify(1, &guest.kernel(1)),
                expected(Mode::Kernel, 42)
            );
            assert_eq!(guest.knowledge.slide(), Some(SLIDE));
        }
    }
}

#[test]
fn five_levels_of_page_tables() {
    let guest = Guest::with_levels(HOT, 5);
    let la57 = long_mode(0, true).cr4;
    for registers in [guest.user(), guest.kernel(0)] {
        let registers = Registers {
            cr4: la57,
            ..registers
        };
        assert_eq!(guest.identify(0, &registers).pid, 41);
    }
}

#[test]
fn learns_the_direct_map_and_goes_on_without_page_tables() {
    let guest = Guest::new(OLD);
    let linux = guest.knowledge.linux().unwrap();
    assert_eq!(guest.identify(0, &guest.user()).pid, 41);
    assert_eq!(linux.direct_map.load(Ordering::Relaxed), DIRECT_MAP);
    // With nothing mapped: the places that are known are enough.
    let registers = Registers {
        cr3: 0x50_0000,
        ..guest.user()
    };
    assert_eq!(guest.identify(1, &registers).pid, 42);
}

#[test]
fn an_impossible_direct_map_is_not_learned() {
    let guest = Guest::new(OLD);
    guest.set(offsets::PAGE_OFFSET_BASE, DIRECT_MAP + 0x4000_0000);
    assert_eq!(guest.identify(0, &guest.user()).pid, 41);
    assert_eq!(
        guest
            .knowledge
            .linux()
            .unwrap()
            .direct_map
            .load(Ordering::Relaxed),
        0
    );
}

#[test]
fn finds_the_kernel_without_gates() {
    let guest = Guest::new(OLD);
    guest.write(IDT_PAGE, &[0; 4096]);
    assert_eq!(
        guest.identify(0, &guest.user()),
        Identity::unknown(Mode::User)
    );
    assert_eq!(guest.knowledge.slide(), None);
    assert_eq!(guest.identify(0, &guest.kernel(0)).pid, 41);
    assert_eq!(guest.knowledge.slide(), Some(SLIDE));
}

#[test]
fn finds_the_kernel_by_its_early_gates() {
    let guest = Guest::new(OLD);
    guest.write(IDT_PAGE, &[0; 4096]);
    guest.gate(0, offsets::EARLY_HANDLERS);
    guest.knowledge.locate(&guest.memory, &guest.user());
    assert_eq!(guest.knowledge.slide(), Some(SLIDE));
}

#[test]
fn a_kernel_without_its_banner_is_not_believed() {
    let guest = Guest::new(OLD);
    guest.write(IMAGE + offsets::BANNER, b"Linux version 6.99.0-other");
    for registers in [guest.user(), guest.kernel(0)] {
        assert_eq!(guest.identify(0, &registers).pid, -1);
    }
    assert_eq!(guest.knowledge.slide(), None);
}

#[test]
fn tells_the_mode() {
    let guest = Guest::new(HOT);
    let mode = |index, count| {
        guest.run(0, index);
        guest.preempt_count(0, count);
        guest.identify(0, &guest.kernel(0)).mode
    };
    assert_eq!(mode(1, 0x8000_0000), Mode::Kernel);
    assert_eq!(mode(1, 0x8001_0000), Mode::Interrupt);
    assert_eq!(mode(1, 0x0010_0000), Mode::Interrupt);
    assert_eq!(mode(1, 0x0000_0100), Mode::Interrupt);
    assert_eq!(mode(1, 0x0000_0200), Mode::Kernel);
    assert_eq!(mode(0, 0x8000_0000), Mode::Idle);
    assert_eq!(mode(0, 0x0001_0000), Mode::Interrupt);
    guest.set(offsets::SYSTEM_STATE, 0_u32);
    assert_eq!(mode(0, 0x8000_0000), Mode::Kernel);
    let halted = guest
        .introspector(0)
        .identify(&guest.memory, &guest.kernel(0), true, false);
    assert_eq!(
        (halted.mode, halted.pid, halted.process_group),
        (Mode::Idle, 0, -1)
    );
}

#[test]
fn tells_the_mode_where_the_counts_moved() {
    let guest = Guest::new(Kernel {
        counts_disabled: true,
        ..NEW
    });
    let mode = |count| {
        guest.preempt_count(0, count);
        guest.identify(0, &guest.kernel(0)).mode
    };
    assert_eq!(mode(0x00ff_0000), Mode::Kernel);
    assert_eq!(mode(0x0101_0000), Mode::Interrupt);
    assert_eq!(mode(0x1000_0000), Mode::Interrupt);
    assert_eq!(mode(0x0000_0100), Mode::Interrupt);
}

#[test]
fn before_the_areas_are_set_up_the_boot_task_runs() {
    for kernel in [OLD, HOT, NEW] {
        let guest = Guest::new(kernel);
        let load = TEXT + SLIDE + offsets::PER_CPU_LOAD;
        let boot = if kernel.per_cpu_is_linked() { 0 } else { load };
        for cpu in 0..2 {
            guest.set(offsets::PER_CPU_OFFSET + cpu * 8, boot);
        }
        guest.set(offsets::PER_CPU_LOAD + per_cpu::CURRENT, DIRECT_MAP + TASKS);
        guest.set(offsets::SYSTEM_STATE, 0_u32);
        let mut introspector = guest.introspector(0);
        let registers = Registers {
            gs_base: boot,
            ..guest.kernel(0)
        };
        let identity = introspector.identify(&guest.memory, &registers, false, true);
        assert_eq!(identity, expected(Mode::Kernel, 0), "{kernel:?}");
        // The boot's area isn't held on to.
        guest.set(offsets::PER_CPU_OFFSET, guest.base(AREAS[0]));
        let identity = introspector.identify(&guest.memory, &guest.user(), false, true);
        assert_eq!(identity, expected(Mode::User, 41));
    }
}

#[test]
fn an_entry_with_the_users_gs_base_is_nothing_special() {
    let guest = Guest::new(HOT);
    let mut introspector = guest.introspector(0);
    // A program has put the other CPU's offset into its GS base.
    for gs_base in [0, 0x7f00_dead_beef, guest.base(AREAS[1])] {
        let registers = Registers {
            gs_base,
            cr3: USER_TABLES,
            ..guest.kernel(0)
        };
        for _ in 0..3 {
            let identity = introspector.identify(&guest.memory, &registers, false, false);
            assert_eq!(identity.pid, 41);
        }
    }
}

#[test]
fn another_numbering_of_cpus_is_learned() {
    let guest = Guest::new(OLD);
    let mut introspector = guest.introspector(0);
    for _ in 0..20 {
        introspector.identify(&guest.memory, &guest.kernel(1), false, false);
    }
    assert_eq!(
        introspector
            .identify(&guest.memory, &guest.user(), false, false)
            .pid,
        42
    );
    // A single foreign value in between doesn't count.
    for _ in 0..20 {
        introspector.identify(&guest.memory, &guest.kernel(0), false, false);
        introspector.identify(&guest.memory, &guest.kernel(1), false, false);
    }
    assert_eq!(
        introspector
            .identify(&guest.memory, &guest.user(), false, false)
            .pid,
        42
    );
}

#[test]
fn what_makes_no_sense_is_unknown() {
    let guest = Guest::new(OLD);
    for (tgid, pid) in [(-1, 5), (5, -1), (1 << 22, 5), (5, i32::MAX)] {
        guest.task(1, tgid, pid, 7);
        assert_eq!(
            guest.identify(0, &guest.user()),
            Identity::unknown(Mode::User)
        );
    }
    guest.task(1, 5, 6, -7);
    let identity = guest.identify(0, &guest.user());
    assert_eq!((identity.pid, identity.process_group), (5, -1));
    for pointer in [
        0,
        1,
        TASKS,
        DIRECT_MAP + TASKS + 4,
        DIRECT_MAP + MEMORY as u64,
        u64::MAX - 7,
    ] {
        guest.write(AREAS[0] + per_cpu::CURRENT, &pointer.to_le_bytes());
        assert_eq!(
            guest.identify(0, &guest.user()),
            Identity::unknown(Mode::User)
        );
    }
}

#[test]
fn without_kpti_the_page_beside_the_tables_is_left_alone() {
    let guest = Guest::new(OLD);
    guest.identify(0, &guest.kernel(0));
    // The page beside the tables happens to map something, but it isn't this kernel's.
    let mut own = Tables::new(guest.memory.clone(), 0x4_0000 | PTI_USER, 4);
    own.skip_to(0x4_2000);
    own.map(0xffff_c900_0000_1000, IDT_PAGE, 1);
    let mut beside = Tables::new(guest.memory.clone(), 0x4_0000, 4);
    beside.skip_to(0x4_8000);
    beside.map(0xffff_c900_0000_0000, IDT_PAGE, 1);
    let linux = guest.knowledge.linux().unwrap();
    let placement = linux.placement.get().unwrap();
    let registers = long_mode(0x4_0000 | PTI_USER, false);
    let view = view::KernelView::new(linux, placement, &guest.memory, &registers);
    assert_eq!(view.translate(0xffff_c900_0000_0000), None);
    let registers = long_mode(USER_TABLES, false);
    let view = view::KernelView::new(linux, placement, &guest.memory, &registers);
    assert_eq!(view.walk(DIRECT_MAP + 0x1234), Some(GuestAddress(0x1234)));
}

#[test]
fn tells_a_panic() {
    let guest = Guest::new(OLD);
    assert_eq!(guest.knowledge.has_panicked(&guest.memory), None);
    guest.knowledge.locate(&guest.memory, &guest.kernel(0));
    assert_eq!(guest.knowledge.has_panicked(&guest.memory), Some(false));
    guest.set(offsets::PANIC_CPU, 1_i32);
    assert_eq!(guest.knowledge.has_panicked(&guest.memory), Some(true));
}

#[test]
fn names_functions() {
    let guest = Guest::new(OLD);
    let linux = guest.knowledge.linux().unwrap();
    assert_eq!(
        linux.function_at(TEXT + SLIDE + offsets::PAGE_FAULT + 3),
        None
    );
    guest.knowledge.locate(&guest.memory, &guest.kernel(0));
    assert_eq!(
        linux.function_at(TEXT + SLIDE + offsets::PAGE_FAULT + 3),
        Some(("asm_exc_page_fault", 3))
    );
    assert_eq!(linux.function_at(0x40_1000), None);
    assert_eq!(linux.release(), "6.99.0-test");
}

#[test]
fn a_kernel_without_btf_says_so() {
    let file = Kernel { btf: false, ..OLD }.file();
    assert_eq!(
        GuestKnowledge::from_kernel_image(&file)
            .unwrap_err()
            .to_string(),
        "Kernel 6.99.0-test carries no BTF: it needs CONFIG_DEBUG_INFO_BTF=y"
    );
}

proptest! {
    #[test]
    fn a_damaged_file_gives_an_error_or_knowledge(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..16),
        cut in any::<prop::sample::Index>(),
        cuts in any::<bool>(),
    ) {
        let mut file = HOT.file();
        for (index, value) in flips {
            // Half of the damage goes to the headers.
            let length = if value % 2 == 0 { 120 } else { file.len() };
            let index = index.index(length);
            file[index] = value;
        }
        if cuts {
            file.truncate(cut.index(file.len()));
        }
        let _either = GuestKnowledge::from_kernel_image(&file);
    }

    #[test]
    fn a_hostile_guest_is_bounded(
        seeds in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>(), any::<bool>()), 0..200),
        rip in any::<u64>(),
        cr3 in any::<u64>(),
        gs_base in any::<u64>(),
        choice in any::<u8>(),
        cpl in 0_u8..4,
    ) {
        let guest = Guest::new(if choice & 1 == 0 { HOT } else { NEW });
        if choice & 2 != 0 {
            guest.identify(0, &guest.kernel(0));
        }
        for (index, value, pointer) in seeds {
            // Plausible pointers do more harm than random numbers.
            let value = if pointer { DIRECT_MAP + value % MEMORY as u64 } else { value };
            let at = index.index(MEMORY / 8) as u64 * 8;
            guest.memory.write_obj(value, GuestAddress(at)).unwrap();
            for hot in [AREAS[0] + per_cpu::CURRENT, TASKS + 0x1000 + at % 0x900, IMAGE + at % 0x6000] {
                if value % 7 == hot % 7 {
                    guest.memory.write_obj(value, GuestAddress(hot & !7)).unwrap();
                }
            }
        }
        let mut registers = guest.kernel(0);
        registers.cpl = cpl;
        if choice & 4 != 0 { registers.rip = rip; }
        if choice & 8 != 0 { registers.cr3 = cr3; }
        if choice & 16 != 0 { registers.gs_base = gs_base; }
        if choice & 32 != 0 { registers.idt_base = gs_base; }
        let mut introspector = guest.introspector(u16::from(choice));
        for _ in 0..10 {
            let identity = introspector.identify(&guest.memory, &registers, false, true);
            for id in [identity.pid, identity.tid, identity.process_group] {
                prop_assert!((-1..4 << 20).contains(&id));
            }
        }
        guest.knowledge.has_panicked(&guest.memory);
    }
}
