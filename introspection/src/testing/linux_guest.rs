//! Running Linux guests, built by hand.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vm_memory::{Bytes, GuestAddress};

use super::kernel::{Kernel, TEXT, offsets, per_cpu, task};
use super::page_tables::{Memory, Tables, long_mode};
use crate::memory::PTI_USER;
use crate::{GuestKnowledge, Identity, LinuxKnowledge, Registers, VcpuIntrospector};

/// The kernel's slide, in bytes.
pub const SLIDE: u64 = 0x1240_0000;
/// The start of the direct mapping of all memory.
pub const DIRECT_MAP: u64 = 0xffff_9123_4000_0000;
/// The virtual address of the interrupt descriptor table.
pub const IDT: u64 = 0xffff_fe00_0000_0000;
/// The physical address of the kernel's page tables.
pub const TABLES: u64 = 0x1_0000;
/// The physical address of the user's page tables.
pub const USER_TABLES: u64 = TABLES | PTI_USER;
/// The physical address of the interrupt descriptor table.
pub const IDT_PAGE: u64 = 0x9000;
/// The physical address of the kernel image.
pub const IMAGE: u64 = 0x40_0000;
/// The physical address of the first task. Further tasks follow at distances of 4096 bytes.
pub const TASKS: u64 = 0x20_0000;
/// The physical addresses of the per-CPU areas.
pub const AREAS: [u64; 2] = [0x30_0000, 0x31_0000];
/// The physical address of the modules' data.
pub const MODULES: u64 = 0x60_0000;
/// Bytes of memory.
pub const MEMORY: usize = 0x200_0000;

/// A running kernel with KPTI, two CPUs and three tasks with pids 0, 41 and 42.
#[derive(Debug)]
pub struct LinuxGuest {
    kernel: Kernel,
    levels: u32,
    /// Its memory.
    pub memory: Memory,
    /// Knowledge from its kernel image.
    pub knowledge: Arc<GuestKnowledge>,
}

impl LinuxGuest {
    /// A guest that runs `kernel` with 4 levels of page tables.
    pub fn new(kernel: Kernel) -> Self {
        Self::with_levels(kernel, 4)
    }

    /// A guest that runs `kernel` with `levels` levels of page tables, 4 or 5.
    pub fn with_levels(kernel: Kernel, levels: u32) -> Self {
        let memory = Memory::from_ranges(&[(GuestAddress(0), MEMORY)]).unwrap();
        // The kernel's tables map all memory, the image and the interrupt descriptor table. The user's tables, right
        // after them, map only the descriptor table.
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
            levels,
            memory,
            knowledge: Arc::new(GuestKnowledge::from_kernel_image(&kernel.file()).unwrap()),
        };
        guest.write(IMAGE, &kernel.image_at(SLIDE));
        guest.share_page_tables();
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

    /// Copies the entries of the tasks' page tables to the kernel's own page tables.
    pub(super) fn share_page_tables(&self) {
        let mut table = [0; 4096];
        (self.memory.read_slice(&mut table, GuestAddress(TABLES))).unwrap();
        self.write(IMAGE + offsets::PAGE_TABLES, &table);
    }

    /// The kernel of the guest.
    pub fn kernel_kind(&self) -> Kernel {
        self.kernel
    }

    /// The number of levels of its page tables.
    pub fn levels(&self) -> u32 {
        self.levels
    }

    /// Writes `bytes` to physical address `physical`.
    pub fn write(&self, physical: u64, bytes: &[u8]) {
        self.memory
            .write_slice(bytes, GuestAddress(physical))
            .unwrap();
    }

    /// Sets the image's variable at offset `variable`.
    pub fn set<T: vm_memory::ByteValued>(&self, variable: u64, value: T) {
        self.memory
            .write_obj(value, GuestAddress(IMAGE + variable))
            .unwrap();
    }

    /// Makes the function at offset `handler` in the image the handler of `vector`.
    pub fn gate(&self, vector: u64, handler: u64) {
        let handler = (TEXT + SLIDE + handler).to_le_bytes();
        let [a, b, c, d, e, f, g, h] = handler;
        self.write(
            IDT_PAGE + vector * 16,
            &[a, b, 0x10, 0, 0, 0x8e, c, d, e, f, g, h, 0, 0, 0, 0],
        );
    }

    /// The offset of the per-CPU area at physical address `area`.
    pub fn base(&self, area: u64) -> u64 {
        let start = self.kernel.per_cpu_start();
        let slide = if self.kernel.per_cpu_is_linked() {
            SLIDE
        } else {
            0
        };
        (DIRECT_MAP + area).wrapping_sub(start).wrapping_sub(slide)
    }

    /// Writes task `index`, 0 to 255, with its signal structure and process group. Its thread is `pid`, except for the
    /// idle task, which has `tgid` 0.
    pub fn task(&self, index: u64, tgid: i32, pid: i32, group: i32) {
        let at = TASKS + index * 0x1000;
        let (tgid, pid) = if tgid == 0 { (0, 0) } else { (tgid, pid) };
        self.write(at + task::PID, &pid.to_le_bytes());
        self.write(at + task::TGID, &tgid.to_le_bytes());
        let mut comm = *b"0123456789abcdef";
        let name = format!("task-{tgid}\0");
        let length = name.len().min(comm.len());
        comm[..length].copy_from_slice(&name.as_bytes()[..length]);
        self.write(at + task::COMM, &comm);
        self.leader(index, index);
        self.write(at + task::SIGNAL, &(DIRECT_MAP + at + 0x400).to_le_bytes());
        self.write(
            at + 0x400 + task::GROUP,
            &(DIRECT_MAP + at + 0x800).to_le_bytes(),
        );
        self.write(at + 0x800 + task::NUMBER, &group.to_le_bytes());
    }

    /// Makes processes with these numbers of threads, and the kernel's lists of them: tasks 1 and following, with pids
    /// and tids 101 and following. Returns the number of tasks.
    pub fn list_processes(&self, threads: &[u64]) -> u64 {
        let address = |index: u64| DIRECT_MAP + TASKS + index * 0x1000;
        let head = TEXT + SLIDE + offsets::INIT_TASK + task::TASKS;
        let (mut last, mut index) = (IMAGE + offsets::INIT_TASK + task::TASKS, 0);
        let link = |physical: u64, next: u64| self.write(physical, &next.to_le_bytes());
        for threads in threads {
            let leader = index + 1;
            let threads_head = address(leader) + 0x400 + task::THREAD_HEAD;
            let mut last_thread = threads_head;
            for _ in 0..*threads {
                index += 1;
                let id = |index: u64| 100 + i32::try_from(index).unwrap();
                self.task(index, id(leader), id(index), id(leader));
                let node = address(index) + task::THREAD_NODE;
                link(last_thread - DIRECT_MAP, node);
                last_thread = node;
            }
            link(last_thread - DIRECT_MAP, threads_head);
            let node = address(leader) + task::TASKS;
            link(last, node);
            last = node - DIRECT_MAP;
        }
        link(last, head);
        index
    }

    /// Makes `task` a thread of the process whose main thread is task `leader`.
    pub fn leader(&self, task: u64, leader: u64) {
        let leader = DIRECT_MAP + TASKS + leader * 0x1000;
        let at = TASKS + task * 0x1000 + task::LEADER;
        self.write(at, &leader.to_le_bytes());
    }

    /// Makes task `index` the current task on `cpu`.
    pub fn run(&self, cpu: usize, index: u64) {
        let current = DIRECT_MAP + TASKS + index * 0x1000;
        let place = GuestAddress(AREAS[cpu] + per_cpu::CURRENT);
        self.memory
            .store(current, place, Ordering::Relaxed)
            .unwrap();
    }

    /// Sets the `preempt_count` of `cpu`.
    pub fn preempt_count(&self, cpu: usize, count: u32) {
        self.write(AREAS[cpu] + per_cpu::PREEMPT_COUNT, &count.to_le_bytes());
    }

    /// The registers of a vCPU in user mode.
    pub fn user(&self) -> Registers {
        Registers {
            rip: 0x40_1000,
            cpl: 3,
            idt_base: IDT,
            ..long_mode(USER_TABLES | 0x801, false)
        }
    }

    /// The registers of a vCPU in kernel mode, which is the kernel's CPU `cpu`.
    pub fn kernel(&self, cpu: usize) -> Registers {
        Registers {
            rip: TEXT + SLIDE + 0x2200,
            gs_base: self.base(AREAS[cpu]),
            idt_base: IDT,
            ..long_mode(TABLES | 1, false)
        }
    }

    /// Knowledge of its kernel.
    pub fn linux(&self) -> &LinuxKnowledge {
        self.knowledge.linux().unwrap()
    }

    /// An introspector of vCPU `vcpu` without state.
    pub fn introspector(&self, vcpu: u16) -> VcpuIntrospector {
        VcpuIntrospector::new(self.knowledge.clone(), vcpu)
    }

    /// The result of a new introspector for `registers`.
    pub fn identify(&self, vcpu: u16, registers: &Registers) -> Identity {
        self.introspector(vcpu)
            .identify(&self.memory, registers, false, true)
    }
}
