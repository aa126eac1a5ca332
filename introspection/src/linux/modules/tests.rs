use std::sync::atomic::AtomicBool;

use kvmprof_recording::{StackEnd, StackParts};
use proptest::prelude::*;
use vm_memory::{Bytes, GuestAddress};

use super::*;
use crate::test_guest::LinuxGuest;
use crate::{Stack, VcpuIntrospector};
use kvmprof_introspection_fixtures::kernel::{HOT, Kernel, NEW, OLD, TEXT, module, offsets};
use kvmprof_introspection_fixtures::linux_guest::{DIRECT_MAP, IMAGE, MODULES, SLIDE};
use kvmprof_introspection_fixtures::modules::{
    CODE, HEAD, INIT, KALLSYMS, START, STRIDE, STRUCTURE, TestModule,
};

/// The physical address of the stack of a vCPU in a module.
const STACK: u64 = 0x50_0000;

pub(super) fn located(kernel: Kernel) -> LinuxGuest {
    let guest = LinuxGuest::new(kernel);
    guest.linux().locate(&guest.memory, &guest.user());
    guest
}

pub(super) fn modules(guest: &LinuxGuest) -> &Modules {
    guest.linux().modules()
}

/// Replaces the guest's modules by those with these names and numbers of functions.
pub(super) fn load(guest: &LinuxGuest, modules: &[(&str, u64)]) {
    let modules = modules.iter();
    let modules = modules.map(|(name, functions)| TestModule::new(name, *functions));
    guest.load(&modules.collect::<Vec<_>>());
}

/// The same, and reads them.
fn read(guest: &LinuxGuest, modules: &[(&str, u64)]) {
    load(guest, modules);
    guest.read_modules();
}

/// The names of all functions, sorted by address.
pub(super) fn names(guest: &LinuxGuest) -> Vec<String> {
    let functions = modules(guest).loaded().functions();
    let mut addresses = Vec::new();
    let names = functions
        .lines()
        .filter(|line| !line.contains(" ? [end]\t["))
        .map(|line| {
            addresses.push(u64::from_str_radix(&line[..16], 16).unwrap());
            assert_eq!(&line[16..19], " t ");
            line[19..].to_owned()
        })
        .collect();
    assert!(addresses.is_sorted() && addresses.iter().all(|address| *address >= START));
    names
}

#[test]
fn functions_end_at_their_size_or_the_end_of_the_code() {
    let guest = located(HOT);
    let mut module = TestModule::new("sized", 3);
    module.sizes = vec![0x10, 0];
    module.functions[2].1 = "gr\u{f6}\u{df}e".to_owned();
    let offsets: Vec<u64> = module.functions.iter().map(|(offset, _)| *offset).collect();
    guest.load(&[module]);
    guest.read_modules();
    let at = |offset: u64| format!("{:016x}", START + offset);
    let expected = [
        format!("{} t sized_0\t[sized]\n", at(offsets[0])),
        format!("{} ? [end]\t[sized]\n", at(offsets[0] + 0x10)),
        format!("{} t sized_1\t[sized]\n", at(offsets[1])),
        // Its name is unreadable.
        format!("{} ? [end]\t[sized]\n", at(offsets[2])),
        format!("{} ? [end]\t[sized]\n", at(CODE)),
    ];
    assert_eq!(modules(&guest).loaded().functions(), expected.concat());
}

#[test]
fn the_log_has_loads_and_unloads_of_modules() {
    static NOW: AtomicU64 = AtomicU64::new(100);
    let guest = located(HOT);
    let known = modules(&guest);
    known.clock.set(|| NOW.load(Ordering::Relaxed)).unwrap();
    let check = |time| {
        NOW.store(time, Ordering::Relaxed);
        let placement = guest.linux().placement.get().unwrap();
        known.check(&guest.memory, placement, &known.loaded())
    };
    let read_at = |time| {
        NOW.store(time, Ordering::Relaxed);
        guest.read_modules();
    };
    let mut first = TestModule::new("first", 1);
    first.initialises = true;
    first.functions.push((INIT, "init_module".to_owned()));
    guest.load(std::slice::from_ref(&first));
    assert!(!check(150));
    read_at(200);
    assert!(check(300));
    let log = known.functions_after(0).unwrap();
    assert!(log.text.starts_with("since 200 0\n"), "{}", log.text);
    // It is initialised: its functions are the same, but for those of the initialisation.
    first.initialises = false;
    guest.load(std::slice::from_ref(&first));
    assert!(!check(350));
    read_at(400);
    let initialised = known.functions_after(log.known).unwrap();
    let (begin, end) = (START + INIT, START + INIT + CODE);
    let gone = format!("since 400 300\ngone {begin:016x} {end:016x}\n");
    assert!(initialised.text.starts_with(&gone), "{}", initialised.text);
    // Another one is loaded at its address, and neither load was noticed.
    assert!(check(500));
    load(&guest, &[("second", 1)]);
    read_at(600);
    let mut text = String::new();
    let mut position = initialised.known;
    while let Some(new) = known.functions_after(position) {
        text += &new.text;
        position = new.known;
    }
    let (end, line) = (START + CODE, format!("{START:016x} t second_0"));
    let gone = format!("since 600 500\ngone {START:016x} {end:016x}\nsince 600 500\n{line}");
    assert!(text.starts_with(&gone), "{text}");
    // Clients get the list without times.
    assert!(known.loaded().functions().starts_with(&line));
}

#[test]
fn modules_are_found_in_every_generation() {
    for (kernel, levels) in [(OLD, 4), (HOT, 4), (NEW, 4), (HOT, 5)] {
        let guest = LinuxGuest::with_levels(kernel, levels);
        let mut registers = guest.user();
        registers.cr4 = if levels == 5 { CR4_LA57 } else { 0 };
        guest.linux().locate(&guest.memory, &registers);
        let mut second = TestModule::new("second", 2);
        second.initialises = true;
        let more = [(INIT + 8, "init_module"), (INIT + 0x3000, "is_no_code")];
        let more = more.map(|(offset, name)| (offset, name.to_owned()));
        second.functions.extend(more);
        guest.load(&[TestModule::new("first", 2), second]);
        assert_eq!(names(&guest), [""; 0]);
        guest.read_modules();
        let expected = [
            "first_0\t[first]",
            "first_1\t[first]",
            "second_0\t[second]",
            "second_1\t[second]",
            "init_module\t[second]",
        ];
        assert_eq!(names(&guest), expected, "{kernel:?}");
        // Each range of code has an end, because a module may lie between two ranges of another one.
        let text = modules(&guest).functions_after(0).unwrap().text;
        let stretches: Vec<usize> = text
            .split_terminator("\n\n")
            .map(|stretch| stretch.trim().lines().count())
            .collect();
        assert_eq!(stretches, [3, 3, 2], "{text}");
    }
}

#[test]
fn unchanged_modules_are_not_read_again() {
    let guest = located(HOT);
    read(&guest, &[("first", 3)]);
    let before = modules(&guest).loaded();
    let log = modules(&guest).functions_after(0).unwrap();
    assert_eq!(log.text.trim().lines().count(), 4);
    assert_eq!(modules(&guest).functions_after(log.known), None);
    guest.read_modules();
    assert!(Arc::ptr_eq(&before, &modules(&guest).loaded()));
    read(&guest, &[("first", 3), ("second", 2)]);
    let after = modules(&guest).loaded();
    assert_eq!((after.len(), after.not_in(&before).len()), (2, 1));
    let new = modules(&guest).functions_after(log.known).unwrap();
    assert!(new.text.contains("second_1\t[second]\n") && !new.text.contains("first"));
    // A module that was unloaded stays in the log for late readers.
    read(&guest, &[]);
    assert_eq!(names(&guest), [""; 0]);
    let all = modules(&guest).functions_after(0).unwrap();
    assert_eq!(all.text, log.text + &new.text);
    assert_eq!(all.known, new.known);
    // A module at the same address isn't mixed with it.
    read(&guest, &[("other", 1)]);
    assert_eq!(modules(&guest).functions_after(0), Some(all));
    let other = modules(&guest).functions_after(new.known).unwrap();
    assert!(other.text.contains("other_0\t[other]\n"));
}

#[test]
fn another_module_at_the_same_address_is_another_one() {
    let guest = located(OLD);
    read(&guest, &[("first", 2)]);
    read(&guest, &[("other", 2)]);
    assert_eq!(names(&guest), ["other_0\t[other]", "other_1\t[other]"]);
    // A module with the same name is also a new load.
    let known = modules(&guest).functions_after(0).unwrap().known;
    load(&guest, &[("other", 2)]);
    guest.write(MODULES + STRUCTURE + module::BUILD_ID, &[8; 20]);
    guest.read_modules();
    assert!(modules(&guest).functions_after(known).is_some());
}

#[test]
fn an_incomplete_module_is_read_later() {
    let guest = located(HOT);
    let mut announced = TestModule::new("announced", 2);
    announced.state = 3;
    guest.load(&[TestModule::new("first", 1), announced]);
    guest.read_modules();
    assert_eq!(names(&guest), ["first_0\t[first]"]);
    assert!(!modules(&guest).loaded().is_complete());
    // The list itself doesn't change when the module becomes live.
    guest.write(MODULES + STRIDE + STRUCTURE + module::STATE, &[1]);
    guest.read_modules();
    assert_eq!(modules(&guest).loaded().len(), 2);
    assert!(modules(&guest).loaded().is_complete());
}

/// A vCPU in the second function of the first module, called by the kernel.
fn in_module(guest: &LinuxGuest) -> Registers {
    let text = TEXT + SLIDE;
    let framed = text + offsets::FRAMED + 1;
    let end = text + offsets::STACK_END + 1;
    guest.words(STACK, &[1, 2, framed, 3, 4, end]);
    Registers {
        rip: START + 0x1000,
        rsp: DIRECT_MAP + STACK,
        ..guest.kernel(0)
    }
}

pub(super) fn unwind(
    introspector: &mut VcpuIntrospector,
    guest: &LinuxGuest,
    registers: &Registers,
) -> (usize, StackEnd) {
    let parts = StackParts {
        kernel: true,
        user: false,
    };
    let mut stack = Stack::default();
    introspector.unwind(&guest.memory, registers, parts, None, &mut stack);
    assert_eq!(stack.frames()[0], registers.rip);
    (stack.frames().len(), stack.summary().kernel_end)
}

#[test]
fn stacks_cross_modules_while_they_are_loaded() {
    for kernel in [OLD, HOT, NEW] {
        let guest = located(kernel);
        load(&guest, &[("first", 2)]);
        let registers = in_module(&guest);
        let mut introspector = guest.introspector(0);
        let mut unwound = || unwind(&mut introspector, &guest, &registers);
        let (broken, whole) = ((1, StackEnd::Broken), (3, StackEnd::Complete));
        assert_eq!(unwound(), broken);
        guest.read_modules();
        assert_eq!(unwound(), whole);
        // The first module is still there when the second is loaded.
        load(&guest, &[("first", 2), ("second", 1)]);
        assert_eq!(unwound(), whole);
        guest.read_modules();
        // The first module was unloaded, and another one may be at its address.
        load(&guest, &[]);
        guest.write(MODULES, &[0; 0x6000]);
        assert_eq!(unwound(), broken);
        load(&guest, &[("other", 2)]);
        assert_eq!(unwound(), broken);
        guest.read_modules();
        assert_eq!(unwound(), whole);
    }
}

/// A guest that replaces its modules repeatedly can't fill the host's memory with the modules that halted vCPUs know.
#[test]
fn rereading_the_list_waits_until_vcpus_release_former_lists() {
    let guest = located(HOT);
    let registers = in_module(&guest);
    let replace = |name: &str| {
        read(&guest, &[("stays", 1), (name, 1)]);
        names(&guest).last().cloned().unwrap_or_default()
    };
    let limit = |bytes| modules(&guest).retired().limit = bytes;
    let shown = |name: &str| format!("{name}_0\t[{name}]");
    assert_eq!(replace("first"), shown("first"));
    let mut halted = guest.introspector(0);
    unwind(&mut halted, &guest, &registers);
    limit(0);
    // From now on, the vCPU keeps the first module.
    assert_eq!(replace("second"), shown("second"));
    assert_eq!(replace("third"), shown("second"));
    // With a higher limit, further lists are read.
    limit(1 << 20);
    assert_eq!(replace("third"), shown("third"));
    limit(0);
    assert_eq!(replace("fourth"), shown("third"));
    // At its next request, the vCPU takes the newest list.
    halted.follow_modules();
    assert_eq!(replace("fourth"), shown("fourth"));
    // Modules in both lists don't count for the former list.
    halted.follow_modules();
    read(&guest, &[("stays", 1), ("fourth", 1), ("fifth", 1)]);
    assert_eq!(replace("sixth"), shown("sixth"));
}

/// Reports, lists of symbols and messages show these names.
#[test]
fn names_with_characters_that_act_or_separate_are_left_out() {
    let guest = located(HOT);
    for character in [
        "\u{1b}[31m",
        "\n",
        "\t",
        " ",
        "\u{7f}",
        "\u{202e}",
        "\u{9b}",
    ] {
        let hostile = format!("a{character}b");
        let mut sound = TestModule::new("sound", 1);
        sound.functions.push((8, hostile.clone()));
        guest.load(&[TestModule::new(&hostile, 2), sound]);
        guest.read_modules();
        assert_eq!(names(&guest), ["sound_0\t[sound]"], "{hostile:?}");
    }
}

#[test]
fn a_sample_in_a_module_triggers_a_read_of_the_list() {
    let guest = located(HOT);
    load(&guest, &[("first", 2)]);
    let registers = in_module(&guest);
    let linux = guest.linux();
    let stopping = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| modules(&guest).serve(linux, &guest.memory, &stopping, || 1000));
        let mut introspector = guest.introspector(0);
        // Code of the kernel itself doesn't cause a read of the list.
        for registers in [guest.kernel(0), guest.user()] {
            introspector.identify(&guest.memory, &registers, false, false);
        }
        assert!(!modules(&guest).watch.is_requested());
        while modules(&guest).loaded().len() == 0 {
            introspector.identify(&guest.memory, &registers, false, false);
            std::thread::yield_now();
        }
        // A reader of symbols waits until they are current.
        load(&guest, &[("first", 2), ("second", 1)]);
        let number = modules(&guest).refresh().unwrap();
        while !modules(&guest).is_refreshed(number) {
            std::thread::yield_now();
        }
        assert_eq!(names(&guest).len(), 3);
        stopping.store(true, Ordering::SeqCst);
        modules(&guest).wake();
    });
}

/// Another thread's work for the next kernel begins then.
#[test]
fn the_list_of_a_kernel_that_has_ended_is_read_no_more() {
    for modules in [true, false] {
        let guest = located(Kernel { modules, ..HOT });
        let linux = guest.linux();
        let stopping = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let served = scope.spawn(|| {
                linux
                    .modules()
                    .serve(linux, &guest.memory, &stopping, || 1000);
            });
            while linux.modules().refresh().is_none() {
                std::thread::yield_now();
            }
            linux.modules().end();
            served.join().unwrap();
        });
    }
}

#[test]
fn a_kernel_without_module_symbols_has_no_modules() {
    let guest = located(Kernel {
        modules: false,
        ..HOT
    });
    read(&guest, &[("first", 2)]);
    assert!(!modules(&guest).can_be_found());
    assert_eq!(names(&guest), [""; 0]);
    let registers = in_module(&guest);
    assert_eq!(guest.identify(0, &registers).pid, 41);
    let mut introspector = guest.introspector(0);
    let broken = (1, StackEnd::Broken);
    assert_eq!(unwind(&mut introspector, &guest, &registers), broken);
}

#[test]
fn circular_and_invalid_lists_end() {
    let guest = located(HOT);
    let structure = MODULES + STRUCTURE;
    let own_link = START + STRUCTURE + module::LIST;
    // A list that points to itself, an invalid pointer, and no list at all.
    for next in [own_link, 0x1234, HEAD + 1] {
        load(&guest, &[("first", 2)]);
        guest.words(structure + module::LIST, &[next]);
        guest.read_modules();
        assert!(!names(&guest).is_empty(), "{next:#x}");
    }
    // An invalid name, and code outside the range of modules.
    let text = structure + module::TEXT;
    for (place, bytes) in [
        (structure + module::NAME, b"a\n0".as_slice()),
        (structure + module::NAME, &[0]),
        (text, &[0; 8]),
        (text + module::MEMORY_SIZE, &[0xff; 4]),
        (text + module::MEMORY_SIZE, &[0; 4]),
    ] {
        load(&guest, &[("first", 2)]);
        guest.write(place, bytes);
        guest.read_modules();
        assert_eq!(names(&guest), [""; 0]);
    }
    // Too large a number of symbols, and invalid names.
    let name = (START + STRIDE - 1).to_le_bytes();
    for (offset, bytes) in [(8, &[0xff; 4][..]), (16, &name)] {
        load(&guest, &[("first", 2)]);
        guest.write(MODULES + KALLSYMS + offset, bytes);
        guest.read_modules();
        assert_eq!(modules(&guest).loaded().len(), 1);
        assert_eq!(names(&guest), [""; 0]);
    }
}

proptest! {
    #[test]
    fn hostile_modules_are_bounded(
        scribbles in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>(), 0_u8..4), 0..60),
        choice in any::<u8>(),
    ) {
        let guest = located(if choice & 1 == 0 { HOT } else { OLD });
        guest.load(&[TestModule::new("first", 8), TestModule::new("second", 8)]);
        if choice & 2 != 0 {
            guest.read_modules();
        }
        for (index, value, kind) in scribbles {
            let base = MODULES + u64::from(choice >> 2 & 1) * STRIDE;
            // Most damage goes to the data that pointers lead to.
            let (start, length) = match kind {
                0 => (IMAGE + offsets::MODULES, 0x20),
                1 => (base + STRUCTURE, 0x280),
                2 => (base + KALLSYMS, 0x20),
                _ => (base, STRIDE),
            };
            let value = match value % 3 {
                0 => START + value % (3 * STRIDE),
                1 => value % 0x1_0000,
                _ => value,
            };
            let place = start + index.index(usize::try_from(length / 4).unwrap()) as u64 * 4;
            guest.memory.write_obj(value, GuestAddress(place)).unwrap();
        }
        guest.read_modules();
        let loaded = modules(&guest).loaded();
        let functions = loaded.functions();
        prop_assert!(functions.lines().all(|line| line.is_ascii() && line.ends_with(']')));
        prop_assert!(functions.len() <= loaded.len() * 8 * 0x2_0000);
        unwind(&mut guest.introspector(0), &guest, &in_module(&guest));
    }
}
