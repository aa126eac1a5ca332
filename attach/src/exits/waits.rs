//! The programs that count for how long the vCPUs' threads wait for a processor, and what runs there meanwhile. They run at tracepoints of the host's scheduler, for
//! all threads of the host.
//!
//! A thread waits from when it is woken up, or another one takes its processor, until it runs. At each switch on the processor where it waits, the time since the last
//! one counts for the thread that ran.

use super::program::{Counter, ENTRY, KEY, Plan};
use super::record::{
    COUNT, CPU, LOST_SLOTS, LOST_WAITS, MIGRATIONS, NAME, NAME_BYTES, ON_CPU, SINCE, TOTAL, WAITED,
    WAITS,
};
use crate::kernel_memory::bpf::Instruction;
use crate::kernel_memory::program::{LOAD_64, MOVE_IMMEDIATE, MOVE_REGISTER, STORE_64};
use crate::sampling::assembly::{
    ADD_IMMEDIATE, AND_IMMEDIATE, HELPER_CURRENT_IDS, HELPER_KTIME_GET_NS, JUMP, JUMP_IF_NOT,
    JUMP_IF_NOT_BELOW, JUMP_IF_NOT_EQUAL, JUMP_IF_ZERO, STACK, STORE_IMMEDIATE_64,
    SUBTRACT_REGISTER,
};
use crate::tracepoint::{Member, Tracepoint, TracepointError};

/// Numbers of helpers (`include/uapi/linux/bpf.h`).
const HELPER_CURRENT_CPU: i32 = 8;
const HELPER_CURRENT_COMM: i32 = 16;

/// The number of vCPUs that can wait for the same processor with the time of each known by what ran. A processor's entry has a thread's id, or 0, and a time, for each.
const SLOTS: i16 = 4;
pub const PROCESSOR_BYTES: usize = 16 * SLOTS as usize;
/// The bits of the previous thread's state of which one is set if it doesn't want to run (`TASK_REPORT`, `include/linux/sched.h`). A bit above is set if it was
/// preempted.
const BLOCKED: i32 = 0xff;

/// Registers that calls don't change: the processor's entry, and the time.
const PROCESSOR: u8 = 7;
const NOW: u8 = 8;
/// Where the stack has the processor's number, and a time.
const NUMBER: i16 = KEY - 8;
const ELAPSED: i16 = KEY - 16;

/// The members of `sched_switch` that are read.
#[derive(Clone, Copy, Debug)]
pub struct SwitchMembers {
    /// The state of the thread that ran, which is the calling one.
    pub state: Member,
    /// The thread that is going to run.
    pub next: Member,
}

/// The members of a tracepoint of one thread that waits for a processor.
#[derive(Clone, Copy, Debug)]
pub struct MoveMembers {
    pub thread: Member,
    pub processor: Member,
}

impl SwitchMembers {
    pub fn of(tracepoint: &Tracepoint) -> Result<Self, TracepointError> {
        Ok(Self {
            state: tracepoint.member("prev_state")?,
            next: tracepoint.member("next_pid")?,
        })
    }
}

impl MoveMembers {
    pub fn of(tracepoint: &Tracepoint, processor: &'static str) -> Result<Self, TracepointError> {
        Ok(Self {
            thread: tracepoint.member("pid")?,
            processor: tracepoint.member(processor)?,
        })
    }
}

impl Counter {
    fn load_now(&mut self) {
        self.program.call(HELPER_KTIME_GET_NS);
        self.program.registers(MOVE_REGISTER, NOW, 0);
    }

    /// Puts the entry of the processor whose number is in `register` into [`PROCESSOR`], and ends if there is none.
    fn look_up_processor(&mut self, register: u8) {
        self.program.add(STORE_64, STACK, register, NUMBER, 0);
        self.program.add(STORE_64, STACK, register, KEY, 0);
        self.look_up(self.plan.processors);
        self.program.registers(MOVE_REGISTER, PROCESSOR, 0);
        self.end_if_zero(PROCESSOR);
    }

    /// Puts the entry of the thread whose id is in `register` into [`ENTRY`]: 0 if it is no vCPU's. The key on the stack begins with the id then.
    fn look_up_thread(&mut self, register: u8) {
        self.program.add(STORE_64, STACK, register, KEY, 0);
        self.look_up(self.plan.threads);
        self.program.registers(MOVE_REGISTER, ENTRY, 0);
    }

    /// Sets register 2 to the time since that in register 1; 0 if that is later, on another processor's clock.
    fn elapsed(&mut self) {
        let p = &mut self.program;
        p.registers(MOVE_REGISTER, 2, NOW);
        let later = p.jump(JUMP_IF_NOT_BELOW, 2, 1, 0);
        p.registers(MOVE_REGISTER, 2, 1);
        p.land(later);
        p.registers(SUBTRACT_REGISTER, 2, 1);
    }

    /// Counts the time since the last switch for each thread that waits here: by that thread, and the one that ran, whose ids the key has in its second half.
    fn count_waits(&mut self, next: Member) {
        for slot in (0..SLOTS).map(|slot| 16 * slot) {
            let p = &mut self.program;
            p.add(LOAD_64, 1, PROCESSOR, slot, 0);
            let empty = p.jump(JUMP_IF_ZERO, 1, 0, 0);
            // It may have been moved to another processor, or have ended.
            self.look_up_thread(1);
            let p = &mut self.program;
            let gone = p.jump(JUMP_IF_ZERO, ENTRY, 0, 0);
            p.add(LOAD_64, 1, ENTRY, SINCE, 0);
            let runs = p.jump(JUMP_IF_ZERO, 1, 0, 0);
            p.add(LOAD_64, 1, ENTRY, CPU, 0);
            p.add(LOAD_64, 2, STACK, NUMBER, 0);
            let moved = p.jump(JUMP_IF_NOT_EQUAL, 1, 2, 0);
            p.add(LOAD_64, 1, PROCESSOR, slot + 8, 0);
            self.elapsed();
            self.program.add(STORE_64, STACK, 2, ELAPSED, 0);
            (self.program).add(STORE_64, PROCESSOR, NOW, slot + 8, 0);
            let full = self.find_or_make(ENTRY, self.plan.waits, LOST_WAITS);
            self.program.immediate(MOVE_IMMEDIATE, 1, 1);
            self.add_atomically(COUNT, 1);
            self.program.add(LOAD_64, 1, STACK, ELAPSED, 0);
            self.add_atomically(TOTAL, 1);
            let p = &mut self.program;
            p.registers(MOVE_REGISTER, 1, ENTRY);
            p.immediate(ADD_IMMEDIATE, 1, NAME.into());
            p.immediate(MOVE_IMMEDIATE, 2, NAME_BYTES);
            p.call(HELPER_CURRENT_COMM);
            p.land(full);
            p.add(LOAD_64, 1, PROCESSOR, slot, 0);
            self.load_member(2, next);
            let p = &mut self.program;
            let waits_on = p.jump(JUMP_IF_NOT_EQUAL, 1, 2, 0);
            p.land_all([gone, runs, moved]);
            p.add(STORE_IMMEDIATE_64, PROCESSOR, 0, slot, 0);
            p.land_all([empty, waits_on]);
        }
    }

    /// Notes that the thread of [`ENTRY`], whose id is in the key, waits for the processor of [`PROCESSOR`].
    fn note_processor(&mut self) {
        let p = &mut self.program;
        p.add(LOAD_64, 1, STACK, NUMBER, 0);
        p.add(STORE_64, ENTRY, 1, CPU, 0);
        p.add(LOAD_64, 2, STACK, KEY, 0);
        let mut done = Vec::new();
        for slot in (0..SLOTS).map(|slot| 16 * slot) {
            p.add(LOAD_64, 1, PROCESSOR, slot, 0);
            let taken = p.jump(JUMP_IF_NOT, 1, 0, 0);
            p.add(STORE_64, PROCESSOR, 2, slot, 0);
            p.add(STORE_64, PROCESSOR, NOW, slot + 8, 0);
            done.push(p.jump(JUMP, 0, 0, 0));
            p.land(taken);
        }
        self.count_in_totals(LOST_SLOTS);
        self.program.land_all(done);
    }

    /// Looks up the thread of the tracepoint. Ends if it is no vCPU's.
    fn look_up_moved(&mut self, members: MoveMembers) {
        self.load_member(1, members.thread);
        self.look_up_thread(1);
        self.end_if_zero(ENTRY);
    }

    /// Looks up the processor of the tracepoint, and sets the time. Ends if the thread waits already and is not `waiting`, or the other way round.
    fn look_up_its_processor(&mut self, members: MoveMembers, waiting: bool) {
        self.program.add(LOAD_64, 1, ENTRY, SINCE, 0);
        let code = if waiting { JUMP_IF_ZERO } else { JUMP_IF_NOT };
        let other = self.program.jump(code, 1, 0, 0);
        self.ends.push(other);
        self.load_member(1, members.processor);
        self.look_up_processor(1);
        self.load_now();
        self.load_member(1, members.thread);
        self.program.add(STORE_64, STACK, 1, KEY, 0);
    }
}

/// The program at `sched_switch`.
pub fn at_switch(plan: Plan, members: SwitchMembers) -> Vec<Instruction> {
    let mut counter = Counter::of_all_threads(plan);
    counter.program.call(HELPER_CURRENT_CPU);
    counter.look_up_processor(0);
    counter.load_now();
    counter.program.call(HELPER_CURRENT_IDS);
    (counter.program).add(STORE_64, STACK, 0, KEY + 8, 0);
    counter.count_waits(members.next);
    counter.load_member(1, members.next);
    counter.look_up_thread(1);
    let p = &mut counter.program;
    let other = p.jump(JUMP_IF_ZERO, ENTRY, 0, 0);
    p.immediate(MOVE_IMMEDIATE, 1, 1);
    p.add(STORE_64, ENTRY, 1, ON_CPU, 0);
    p.add(LOAD_64, 1, ENTRY, SINCE, 0);
    let unknown = p.jump(JUMP_IF_ZERO, 1, 0, 0);
    counter.elapsed();
    counter.add_atomically(WAITED, 2);
    let p = &mut counter.program;
    p.immediate(MOVE_IMMEDIATE, 1, 1);
    counter.add_atomically(WAITS, 1);
    let p = &mut counter.program;
    p.add(STORE_IMMEDIATE_64, ENTRY, 0, SINCE, 0);
    p.land_all([other, unknown]);
    counter.load_current_thread(KEY + 8);
    counter.look_up_thread(1);
    counter.end_if_zero(ENTRY);
    (counter.program).add(STORE_IMMEDIATE_64, ENTRY, 0, ON_CPU, 0);
    counter.load_member(1, members.state);
    counter.program.immediate(AND_IMMEDIATE, 1, BLOCKED);
    let blocked = counter.program.jump(JUMP_IF_NOT, 1, 0, 0);
    counter.ends.push(blocked);
    counter.program.add(STORE_64, ENTRY, NOW, SINCE, 0);
    counter.note_processor();
    counter.end()
}

/// The program at `sched_wakeup`.
pub fn at_wakeup(plan: Plan, members: MoveMembers) -> Vec<Instruction> {
    let mut counter = Counter::of_all_threads(plan);
    counter.look_up_moved(members);
    counter.look_up_its_processor(members, false);
    // A thread that was about to block may be woken up before it does.
    counter.program.add(LOAD_64, 1, ENTRY, ON_CPU, 0);
    let runs = counter.program.jump(JUMP_IF_NOT, 1, 0, 0);
    counter.ends.push(runs);
    counter.program.add(STORE_64, ENTRY, NOW, SINCE, 0);
    counter.note_processor();
    counter.end()
}

/// The program at `sched_migrate_task`: the thread is moved, and if it waits, the rest of the wait is on another processor.
pub fn at_migration(plan: Plan, members: MoveMembers) -> Vec<Instruction> {
    let mut counter = Counter::of_all_threads(plan);
    counter.look_up_moved(members);
    counter.program.immediate(MOVE_IMMEDIATE, 1, 1);
    counter.add_atomically(MIGRATIONS, 1);
    counter.look_up_its_processor(members, true);
    counter.note_processor();
    counter.end()
}
