//! The facts that kvmprof reads from a kernel's code, compared with those of the same kernel's BTF, symbols and ORC.
//!
//! `KVMPROF_TEST_KERNELS` names further kernel files, separated by colons, with BTF, all symbols and ORC.

use std::fs;

use kvmprof_introspection::unpack_kernel;
use kvmprof_tests::linux::derived::{compare, compare_unwinding};
use kvmprof_tests::linux::{moved, unpacked};

use super::kernels;

/// Facts that only some kernels have: lists of areas before 6.1 and trees of them since then; the owners of locks, unless
/// these are real-time mutexes.
const NOT_EVERYWHERE: [&str; 8] = [
    "mm_struct.mmap",
    "vm_area_struct.vm_next",
    "mm_struct.mm_mt.ma_root",
    "maple_range_64.pivot",
    "maple_range_64.slot",
    "maple_arange_64.pivot",
    "maple_arange_64.slot",
    "mutex.owner",
];
/// Facts that have other names in some kernels: in 5.10 `state`, and `cpu` in the task itself; since 6.15 `__parent`.
const RENAMED: [&str; 3] = [
    "task_struct.__state",
    "task_struct.thread_info.cpu",
    "kernfs_node.parent",
];
/// Facts that need no symbol.
const WITHOUT_SYMBOLS: [&str; 13] = [
    "current_task",
    "task_struct.pid",
    "task_struct.tgid",
    "task_struct.comm",
    "task_struct.thread.sp",
    "__per_cpu_offset",
    "__preempt_count",
    "task_struct.cred",
    "cred.uid",
    "task_struct.thread_pid",
    "task_struct.signal",
    "signal_struct.pids",
    "pid.numbers",
];

/// The names and the unpacked files of all available kernels.
fn files() -> Vec<(String, Vec<u8>)> {
    let fetched = kernels().into_iter();
    let fetched = fetched.map(|kernel| (kernel.version.clone(), unpacked(&kernel)));
    let named = std::env::var("KVMPROF_TEST_KERNELS").unwrap_or_default();
    let named = named
        .split(':')
        .filter(|path| !path.is_empty())
        .map(|path| {
            let file = fs::read(path).unwrap_or_else(|error| panic!("{path}: {error}"));
            (path.to_owned(), unpack_kernel(&file).unwrap().into_owned())
        });
    fetched.chain(named).collect()
}

#[test]
fn code_agrees_with_btf_and_symbols() {
    for (name, elf) in files() {
        let facts = compare(&elf, true).unwrap();
        for fact in &facts {
            let is_missing = fact.told.is_none() && NOT_EVERYWHERE.contains(&&*fact.name);
            let is_renamed = fact.described.is_none() && RENAMED.contains(&&*fact.name);
            let is_right = fact.told == fact.described && fact.told.is_some();
            assert!(is_right || is_missing || is_renamed, "{name}: {fact:x?}");
        }
        let told = facts.iter().filter(|fact| fact.told.is_some()).count();
        println!("{name}: {told} of {} facts", facts.len());
        assert!(told >= 90, "{name}: {told}");
    }
}

#[test]
fn without_symbols_the_code_gives_the_running_task_and_its_process_group() {
    for (name, elf) in files() {
        for fact in compare(&elf, false).unwrap() {
            let is_right = fact.told == fact.described && fact.told.is_some();
            match WITHOUT_SYMBOLS.contains(&&*fact.name) {
                true => assert!(is_right, "{name}: {fact:x?}"),
                false => assert!(is_right || fact.told.is_none(), "{name}: {fact:x?}"),
            }
        }
    }
}

/// KASLR changes the addresses in the code.
#[test]
fn a_moved_kernel_gives_the_same_facts() {
    for (name, elf) in files() {
        let [file, memory] = moved::facts(&elf, 0x1e00_0000).unwrap();
        println!("{name}: {} facts", file.len());
        assert!(file.len() >= 80, "{name}: {file:x?}");
        assert_eq!(memory, file, "{name}");
    }
}

/// At most one step of 2,000 may be wrong.
#[test]
fn the_code_unwinds_as_orc_does() {
    for (name, elf) in files() {
        let steps = compare_unwinding(&elf, 20_000).unwrap();
        println!("{name}: {steps:x?}");
        let all = steps.right + steps.wrong + steps.unknown + steps.not_comparable;
        assert!(steps.wrong * 2_000 <= all, "{name}: {steps:x?}");
        assert!(steps.right * 100 >= all * 97, "{name}: {steps:x?}");
    }
}
