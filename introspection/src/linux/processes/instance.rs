//! Distinguishes processes over time: when each was started and by which parent, whether it has executed another
//! program, and whether it is still alive.

use crate::PhysicalMemory;
use crate::bytes::u64_at;
use crate::image::Symbols;
use crate::image::types::{Missing, Types};
use crate::linux::view::{KernelView, kernel_pointer};

/// `AT_RANDOM` (`include/uapi/linux/auxvec.h`).
const AT_RANDOM: u64 = 25;
/// Bytes of the auxiliary vector that are read: more than any kernel's.
const MAX_VECTOR: usize = 64 * 8;
/// Maximum number of processes that a search visits.
const MAX_PROCESSES: usize = 4096;
/// Maximum number of times that the list of processes is read, because it can change while it is read.
const MAX_TRIES: usize = 3;
/// `SIGNAL_UNKILLABLE` (`include/linux/sched/signal.h`): the first process of a pid namespace.
const SIGNAL_UNKILLABLE: u32 = 0x40;

/// A process of a guest. Another process may have its pid later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessInstance {
    /// Its id.
    pub pid: i32,
    /// When it was started, in ns of the guest's CLOCK_MONOTONIC; 0 if unknown.
    pub started: u64,
    /// The number of programs that it and its ancestors have executed; 0 if unknown.
    pub programs: u64,
    /// The guest virtual address of its main thread's `task_struct`; 0 if unknown.
    leader: u64,
}

impl ProcessInstance {
    /// A process of which only the pid is known.
    pub fn from_pid(pid: i32) -> Self {
        Self {
            pid,
            ..Self::default()
        }
    }

    /// The guest virtual address of its main thread's `task_struct`; 0 if unknown.
    pub(in crate::linux) fn leader(&self) -> u64 {
        self.leader
    }

    /// Whether `other` is the same process, perhaps with another program.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.pid, self.started) == (other.pid, other.started)
    }
}

/// The state of a process at a later time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessFate {
    /// It executes the same program.
    Lives,
    /// It has executed another program meanwhile.
    Executed,
    /// All its threads have ended.
    Ended,
}

/// The origin of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessOrigin {
    /// The 16 bytes at `AT_RANDOM`, which the kernel gives a program at its start. Processes that were forked since
    /// then have the same bytes.
    pub program: [u8; 16],
    /// Its parent, which is alive: the kernel gives a process whose parent has ended another one.
    pub parent: ProcessInstance,
    /// Whether the parent may be another one than the process that has forked it: the kernel gives the processes of a
    /// parent that has ended to such a process.
    pub may_be_adopted: bool,
    /// Whether it has its parent's memory, as after vfork(2), and not a copy.
    pub shares_memory: bool,
}

/// A process in the kernel's list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListedProcess {
    /// The process.
    pub process: ProcessInstance,
    /// Its parent, which is alive.
    pub parent: ProcessInstance,
    /// As in [`ProcessOrigin`].
    pub may_be_adopted: bool,
    /// As in [`ProcessOrigin`].
    pub shares_memory: bool,
}

/// Offsets in bytes, each from the start of its structure.
#[derive(Debug)]
pub struct InstanceLayout {
    /// `task_struct.start_time`, `self_exec_id`, `exit_state`, `real_parent`, `tgid`, `group_leader`, `signal`, `tasks` and `mm`.
    started: u64,
    programs: u64,
    exit_state: u64,
    parent: u64,
    pid: u64,
    leader: u64,
    signal: u64,
    next: u64,
    memory: u64,
    /// `signal_struct.live`.
    live: u64,
    /// `signal_struct.flags`, and the bit `is_child_subreaper`, from the structure's start.
    flags: Option<u64>,
    subreaper: Option<u64>,
    /// `mm_struct.saved_auxv`.
    vector: u64,
    /// The link-time address of `init_task`.
    first: u64,
}

impl InstanceLayout {
    /// Finds the layout.
    ///
    /// # Errors
    /// The first offset or address that isn't known.
    pub fn find(symbols: &Symbols, types: &Types<'_>) -> Result<Self, Missing> {
        let [first] = symbols.addresses_of(["init_task"]);
        let task = types.structures("task_struct");
        let signals = types.structures("signal_struct");
        Ok(Self {
            started: task.need("start_time")?,
            programs: task.need("self_exec_id")?,
            exit_state: task.need("exit_state")?,
            parent: task.need("real_parent")?,
            pid: task.need("tgid")?,
            leader: task.need("group_leader")?,
            signal: task.need("signal")?,
            next: task.need("tasks")?,
            memory: task.need("mm")?,
            live: signals.need("live")?,
            flags: signals.offset_of("flags"),
            subreaper: signals.bit_of("is_child_subreaper"),
            vector: types.need("mm_struct", "saved_auxv")?,
            first: first.ok_or(Missing::Symbol("init_task"))?,
        })
    }

    /// The process of the task at `task`.
    pub fn instance<M: PhysicalMemory>(
        &self,
        view: &KernelView<'_, M>,
        task: u64,
    ) -> Option<ProcessInstance> {
        let leader = view.pointer(task, self.leader)?;
        Some(ProcessInstance {
            pid: view.i32(leader.wrapping_add(self.pid))?,
            started: view.u64(leader.wrapping_add(self.started))?,
            programs: view.u64(leader.wrapping_add(self.programs))? & u64::from(u32::MAX),
            leader,
        })
    }

    /// When the process of the task at `task` was started, in ns of the guest's CLOCK_MONOTONIC.
    pub fn process_started<M: PhysicalMemory>(
        &self,
        view: &KernelView<'_, M>,
        task: u64,
    ) -> Option<u64> {
        self.thread_started(view, view.pointer(task, self.leader)?)
    }

    /// When the thread with the `task_struct` at `task` was started, in ns of the guest's CLOCK_MONOTONIC.
    pub fn thread_started<M: PhysicalMemory>(
        &self,
        view: &KernelView<'_, M>,
        task: u64,
    ) -> Option<u64> {
        view.u64(task.wrapping_add(self.started))
    }

    /// The id of the parent of the process with this main thread: 0 if it is the kernel's first one.
    pub(super) fn parent_pid<M: PhysicalMemory>(
        &self,
        view: &KernelView<'_, M>,
        leader: u64,
    ) -> Option<i32> {
        let parent = view.pointer(leader, self.parent)?;
        view.i32(parent.wrapping_add(self.pid))
    }

    /// The guest virtual address of process 1's main thread, which is always the first one in the list.
    pub(super) fn first_process<M: PhysicalMemory>(&self, view: &KernelView<'_, M>) -> Option<u64> {
        let first = view.linked(self.first);
        let next = view.pointer(first, self.next)?;
        let task = next.wrapping_sub(self.next);
        (view.i32(task.wrapping_add(self.pid))? == 1).then_some(task)
    }
}

/// The processes of a Linux guest, as a vCPU that stands still reads them.
#[derive(Debug)]
pub struct GuestProcesses<'a, M> {
    view: KernelView<'a, M>,
    layout: &'a InstanceLayout,
    /// The task that the vCPU runs, if it is known.
    running: Option<u64>,
}

impl<'a, M: PhysicalMemory> GuestProcesses<'a, M> {
    /// The processes of the kernel in `view`, on a vCPU that runs the task at `running`.
    pub fn new(view: KernelView<'a, M>, layout: &'a InstanceLayout, running: Option<u64>) -> Self {
        Self {
            view,
            layout,
            running,
        }
    }

    /// The process that the vCPU runs. `None` if that is unknown.
    pub fn running(&self) -> Option<ProcessInstance> {
        self.of_task(self.running?)
    }

    /// The parent of the process that the vCPU runs, and whether it may have adopted the process
    /// ([`ProcessOrigin::may_be_adopted`]).
    pub fn parent(&self) -> Option<(ProcessInstance, bool)> {
        let task = self.running?;
        Some((self.parent_of(task)?, self.may_be_adopted(task)))
    }

    /// The origin of the process that the vCPU runs.
    pub fn origin(&self) -> Option<ProcessOrigin> {
        let task = self.running?;
        let mm = self.at(task, self.layout.memory)?;
        let vector: [u8; MAX_VECTOR] =
            (self.view).read_array(mm.wrapping_add(self.layout.vector))?;
        let pairs = (0..MAX_VECTOR).step_by(16);
        let address = pairs
            .map_while(|at| Some((u64_at(&vector, at)?, u64_at(&vector, at + 8)?)))
            .take_while(|(kind, _)| *kind != 0)
            .find_map(|(kind, value)| (kind == AT_RANDOM).then_some(value))?;
        (address >> 63 == 0).then_some(())?;
        Some(ProcessOrigin {
            program: self.view.space().read_array(address)?,
            parent: self.parent_of(task)?,
            may_be_adopted: self.may_be_adopted(task),
            shares_memory: self.shares_memory(task)?,
        })
    }

    /// The state of `instance` now. `None` if that is unknown. Visits up to 4096 processes.
    pub fn fate(&self, instance: &ProcessInstance) -> Option<ProcessFate> {
        kernel_pointer(instance.leader)?;
        let mut now = self.of_task(instance.leader)?;
        if !now.is_same(instance) {
            // The structure was freed, and reused for another task. If another thread than the main one has executed a
            // program, the process now has that thread's structure.
            match self.find(instance.pid)? {
                Some(found) if found.is_same(instance) => now = found,
                _ => return Some(ProcessFate::Ended),
            }
        }
        if !self.has_thread(now.leader)? {
            return Some(ProcessFate::Ended);
        }
        Some(if now.programs == instance.programs {
            ProcessFate::Lives
        } else {
            ProcessFate::Executed
        })
    }

    /// Whether `instance` is alive, according to its structure alone. `None` if that memory now has another use, so
    /// that only [`GuestProcesses::fate`] can tell.
    pub fn lives(&self, instance: &ProcessInstance) -> Option<bool> {
        kernel_pointer(instance.leader)?;
        let now = self.of_task(instance.leader)?;
        now.is_same(instance)
            .then(|| self.has_thread(instance.leader))?
    }

    /// The process `pid`; `Some(None)` if there is none. `None` if that is unknown. Visits up to 4096 processes.
    pub fn find(&self, pid: i32) -> Option<Option<ProcessInstance>> {
        for task in self.tasks().take(MAX_PROCESSES) {
            let Some(task) = task? else {
                return Some(None);
            };
            if self.view.i32(task.wrapping_add(self.layout.pid))? == pid {
                return self.of_task(task).map(Some);
            }
        }
        None
    }

    /// All processes that haven't ended, each behind the one that has forked it. `None` if there are more than 4096, or
    /// the list is unreadable. The guest may run meanwhile: processes that are started or end may be missing.
    pub fn all(&self) -> Option<Vec<ListedProcess>> {
        (0..MAX_TRIES).find_map(|_| self.list())
    }

    fn list(&self) -> Option<Vec<ListedProcess>> {
        let mut all = Vec::new();
        for task in self.tasks().take(MAX_PROCESSES + 1) {
            let Some(task) = task? else {
                return Some(all);
            };
            let process = self.of_task(task)?;
            // One that has ended stays in the list until its parent has taken its status.
            if self.has_thread(process.leader) == Some(false) {
                continue;
            }
            all.push(ListedProcess {
                process,
                parent: self.parent_of(task)?,
                may_be_adopted: self.may_be_adopted(task),
                shares_memory: self.shares_memory(task)?,
            });
        }
        None
    }

    /// The main threads in the kernel's list, which may have no end: `Some(None)` is its end, and `None` that it is unreadable.
    fn tasks(&self) -> impl Iterator<Item = Option<Option<u64>>> {
        let first = self.view.linked(self.layout.first);
        let mut task = Some(first);
        std::iter::from_fn(move || {
            let next = task.and_then(|task| self.view.pointer(task, self.layout.next));
            task = next.map(|next| next.wrapping_sub(self.layout.next));
            Some(task.map(|task| (task != first).then_some(task)))
        })
    }

    /// The 64-bit number at `offset` in the structure at `address`.
    fn at(&self, address: u64, offset: u64) -> Option<u64> {
        self.view.u64(address.wrapping_add(offset))
    }

    /// The process of the task at `task`.
    fn of_task(&self, task: u64) -> Option<ProcessInstance> {
        self.layout.instance(&self.view, task)
    }

    /// Whether the process of the task at `task` has its parent's memory.
    fn shares_memory(&self, task: u64) -> Option<bool> {
        let parent = self.view.pointer(task, self.layout.parent)?;
        let own = self.at(task, self.layout.memory)?;
        // A kernel thread has none, nor has a process that has ended.
        Some(own != 0 && own == self.at(parent, self.layout.memory)?)
    }

    /// The parent of the process of the task at `task`.
    fn parent_of(&self, task: u64) -> Option<ProcessInstance> {
        self.of_task(self.view.pointer(task, self.layout.parent)?)
    }

    /// Whether the parent of the process of the task at `task` may have adopted it. True if that is unknown.
    fn may_be_adopted(&self, task: u64) -> bool {
        self.parent_adopts(task).unwrap_or(true)
    }

    fn parent_adopts(&self, task: u64) -> Option<bool> {
        let parent = self.view.pointer(task, self.layout.parent)?;
        let signal = self.view.pointer(parent, self.layout.signal)?;
        let flags = self.view.i32(signal.wrapping_add(self.layout.flags?))?;
        let bit = self.layout.subreaper?;
        let [byte] = self.view.read_array(signal.wrapping_add(bit / 8))?;
        let is_reaper = byte >> (bit % 8) & 1 != 0;
        Some(is_reaper || flags.cast_unsigned() & SIGNAL_UNKILLABLE != 0)
    }

    /// Whether the process with this main thread has a thread that hasn't ended.
    fn has_thread(&self, leader: u64) -> Option<bool> {
        let exit_state = leader.wrapping_add(self.layout.exit_state);
        if self.view.i32(exit_state)? == 0 {
            return Some(true);
        }
        // The main thread may have ended before others.
        let signal = self.view.pointer(leader, self.layout.signal)?;
        Some(self.view.i32(signal.wrapping_add(self.layout.live))? > 0)
    }
}
