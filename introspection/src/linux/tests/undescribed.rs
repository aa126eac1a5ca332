//! Kernels without BTF or symbols.

use super::*;
use crate::image::{KernelImage, Segment};
use crate::linux::release_of_file;
use crate::linux::task_layout::PidCheck;
use kvmprof_introspection_fixtures::kallsyms::{Layout, kallsyms};
use kvmprof_introspection_fixtures::kernel::task;
use kvmprof_introspection_fixtures::library::{Function, Library};

/// The known parts are used: function names, and the distinction of user mode and kernel mode.
#[test]
fn a_kernel_without_btf_has_names_and_modes_and_names_missing_facts() {
    let guest = LinuxGuest::new(Kernel { btf: false, ..OLD });
    let (user, kernel) = (
        guest.identify(0, &guest.user()),
        guest.identify(0, &guest.kernel(0)),
    );
    assert_eq!((user.mode, user.pid, user.tid), (Mode::User, -1, -1));
    assert_eq!(
        (kernel.mode, kernel.pid, kernel.tid),
        (Mode::Kernel, -1, -1)
    );
    let linux = guest.linux();
    let fault = TEXT + SLIDE + offsets::PAGE_FAULT;
    assert_eq!(linux.function_at(fault), Some(("asm_exc_page_fault", 0)));
    let said = "No process ids: task_struct.tgid isn't known \
        (the kernel has no BTF, and the kernel's code doesn't tell it)";
    assert!(
        linux.gaps().iter().any(|gap| gap == said),
        "{:#?}",
        linux.gaps()
    );
}

/// Without symbols the place of the exception handlers in the image is unknown, but they are somewhere in
/// it.
#[test]
fn a_kernel_without_symbols_is_located_by_any_vcpu() {
    let guest = LinuxGuest::new(OLD);
    let mut file = OLD.file();
    let begin = 4096 + usize::try_from(offsets::SYMBOLS).unwrap();
    let end = 4096 + usize::try_from(offsets::PAGE_TABLES).unwrap();
    file[begin..end].fill(0);
    for registers in [guest.user(), guest.kernel(0)] {
        let linux = LinuxKnowledge::from_image(&file).unwrap();
        assert!(linux.symbols().is_empty());
        let placement = linux.locate(&guest.memory, &registers).unwrap();
        assert_eq!(placement.slide, SLIDE);
    }
}

/// A library has the kernel as it is in memory, without sections.
#[test]
fn a_kernel_in_a_library_gives_the_facts_of_its_file() {
    let contents = HOT.image();
    let library = Library {
        function: Function::Plain,
        load: 0x100_0000,
        entry: 0x100_0000,
        length: u32::try_from(contents.len()).unwrap(),
        contents: &contents,
    };
    let library = library.file();
    let own = LinuxKnowledge::from_image(&library).unwrap();
    let of_file = LinuxKnowledge::from_image(&HOT.file()).unwrap();
    assert_eq!(release_of_file(&library).as_deref(), Some(own.release()));
    assert_eq!(own.release(), of_file.release());
    assert_eq!(own.image(), of_file.image());
    assert!(own.symbols().functions().eq(of_file.symbols().functions()));
    assert_eq!(own.gaps(), of_file.gaps());
    let guest = LinuxGuest::new(HOT);
    let placement = own.locate(&guest.memory, &guest.kernel(0)).unwrap();
    assert_eq!(placement.slide, SLIDE);
}

/// Offsets from code are used only while a task's two ids agree.
#[test]
fn conflicting_ids_are_rejected() {
    let guest = LinuxGuest::new(OLD);
    let mut linux = LinuxKnowledge::from_image(&OLD.file()).unwrap();
    linux.tasks.check = Some(PidCheck {
        own_pid: task::OWN_PID,
        number: task::NUMBER,
    });
    let own = 0x50_0000;
    let pid_with = |pointer: u64, number: i32| {
        guest.write(TASKS + 0x1000 + task::OWN_PID, &pointer.to_le_bytes());
        guest.write(own + task::NUMBER, &number.to_le_bytes());
        let mut cpu = Cpu::new(0);
        let registers = guest.kernel(0);
        let identity = cpu.identify(&linux, &guest.memory, &registers, false, false);
        (identity.pid, identity.tid)
    };
    assert_eq!(pid_with(DIRECT_MAP + own, 141), (41, 141));
    assert_eq!(pid_with(DIRECT_MAP + own, 142), (-1, -1));
    assert_eq!(pid_with(0x1234, 141), (-1, -1));
    // A task that ends.
    assert_eq!(pid_with(0, 0), (41, 141));
}

#[test]
fn a_self_describing_kernel_lacks_nothing() {
    let guest = LinuxGuest::new(HOT);
    let gaps = guest.linux().gaps();
    assert!(gaps.is_empty(), "{gaps:#?}");
}

/// Some symbols have the address of the image's start, as in 7.2. Without variables, a table is confirmed by the code that
/// SYSCALL enters.
#[test]
fn functions_have_their_addresses_without_names_of_variables() {
    const ENTRY: usize = 0x80;
    const TABLE: usize = 0x1_0000;
    let at = |offset: usize| TEXT + offset as u64;
    let names: Vec<String> = (0..1000)
        .map(|number| format!("function_{number}"))
        .collect();
    let first = ["srso_alias_untrain_ret", "_stext", "_text", "__pi__text"];
    let first = first.map(|name| (TEXT, 'T', name)).into_iter();
    let others = names.iter().enumerate();
    let others = others.map(|(number, name)| (at(0x100 + number * 16), 't', name.as_str()));
    let entry = [(at(ENTRY), 'T', "entry_SYSCALL_64")];
    let all: Vec<_> = first.chain(entry).chain(others).collect();
    for layout in Layout::ALL {
        let mut bytes = vec![0xcc; TABLE];
        bytes[ENTRY..ENTRY + 3].copy_from_slice(b"\x0f\x01\xf8");
        bytes.extend(kallsyms(layout, &all, at(TABLE)));
        let image = KernelImage::from_memory(vec![Segment {
            address: TEXT,
            data: &bytes,
            memory_length: bytes.len() as u64,
        }]);
        let symbols = kernel_symbols(&image);
        for (address, _, name) in &all {
            assert_eq!(
                symbols.address_of(name),
                Some(*address),
                "{layout:?}: {name}"
            );
        }
    }
}
