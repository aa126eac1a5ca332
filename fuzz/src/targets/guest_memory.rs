//! A Linux guest's memory: page tables, tasks, mappings, files, the page cache, modules and stacks. The input is changes of a
//! small running kernel's memory, and registers.

use std::sync::Arc;

use kvmprof_introspection::{
    Backing, GuestKnowledge, Registers, Stack, TaskReader, VMCOREINFO_BYTES, VcpuIntrospector,
    VmcoreinfoSearch,
};
use kvmprof_introspection_fixtures::kernel::{Areas, HOT, OLD};
use kvmprof_introspection_fixtures::linux_guest::{
    AREAS, DIRECT_MAP, IDT_PAGE, IMAGE, LinuxGuest, MEMORY, MODULES, TABLES, TASKS,
};
use kvmprof_introspection_fixtures::modules::TestModule;
use kvmprof_introspection_fixtures::processes::{AreaPlan, FixtureMemory, PAGE};
use kvmprof_recording::StackParts;
use kvmprof_recording::file::MAX_TASKS;

use crate::input::Input;

/// Where structures are that [`FixtureMemory`] builds.
const ROOM: u64 = 0x43_0000;
/// Where inputs write, and how many bytes from there on: the kernel's structures, and at last anywhere.
const REGIONS: [(u64, u64); 9] = [
    (ROOM, 0x4000),
    (ROOM, 0x400),
    (TASKS, 0x3000),
    (TABLES, 0x2_0000),
    (IMAGE, 0x2_0000),
    (MODULES, 0x4_0000),
    (AREAS[0], 0x1000),
    (IDT_PAGE, 0x1000),
    (0, MEMORY as u64 - 8),
];
/// Changes of one input.
const MAX_CHANGES: usize = 200;
const SECOND: u64 = 1_000_000_000;

/// Looks at the guest as a tick does, and as everybody else does.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let choice = input.u8();
    let (kernel, areas) = if choice & 1 == 0 {
        (HOT, Areas::Tree)
    } else {
        (OLD, Areas::List)
    };
    let guest = LinuxGuest::new(kernel);
    let knowledge = Arc::new(GuestKnowledge::from_kernel_image(&kernel.file()).unwrap());
    let mut vcpu = VcpuIntrospector::new(Arc::clone(&knowledge), 0);
    vcpu.identify(&guest.memory, &guest.user(), false, true);
    if choice & 2 != 0 {
        guest.load(&[TestModule::new("first", 3), TestModule::new("second", 2)]);
    }
    build(&guest, areas);
    let mut registers = if choice & 4 == 0 {
        guest.user()
    } else {
        guest.kernel(0)
    };
    change(&guest, &mut registers, input);
    look(&guest, &knowledge, &registers);
    if choice & 8 != 0 {
        let _no_kernel = GuestKnowledge::from_memory(&guest.memory, &registers);
    }
}

/// A process with a program, whose pages are in the page cache.
fn build(guest: &LinuxGuest, areas: Areas) {
    let mut room = FixtureMemory::new(guest, areas);
    let root = room.dentry(0, "/");
    let program = room.dentry(root, "program");
    let mount = room.mount(root, 0, 0);
    let first = room.pages(&[1, 2]);
    let head = room.node(0, &[(0, first), (1, first + 64)]);
    let inode = room.inode(77, 2 * PAGE - 100, head);
    let file = room.file(mount, program, inode);
    let plans: Vec<AreaPlan> = (1..12)
        .map(|index| AreaPlan {
            begin: index * 0x10_0000,
            end: index * 0x10_0000 + 4 * PAGE,
            executable: index % 2 == 1,
            offset: 0,
            file: if index < 4 { file } else { 0 },
        })
        .collect();
    room.process(1, &plans);
    // Tasks 1 to 4, none of which is on a CPU.
    guest.list_processes(&[3, 1]);
}

fn change(guest: &LinuxGuest, registers: &mut Registers, mut input: Input<'_>) {
    for _ in 0..MAX_CHANGES {
        if input.is_empty() {
            return;
        }
        let kind = input.u8();
        let offset = input.u32();
        let number = input.u64();
        // Numbers that lead to the structures, to their tagged nodes, small ones, and any.
        let value = match kind >> 6 {
            0 => number,
            1 => number % 64,
            2 => DIRECT_MAP + ROOM + number % 0x2_0000,
            _ => (DIRECT_MAP + ROOM + number % 0x2_0000) & !0xff | number & 0xff,
        };
        if kind & 0x3f == 0x3f {
            let all = [
                &mut registers.rip,
                &mut registers.rsp,
                &mut registers.rbp,
                &mut registers.cr3,
                &mut registers.gs_base,
                &mut registers.idt_base,
                &mut registers.cr4,
            ];
            let count = all.len();
            let which = offset as usize % count;
            *all.into_iter().nth(which).unwrap() = value;
            continue;
        }
        let (begin, length) = REGIONS[usize::from(kind & 0x3f) % REGIONS.len()];
        let place = (begin + u64::from(offset) % length) & !7;
        guest.write(place, &value.to_le_bytes());
    }
}

fn look(guest: &LinuxGuest, knowledge: &Arc<GuestKnowledge>, registers: &Registers) {
    let (memory, linux) = (&guest.memory, knowledge.linux().unwrap());
    let mut vcpu = VcpuIntrospector::new(Arc::clone(knowledge), 0);
    let parts = StackParts {
        kernel: true,
        user: true,
    };
    linux.modules().read(linux, memory);
    let mut tasks = TaskReader::default();
    for time in [0, SECOND, 2 * SECOND] {
        let identity = vcpu.identify(memory, registers, false, true);
        vcpu.unwind(memory, registers, parts, None, &mut Stack::default());
        vcpu.places(memory, registers);
        vcpu.can_write(memory, registers, 0x10_0000);
        if let Some(processes) = vcpu.processes(memory, registers) {
            processes.origin();
            processes.parent();
            processes.find(identity.pid);
            if let Some(instance) = vcpu.instance(memory, registers, identity.pid) {
                processes.fate(&instance);
                processes.lives(&instance);
            }
        }
        vcpu.look_at_tasks(memory, registers, &mut tasks);
        for task in &tasks.look().tasks {
            tasks.look().frames_of(task.stack);
        }
        assert!(tasks.look().tasks.len() <= MAX_TASKS);
        let Some(map) = vcpu.follow_process(memory, registers, time) else {
            continue;
        };
        assert!(map.areas.is_sorted_by_key(|area| area.begin));
        for area in &map.areas {
            if let Backing::File(file) = &area.backing {
                linux.file_contents(memory, &file.identity, 1 << 16);
            }
        }
    }
    linux.has_panicked(memory);
    linux.hears_power_button(memory);
    linux.list_processes(memory);
    linux.describe_processes(memory);
    knowledge.kallsyms();
    // What a dump looks for: a page with the address of the kernel's names.
    let names = registers.rsp;
    let mut page = format!("OSRELEASE=6.1\nSYMBOL(init_uts_ns)={names:x}\n").into_bytes();
    page.resize(VMCOREINFO_BYTES, 0);
    VmcoreinfoSearch::default().look(&page, memory, &[*registers]);
}

/// Each kind of guest as it is, and some changes.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let change = |kind: u8, offset: u32, number: u64| {
        [&[kind][..], &offset.to_le_bytes(), &number.to_le_bytes()].concat()
    };
    let tree = [
        vec![0],
        change(0x80, 0x48, 0x400),
        change(0xc0, 0x50, 0x11e),
    ];
    let modules = [
        vec![6],
        change(5, 0x5008, u64::MAX),
        change(0x45, 0x5808, 3),
    ];
    // The list of processes, a list of threads, and a stack pointer.
    let tasks = [
        vec![0],
        change(2, 0x1098, 0),
        change(2, 0x10e0, DIRECT_MAP + TASKS + 0x10e0),
        change(2, 0x10d8, DIRECT_MAP + ROOM),
    ];
    let registers = [vec![4], change(0x3f, 1, 0xffff_9123_4020_0000)];
    vec![
        ("tree", vec![0]),
        ("list", vec![1]),
        ("kernel-mode", vec![14]),
        ("tree-changed", tree.concat()),
        ("modules-changed", modules.concat()),
        ("tasks-changed", tasks.concat()),
        ("registers-changed", registers.concat()),
    ]
}
