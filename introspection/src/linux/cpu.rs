//! One vCPU of a Linux guest: its per-CPU area and its current task.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::{Identity, PhysicalMemory, Registers, Stack, VcpuIntrospector, padded};
use kvmprof_recording::{COMM_LENGTH, LockWait, Mode};

use super::modes::kernel_mode;
use super::modules::KnownModules;
use super::placement::Placement;
use super::processes::{
    GuestProcesses, InnerIds, ProcessFollower, ProcessMap, ProcessView, RunningTask,
};
use super::stacks::KnownCode;
use super::task_layout::PerCpu;
use super::view::{KernelView, kernel_pointer};
use super::{KERNEL_MAP, LinuxKnowledge, TaskReader};
use crate::image::types::Missing;
use crate::process_places::preemption;
use crate::unwind::StackSource;

/// The highest process id plus one (`PID_MAX_LIMIT`, `include/linux/threads.h`).
const PID_LIMIT: i32 = 4 << 20;
/// Maximum number of entries of `__per_cpu_offset` that one sample compares.
const MAX_COMPARED: u64 = 64;
/// Number of consecutive kernel samples that must show another CPU's offset before it is accepted. A program may set
/// its GS base to any value, and the kernel executes its first few instructions with it.
const MIN_SIGHTINGS: u8 = 8;

/// One vCPU of a Linux guest.
#[derive(Debug)]
pub struct Cpu {
    vcpu: u16,
    /// The offset of its per-CPU area, once the areas are set up.
    pub(super) base: Option<u64>,
    /// Whether kernel code was seen to use that offset on this vCPU.
    is_seen: bool,
    /// This thread's view of the kernel's modules.
    modules: KnownModules,
    /// Another CPU's offset that was in the GS base, and the number of consecutive samples with it.
    other: (u64, u8),
    /// The task that was running at the last sample.
    seen: Option<RunningTask>,
    follower: ProcessFollower,
    inner_ids: InnerIds,
}

impl Cpu {
    /// The vCPU with index `vcpu`. Linux numbers CPUs in the order of the MADT, so its CPU number is usually the same.
    pub fn new(vcpu: u16) -> Self {
        Self {
            vcpu,
            base: None,
            is_seen: false,
            modules: KnownModules::default(),
            other: (0, 0),
            seen: None,
            follower: ProcessFollower::default(),
            inner_ids: InnerIds::default(),
        }
    }

    /// The number of the guest's CPU, as it was given.
    pub fn number(&self) -> u16 {
        self.vcpu
    }

    /// Finds the process and thread that the vCPU is running.
    pub fn identify<M: PhysicalMemory>(
        &mut self,
        linux: &LinuxKnowledge,
        memory: &M,
        registers: &Registers,
        halted: bool,
        want_process_group: bool,
    ) -> Identity {
        let mut identity = Identity::at_level(registers.cpl, halted);
        let last = self.seen.take();
        let Some(placement) = linux.locate(memory, registers) else {
            return identity;
        };
        if registers.cpl == 0 && linux.is_module_code(placement, registers.rip) {
            // Learn the name now for later readers, because the module may be unloaded by then.
            linux.modules.follow(&mut self.modules);
            (linux.modules).check(memory, placement, self.modules.loaded());
        }
        let view = KernelView::new(linux, placement, memory, registers);
        let Some(base) = self.base(&view, registers) else {
            return identity;
        };
        let per_cpu = |symbol| per_cpu(symbol, placement, base);
        let current = linux.addresses.current.map(per_cpu);
        let task = current.and_then(|current| task_at(&view, view.u64(current)?));
        if let Some(task) = &task {
            // The first idle task is in the kernel's image, but the per-CPU areas aren't.
            for pointer in [Some(task.address), current].into_iter().flatten() {
                if linux.direct_map.load(Ordering::Relaxed) == 0
                    && let Some(physical) = view.walk(pointer)
                {
                    linux.find_direct_map(memory, placement, pointer, physical);
                }
            }
            let seen = RunningTask::new(&view, task, last);
            self.seen = Some(seen);
            identity.pid = task.process;
            identity.tid = task.thread;
            identity.comm = comm(&view, task.address);
            identity.started = seen.process_started.unwrap_or_default();
            if want_process_group {
                identity.process_group = process_group(&view, task).unwrap_or(-1);
            }
        }
        let mut count = None;
        if registers.cpl == 0 {
            let address = linux.addresses.preempt_count.map(per_cpu);
            count = address.and_then(|address| view.i32(address));
        }
        let count = count.map(i32::cast_unsigned);
        if identity.mode == Mode::Kernel {
            identity.mode = kernel_mode(&view, count, task.as_ref());
        }
        identity.preemption = preemption(registers.cpl, linux.addresses.preemption, count);
        identity
    }

    /// Unwinds the stack of `source`. The vCPU is or was stopped with `registers`.
    pub fn unwind<M: PhysicalMemory>(
        &mut self,
        linux: &LinuxKnowledge,
        memory: &M,
        registers: &Registers,
        source: StackSource<'_>,
        stack: &mut Stack,
    ) {
        linux.modules.follow(&mut self.modules);
        let process = self.follower.current();
        let process = process.map(|(map, cache)| (&map.unwinder, cache));
        let code = KnownCode {
            task: self.seen.map(|seen| seen.task),
            modules: self.modules.loaded(),
            runtime: process.as_ref().and_then(|(slot, _)| slot.runtime()),
            user: process.and_then(|(slot, cache)| Some((slot.get()?, cache))),
        };
        linux.unwind(memory, registers, source, code, stack);
    }

    /// The offset of the vCPU's per-CPU area.
    fn base<M: PhysicalMemory>(
        &mut self,
        view: &KernelView<'_, M>,
        registers: &Registers,
    ) -> Option<u64> {
        let (offsets, cpus) = match view.linux().addresses.per_cpu {
            PerCpu::Table { address, cpus } => (address, cpus),
            PerCpu::UnknownTable => return self.base_from_kernel_code(registers),
            // Without SMP, per-CPU variables are ordinary variables.
            PerCpu::NotSmp => return Some(0),
        };
        let own = match self.base {
            Some(base) => base,
            None => {
                let index = u64::from(self.vcpu).min(cpus - 1);
                let own = view.variable_u64(offsets + index * 8)?;
                // An offset from before the areas are set up isn't stored.
                self.base = (!is_boot_offset(own)).then_some(own);
                own
            }
        };
        if registers.cpl != 0 {
            return Some(own);
        }
        // In the kernel, GS has the offset, except in its first and last instructions. Slots of absent CPUs keep the
        // boot value, which is 0 since 6.15. Many programs also have 0 there.
        if own == registers.gs_base || is_boot_offset(registers.gs_base) {
            self.other = (0, 0);
            self.is_seen |= self.base == Some(registers.gs_base);
            return Some(own);
        }
        if self.is_convinced(view, registers.gs_base) {
            self.base = Some(registers.gs_base);
            self.is_seen = true;
            return self.base;
        }
        Some(own)
    }

    /// True if `gs_base` has been another CPU's offset so often that the guest must number its CPUs differently.
    fn is_convinced<M: PhysicalMemory>(&mut self, view: &KernelView<'_, M>, gs_base: u64) -> bool {
        let PerCpu::Table { address, cpus } = view.linux().addresses.per_cpu else {
            return false;
        };
        let known = (0..cpus.min(MAX_COMPARED))
            .any(|index| view.variable_u64(address + index * 8) == Some(gs_base));
        known && self.base.is_some() && self.is_seen_often(gs_base)
    }

    /// True if `gs_base` has been in the GS base of kernel code in enough consecutive samples.
    fn is_seen_often(&mut self, gs_base: u64) -> bool {
        self.other = match self.other {
            (other, times) if other == gs_base => (other, times.saturating_add(1)),
            _ => (gs_base, 1),
        };
        self.other.1 >= MIN_SIGHTINGS
    }

    /// The offset of the vCPU's per-CPU area in a kernel whose table of offsets isn't known: what kernel code has in
    /// the GS base. Until it has been seen often enough, only a sample of kernel code tells it.
    fn base_from_kernel_code(&mut self, registers: &Registers) -> Option<u64> {
        let is_possible = registers.gs_base >> 63 == 1 && !is_boot_offset(registers.gs_base);
        if registers.cpl != 0 || !is_possible {
            return self.base;
        }
        if self.base != Some(registers.gs_base) && self.is_seen_often(registers.gs_base) {
            self.base = Some(registers.gs_base);
            self.is_seen = true;
        }
        Some(registers.gs_base)
    }
}

/// What only vCPUs of Linux guests have.
impl VcpuIntrospector {
    /// Sets the running task to the one at guest-virtual address `task`, of the process `pid`, which
    /// [`VcpuIntrospector::identify`] would have found when the vCPU was stopped with `registers`, a short time ago. If
    /// that task has ended meanwhile, the running task is unknown.
    pub fn recall<M: PhysicalMemory>(
        &mut self,
        memory: &M,
        registers: &Registers,
        task: u64,
        pid: i32,
    ) {
        let Some(linux) = self.knowledge.linux() else {
            return;
        };
        let view = linux.view(memory, registers);
        let last = self.cpu.seen;
        self.cpu.seen = view.and_then(|view| {
            let still = task_at(&view, task)?;
            (still.process == pid).then(|| RunningTask::new(&view, &still, last))
        });
    }

    /// The mappings of the process that [`VcpuIntrospector::identify`] has just found, if this vCPU sees the process
    /// for the first time, or its mappings have changed. `time` is the sample's.
    ///
    /// Bounded like `identify`, but allocates memory for a result, and takes some 10 us for it.
    pub fn follow_process<M: PhysicalMemory>(
        &mut self,
        memory: &M,
        registers: &Registers,
        time: u64,
    ) -> Option<Arc<ProcessMap>> {
        let linux = self.knowledge.linux()?;
        self.cpu.follower.leave();
        let view = linux.view(memory, registers)?;
        self.cpu
            .follower
            .follow(&view, registers, self.cpu.seen?, time)
    }

    /// Whether the process that [`VcpuIntrospector::follow_process`] has just found executes a language whose functions are known. Copies of stacks don't have them.
    pub fn executes_language(&mut self) -> bool {
        let process = self.cpu.follower.current();
        process.is_some_and(|(map, _)| map.unwinder.runtime().is_some())
    }

    /// Takes the mappings of process `pid` as they last were, if [`VcpuIntrospector::follow_process`] hasn't found the process, which was running in user mode at `time` (ns) with
    /// `registers`: it may have ended since.
    pub fn recall_process(&mut self, registers: &Registers, pid: i32, time: u64) {
        self.cpu.follower.recall(registers, pid, time);
    }

    /// The id in its innermost pid namespace of the thread `tid` that [`VcpuIntrospector::identify`] has just found. `None` if that namespace is the
    /// guest's first one, or if it is unknown.
    ///
    /// Bounded like `identify`.
    pub fn inner_tid<M: PhysicalMemory>(
        &mut self,
        memory: &M,
        registers: &Registers,
        tid: i32,
    ) -> Option<i32> {
        let linux = self.knowledge.linux()?;
        let view = linux.view(memory, registers)?;
        let seen = self.cpu.seen?;
        self.cpu.inner_ids.find(&view, seen, tid)
    }

    /// The processes of a Linux guest, while the vCPU is stopped with `registers`. The running one is that which
    /// [`VcpuIntrospector::identify`] has just found. `None` for other guests, and while they are unknown.
    pub fn processes<'a, M: PhysicalMemory>(
        &'a self,
        memory: &'a M,
        registers: &Registers,
    ) -> Option<GuestProcesses<'a, M>> {
        let running = self.cpu.seen.map(|seen| seen.task);
        (self.knowledge.linux()?).processes(memory, registers, running)
    }

    /// Forgets the last process's mappings, which the caller couldn't pass on, so that they are returned again.
    pub fn forget_process(&mut self) {
        self.cpu.follower.forget_current();
    }

    /// Whether the result of [`VcpuIntrospector::places`] is final. Until a Linux kernel has been seen on this vCPU,
    /// the places are those of the CPU with the vCPU's number. That can be another CPU, if vCPUs were added later, or
    /// if the first ones don't run.
    pub fn places_are_sure(&self) -> bool {
        let linux = self.knowledge.linux();
        linux.is_none_or(|linux| self.cpu.is_seen || linux.addresses.per_cpu == PerCpu::NotSmp)
    }

    /// Whether the process that [`VcpuIntrospector::identify`] has just found may write at `address`, which has no
    /// writable page at the moment. `None` if that is unknown. False in guests other than Linux.
    pub fn can_write<M: PhysicalMemory>(
        &self,
        memory: &M,
        registers: &Registers,
        address: u64,
    ) -> Option<bool> {
        let Some(linux) = self.knowledge.linux() else {
            return Some(false);
        };
        let view = linux.view(memory, registers)?;
        let layout = linux.processes.as_ref()?;
        let mm = view.u64(self.cpu.seen?.task.wrapping_add(layout.mm))?;
        ProcessView::new(&view, layout).can_write(mm, address)
    }

    /// The lock that the vCPU, stopped with `registers`, waits for in a loop. `None` if it doesn't wait, or that is
    /// unknown. Covers mutexes, and reader-writer semaphores that a writer holds.
    ///
    /// Bounded like [`VcpuIntrospector::identify`].
    pub fn lock_wait<M: PhysicalMemory>(
        &self,
        memory: &M,
        registers: &Registers,
    ) -> Option<LockWait> {
        let linux = self.knowledge.linux()?;
        (registers.cpl == 0).then(|| linux.lock_wait(memory, registers))?
    }

    /// Looks at all tasks of a Linux guest, while the vCPU is stopped with `registers`: fills `reader`'s look, except
    /// for its time, vCPU and duration. False for other guests, while the kernel's slide is unknown, and if the tasks
    /// can't be found.
    ///
    /// Takes no lock and allocates nothing. Reads up to [`MAX_TASKS`](kvmprof_recording::file::MAX_TASKS) tasks, and up
    /// to 256 stacks that the last look of `reader` doesn't have.
    pub fn look_at_tasks<M: PhysicalMemory>(
        &mut self,
        memory: &M,
        registers: &Registers,
        reader: &mut TaskReader,
    ) -> bool {
        let Some(linux) = self.knowledge.linux() else {
            return false;
        };
        if linux.locate(memory, registers).is_none() {
            return false;
        }
        linux.modules.follow(&mut self.cpu.modules);
        linux.look_at_tasks(memory, registers, self.cpu.modules.loaded(), reader)
    }

    /// Switches to the kernel's modules as they are known now. Without this call, a vCPU without ticks keeps older ones
    /// in memory.
    pub fn follow_modules(&mut self) {
        let Some(linux) = self.knowledge.linux() else {
            return;
        };
        linux.modules.follow(&mut self.cpu.modules);
    }
}

/// Whether `offset` is that of a CPU's per-CPU area before the areas are set up, and of absent CPUs
/// (`BOOT_PERCPU_OFFSET`, `arch/x86/kernel/setup_percpu.c`): the place of the initial values in the image if per-CPU
/// symbols count from 0, otherwise 0.
fn is_boot_offset(offset: u64) -> bool {
    offset == 0 || offset >= KERNEL_MAP
}

/// The address of the per-CPU variable `symbol` in the area at `base`. Before 6.15, per-CPU symbols are offsets from 0.
/// Since then they are ordinary addresses, and `base` is the distance from them.
pub fn per_cpu(symbol: u64, placement: Placement, base: u64) -> u64 {
    if symbol >= KERNEL_MAP {
        symbol.wrapping_add(placement.slide).wrapping_add(base)
    } else {
        symbol.wrapping_add(base)
    }
}

/// A task and its ids, copied once when checked, because other vCPUs continue writing to guest memory.
pub struct Task {
    pub address: u64,
    pub process: i32,
    pub thread: i32,
}

/// The task at `task`. `None` if that can't be a task.
pub fn task_at<M: PhysicalMemory>(view: &KernelView<'_, M>, task: u64) -> Option<Task> {
    let linux = view.linux();
    if task >> 63 == 0 || !task.is_multiple_of(8) {
        return None;
    }
    let id = |offset: &Result<u64, Missing>| match offset {
        Ok(offset) => {
            let id = view.i32(task.wrapping_add(*offset))?;
            (0..PID_LIMIT).contains(&id).then_some(id)
        }
        Err(_) => Some(-1),
    };
    let thread = id(&linux.tasks.pid)?;
    if let Some(check) = linux.tasks.check
        && thread != -1
    {
        let own = view.u64(task.wrapping_add(check.own_pid))?;
        let is_same = || {
            let own = kernel_pointer(own)?;
            view.i32(own.wrapping_add(check.number))
        };
        if own != 0 && is_same() != Some(thread) {
            return None;
        }
    }
    Some(Task {
        address: task,
        process: id(&linux.tasks.tgid)?,
        thread,
    })
}

/// The name of the task at `task`. All zeros if it can't be read.
pub fn comm<M: PhysicalMemory>(view: &KernelView<'_, M>, task: u64) -> [u8; COMM_LENGTH] {
    let offset = view.linux().tasks.comm.ok();
    let comm = offset.and_then(|offset| view.read_array(task.wrapping_add(offset)));
    comm.map_or([0; COMM_LENGTH], padded)
}

/// The name of the main thread of the process of the task at `task`. All zeros if it can't be read.
pub fn process_name<M: PhysicalMemory>(view: &KernelView<'_, M>, task: u64) -> [u8; COMM_LENGTH] {
    let leader = view.linux().tasks.leader;
    let leader = leader.and_then(|leader| view.pointer(task, leader));
    leader.map_or([0; COMM_LENGTH], |leader| comm(view, leader))
}

/// The id of `task`'s process group. An exiting task has none.
fn process_group<M: PhysicalMemory>(view: &KernelView<'_, M>, task: &Task) -> Option<i32> {
    let layout = view.linux().tasks.group.as_ref().ok()?;
    let signal = view.pointer(task.address, layout.signal)?;
    let group = view.pointer(signal, layout.process_group)?;
    let id = view.i32(group.wrapping_add(layout.number))?;
    (0..PID_LIMIT).contains(&id).then_some(id)
}
