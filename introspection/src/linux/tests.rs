use kvmprof_recording::{Mode, Preemption};
use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::Identity;
use crate::test_guest::LinuxGuest;
use kvmprof_introspection_fixtures::kallsyms::Layout;
use kvmprof_introspection_fixtures::kernel::{HOT, Kernel, NEW, OLD, TEXT, offsets, per_cpu};
use kvmprof_introspection_fixtures::linux_guest::{
    AREAS, DIRECT_MAP, IDT_PAGE, IMAGE, MEMORY, SLIDE, TASKS, USER_TABLES,
};
use kvmprof_introspection_fixtures::page_tables::{Tables, long_mode};
use kvmprof_paging::PTI_USER;

mod undescribed;

fn expected(mode: Mode, tgid: i32) -> Identity {
    let mut identity = Identity::unknown(mode);
    identity.preemption = Preemption::On;
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
            // Each layout of per-CPU symbols occurs with some layouts of kallsyms.
            let kernel = Kernel { layout, ..kernel };
            let guest = LinuxGuest::new(kernel);
            for (cpu, pid) in [(0, 41), (1, 42)] {
                let found = guest.identify(cpu, &guest.user());
                assert_eq!(found, expected(Mode::User, pid), "{kernel:?}");
                let found = guest.identify(cpu, &guest.kernel(cpu.into()));
                assert_eq!(found, expected(Mode::Kernel, pid), "{kernel:?}");
            }
            assert_eq!(guest.linux().slide(), Some(SLIDE));
        }
    }
}

#[test]
fn five_levels_of_page_tables() {
    let guest = LinuxGuest::with_levels(HOT, 5);
    for mut registers in [guest.user(), guest.kernel(0)] {
        registers.cr4 = long_mode(0, true).cr4;
        assert_eq!(guest.identify(0, &registers).pid, 41);
    }
}

#[test]
fn a_possible_direct_map_is_learned_and_replaces_page_table_walks() {
    for (added, learned) in [(0, DIRECT_MAP), (0x4000_0000, 0)] {
        let guest = LinuxGuest::new(OLD);
        guest.set(offsets::PAGE_OFFSET_BASE, DIRECT_MAP + added);
        let mut registers = guest.user();
        assert_eq!(guest.identify(0, &registers).pid, 41);
        assert_eq!(guest.linux().direct_map.load(Ordering::Relaxed), learned);
        // Nothing is mapped, and the known addresses are sufficient.
        registers.cr3 = 0x50_0000;
        let found = guest.identify(1, &registers).pid;
        assert_eq!(found, if learned == 0 { -1 } else { 42 });
    }
}

#[test]
fn the_direct_map_is_learned_while_the_first_idle_task_runs() {
    let guest = LinuxGuest::new(OLD);
    let idle = TEXT + SLIDE + offsets::INIT_TASK;
    guest.write(AREAS[0] + per_cpu::CURRENT, &idle.to_le_bytes());
    assert_eq!(guest.identify(0, &guest.kernel(0)).pid, 0);
    let learned = guest.linux().direct_map.load(Ordering::Relaxed);
    assert_eq!(learned, DIRECT_MAP);
}

#[test]
fn the_kernel_is_found_by_its_code_or_its_early_gates() {
    let guest = LinuxGuest::new(OLD);
    guest.write(IDT_PAGE, &[0; 4096]);
    let found = guest.identify(0, &guest.user());
    assert_eq!(found, Identity::unknown(Mode::User));
    assert_eq!(guest.linux().slide(), None);
    assert_eq!(guest.identify(0, &guest.kernel(0)).pid, 41);
    assert_eq!(guest.linux().slide(), Some(SLIDE));
    guest.linux().forget_running();
    guest.gate(0, offsets::EARLY_HANDLERS);
    guest.linux().locate(&guest.memory, &guest.user());
    assert_eq!(guest.linux().slide(), Some(SLIDE));
}

#[test]
fn a_kernel_without_its_banner_is_rejected() {
    let guest = LinuxGuest::new(OLD);
    guest.write(IMAGE + offsets::BANNER, b"Linux version 6.99.0-other");
    for registers in [guest.user(), guest.kernel(0)] {
        assert_eq!(guest.identify(0, &registers).pid, -1);
    }
    assert_eq!(guest.linux().slide(), None);
}

/// Its highest bit is cleared if the scheduler has to run.
#[test]
fn the_preempt_count_tells_mode_and_preemption() {
    let look = |guest: &LinuxGuest, task, count| {
        guest.run(0, task);
        guest.preempt_count(0, count);
        let found = guest.identify(0, &guest.kernel(0));
        (found.mode, found.preemption)
    };
    for kernel in [OLD, HOT, NEW] {
        let guest = LinuxGuest::new(kernel);
        for (task, count, mode, preemption) in [
            (1, 0x8000_0000, Mode::Kernel, Preemption::On),
            (1, 0, Mode::Kernel, Preemption::On),
            (1, 1, Mode::Kernel, Preemption::Off),
            (1, 0x8000_0002, Mode::Kernel, Preemption::Off),
            (1, 0x8000_0200, Mode::Kernel, Preemption::Off),
            (1, 0x100, Mode::Interrupt, Preemption::Off),
            (1, 0x8001_0000, Mode::Interrupt, Preemption::Off),
            (1, 0x0010_0000, Mode::Interrupt, Preemption::Off),
            (0, 0x8000_0000, Mode::Idle, Preemption::On),
            (0, 0x0001_0000, Mode::Interrupt, Preemption::Off),
        ] {
            let found = look(&guest, task, count);
            assert_eq!(found, (mode, preemption), "{kernel:?} {task} {count:#x}");
        }
        guest.set(offsets::SYSTEM_STATE, 0_u32);
        assert_eq!(look(&guest, 0, 0x8000_0000).0, Mode::Kernel);
        guest.preempt_count(0, 1);
        assert_eq!(guest.identify(0, &guest.user()).preemption, Preemption::On);
        let mut halted = guest.introspector(0);
        let halted = halted.identify(&guest.memory, &guest.kernel(0), true, false);
        let found = (halted.mode, halted.pid, halted.process_group);
        assert_eq!(found, (Mode::Idle, 0, -1));
    }
    let counts_disabled = true;
    let moved = LinuxGuest::new(Kernel {
        counts_disabled,
        ..NEW
    });
    for (count, mode) in [
        (0x00ff_0000, Mode::Kernel),
        (0x0101_0000, Mode::Interrupt),
        (0x1000_0000, Mode::Interrupt),
        (0x0000_0100, Mode::Interrupt),
    ] {
        let found = look(&moved, 1, count);
        assert_eq!(found, (mode, Preemption::Unknown), "{count:#x}");
    }
}

#[test]
fn before_the_areas_are_set_up_the_boot_task_runs() {
    for kernel in [OLD, HOT, NEW] {
        let guest = LinuxGuest::new(kernel);
        let boot = kernel.boot_offset(SLIDE);
        for cpu in 0..2 {
            guest.set(offsets::PER_CPU_OFFSET + cpu * 8, boot);
        }
        guest.set(offsets::PER_CPU_LOAD + per_cpu::CURRENT, DIRECT_MAP + TASKS);
        guest.set(offsets::SYSTEM_STATE, 0_u32);
        let mut introspector = guest.introspector(0);
        let mut registers = guest.kernel(0);
        registers.gs_base = boot;
        let identity = introspector.identify(&guest.memory, &registers, false, true);
        assert_eq!(identity, expected(Mode::Kernel, 0), "{kernel:?}");
        // The per-CPU area of the boot isn't stored.
        guest.set(offsets::PER_CPU_OFFSET, guest.base(AREAS[0]));
        let identity = introspector.identify(&guest.memory, &guest.user(), false, true);
        assert_eq!(identity, expected(Mode::User, 41));
    }
}

#[test]
fn an_entry_with_the_users_gs_base_is_handled() {
    let guest = LinuxGuest::new(HOT);
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
    let guest = LinuxGuest::new(OLD);
    let mut introspector = guest.introspector(0);
    let mut pid = |registers: &Registers| {
        let found = introspector.identify(&guest.memory, registers, false, false);
        found.pid
    };
    for _ in 0..20 {
        pid(&guest.kernel(1));
    }
    assert_eq!(pid(&guest.user()), 42);
    // A single other value in between doesn't count.
    for _ in 0..20 {
        assert_eq!([0, 1].map(|cpu| pid(&guest.kernel(cpu))), [42; 2]);
    }
}

#[test]
fn a_cpus_number_is_certain_once_it_ran_the_kernel() {
    let guest = LinuxGuest::new(HOT);
    let places = |introspector: &mut crate::VcpuIntrospector, registers: &Registers| {
        introspector.identify(&guest.memory, registers, false, false);
        introspector.places(&guest.memory, registers).unwrap()
    };
    let mut expected = guest.introspector(1);
    let of_other = places(&mut expected, &guest.kernel(1));
    assert!(expected.places_are_sure());
    let mut introspector = guest.introspector(0);
    // Samples in programs don't show the CPU.
    let own = places(&mut introspector, &guest.user());
    assert!(own != of_other && !introspector.places_are_sure());
    for _ in 1..8 {
        assert_eq!(places(&mut introspector, &guest.kernel(1)), own);
        assert!(!introspector.places_are_sure());
    }
    assert_eq!(places(&mut introspector, &guest.kernel(1)), of_other);
    assert!(introspector.places_are_sure());
    introspector.renumber(0);
    assert_eq!(places(&mut introspector, &guest.kernel(0)), own);
    assert!(introspector.places_are_sure());
}

#[test]
fn the_offset_of_absent_cpus_belongs_to_no_cpu() {
    for kernel in [OLD, HOT, NEW] {
        let guest = LinuxGuest::new(kernel);
        let boot = kernel.boot_offset(SLIDE);
        guest.set(offsets::PER_CPU_OFFSET + 8, boot);
        let mut introspector = guest.introspector(0);
        // Programs have this value in their GS base, and kernel code starts with it.
        let mut entry = guest.kernel(0);
        entry.gs_base = boot;
        for registers in [guest.user()].into_iter().chain([entry; 20]) {
            let identity = introspector.identify(&guest.memory, &registers, false, false);
            assert_eq!(identity.pid, 41, "{kernel:?}");
        }
    }
}

#[test]
fn invalid_values_are_unknown() {
    let guest = LinuxGuest::new(OLD);
    // In user mode, preemption is always on.
    let nobody = Identity {
        preemption: Preemption::On,
        ..Identity::unknown(Mode::User)
    };
    for (tgid, pid) in [(-1, 5), (5, -1), (1 << 22, 5), (5, i32::MAX)] {
        guest.task(1, tgid, pid, 7);
        assert_eq!(guest.identify(0, &guest.user()), nobody);
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
        assert_eq!(guest.identify(0, &guest.user()), nobody);
    }
}

#[test]
fn without_kpti_the_adjacent_page_is_not_used() {
    let guest = LinuxGuest::new(OLD);
    guest.identify(0, &guest.kernel(0));
    // The page next to the tables maps something else than this kernel.
    let mut own = Tables::new(guest.memory.clone(), 0x4_0000 | PTI_USER, 4);
    own.skip_to(0x4_2000);
    own.map(0xffff_c900_0000_1000, IDT_PAGE, 1);
    let mut beside = Tables::new(guest.memory.clone(), 0x4_0000, 4);
    beside.skip_to(0x4_8000);
    beside.map(0xffff_c900_0000_0000, IDT_PAGE, 1);
    let linux = guest.linux();
    let placement = linux.placement.get().unwrap();
    let registers = long_mode(0x4_0000 | PTI_USER, false);
    let view = view::KernelView::new(linux, placement, &guest.memory, &registers);
    assert_eq!(view.translate(0xffff_c900_0000_0000), None);
    let registers = long_mode(USER_TABLES, false);
    let view = view::KernelView::new(linux, placement, &guest.memory, &registers);
    assert_eq!(view.walk(DIRECT_MAP + 0x1234), Some(GuestAddress(0x1234)));
}

#[test]
fn a_located_kernel_tells_a_panic_and_names_functions() {
    let guest = LinuxGuest::new(OLD);
    let linux = guest.linux();
    let fault = TEXT + SLIDE + offsets::PAGE_FAULT + 3;
    let look = || (linux.has_panicked(&guest.memory), linux.function_at(fault));
    assert_eq!(look(), (None, None));
    linux.locate(&guest.memory, &guest.kernel(0));
    let name = Some(("asm_exc_page_fault", 3));
    assert_eq!(look(), (Some(false), name));
    guest.set(offsets::PANIC_CPU, 1_i32);
    assert_eq!(look(), (Some(true), name));
    assert_eq!(linux.function_at(0x40_1000), None);
    assert_eq!(linux.release(), "6.99.0-test");
}

proptest! {
    #[test]
    fn a_hostile_guest_is_bounded(
        seeds in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>(), any::<bool>()), 0..200),
        rip in any::<u64>(),
        cr3 in any::<u64>(),
        gs_base in any::<u64>(),
        choice in any::<u8>(),
        cpl in 0_u8..4,
    ) {
        let guest = LinuxGuest::new(if choice & 1 == 0 { HOT } else { NEW });
        if choice & 2 != 0 {
            guest.identify(0, &guest.kernel(0));
        }
        for (index, value, pointer) in seeds {
            // Plausible pointers are more harmful than random numbers.
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
        guest.linux().has_panicked(&guest.memory);
    }
}

#[test]
fn symbols_are_given_where_the_kernel_runs() {
    for kernel in [OLD, HOT, NEW] {
        let guest = LinuxGuest::new(kernel);
        let knowledge = &guest.knowledge;
        assert!(knowledge.is_unlocated());
        assert_eq!(knowledge.kallsyms(), None, "its address is unknown");
        guest.linux().locate(&guest.memory, &guest.user());
        assert!(!knowledge.is_unlocated());
        let text = knowledge.kallsyms().unwrap();
        let lines: Vec<(u64, &str, &str)> = text
            .lines()
            .map(|line| {
                let mut words = line.split(' ');
                let address = words.next().unwrap();
                assert_eq!(address.len(), 16, "{line}");
                let address = u64::from_str_radix(address, 16).unwrap();
                (address, words.next().unwrap(), words.next().unwrap())
            })
            .collect();
        assert!(lines.is_sorted_by_key(|(address, ..)| *address));
        // Only functions of the image.
        let image = TEXT + SLIDE..TEXT + SLIDE + kernel.image().len() as u64;
        for (address, kind, name) in &lines {
            let is_end = (*kind, *name) == ("?", "[end]");
            let is_in_image = image.contains(address) || is_end && *address == image.end;
            assert!(is_in_image, "{name} at {address:#x}");
            let is_function = ["t", "T", "w", "W"].contains(kind);
            assert!(is_function || is_end, "{name} is {kind}");
        }
        let fault = TEXT + SLIDE + offsets::PAGE_FAULT;
        assert!(
            lines.contains(&(fault, "T", "asm_exc_page_fault")),
            "{text}"
        );
    }
}
