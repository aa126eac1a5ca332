//! Tests looks at tasks of guests that are built by hand.

use kvmprof_recording::StackEnd;
use kvmprof_recording::tasks::{Task, TaskStack};

use super::*;
use crate::test_guest::LinuxGuest;
use kvmprof_introspection_fixtures::kernel::{HOT, Kernel, NEW, OLD, TEXT, offsets, task};
use kvmprof_introspection_fixtures::linux_guest::{DIRECT_MAP, IMAGE, SLIDE, TASKS};

/// The physical address of the tasks' kernel stacks, 512 bytes each.
const STACKS: u64 = 0x80_0000;
const FIRST_SCHEDULER_FRAME: u64 = TEXT + SLIDE + offsets::FRAMED + 0x10;
const WAITING: u64 = TEXT + SLIDE + offsets::SCHEDULER_END + 0x20;
const END: u64 = TEXT + SLIDE + offsets::STACK_END + 4;

/// Tasks of a guest. Task 0 is the idle task.
struct Guest {
    guest: LinuxGuest,
    reader: TaskReader,
}

impl Guest {
    /// A guest with `processes`, each given by its number of threads. All threads sleep.
    fn new(kernel: Kernel, processes: &[u64]) -> Self {
        let guest = Self {
            guest: LinuxGuest::new(kernel),
            reader: TaskReader::default(),
        };
        for index in 1..=guest.guest.list_processes(processes) {
            guest.sleep(index, 1, 1);
        }
        guest
    }

    fn write(&self, address: u64, value: u64) {
        let image = TEXT + SLIDE;
        let physical = match address.checked_sub(image) {
            Some(offset) => IMAGE + offset,
            None => address - DIRECT_MAP,
        };
        self.guest.write(physical, &value.to_le_bytes());
    }

    fn put(&self, index: u64, member: u64, value: u32) {
        let at = TASKS + index * 0x1000 + member;
        self.guest.write(at, &value.to_le_bytes());
    }

    /// Lets task `index` sleep in `state`, after it was put to sleep `switches` times in total.
    fn sleep(&self, index: u64, state: u32, switches: u64) {
        self.put(index, task::STATE, state);
        self.put(index, task::ON_CPU, 0);
        self.put(index, task::CPU, 1);
        self.write(address(index) + task::SWITCHES, switches);
        self.write(address(index) + task::RUN_DELAY, index * 1000);
        let sp = DIRECT_MAP + STACKS + index * 512;
        self.write(address(index) + task::STACK, sp);
        // The saved registers, and frames of 16 bytes each.
        self.write(sp + 48, FIRST_SCHEDULER_FRAME);
        self.write(sp + 56 + 16, WAITING);
        self.write(sp + 56 + 24 + 16, END);
    }

    /// Looks from vCPU 0. False if the look failed.
    fn look(&mut self) -> bool {
        let registers = self.guest.kernel(0);
        let memory = &self.guest.memory;
        let mut vcpu = self.guest.introspector(0);
        vcpu.identify(memory, &registers, false, false);
        vcpu.look_at_tasks(memory, &registers, &mut self.reader)
    }

    fn tasks(&self) -> &[Task] {
        &self.reader.look().tasks
    }

    fn known(&self) -> usize {
        let is_known = |task: &&Task| matches!(task.stack, TaskStack::Known { .. });
        self.tasks().iter().filter(is_known).count()
    }
}

/// The guest virtual address of task `index`.
fn address(index: u64) -> u64 {
    DIRECT_MAP + TASKS + index * 0x1000
}

#[test]
fn the_wait_of_every_thread_is_read() {
    for kernel in [OLD, HOT, NEW] {
        let mut guest = Guest::new(kernel, &[1, 3, 2]);
        guest.sleep(2, 2, 7);
        guest.put(3, task::ON_CPU, 1);
        guest.put(3, task::STATE, 0);
        guest.put(5, task::STATE, 0x80);
        guest.put(5, task::EXIT_STATE, 0x20);
        assert!(guest.look());
        let look = guest.reader.look();
        assert!(look.is_complete);
        let ids: Vec<String> = (look.tasks.iter())
            .map(|task| format!("{}/{}", task.pid, task.tid))
            .collect();
        let expected = "101/101 102/102 102/103 102/104 105/105 105/106";
        assert_eq!(ids.join(" "), expected);
        let states: String = look.tasks.iter().map(|task| task.state.letter()).collect();
        assert_eq!(states, "SDRSZS");
        let second = look.tasks[1];
        assert_eq!((second.vcpu, second.switches), (1, 7));
        assert_eq!(second.run_delay, Some(2000));
        assert!(second.comm.starts_with(b"task-102\0"));
        let frames = [FIRST_SCHEDULER_FRAME, WAITING, END].map(|back| back - 1);
        assert_eq!(look.frames_of(second.stack), frames);
        let TaskStack::Known { scheduler, end, .. } = second.stack else {
            panic!("{second:?}");
        };
        assert_eq!((scheduler, end), (1, StackEnd::Complete));
        // The running task, and the task that has ended.
        assert!(look.tasks[2].is_on_vcpu);
        let [running, ended] = [2, 4].map(|place: usize| look.tasks[place].stack);
        assert_eq!([running, ended], [TaskStack::Absent; 2]);
    }
}

#[test]
fn only_main_threads_are_read_if_requested() {
    let mut guest = Guest::new(HOT, &[3, 2]);
    guest.reader.set_scope(TaskScope::FirstThread);
    assert!(guest.look());
    let look = guest.reader.look();
    assert!(!look.is_complete);
    let [first] = look.tasks.as_slice() else {
        panic!("{:?}", look.tasks);
    };
    assert_eq!((first.pid, first.tid), (101, 101));
    assert_eq!(look.frames_of(first.stack).len(), 3);
    guest.reader.set_scope(TaskScope::All);
    assert!(guest.look());
    assert_eq!((guest.tasks().len(), guest.known()), (5, 5));
}

#[test]
fn a_stack_is_reread_only_after_its_task_has_run() {
    let mut guest = Guest::new(HOT, &[2, 1]);
    guest.look();
    // A change that the reader can't notice, because nothing shows that the tasks have run.
    let sp = DIRECT_MAP + STACKS + 512;
    for index in 0..3 {
        guest.write(sp + index * 512 + 56 + 16, WAITING + 8);
    }
    guest.write(address(2) + task::SWITCHES + 8, 1);
    guest.look();
    let look = guest.reader.look();
    let waits: Vec<u64> = (look.tasks.iter())
        .map(|task| look.frames_of(task.stack)[1])
        .collect();
    assert_eq!(waits, [WAITING - 1, WAITING + 7, WAITING - 1]);
}

#[test]
fn a_new_task_at_the_same_address_is_distinguished() {
    let mut guest = Guest::new(HOT, &[1]);
    guest.look();
    guest.write(address(1) + task::START_TIME, 5);
    guest.write(DIRECT_MAP + STACKS + 512 + 56 + 16, WAITING + 8);
    guest.look();
    let look = guest.reader.look();
    assert_eq!(look.frames_of(look.tasks[0].stack)[1], WAITING + 7);
}

#[test]
fn stacks_beyond_the_limit_are_read_in_later_looks() {
    let mut guest = Guest::new(HOT, &[150, 100]);
    assert!(guest.look());
    assert_eq!((guest.tasks().len(), guest.known()), (250, 250));
    let mut guest = Guest::new(HOT, &[250]);
    // The list of processes is endless.
    guest.write(address(1) + task::TASKS, address(1) + task::TASKS);
    guest.look();
    assert_eq!(guest.tasks().len(), MAX_TASKS);
    assert!(!guest.reader.look().is_complete);
    assert_eq!(guest.known(), MAX_UNWOUND);
    let turn = guest.reader.turn;
    assert_eq!(turn, MAX_UNWOUND);
    guest.look();
    assert_eq!(
        (guest.known(), guest.reader.turn),
        (2 * MAX_UNWOUND, 2 * MAX_UNWOUND)
    );
}

#[test]
fn broken_lists_end_the_look() {
    for (at, to) in [
        (address(1) + task::TASKS, 0),
        (address(1) + task::TASKS, 0xffff_ffff_ffff_fff8),
        (address(1) + task::SIGNAL, 8),
        (
            address(2) + task::THREAD_NODE,
            address(2) + task::THREAD_NODE,
        ),
        (address(2) + task::THREAD_NODE, 3),
    ] {
        let mut guest = Guest::new(HOT, &[3, 1]);
        guest.write(at, to);
        assert!(guest.look());
        assert!(!guest.reader.look().is_complete, "{at:#x} to {to:#x}");
        assert!(!guest.tasks().is_empty());
        assert_eq!(guest.tasks().len(), guest.reader.keys.len());
    }
}

#[test]
fn an_invalid_saved_stack_pointer_is_a_broken_stack() {
    let mut guest = Guest::new(HOT, &[1, 1]);
    guest.write(address(1) + task::STACK, 0xdead_beef);
    let sp = DIRECT_MAP + STACKS + 2 * 512;
    guest.write(sp + 48, 0x1234);
    guest.look();
    for task in guest.tasks() {
        let TaskStack::Known { count, end, .. } = task.stack else {
            panic!("{task:?}");
        };
        assert_eq!((count, end), (0, StackEnd::Broken));
    }
}

#[test]
fn other_guests_have_no_tasks() {
    let guest = LinuxGuest::new(HOT);
    let mut other = crate::VcpuIntrospector::new(crate::GuestKnowledge::unknown().into(), 0);
    let mut reader = TaskReader::default();
    assert!(!other.look_at_tasks(&guest.memory, &guest.kernel(0), &mut reader));
    assert!(reader.look().tasks.is_empty());
}
