//! The addresses of variables and the offsets of members that identify tasks.

use crate::Symbols;
use crate::image::types::{Missing, Types};

/// `SYSTEM_SCHEDULING` for kernels whose BTF lacks it (`enum system_states`, `include/linux/kernel.h`).
const SYSTEM_SCHEDULING: u32 = 1;
/// `PIDTYPE_PGID` (`enum pid_type`, `include/linux/pid_types.h`).
const PIDTYPE_PGID: u64 = 2;
/// Maximum number of CPUs.
const MAX_CPUS: u64 = 8192;

/// The lowest bit of `preempt_count`'s softirq field: a softirq is being serviced. The other bits only say that
/// softirqs are disabled (`include/linux/preempt.h`).
pub const SOFTIRQ: u32 = 0x100;
/// Hard interrupts in bits 16 to 19 and NMIs in bits 20 to 23, in kernels up to 7.0.
const INTERRUPTS: u32 = 0x00ff_0000;
/// Hard interrupts in bits 24 to 27, in kernels whose bits 16 to 23 count how often interrupts were disabled.
const MOVED_HARDIRQS: u32 = 0x0f00_0000;
/// NMIs in bits 28 to 31, in the same kernels.
const MOVED_NMIS: u32 = 0xf000_0000;
/// The bit of `preempt_count` that is cleared if the scheduler has to run (`PREEMPT_NEED_RESCHED`,
/// `arch/x86/include/asm/preempt.h`).
const NEED_RESCHED: u32 = 1 << 31;
/// The only bit for NMIs, in those of these kernels that count NMIs in `nmi_nesting`.
const MOVED_NMI: u32 = 0x1000_0000;

/// An interrupt gate whose handler is a known symbol.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    pub vector: u8,
    /// The handler's link-time address.
    pub handler: u64,
}

/// Where the kernel keeps the offsets of its CPUs' per-CPU areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerCpu {
    /// In a table.
    Table {
        /// `__per_cpu_offset`.
        address: u64,
        /// The number of its entries, at most.
        cpus: u64,
    },
    /// In a table that isn't known. While a CPU runs kernel code, its GS base is its offset.
    UnknownTable,
    /// Nowhere: a kernel without SMP has ordinary variables.
    NotSmp,
}

/// Link-time addresses of the kernel's variables.
#[derive(Debug)]
pub struct Addresses {
    pub banner: u64,
    pub per_cpu: PerCpu,
    /// The per-CPU pointer to the current task, if it is known.
    pub current: Option<u64>,
    /// The per-CPU preemption and interrupt count.
    pub preempt_count: Option<u64>,
    /// The per-CPU pointer to the outermost word of the stack for interrupts, or, before 5.12, to the address after
    /// that word.
    pub interrupt_stack: Option<u64>,
    /// The bits of that count that are set while an interrupt is serviced.
    pub interrupts: u32,
    /// The bits of that count that disable preemption; 0 if the kernel doesn't count everything that disables it.
    pub preemption: u32,
    pub system_state: Option<u64>,
    /// The lowest value of `system_state` with which pid 0 is the idle task.
    pub scheduling: u32,
    pub panic_cpu: Option<u64>,
    /// The 64-bit count of clock ticks since the kernel's start.
    pub jiffies: Option<u64>,
    pub page_offset_base: Option<u64>,
    /// The variable that holds the start of all `struct page`s.
    pub vmemmap_base: Option<u64>,
    /// The 64-bit `struct vdso_image`.
    pub vdso: Option<u64>,
    pub gates: [Option<Gate>; 3],
}

impl Addresses {
    /// Finds the addresses of a kernel whose banner, at `banner`, says whether it `is_smp`.
    pub fn find(symbols: &Symbols, types: &Types<'_>, banner: u64, is_smp: bool) -> Self {
        let [
            per_cpu_offset,
            pcpu_hot,
            current_task,
            preempt_count,
            interrupt_stack,
        ] = symbols.addresses_of([
            "__per_cpu_offset",
            "pcpu_hot",
            "current_task",
            "__preempt_count",
            "hardirq_stack_ptr",
        ]);
        let [system_state, panic_cpu, page_offset_base] =
            symbols.addresses_of(["system_state", "panic_cpu", "page_offset_base"]);
        // The last symbol is the vdso's name in 7.x.
        let [vmemmap_base, vdso, renamed_vdso] =
            symbols.addresses_of(["vmemmap_base", "vdso_image_64", "vdso64_image"]);
        let [jiffies] = symbols.addresses_of(["jiffies_64"]);
        // 6.2 to 6.14 have frequently used variables in one structure.
        let hot = |member| Some(pcpu_hot?.wrapping_add(types.offset_of("pcpu_hot", member)?));
        let per_cpu = match per_cpu_offset {
            Some(address) => {
                let end = symbols.address_after(address).unwrap_or(address);
                let cpus = ((end - address) / 8).clamp(1, MAX_CPUS);
                PerCpu::Table { address, cpus }
            }
            None if is_smp => PerCpu::UnknownTable,
            None => PerCpu::NotSmp,
        };
        Self {
            banner,
            per_cpu,
            current: hot("current_task").or(current_task),
            preempt_count: hot("preempt_count").or(preempt_count),
            interrupt_stack: hot("hardirq_stack_ptr").or(interrupt_stack),
            interrupts: interrupts(symbols),
            preemption: preemption(symbols),
            system_state,
            scheduling: types
                .enumerator("system_states", "SYSTEM_SCHEDULING")
                .unwrap_or(SYSTEM_SCHEDULING),
            panic_cpu,
            jiffies,
            page_offset_base,
            vmemmap_base,
            vdso: vdso.or(renamed_vdso),
            gates: gates(symbols),
        }
    }
}

/// The gates of divide errors, set up twice as the kernel boots, and of page faults.
fn gates(symbols: &Symbols) -> [Option<Gate>; 3] {
    let [divide, early, page_fault] = symbols.addresses_of([
        "asm_exc_divide_error",
        "early_idt_handler_array",
        "asm_exc_page_fault",
    ]);
    let gate = |vector, handler: Option<u64>| handler.map(|handler| Gate { vector, handler });
    [gate(14, page_fault), gate(0, divide), gate(0, early)]
}

/// The bits of `preempt_count` that are set while an interrupt is serviced. The fields moved when
/// `local_interrupt_disable()` was introduced. The symbol of its state shows which layout a kernel has.
fn interrupts(symbols: &Symbols) -> u32 {
    let counts = match symbols.addresses_of(["local_interrupt_disable_state", "nmi_nesting"]) {
        [None, _] => INTERRUPTS,
        [Some(_), None] => MOVED_HARDIRQS | MOVED_NMIS,
        [Some(_), Some(_)] => MOVED_HARDIRQS | MOVED_NMI,
    };
    counts | SOFTIRQ
}

/// The bits of `preempt_count` that disable preemption. Kernels with CONFIG_PREEMPTION count everything that disables
/// it (CONFIG_PREEMPT_COUNT). For others, and for those whose fields have moved, that is unknown.
fn preemption(symbols: &Symbols) -> u32 {
    match symbols.addresses_of(["preempt_schedule", "local_interrupt_disable_state"]) {
        [Some(_), None] => !NEED_RESCHED,
        _ => 0,
    }
}

/// Offsets of the members that identify a task, in bytes from the start of each structure, as far as they are known.
#[derive(Debug)]
pub struct TaskLayout {
    /// `task_struct.pid`: the thread's id.
    pub pid: Result<u64, Missing>,
    /// `task_struct.tgid`: the process's id.
    pub tgid: Result<u64, Missing>,
    pub comm: Result<u64, Missing>,
    /// `task_struct.group_leader`: the process's main thread.
    pub leader: Option<u64>,
    /// `task_struct.stack`: the task's stack in the kernel.
    pub stack: Option<u64>,
    pub group: Result<GroupLayout, Missing>,
    /// What has to agree with `pid` in offsets that come from code.
    pub check: Option<PidCheck>,
    /// `task_struct.softirq_disable_cnt`: with PREEMPT_RT it replaces the softirq field of `preempt_count`.
    pub softirq_count: Option<u64>,
}

/// Offsets on the way from a task to another copy of its thread's id, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct PidCheck {
    /// `task_struct.thread_pid`; 0 there while the task ends.
    pub own_pid: u64,
    /// `pid.numbers[0].nr`.
    pub number: u64,
}

/// Offsets on the way from a task to the id of its process group, in bytes.
#[derive(Debug)]
pub struct GroupLayout {
    pub signal: u64,
    /// `signal_struct.pids[PIDTYPE_PGID]`.
    pub process_group: u64,
    /// `pid.numbers[0].nr`.
    pub number: u64,
}

impl TaskLayout {
    /// Finds the offsets.
    pub fn find(types: &Types<'_>) -> Self {
        let task = types.structures("task_struct");
        let check = || {
            Some(PidCheck {
                own_pid: task.offset_of("thread_pid")?,
                number: types.offset_of("pid", "numbers")? + types.offset_of("upid", "nr")?,
            })
        };
        Self {
            check: match types {
                Types::Code(_) => check(),
                Types::Btf(_) => None,
            },
            pid: task.need("pid"),
            tgid: task.need("tgid"),
            comm: task.need("comm"),
            leader: task.offset_of("group_leader"),
            stack: task.offset_of("stack"),
            group: GroupLayout::find(types),
            softirq_count: task.offset_of("softirq_disable_cnt"),
        }
    }
}

impl GroupLayout {
    fn find(types: &Types<'_>) -> Result<Self, Missing> {
        Ok(Self {
            signal: types.need("task_struct", "signal")?,
            process_group: types.need("signal_struct", "pids")? + PIDTYPE_PGID * 8,
            number: types.need("pid", "numbers")? + types.need("upid", "nr")?,
        })
    }
}
