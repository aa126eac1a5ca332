//! Sums of looks.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::rc::Rc;

use kvmprof_recording::file::{Contents, FileError, Observer, Recording};
use kvmprof_recording::tasks::{Task, TaskLook, TaskStack, TaskState};
use kvmprof_recording::{COMM_LENGTH, StackEnd};

use crate::model::{Limits, Selection, task_name};

/// The highest number of a vCPU that is shown without a task on it.
const MAX_VCPUS: u16 = 4095;
/// Maximum number of times of looks, and of runs of looks, together: 8 bytes each.
const MAX_TIMES: usize = 1 << 20;

/// A thread of the guest. Its name isn't part of it, as that changes when the thread executes another program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Thread {
    /// Its process.
    pub pid: i32,
    /// Its tid.
    pub tid: i32,
}

/// A stack in which tasks wait.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct WaitStack {
    /// Its frames, innermost first.
    pub frames: Vec<u64>,
    /// How many of the innermost frames are of the scheduler and of locks.
    pub scheduler: usize,
    /// Whether it has its outermost frame.
    pub is_whole: bool,
}

/// A task, and where it waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WaitKey {
    /// The task.
    pub thread: Thread,
    /// Its state.
    pub state: TaskState,
    /// Its stack; empty if it wasn't read.
    pub stack: Rc<WaitStack>,
}

/// Looks that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookRun {
    /// The number of the first one, in the order of the recording.
    pub first: u32,
    /// How many there are.
    pub count: u32,
}

/// How often and how long a task waited somewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wait {
    /// The number of looks in which it waited there.
    pub seen: u64,
    /// How long it did not run at least, in ns of the host: the time from the first to the last of the looks between which it never ran.
    pub longest: u64,
    /// In which looks it waited there; only some of them if [`TaskSums::times`] is empty.
    pub runs: Vec<LookRun>,
}

/// How many tasks waited for a vCPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VcpuQueue {
    /// The number of tasks that could have run on it and were on no vCPU, summed over all looks.
    pub waiting: u64,
    /// The largest number of them in one look.
    pub most: u64,
    /// The number of looks with at least one of them.
    pub looks: u64,
    /// The number of looks in which no task was on it.
    pub free: u64,
    /// The number of those looks in which a task waited for this or another vCPU.
    pub free_while_waiting: u64,
    /// The growth from look to look of the run delays of tasks that were on it last, in ns of the guest.
    pub delay: u64,
}

/// How often a task waited for one vCPU while a vCPU was free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeWait {
    /// The number of looks in which it waited while any vCPU was free.
    pub looks: u64,
    /// The number of those looks in which the vCPU that it waited for was free.
    pub own: u64,
}

/// The sums of a recording's looks, of the selected part.
#[derive(Clone, Debug, Default)]
pub struct TaskSums {
    /// The number of looks.
    pub looks: u64,
    /// The time of each look, in ns of CLOCK_MONOTONIC; empty if there are too many of them, or of [`Wait::runs`].
    pub times: Vec<u64>,
    /// The number of looks that have all tasks.
    pub complete: u64,
    /// How long a vCPU stood still for all looks together, in ns.
    pub duration: u64,
    /// How long a vCPU stood still for the longest look, in ns.
    pub longest: u64,
    /// The number of tasks that were on a vCPU, summed over all looks.
    pub on_vcpu: u64,
    /// The number of tasks in each state that were on no vCPU, summed over all looks.
    pub states: BTreeMap<TaskState, u64>,
    /// The number of tasks whose stacks weren't read, or that ran while they were read, summed over all looks.
    pub without_stack: u64,
    /// The tasks that waited for each vCPU, by its number. Empty if only some processes were recorded or are selected: nothing is known of the others.
    pub vcpus: BTreeMap<u16, VcpuQueue>,
    /// Where tasks waited that were on no vCPU.
    pub waits: HashMap<WaitKey, Wait>,
    /// The growth of each thread's run delay from the first look to the last one, in ns of the guest.
    pub delays: BTreeMap<Thread, u64>,
    /// Which thread waited for which vCPU while any was free. Empty where `vcpus` is.
    pub free_waits: BTreeMap<(Thread, u16), FreeWait>,
    /// The last known name of each thread, padded with NULs.
    pub names: HashMap<Thread, [u8; COMM_LENGTH]>,
}

/// What is remembered of a task from look to look.
#[derive(Clone, Copy, Debug)]
struct TaskHistory {
    switches: u64,
    /// The time of the first look since which it hasn't run.
    time: u64,
    /// The run delay at the last look.
    delay: Option<u64>,
}

/// Adds looks up.
struct Collector<'s> {
    sums: TaskSums,
    selection: &'s Selection,
    since: HashMap<Thread, TaskHistory>,
    stacks: HashSet<Rc<WaitStack>>,
    /// How many more frames can be kept.
    frames_left: usize,
    /// How many more times and runs of looks can be kept; `None` once there was one too many.
    times_left: Option<usize>,
    vcpus: u16,
    /// In how many looks each vCPU had a task, and in how many of them another one waited for any vCPU.
    busy: BTreeMap<u16, (u64, u64)>,
    looks_with_waiting: u64,
    /// Whether the looks have the tasks of all processes, and all of them are selected.
    has_all_processes: bool,
}

impl WaitStack {
    /// A stack with only the frame of the function that waits.
    fn innermost(&self) -> Self {
        Self {
            frames: self
                .frames
                .iter()
                .skip(self.scheduler)
                .take(1)
                .copied()
                .collect(),
            scheduler: 0,
            is_whole: false,
        }
    }
}

impl Thread {
    fn of(task: &Task) -> Self {
        Self {
            pid: task.pid,
            tid: task.tid,
        }
    }
}

impl TaskSums {
    /// The last known name of `thread`, with characters that can't be shown replaced.
    pub fn name(&self, thread: Thread) -> String {
        self.names.get(&thread).map(task_name).unwrap_or_default()
    }

    /// The processes of which a thread had one of the names in a look.
    ///
    /// # Errors
    /// The recording can't be read.
    pub fn pids_by_name(
        recording: &Recording,
        names: &[String],
        observer: &dyn Observer,
    ) -> Result<BTreeSet<i32>, FileError> {
        let mut pids = BTreeSet::new();
        recording.looks(observer, |look| {
            let named = look.tasks.iter().filter(|task| {
                let name = task.comm.split(|byte| *byte == 0).next();
                names.iter().any(|one| Some(one.as_bytes()) == name)
            });
            pids.extend(named.map(|task| task.pid));
        })?;
        Ok(pids)
    }

    /// Sums up the looks of `recording` that are in `selection`, whose `began` time (ns of CLOCK_MONOTONIC) and number of `vcpus` are the
    /// recording's own.
    ///
    /// # Errors
    /// The recording can't be read.
    pub fn read(
        recording: &Recording,
        contents: &Contents,
        selection: &Selection,
        observer: &dyn Observer,
    ) -> Result<Self, FileError> {
        let mut collector = Collector {
            sums: Self::default(),
            selection,
            since: HashMap::new(),
            stacks: HashSet::new(),
            frames_left: Limits::of_recording(recording.length()).frames,
            times_left: Some(MAX_TIMES),
            busy: BTreeMap::new(),
            looks_with_waiting: 0,
            has_all_processes: contents.info.pids.is_empty() && selection.only.pids.is_empty(),
            vcpus: u16::try_from(contents.info.vcpus).unwrap_or(u16::MAX),
        };
        let began = contents.info.began_monotonic_ns;
        recording.looks(observer, |look| {
            if selection.time.contains(look.time.saturating_sub(began)) {
                collector.add(look);
            }
        })?;
        Ok(collector.finish())
    }
}

/// Whether one more fits into what is `left`.
fn takes(left: &mut Option<usize>) -> bool {
    *left = left.and_then(|left| left.checked_sub(1));
    left.is_some()
}

impl Collector<'_> {
    fn add(&mut self, look: &TaskLook) {
        let sums = &mut self.sums;
        sums.looks += 1;
        if takes(&mut self.times_left) {
            sums.times.push(look.time);
        }
        sums.complete += u64::from(look.is_complete);
        sums.duration = sums.duration.saturating_add(look.duration);
        sums.longest = sums.longest.max(look.duration);
        self.add_queues(look);
        let pids = &self.selection.only.pids;
        for task in &look.tasks {
            if pids.is_empty() || pids.contains(&task.pid) {
                self.add_task(look, task);
            }
        }
    }

    /// Counts the tasks that are on vCPUs and that wait for them. A file can claim any number of vCPUs, so those without a task are counted at
    /// the end.
    fn add_queues(&mut self, look: &TaskLook) {
        let mut waiting: BTreeMap<u16, u64> = BTreeMap::new();
        let mut busy = BTreeSet::new();
        for task in &look.tasks {
            if task.is_on_vcpu {
                busy.insert(task.vcpu);
            } else if task.state == TaskState::Runnable {
                *waiting.entry(task.vcpu).or_default() += 1;
            }
        }
        self.looks_with_waiting += u64::from(!waiting.is_empty());
        self.add_free_waits(look, &busy);
        for vcpu in busy {
            let (all, while_waiting) = self.busy.entry(vcpu).or_default();
            *all += 1;
            *while_waiting += u64::from(!waiting.is_empty());
        }
        for (vcpu, count) in waiting {
            let queue = self.sums.vcpus.entry(vcpu).or_default();
            queue.waiting += count;
            queue.most = queue.most.max(count);
            queue.looks += 1;
        }
    }

    /// Counts the tasks that wait for a vCPU while one is free. The vCPUs in `busy` have a task on them.
    fn add_free_waits(&mut self, look: &TaskLook, busy: &BTreeSet<u16>) {
        let is_any_free = busy.range(..self.vcpus).count() < self.vcpus.into();
        if !is_any_free || !self.has_all_processes {
            return;
        }
        let waiting = look.tasks.iter();
        for task in waiting.filter(|task| !task.is_on_vcpu && task.state == TaskState::Runnable) {
            let key = (Thread::of(task), task.vcpu);
            let wait = self.sums.free_waits.entry(key).or_default();
            wait.looks += 1;
            wait.own += u64::from(!busy.contains(&task.vcpu));
        }
    }

    fn finish(mut self) -> TaskSums {
        if self.times_left.is_none() {
            self.sums.times = Vec::new();
        }
        if !self.has_all_processes {
            self.sums.vcpus.clear();
            return self.sums;
        }
        let last = self.vcpus.saturating_sub(1).min(MAX_VCPUS);
        for vcpu in 0..=last {
            self.sums.vcpus.entry(vcpu).or_default();
        }
        for (vcpu, queue) in &mut self.sums.vcpus {
            let (busy, while_waiting) = self.busy.get(vcpu).copied().unwrap_or_default();
            queue.free = self.sums.looks.saturating_sub(busy);
            queue.free_while_waiting = self.looks_with_waiting.saturating_sub(while_waiting);
        }
        self.sums
    }

    fn add_task(&mut self, look: &TaskLook, task: &Task) {
        let thread = Thread::of(task);
        self.sums.names.insert(thread, task.comm);
        let since = self.since.entry(thread).or_insert(TaskHistory {
            switches: task.switches,
            time: look.time,
            delay: task.run_delay,
        });
        if since.switches != task.switches || task.is_on_vcpu {
            (since.switches, since.time) = (task.switches, look.time);
        }
        let unmoved = look.time.saturating_sub(since.time);
        if let (Some(before), Some(now)) = (since.delay, task.run_delay) {
            let grown = now.saturating_sub(before);
            let queue = self.sums.vcpus.entry(task.vcpu).or_default();
            for sum in [
                self.sums.delays.entry(thread).or_default(),
                &mut queue.delay,
            ] {
                *sum = sum.saturating_add(grown);
            }
        }
        since.delay = task.run_delay;
        if task.is_on_vcpu {
            self.sums.on_vcpu += 1;
            return;
        }
        *self.sums.states.entry(task.state).or_default() += 1;
        let stack = match task.stack {
            TaskStack::Known { scheduler, end, .. } => WaitStack {
                frames: look.frames_of(task.stack).to_vec(),
                scheduler: scheduler.into(),
                is_whole: end == StackEnd::Complete,
            },
            TaskStack::Absent => return,
            TaskStack::Unread | TaskStack::Changed => {
                self.sums.without_stack += 1;
                WaitStack::default()
            }
        };
        let stack = self.shared(stack);
        let key = WaitKey {
            thread,
            state: task.state,
            stack,
        };
        let number = u32::try_from(self.sums.looks - 1).unwrap_or(u32::MAX);
        let wait = self.sums.waits.entry(key).or_default();
        wait.seen += 1;
        wait.longest = wait.longest.max(unmoved);
        match wait.runs.last_mut() {
            Some(run) if run.first.checked_add(run.count) == Some(number) => run.count += 1,
            _ if takes(&mut self.times_left) => wait.runs.push(LookRun {
                first: number,
                count: 1,
            }),
            _ => {}
        }
    }

    /// The shared copy of `stack`. If it is a new one whose frames don't fit into the limit, it has only the innermost frame.
    fn shared(&mut self, mut stack: WaitStack) -> Rc<WaitStack> {
        if stack.frames.len() > self.frames_left && !self.stacks.contains(&stack) {
            stack = stack.innermost();
        }
        if let Some(known) = self.stacks.get(&stack) {
            return Rc::clone(known);
        }
        self.frames_left = self.frames_left.saturating_sub(stack.frames.len());
        let stack = Rc::new(stack);
        self.stacks.insert(Rc::clone(&stack));
        stack
    }
}
